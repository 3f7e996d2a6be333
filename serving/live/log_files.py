"""The files of a mutation log: made, opened, locked, and their errors in our words.

Pages are 16 KiB: a batch of 100 vectors takes ten of them, and one small upsert writes no more than two.

Only one process has the turn to append. Whose it is, is decided by `flock` on a file beside the database: it wakes up
the next one at once, while SQLite's own lock is polled. The kernel frees it when its holder dies.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scannery.indexer import CorruptError, FormatError, StoreError
from scannery.serving.errors import ReadOnlyError

__all__ = [
    "LOG_FILE",
    "LOG_FORMAT",
    "Mode",
    "connected",
    "create_log",
    "exclusive",
    "explained",
    "mark",
    "marked",
    "mode_of",
    "sync_folder",
    "wal_of",
]

LOG_FILE = "log.sqlite"
LOG_FORMAT = 1
"""Version of the database that this code writes; it refuses later ones."""

APPLICATION_ID = 0x5363616E  # "Scan": tells our databases from others
PAGE_BYTES = 1 << 14
BUSY_S = 10.0
_TURN_FILE = "turn.lock"

_SCHEMA = """
CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO state VALUES ('truncated', 0);
CREATE TABLE records (sequence INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE answers (
    request_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL, count INTEGER NOT NULL, answered_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX answers_by_age ON answers (answered_at);
"""


def wal_of(path: Path) -> Path:
    """Return where the write-ahead log of a database is."""
    return path.with_name(f"{LOG_FILE}-wal")


class Mode(enum.Enum):
    """How a log can be opened."""

    OPEN = "rw"
    READ = "ro"
    """Its folder cannot be written."""
    STILL = "ro&immutable=1"
    """Besides, whoever wrote it has closed it: to read it, SQLite would create files, unless it is told of that."""


def mode_of(path: Path) -> Mode:
    """Return how a log can be opened now."""
    if os.access(path.parent, os.W_OK):
        return Mode.OPEN
    return Mode.READ if wal_of(path).exists() else Mode.STILL


def connected(path: Path) -> sqlite3.Connection:
    """Return a connection to a log, for any thread but one at a time.

    Raises:
        FormatError, CorruptError, ReadOnlyError, StoreError: it is of a later format, damaged, or cannot be opened.

    """
    mode = mode_of(path).value
    with explained(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{mode}",
            uri=True,
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _check_format(connection, path)
            # FULL: every commit is synced. Set by connection, not by database.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
        except BaseException:
            connection.close()
            raise
        return connection


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise FormatError(f"{path} is not a mutation log")
    if version > LOG_FORMAT:
        raise FormatError(
            f"{path} has log format {version}, this Scannery reads up to {LOG_FORMAT}; upgrade it"
        )


def create_log(path: Path) -> None:
    """Create an empty log; of several processes that try, one does."""
    with explained(path):
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise _refusal(path, error) from error
        with exclusive(path):
            if path.exists():
                return
            draft = path.with_name(f".tmp-{LOG_FILE}")
            for leftover in path.parent.glob(f"{draft.name}*"):
                leftover.unlink()
            connection = sqlite3.connect(draft, isolation_level=None)
            try:
                connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {LOG_FORMAT}")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(_SCHEMA)
            finally:
                connection.close()
            # Complete before it has its name; the folders too must survive a power cut.
            draft.rename(path)
            sync_folder(path.parent)
            sync_folder(path.parent.parent)


def sync_folder(folder: Path) -> None:
    """Make the names and the content of the files in a folder durable, and the names of those in it."""
    for path in (*(item for item in folder.iterdir() if item.is_file()), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def exclusive(path: Path) -> Iterator[int]:
    """Hold the turn among the processes of this machine; gives the lock's file, for `mark`."""
    try:
        descriptor = os.open(path.with_name(_TURN_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def mark(descriptor: int, sequence: int) -> None:
    """Note in the lock's file what is about to be acknowledged; not synced, since that would cost as much again.

    A write-ahead log that is damaged ends for SQLite before the damage, as if nothing had come after it.
    """
    with suppress(OSError):  # it helps to find out, and nothing depends on it
        os.pwrite(descriptor, b"%020d\n" % sequence, 0)


def marked(path: Path) -> int:
    """Return the last sequence that was acknowledged, as far as that is noted; 0 if it is not."""
    try:
        return int(path.with_name(_TURN_FILE).read_bytes() or 0)
    except (OSError, ValueError):
        return 0


def _refusal(path: Path, error: OSError) -> Exception:
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return ReadOnlyError(f"no writes are taken: {path.parent} cannot be written ({error.strerror})")
    return StoreError(f"{path.parent}: {error.strerror or error}")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the errors of SQLite into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(path, error) from error


# By text: Python 3.10 does not tell the code.
_DAMAGED = ("malformed", "not a database")


def _translated(path: Path, error: sqlite3.Error) -> Exception:
    text = str(error)
    if any(words in text for words in _DAMAGED):
        return CorruptError(f"the mutation log {path} is damaged: {text}")
    if "readonly" in text:
        return ReadOnlyError(f"no writes are taken: the mutation log {path} cannot be written ({text})")
    what = "the disk is full" if "disk is full" in text else text
    return StoreError(f"the mutation log {path} cannot be used now: {what}")
