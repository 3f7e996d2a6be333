"""The mutation log of one machine: an SQLite database in WAL mode, synced at every commit.

One commit costs one sync of the write-ahead log, however many batches are in it. Checkpoints are not left to commits,
which would pay for them now and then (`checkpoint`).

All calls of an object share two connections: one to append, one to read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from scannery.indexer import StoreError
from scannery.live.log.database import BUSY_MS, connected, create_database, explained, sqlite_version
from scannery.live.log.files import (
    DRAFT_FILE,
    LOG_FILE,
    Mode,
    exclusive,
    make_folders,
    mark,
    marked,
    mode_of,
    open_private,
    sync_folder,
    tighten,
    wal_of,
)
from scannery.live.log.forks import check_not_inherited, no_forks, watch_forks
from scannery.live.log.mutation_log import LogEntry, LogIdentity, LogReplacedError, WrongLogError
from scannery.live.log.transaction import (
    SqliteTransaction,
    adopt,
    entries_after,
    identify,
    identity_of,
    position_of,
    truncated_of,
)

__all__ = ["SqliteLog", "rename_log"]

_LOG = logging.getLogger(__name__)

READ_BYTES = 64 << 20
CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_MS = 200
"""A checkpoint that is to give back space waits for those who read, and writers wait for it. Who reads for longer (a
backup, a process that was stopped) keeps the space until the next one."""
TRUNCATE_AT_ONCE = 64
"""Records removed in one transaction: writers wait for it."""
CLOSE_S = 5.0


class SqliteLog:
    """A `MutationLog` in a local folder; it outlives forks, in the parent and in the child (log_forks.py)."""

    def __init__(self, folder: Path, *, create: bool = False, clock: Callable[[], float] = time.time) -> None:
        """Open the log in a folder.

        Raises:
            FileNotFoundError: there is none, and `create` is false.
            FormatError: it is of a later format, or something else altogether.
            CorruptError: it is damaged.
            ReadOnlyError, StoreError: it cannot be opened or created.
            LogReplacedError: it was replaced meanwhile.

        """
        self.path = folder / LOG_FILE
        self._clock = clock
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._tidying = threading.Lock()
        self._unchecked_bytes = 0
        self._closed = False
        self._seen: int | None = None
        self._reader: apsw.Connection | None = None
        self._writer: apsw.Connection | None = None
        watch_forks(self)
        if not self.path.exists():
            if not create:
                raise FileNotFoundError(self.path)
            _create(self.path)
        tighten(folder)
        self._mode = mode_of(self.path)
        self._file = _file_of(self.path)
        with self._read_lock:  # which a fork waits for
            check_not_inherited(self.path)
            self._reader = connected(self.path)
            if _file_of(self.path) != self._file:
                self._close_reader()
                raise LogReplacedError(f"the mutation log {self.path} was replaced while it was opened")

    @contextmanager
    def transaction(self, *, after: int, index_id: str | None = None) -> Iterator[SqliteTransaction]:
        """Wait for the lock, and append in a transaction; see MutationLog."""
        self._check_file()
        with self._write_lock, exclusive(self.path) as lock, explained(self.path):
            self._check_file()
            self._check_open()
            with self._read_lock:
                self._refresh()
            if self._writer is None:
                check_not_inherited(self.path)
                self._writer = connected(self.path)
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                log_id = adopt(connection, index_id)
                transaction = SqliteTransaction(connection, after, self._clock)
                yield transaction
                transaction.forget_answers()
                connection.execute("COMMIT")
                # Again: nothing is to be acknowledged that went into a file without a name.
                self._check_file()
                mark(lock, transaction.position, log_id)
                self._unchecked_bytes += transaction.appended_bytes
            except BaseException:
                # Whether a commit that failed took place is not known; a new connection will see.
                self._writer = None
                with suppress(apsw.Error):
                    connection.execute("ROLLBACK")
                connection.close()
                raise

    def _check_file(self) -> None:
        """Raise LogReplacedError unless the connections are to the file that has the log's name.

        A folder may be renamed or restored under a process, whose connections stay with the file that they opened.
        """
        now = _file_of(self.path)
        if now != self._file:
            what = "was removed" if now is None else "was replaced by another one"
            raise LogReplacedError(f"the mutation log {self.path} {what} while it was open")

    def read(self, after: int, *, max_bytes: int = READ_BYTES) -> Sequence[LogEntry]:
        """Return the entries after a sequence; see MutationLog."""
        with self._read_lock, explained(self.path):
            # One transaction, or records could go between the two questions.
            reader = self._reading()
            reader.execute("BEGIN")
            try:
                return entries_after(reader, after, max_bytes)
            finally:
                reader.execute("COMMIT")

    def changed(self) -> bool:
        """Return whether another connection may have written since this was last asked; see MutationLog."""
        self._check_file()
        with self._read_lock, explained(self.path):
            self._refresh()
            version: int = self._reading().pragma("data_version")
            before, self._seen = self._seen, version
            return version != before

    def _refresh(self) -> None:
        """Open the log again where it could not be written when it was opened, and can be now.

        SQLite takes what it saw then for granted, in all connections of a process.
        """
        if self._mode is not Mode.OPEN and (mode := mode_of(self.path)) is not self._mode:
            self._close_reader()
            self._mode = mode

    def _reading(self) -> apsw.Connection:
        """Return the connection to read with; opened anew after a fork, or where the log can be written by now."""
        self._check_open()
        if self._reader is None:
            check_not_inherited(self.path)
            reader = connected(self.path)
            try:
                self._check_file()
            except BaseException:
                reader.close()
                raise
            self._reader, self._seen = reader, None
        return self._reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the mutation log {self.path} is closed")

    def position(self) -> int:
        """Return the last sequence."""
        with self._read_lock, explained(self.path):
            return position_of(self._reading())

    def acknowledged(self) -> int:
        """Return the last sequence that is known to have been acknowledged; see MutationLog."""
        noted, known = marked(self.path), self.identity()
        if noted.log_id and noted.log_id != known.log_id:
            raise WrongLogError(
                f"{self.path} is not the log whose turn.lock lies beside it: one of the two files was replaced"
            )
        return noted.sequence

    def identity(self) -> LogIdentity:
        """Return which log it is, and of which index."""
        with self._read_lock, explained(self.path):
            return identity_of(self._reading())

    def truncated(self) -> int:
        """Return the sequence up to which entries were removed."""
        with self._read_lock, explained(self.path):
            return truncated_of(self._reading())

    def truncate(self, up_to: int) -> None:
        """Remove the entries up to a sequence, few at a time, so that nobody waits long for the lock."""
        if self.truncated() >= up_to:
            return
        while (low := self.truncated()) < up_to:
            self._truncate_some(min(low + TRUNCATE_AT_ONCE, up_to))
        self.checkpoint(truncate=True)

    def _truncate_some(self, up_to: int) -> None:
        with self.transaction(after=0) as transaction:
            transaction.truncate(up_to)

    def size_bytes(self) -> int:
        """Return the bytes of all files of the log."""
        files = (self.path, wal_of(self.path))
        return sum(path.stat().st_size for path in files if path.exists())

    def tidy(self) -> None:
        """Bring a long write-ahead log into the database, so that it begins anew; in a thread, while others append."""
        # Its file stays as large as it was, so its size would say that it is long for ever after.
        if self._unchecked_bytes < CHECKPOINT_BYTES or not self._tidying.acquire(blocking=False):
            return
        self._unchecked_bytes = 0
        threading.Thread(target=self._tidied, name="scannery-checkpoint", daemon=True).start()

    def _tidied(self) -> None:
        try:
            self.checkpoint()
        except Exception:  # noqa: BLE001
            _LOG.warning("the mutation log %s cannot be tidied now", self.path, exc_info=True)
        finally:
            self._tidying.release()

    def checkpoint(self, *, truncate: bool = False) -> None:
        """Bring what is in the write-ahead log into the database; with `truncate`, give back its space too."""
        with self._write_lock, exclusive(self.path), explained(self.path):
            if self._closed:
                return
            if self._writer is None:
                self._writer = connected(self.path)
            self._writer.execute("PRAGMA incremental_vacuum").fetchall()
            self._writer.set_busy_timeout(CHECKPOINT_MS)
            self._writer.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if truncate else 'PASSIVE'})").fetchall()
            self._writer.set_busy_timeout(BUSY_MS)

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of the log to a new file, while others append."""
        with self._read_lock, explained(self.path):
            os.close(open_private(path))
            target = apsw.Connection(str(path))
            try:
                with target.backup("main", self._reading(), "main") as backup:
                    backup.step()
            finally:
                target.close()

    def close(self) -> None:
        """Close the connections; one whose transaction has not begun is left to the end of the process."""
        with self._read_lock:
            self._closed = True
            self._close_reader()
        if self._tidying.acquire(timeout=CLOSE_S):
            self._tidying.release()
        if self._write_lock.acquire(timeout=CLOSE_S):
            self._close_writer()
            self._write_lock.release()

    def before_fork(self, timeout_s: float) -> bool:
        """Close the connections and hold the locks; see log_forks."""
        if not self._write_lock.acquire(timeout=timeout_s):
            return False
        if not self._read_lock.acquire(timeout=timeout_s):
            self._write_lock.release()
            return False
        with suppress(apsw.Error):  # or the locks would be held for ever
            self._close_writer()
            self._close_reader()
        return True

    def after_fork(self, *, in_child: bool) -> None:
        """Let go of the locks; the connections are opened again when they are needed."""
        if in_child:
            self._tidying = threading.Lock()  # the thread that may have it is the parent's
        self._read_lock.release()
        self._write_lock.release()


def rename_log(path: Path, *, log_id: str, index_id: str | None) -> None:
    """Give a copy of a log, which no process uses, ids of its own; it is one file afterwards.

    Raises:
        FormatError, CorruptError, StoreError: it is no log, or damaged.

    """
    with explained(path), no_forks():
        connection = connected(path)
        try:
            connection.execute("BEGIN IMMEDIATE")
            identify(connection, LogIdentity(log_id, index_id, sqlite_version()))
            connection.execute("COMMIT")
        finally:
            connection.close()  # the last one: brings the write-ahead log into the file


def _file_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from all others as long as it is open; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116  every look at the log pays for it
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _create(path: Path) -> None:
    """Create an empty log; of several processes that try, one does."""
    make_folders(path.parent)
    with explained(path), exclusive(path):
        if path.exists():
            return
        draft = path.with_name(DRAFT_FILE)
        for leftover in path.parent.glob(f"{draft.name}*"):
            leftover.unlink()
        # SQLite gives the files that it makes beside a database the rights of that.
        os.close(open_private(draft))
        with no_forks():
            create_database(draft)
        # Complete before it has its name; the folders too must survive a power cut.
        draft.rename(path)
        sync_folder(path.parent)
        sync_folder(path.parent.parent, files=False)
