"""The mutation log of one machine: an SQLite database in WAL mode, synced at every commit.

A commit costs one sync of the write-ahead log, for any number of batches. Checkpoints run apart from commits, which
they would delay (`checkpoint`).

Each object has two connections: one to append, one to read.

Copies of a log as a single file, whatever kind of log it comes from: an SQLite database, in backups.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from scannery.indexer import StoreError
from scannery.indexer.store.changes import note_change
from scannery.indexer.store.folder_backend import sync_folder
from scannery.live.log.database import BUSY_MS, connected, create_database, translated_errors
from scannery.live.log.files import (
    DRAFT_FILE,
    LOG_FILE,
    Mode,
    check_not_inherited,
    exclusive,
    make_folders,
    mode_of,
    no_forks,
    open_private,
    read_mark,
    restrict_permissions,
    sync_files,
    wal_of,
    watch_forks,
    write_mark,
)
from scannery.live.log.mutation_log import LogEntry, LogIdentity, LogReplacedError, WrongLogError
from scannery.live.log.transaction import (
    SqliteTransaction,
    adopt,
    answers_of,
    entries_after,
    identify,
    identity_of,
    keep_answers,
    position_of,
    truncated_of,
    written_by,
)

__all__ = ["SqliteLog", "read_copy", "rename_log", "write_copy"]


_LOG = logging.getLogger(__name__)

READ_BYTES = 64 << 20
CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_MS = 200
"""A checkpoint that frees space waits this long for readers, while writers wait for it. If a reader takes longer (a
backup, a stopped process), the next checkpoint frees the space."""
TRUNCATE_AT_ONCE = 64
"""Records removed in one transaction, during which writers wait."""
CLOSE_S = 5.0
"""Seconds that `close` waits for a running commit, and for a running checkpoint."""


class SqliteLog:
    """A `MutationLog` in a local folder; it stays usable after a fork, in parent and child (files.py)."""

    def __init__(self, folder: Path, *, create: bool = False, clock: Callable[[], float] = time.time) -> None:
        """Open the log in a folder.

        Args:
            folder: of the log.
            create: create the log if there is none.
            clock: returns seconds since 1970; decides how long responses are kept.

        Raises:
            FileNotFoundError: there is none, and `create` is false.
            FormatError: its format is later than this code's, or it is not a log.
            CorruptError: it is damaged.
            ReadOnlyError, StoreError: it cannot be opened or created.
            LogReplacedError: it was replaced while it was opened.

        """
        self.path = folder / LOG_FILE
        self._clock = clock
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._checkpointing = threading.Lock()
        self._uncheckpointed_bytes = 0
        self._closed = False
        self._data_version: int | None = None
        """SQLite's counter of other connections' commits at the last `changed`."""
        self._reader: apsw.Connection | None = None
        self._writer: apsw.Connection | None = None
        watch_forks(self)
        if not self.path.exists():
            if not create:
                raise FileNotFoundError(self.path)
            _create(self.path)
        restrict_permissions(folder)
        self._mode = mode_of(self.path)
        self._file_id = _file_id(self.path)
        with self._read_lock:  # a fork waits for this lock
            check_not_inherited(self.path)
            self._reader = connected(self.path)
            if _file_id(self.path) != self._file_id:
                self._close_reader()
                raise LogReplacedError(f"the mutation log {self.path} was replaced while it was opened")

    @contextmanager
    def transaction(self, *, after: int, index_id: str | None = None) -> Iterator[SqliteTransaction]:
        """Wait for the lock, and append in a transaction; see MutationLog."""
        self._check_file()
        with self._write_lock, exclusive(self.path) as lock, translated_errors(self.path):
            self._check_file()
            self._check_open()
            with self._read_lock:
                self._update_mode()
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
                # Again: a commit to a file that was removed or renamed must not be acknowledged.
                self._check_file()
                write_mark(lock, transaction.position, log_id)
                # The folder of the log is ROOT/INDEX/log; followers of ROOT see the note within milliseconds.
                note_change(self.path.parents[2], self.path.parents[1].name)
                self._uncheckpointed_bytes += transaction.appended_bytes
            except BaseException:
                # A failed commit may have taken effect or not; a new connection reads the truth.
                self._writer = None
                with suppress(apsw.Error):
                    connection.execute("ROLLBACK")
                connection.close()
                raise

    def _check_file(self) -> None:
        """Raise LogReplacedError unless the connections belong to the file at the log's path.

        If the folder is renamed or restored while the log is open, the connections stay with the former file.
        """
        now = _file_id(self.path)
        if now != self._file_id:
            what = "was removed" if now is None else "was replaced by another one"
            raise LogReplacedError(f"the mutation log {self.path} {what} while it was open")

    def read(self, after: int, *, max_bytes: int = READ_BYTES) -> Sequence[LogEntry]:
        """Return the entries after a sequence; see MutationLog."""
        with self._read_lock, translated_errors(self.path):
            # One transaction, or records could be truncated between the two queries.
            reader = self._reading()
            reader.execute("BEGIN")
            try:
                return entries_after(reader, after, max_bytes)
            finally:
                reader.execute("COMMIT")

    def changed(self, *, now: bool = False) -> bool:
        """Return whether another connection may have written since the last call; see MutationLog."""
        self._check_file()
        with self._read_lock, translated_errors(self.path):
            self._update_mode()
            version: int = self._reading().pragma("data_version")
            before, self._data_version = self._data_version, version
            return version != before

    def _update_mode(self) -> None:
        """Close the reader if it was opened read-only and the log can be opened in another mode now.

        SQLite applies the first mode to all connections of a process.
        """
        if self._mode is not Mode.OPEN and (mode := mode_of(self.path)) is not self._mode:
            self._close_reader()
            self._mode = mode

    def _reading(self) -> apsw.Connection:
        """Return the connection to read with, opened if it is closed (after a fork, or after a change of mode)."""
        self._check_open()
        if self._reader is None:
            check_not_inherited(self.path)
            reader = connected(self.path)
            try:
                self._check_file()
            except BaseException:
                reader.close()
                raise
            self._reader, self._data_version = reader, None
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
        with self._read_lock, translated_errors(self.path):
            return position_of(self._reading())

    def acknowledged(self) -> int:
        """Return the last acknowledged sequence that the lock file names; see MutationLog."""
        mark, identity = read_mark(self.path), self.identity()
        if mark.log_id and mark.log_id != identity.log_id:
            raise WrongLogError(
                f"{self.path} and the turn.lock beside it belong to different logs: one of the two files was replaced"
            )
        return mark.sequence

    def identity(self) -> LogIdentity:
        """Return the ids of the log and its index."""
        with self._read_lock, translated_errors(self.path):
            return identity_of(self._reading())

    def truncated(self) -> int:
        """Return the sequence up to which entries were removed."""
        with self._read_lock, translated_errors(self.path):
            return truncated_of(self._reading())

    def truncate(self, up_to: int) -> None:
        """Remove the entries up to a sequence, TRUNCATE_AT_ONCE per transaction, so that writers wait briefly."""
        if self.truncated() >= up_to:
            return
        while (low := self.truncated()) < up_to:
            with self.transaction(after=0) as transaction:
                transaction.truncate(min(low + TRUNCATE_AT_ONCE, up_to))
        self.checkpoint(truncate=True)

    def size_bytes(self) -> int:
        """Return the size of the log's files in bytes."""
        files = (self.path, wal_of(self.path))
        return sum(path.stat().st_size for path in files if path.exists())

    def tidy(self) -> None:
        """Checkpoint a write-ahead log with more than CHECKPOINT_BYTES, in a thread, while others append."""
        # The file keeps its size after a checkpoint, so the size does not tell how much is new.
        if self._uncheckpointed_bytes < CHECKPOINT_BYTES or not self._checkpointing.acquire(blocking=False):
            return
        self._uncheckpointed_bytes = 0
        threading.Thread(target=self._checkpoint_in_thread, name="scannery-checkpoint", daemon=True).start()

    def _checkpoint_in_thread(self) -> None:
        try:
            self.checkpoint()
        except Exception:  # noqa: BLE001
            _LOG.warning("the mutation log %s cannot be checkpointed now", self.path, exc_info=True)
        finally:
            self._checkpointing.release()

    def checkpoint(self, *, truncate: bool = False) -> None:
        """Copy the write-ahead log into the database; with `truncate`, free its space too."""
        with self._write_lock, exclusive(self.path), translated_errors(self.path):
            if self._closed:
                return
            if self._writer is None:
                self._writer = connected(self.path)
            self._writer.execute("PRAGMA incremental_vacuum").fetchall()
            self._writer.set_busy_timeout(CHECKPOINT_MS)
            self._writer.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if truncate else 'PASSIVE'})").fetchall()
            self._writer.set_busy_timeout(BUSY_MS)

    def copy_to(self, path: Path, *, after: int = 0) -> None:
        """Write a consistent copy of the log to a new file, while others append; see MutationLog."""
        # Forks are prevented first: one that runs waits for the lock of the reader.
        with no_forks(), self._read_lock, translated_errors(self.path):
            reader = self._reading()
            reader.execute("BEGIN")
            try:
                write_copy(
                    path,
                    identity_of(reader),
                    max(after, truncated_of(reader)),
                    lambda position: entries_after(reader, position, COPY_BYTES),
                    answers_of(reader),
                )
            finally:
                reader.execute("COMMIT")

    def close(self) -> None:
        """Close the connections; one whose commit takes longer than CLOSE_S stays open until the process ends."""
        with self._read_lock:
            self._closed = True
            self._close_reader()
        if self._checkpointing.acquire(timeout=CLOSE_S):
            self._checkpointing.release()
        if self._write_lock.acquire(timeout=CLOSE_S):
            self._close_writer()
            self._write_lock.release()

    def before_fork(self, timeout_s: float) -> bool:
        """Close the connections and hold the locks; see files.py."""
        if not self._write_lock.acquire(timeout=timeout_s):
            return False
        if not self._read_lock.acquire(timeout=timeout_s):
            self._write_lock.release()
            return False
        with suppress(apsw.Error):  # an exception would leave the locks held
            self._close_writer()
            self._close_reader()
        return True

    def after_fork(self, *, in_child: bool) -> None:
        """Release the locks; connections are opened again when they are needed."""
        if in_child:
            self._checkpointing = threading.Lock()  # the thread that may hold it exists only in the parent
        self._read_lock.release()
        self._write_lock.release()


def rename_log(path: Path, *, log_id: str, index_id: str | None) -> None:
    """Set the ids of a copy of a log that no process uses; afterwards it is a single file.

    Args:
        path: of the copy.
        log_id: its new id, 32 hexadecimal digits.
        index_id: id of the index that it belongs to from now on.

    Raises:
        FormatError, CorruptError, StoreError: it is not a log, or damaged.

    """
    with translated_errors(path), no_forks():
        connection = connected(path)
        try:
            connection.execute("BEGIN IMMEDIATE")
            identify(connection, LogIdentity(log_id, index_id, written_by()))
            connection.execute("COMMIT")
        finally:
            connection.close()  # closing the last connection copies the write-ahead log into the file


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, which identify it while it is open; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116  called for every check of the log
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _create(path: Path) -> None:
    """Create an empty log, once if several processes try."""
    make_folders(path.parent)
    with translated_errors(path), exclusive(path):
        if path.exists():
            return
        draft = path.with_name(DRAFT_FILE)
        for leftover in path.parent.glob(f"{draft.name}*"):
            leftover.unlink()
        # SQLite gives the files that it creates beside a database the permissions of the database.
        os.close(open_private(draft))
        with no_forks():
            create_database(draft)
        # Renamed once complete; the names of the folders too must survive a power cut.
        draft.rename(path)
        sync_files(path.parent)
        sync_folder(path.parent.parent)


COPY_BYTES = 16 << 20


def write_copy(
    path: Path,
    identity: LogIdentity,
    truncated: int,
    read: Callable[[int], Sequence[LogEntry]],
    answers: Iterable[apsw.SQLiteValues] = (),
) -> None:
    """Write entries to a new file.

    Args:
        path: of the file, which must not exist.
        identity: of the log.
        truncated: the sequence after which it begins.
        read: returns some entries after a sequence; none: there are none.
        answers: rows of responses to requests.

    """
    os.close(open_private(path))
    with translated_errors(path), no_forks():
        create_database(path)
        with closing(connected(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            identify(connection, identity)
            transaction = SqliteTransaction(connection, truncated, lambda: 0.0)
            while entries := read(transaction.position):
                for entry in entries:
                    transaction.append(entry.data)
            keep_answers(connection, answers)
            connection.execute("COMMIT")


def read_copy(path: Path) -> tuple[int, Iterator[LogEntry]]:
    """Return the sequence after which a copy begins, and its entries."""
    with translated_errors(path), no_forks(), closing(connected(path)) as connection:
        truncated = truncated_of(connection)
    return truncated, _entries(path, truncated)


def _entries(path: Path, after: int) -> Iterator[LogEntry]:
    with translated_errors(path), closing(connected(path)) as connection:
        while entries := entries_after(connection, after, COPY_BYTES):
            yield from entries
            after = entries[-1].sequence
