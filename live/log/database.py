"""The SQLite database of a mutation log: its schema, connections to it, and its errors in our words.

Pages are 16 KiB: a batch of 100 vectors takes ten of them, and one small upsert writes no more than two.

SQLite comes from a wheel (apsw), not from the system, so its version is known. Versions before 3.51.3 may lose commits
when a checkpoint meets a commit that begins the write-ahead log anew (https://sqlite.org/wal.html, "the WAL-reset
bug"); they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from scannery.indexer import CorruptError, FormatError, StoreError
from scannery.live.log.files import Mode, mode_of
from scannery.runtime.errors import ConfigError, ReadOnlyError

__all__ = [
    "BUSY_MS",
    "LOG_FORMAT",
    "check_sqlite",
    "connected",
    "create_database",
    "explained",
    "sqlite_version",
    "upgrade",
]

LOG_FORMAT = 2
"""Version of the database that this code writes; it refuses later ones, and reads those from 1 on.

2 knows which log it is and of which index, and has the digests of requests. A log of format 1 becomes one by the first
write. Releases that know only format 1 refuse it: they would not compare.
"""

APPLICATION_ID = 0x5363616E  # "Scan": tells our databases from others
PAGE_BYTES = 1 << 14
BUSY_MS = 10_000
_SOUND_SQLITE = (3, 51, 3)
_SOUND_BACKPORTS = ((3, 50, 7), (3, 44, 6))

_SCHEMA = """
CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO state VALUES ('truncated', 0);
CREATE TABLE records (sequence INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE answers (
    request_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL, count INTEGER NOT NULL, answered_at REAL NOT NULL,
    digest BLOB
) WITHOUT ROWID;
CREATE INDEX answers_by_age ON answers (answered_at);
"""


def sqlite_version() -> str:
    """Return the version of SQLite that logs are written with, as "3.54.1"."""
    return apsw.sqlite_lib_version()


def check_sqlite(version: str | None = None) -> None:
    """Refuse a SQLite that may lose commits.

    Raises:
        ConfigError: it is one.

    """
    version = version or sqlite_version()
    parts = tuple(int(part) for part in version.split("."))
    backported = any(parts[:2] == sound[:2] and parts >= sound for sound in _SOUND_BACKPORTS)
    if parts < _SOUND_SQLITE and not backported:
        needed = ".".join(map(str, _SOUND_SQLITE))
        raise ConfigError(
            f"SQLite {version} may lose live updates that were acknowledged; {needed} or later is needed: "
            "install a later apsw"
        )


def connected(path: Path) -> apsw.Connection:
    """Return a connection to a log, for any thread but one at a time.

    Raises:
        FormatError, CorruptError, ReadOnlyError, StoreError: it is of a later format, damaged, or cannot be opened.
        ConfigError: SQLite may lose commits.

    """
    check_sqlite()
    mode = mode_of(path)
    with explained(path):
        connection = apsw.Connection(
            f"{path.absolute().as_uri()}?mode={mode.value}",
            flags=apsw.SQLITE_OPEN_URI
            | (apsw.SQLITE_OPEN_READWRITE if mode is Mode.OPEN else apsw.SQLITE_OPEN_READONLY),
        )
        try:
            connection.set_busy_timeout(BUSY_MS)
            _check_format(connection, path)
            # FULL: every commit is synced. Set by connection, not by database.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
        except BaseException:
            connection.close()
            raise
        return connection


def _check_format(connection: apsw.Connection, path: Path) -> None:
    if connection.pragma("application_id") != APPLICATION_ID:
        raise FormatError(f"{path} is not a mutation log")
    version = connection.pragma("user_version")
    if version > LOG_FORMAT:
        raise FormatError(
            f"{path} has log format {version}, this Scannery reads up to {LOG_FORMAT}; upgrade it"
        )


def create_database(path: Path) -> None:
    """Write an empty database into an empty file."""
    check_sqlite()
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {LOG_FORMAT}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(_SCHEMA)
    finally:
        connection.close()


def upgrade(connection: apsw.Connection) -> None:
    """Bring a log of an earlier format to the present one, inside of a transaction."""
    if connection.pragma("user_version") < LOG_FORMAT:
        connection.execute("ALTER TABLE answers ADD COLUMN digest BLOB")
        connection.execute(f"PRAGMA user_version = {LOG_FORMAT}")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """LogTransaction the errors of SQLite into ours."""
    try:
        yield
    except apsw.Error as error:
        raise _translated(path, error) from error


def _translated(path: Path, error: apsw.Error) -> Exception:
    match error:
        case apsw.CorruptError() | apsw.NotADBError():
            return CorruptError(f"the mutation log {path} is damaged: {error}")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return ReadOnlyError(f"no writes are taken: the mutation log {path} cannot be written ({error})")
        case apsw.FullError():
            return StoreError(f"the mutation log {path} cannot be used now: the disk is full")
        case _:
            return StoreError(f"the mutation log {path} cannot be used now: {error}")
