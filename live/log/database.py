"""The SQLite database of a mutation log: schema, connections, translation of errors.

Pages are 16 KiB: a batch of 100 vectors takes ten pages, and one small upsert writes at most two.

SQLite comes from a wheel (apsw), not from the system, so its version is known. Versions before 3.51.3 are refused: they
may lose commits when a checkpoint meets a commit that restarts the write-ahead log (https://sqlite.org/wal.html, "the
WAL-reset bug").
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
    "sqlite_version",
    "translated_errors",
    "upgrade",
]

LOG_FORMAT = 2
"""Version of the database that this code writes; it reads 1 to 2 and refuses later versions.

2 added the ids of log and index, and the digests of requests. The first write upgrades a log of format 1. Releases that
know only format 1 refuse format 2: they would not compare the ids.
"""

APPLICATION_ID = 0x5363616E  # "Scan"
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
    """Return the version of the SQLite library, as "3.54.1"."""
    return apsw.sqlite_lib_version()


def check_sqlite(version: str | None = None) -> None:
    """Refuse a version of SQLite that may lose commits; None: the version of the library.

    Raises:
        ConfigError: the version may lose commits.

    """
    version = version or sqlite_version()
    parts = tuple(int(part) for part in version.split("."))
    backported = any(parts[:2] == sound[:2] and parts >= sound for sound in _SOUND_BACKPORTS)
    if parts < _SOUND_SQLITE and not backported:
        needed = ".".join(map(str, _SOUND_SQLITE))
        raise ConfigError(
            f"SQLite {version} may lose acknowledged live updates; {needed} or later is needed: install a later apsw"
        )


def connected(path: Path) -> apsw.Connection:
    """Return a connection to a log; any thread may use it, one at a time.

    Raises:
        FormatError, CorruptError, ReadOnlyError, StoreError: the log has a later format, is damaged, or cannot be
            opened.
        ConfigError: SQLite may lose commits.

    """
    check_sqlite()
    mode = mode_of(path)
    with translated_errors(path):
        connection = apsw.Connection(
            f"{path.absolute().as_uri()}?mode={mode.value}",
            flags=apsw.SQLITE_OPEN_URI
            | (apsw.SQLITE_OPEN_READWRITE if mode is Mode.OPEN else apsw.SQLITE_OPEN_READONLY),
        )
        try:
            connection.set_busy_timeout(BUSY_MS)
            _check_format(connection, path)
            # FULL syncs every commit. SQLite stores the setting per connection, not per database.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            # What is deleted must not stay in the file: it may be of somebody who is to be forgotten.
            connection.execute("PRAGMA secure_delete = ON")
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
    """Upgrade a log of an earlier format to LOG_FORMAT, inside a transaction."""
    if connection.pragma("user_version") < LOG_FORMAT:
        connection.execute("ALTER TABLE answers ADD COLUMN digest BLOB")
        connection.execute(f"PRAGMA user_version = {LOG_FORMAT}")


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as errors of `scannery`."""
    try:
        yield
    except apsw.Error as error:
        raise _translated(path, error) from error


def _translated(path: Path, error: apsw.Error) -> Exception:
    match error:
        case apsw.CorruptError() | apsw.NotADBError():
            return CorruptError(f"the mutation log {path} is damaged: {error}")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return ReadOnlyError(
                f"the index takes no writes: its mutation log {path} cannot be written ({error})"
            )
        case apsw.FullError():
            return StoreError(f"the mutation log {path} cannot be used now: the disk is full")
        case _:
            return StoreError(f"the mutation log {path} cannot be used now: {error}")
