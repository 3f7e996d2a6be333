"""The mutation log of one machine: an SQLite database in WAL mode, synced at every commit.

One commit costs one sync of the write-ahead log, however many batches are in it. Checkpoints are not left to commits,
which would pay for them now and then (`checkpoint`).

A connection belongs to the process that opened it. All calls of an object share two: one to append, one to read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from scannery.indexer import CorruptError
from scannery.serving.live.log import Answer, LogEntry, LogGapError
from scannery.serving.live.log_database import connected, create_database, explained
from scannery.serving.live.log_files import (
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

__all__ = ["SqliteLog"]

_LOG = logging.getLogger(__name__)

READ_BYTES = 64 << 20
KEEP_ANSWERS_S = 3600.0
CHECKPOINT_BYTES = 64 << 20
TRUNCATE_AT_ONCE = 64
"""Records removed in one transaction: writers wait for it."""
CLOSE_S = 5.0


class SqliteLog:
    """A `MutationLog` in a local folder. Not to be carried over a fork: open it where it is used."""

    def __init__(self, folder: Path, *, create: bool = False, clock: Callable[[], float] = time.time) -> None:
        """Open the log in a folder.

        Raises:
            FileNotFoundError: there is none, and `create` is false.
            FormatError: it is of a later format, or something else altogether.
            CorruptError: it is damaged.
            ReadOnlyError, StoreError: it cannot be opened or created.

        """
        self.path = folder / LOG_FILE
        self._clock = clock
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._tidying = threading.Lock()
        self._unchecked_bytes = 0
        self._closed = False
        self._seen: int | None = None
        if not self.path.exists():
            if not create:
                raise FileNotFoundError(self.path)
            _create(self.path)
        tighten(folder)
        self._mode = mode_of(self.path)
        self._reader = connected(self.path)
        self._writer: apsw.Connection | None = None

    @classmethod
    def opener(cls, folder: Path) -> Callable[..., SqliteLog]:
        """Return what opens the log in a folder, given `create`, and is quick to find that there is none.

        Without a watcher, every query of an index that was never written to asks for it.
        """
        path = str(folder / LOG_FILE)

        def opened(*, create: bool = False) -> SqliteLog:
            if not create and not os.path.exists(path):  # noqa: PTH110  a third of what Path.exists takes
                raise FileNotFoundError(path)
            return cls(folder, create=create)

        return opened

    @contextmanager
    def turn(self, *, after: int) -> Iterator[_Turn]:
        """Wait for the turn to append; see MutationLog."""
        with self._write_lock, exclusive(self.path) as lock, explained(self.path):
            with self._read_lock:
                self._refresh()
            if self._writer is None:
                self._writer = connected(self.path)
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                turn = _Turn(connection, after, self._clock)
                yield turn
                turn.forget_answers()
                connection.execute("COMMIT")
                mark(lock, turn.position)
                self._unchecked_bytes += turn.appended_bytes
            except BaseException:
                # Whether a commit that failed took place is not known; a new connection will see.
                self._writer = None
                with suppress(apsw.Error):
                    connection.execute("ROLLBACK")
                connection.close()
                raise

    def read(self, after: int, *, max_bytes: int = READ_BYTES) -> Sequence[LogEntry]:
        """Return the entries after a sequence; see MutationLog."""
        with self._read_lock, explained(self.path):
            # One transaction, or records could go between the two questions.
            self._reader.execute("BEGIN")
            try:
                return _read(self._reader, after, max_bytes)
            finally:
                self._reader.execute("COMMIT")

    def changed(self) -> bool:
        """Return whether another connection may have written since this was last asked."""
        with self._read_lock, explained(self.path):
            self._refresh()
            version: int = self._reader.pragma("data_version")
            before, self._seen = self._seen, version
            return version != before

    def _refresh(self) -> None:
        """Open the log again where it could not be written when it was opened, and can be now.

        SQLite takes what it saw then for granted, in all connections of a process.
        """
        if self._mode is not Mode.OPEN and (mode := mode_of(self.path)) is not self._mode:
            self._reader.close()
            self._reader, self._mode, self._seen = connected(self.path), mode, None

    def position(self) -> int:
        """Return the last sequence."""
        with self._read_lock, explained(self.path):
            return _position(self._reader)

    def acknowledged(self) -> int:
        """Return the last sequence that is known to have been acknowledged; see MutationLog."""
        return marked(self.path)

    def truncated(self) -> int:
        """Return the sequence up to which entries were removed."""
        with self._read_lock, explained(self.path):
            return _truncated(self._reader)

    def truncate(self, up_to: int) -> None:
        """Remove the entries up to a sequence, few at a time, so that nobody waits long for a turn."""
        if self.truncated() >= up_to:
            return
        while (low := self.truncated()) < up_to:
            self._truncate_some(min(low + TRUNCATE_AT_ONCE, up_to))
        self.checkpoint(truncate=True)

    def _truncate_some(self, up_to: int) -> None:
        with self.turn(after=0) as turn:
            turn.truncate(up_to)

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
            self._writer.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if truncate else 'PASSIVE'})").fetchall()

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of the log to a new file, while others append."""
        with self._read_lock, explained(self.path):
            os.close(open_private(path))
            target = apsw.Connection(str(path))
            try:
                with target.backup("main", self._reader, "main") as backup:
                    backup.step()
            finally:
                target.close()

    def close(self) -> None:
        """Close the connections; one that waits for its turn is left to the end of the process."""
        with self._read_lock:
            self._reader.close()
        if self._tidying.acquire(timeout=CLOSE_S):
            self._tidying.release()
        if self._write_lock.acquire(timeout=CLOSE_S):
            self._closed = True
            if self._writer is not None:
                self._writer.close()
            self._write_lock.release()


class _Turn:
    """See Turn."""

    def __init__(self, connection: apsw.Connection, after: int, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self.position = _position(connection)
        self.appended_bytes = 0
        self._answered = False
        if self.position < after:
            # The log is older than the version, or was lost: what it has is in the segments, or nowhere.
            self.truncate(after)
            self.position = after

    def read(self, after: int) -> Sequence[LogEntry]:
        return _read(self._connection, after, None)

    def answer_of(self, request_id: str) -> Answer | None:
        row = self._connection.execute(
            "SELECT sequence, count FROM answers WHERE request_id = ? AND answered_at > ?",
            (request_id, self._clock() - KEEP_ANSWERS_S),
        ).fetchone()
        return None if row is None else Answer(*row)

    def append(self, data: bytes, *, request_id: str = "", count: int = 0) -> int:
        sequence = self.position + 1
        self._connection.execute(
            "INSERT INTO records VALUES (?, ?, ?)", (sequence, _checksum(sequence, data), data)
        )
        if request_id:
            self._answered = True
            self._connection.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)",
                (request_id, sequence, count, self._clock()),
            )
        self.position = sequence
        self.appended_bytes += len(data)
        return sequence

    def truncate(self, up_to: int) -> None:
        self._connection.execute("DELETE FROM records WHERE sequence <= ?", (up_to,))
        self._connection.execute("UPDATE state SET value = ? WHERE name = 'truncated'", (up_to,))

    def forget_answers(self) -> None:
        if self._answered:
            too_old = self._clock() - KEEP_ANSWERS_S
            self._connection.execute("DELETE FROM answers WHERE answered_at <= ?", (too_old,))


def _read(connection: apsw.Connection, after: int, max_bytes: int | None) -> list[LogEntry]:
    truncated = _truncated(connection)
    if after < truncated:
        raise LogGapError(f"the log begins after sequence {truncated}, {after} was asked for")
    rows = connection.execute(
        "SELECT sequence, checksum, data FROM records WHERE sequence > ? ORDER BY sequence", (after,)
    )
    entries: list[LogEntry] = []
    size_bytes = 0
    for sequence, checksum, data in rows:
        if sequence != after + len(entries) + 1:
            raise CorruptError(f"the log has no record {after + len(entries) + 1}, but a later one")
        if checksum != _checksum(sequence, data):
            raise CorruptError(f"record {sequence} of the log is damaged: its checksum is wrong")
        entries.append(LogEntry(sequence, data))
        size_bytes += len(data)
        if max_bytes is not None and size_bytes >= max_bytes:
            break
    return entries


def _position(connection: apsw.Connection) -> int:
    last: int | None = connection.execute("SELECT max(sequence) FROM records").get
    return max(last or 0, _truncated(connection))


def _truncated(connection: apsw.Connection) -> int:
    value: int = connection.execute("SELECT value FROM state WHERE name = 'truncated'").get
    return value


def _checksum(sequence: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(sequence.to_bytes(8, "little")))


def _create(path: Path) -> None:
    """Create an empty log; of several processes that try, one does."""
    make_folders(path.parent)
    with explained(path), exclusive(path):
        if path.exists():
            return
        draft = path.with_name(f".tmp-{LOG_FILE}")
        for leftover in path.parent.glob(f"{draft.name}*"):
            leftover.unlink()
        # SQLite gives the files that it makes beside a database the rights of that.
        os.close(open_private(draft))
        create_database(draft)
        # Complete before it has its name; the folders too must survive a power cut.
        draft.rename(path)
        sync_folder(path.parent)
        sync_folder(path.parent.parent, files=False)
