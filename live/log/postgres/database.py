"""The connections of this process to one database, shared by the logs of all its indexes.

A connection is used by one thread at a time; most of the time there are two or three. One that had an error is closed.
After a fork, the child opens connections of its own: two processes on one would read each other's answers.

If the database cannot be reached, further attempts fail at once for a moment, so that queries that look at the log
(embedded ones do) do not each wait for a network that does not answer.

Errors of PostgreSQL become errors of `scannery`; no message shows a part of a password.

The tables of the logs are in the schema `scannery` of a database. A row of `logs` is the log of one index; its lock is
the turn to append. Indexes have random ids, so stores that share a database do not mix. Free space in the pages of
`logs` lets updates stay in their page (heap-only tuples).

The last sequences of the logs that this process follows are asked for together. One query for all of them, at most
every POLL_S, costs the database little, however many indexes there are. NOTIFY would be quicker and takes a lock of the
whole database at each commit.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from scannery.indexer import CorruptError, FormatError, StoreError
from scannery.live.log.location import DatabaseUrl
from scannery.live.log.mutation_log import LogRefusedError, LogUnavailableError
from scannery.runtime.errors import ReadOnlyError

__all__ = [
    "OLDEST_SERVER",
    "RETRY_S",
    "Database",
    "Position",
    "Positions",
    "connection_options",
    "create_schema",
    "translated_errors",
]


POLL_S = 0.01
"""Seconds between two queries while something is being written."""
IDLE_POLL_S = 0.1
IDLE_AFTER_S = 1.0


@dataclass(frozen=True)
class Position:
    """The end of a log."""

    sequence: int
    chain: bytes
    """Hash of the last record."""


class Positions:
    """Ends of logs. Safe to use from several threads."""

    def __init__(self, database: Database) -> None:
        """Ask for nothing yet."""
        self._database = database
        self._followed: Counter[str] = Counter()
        self._ends: dict[str, Position] = {}
        self._asked_at_s = self._changed_at_s = float("-inf")
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """Let go of a lock that a thread of the parent may have held."""
        self._lock = threading.Lock()

    def follow(self, log_id: str) -> None:
        """Ask for a log, too; `unfollow` ends it."""
        with self._lock:
            self._followed[log_id] += 1
            self._asked_at_s = float("-inf")

    def unfollow(self, log_id: str) -> None:
        """End one `follow`."""
        with self._lock:
            self._followed[log_id] -= 1
            self._followed += Counter()

    def changes(self) -> PositionChanges:
        """Return a new reader of which logs have other ends."""
        return PositionChanges(self)

    def all(self, *, since_s: float = float("-inf")) -> Mapping[str, Position]:
        """Return the ends of all followed logs; those that the database does not have are left out.

        Args:
            since_s: an earlier answer does not do, in seconds of `time.monotonic`.

        Raises:
            LogUnavailableError: the database cannot be asked.

        """
        with self._lock:
            now_s = time.monotonic()
            every_s = POLL_S if now_s - self._changed_at_s < IDLE_AFTER_S else IDLE_POLL_S
            if self._asked_at_s < since_s or now_s - self._asked_at_s >= every_s:
                ends = self._ask()
                if ends != self._ends:
                    self._ends, self._changed_at_s = ends, now_s
                self._asked_at_s = now_s
            return self._ends

    def of(self, log_id: str, *, since_s: float) -> Position | None:
        """Return the end of a log that is followed; None if the database does not have it. Otherwise as `all`."""
        return self.all(since_s=since_s).get(log_id)

    def _ask(self) -> dict[str, Position]:
        followed = list(self._followed)
        rows = self._database.ask(
            lambda connection: connection.execute(
                "SELECT log_id, position, chain FROM scannery.logs WHERE log_id = ANY(%s)", (followed,)
            ).fetchall()
        )
        return {log_id: Position(sequence, chain) for log_id, sequence, chain in rows}


class PositionChanges:
    """The `Changes` of the logs in a database, by their ids."""

    def __init__(self, positions: Positions) -> None:
        """Ask for nothing yet."""
        self._positions = positions
        self._ends: Mapping[str, Position] = {}

    def changed(self) -> Container[str] | None:
        """Return the logs whose ends differ from those of the last call; raises as `Positions.all`."""
        before, self._ends = self._ends, self._positions.all()
        if before is self._ends:
            return None
        return {
            log_id
            for log_id in before.keys() | self._ends.keys()
            if before.get(log_id) != self._ends.get(log_id)
        }

    def close(self) -> None:
        """Do nothing: connections are those of the database."""


def connection_options(text: str) -> dict[str, Any] | None:
    """Return the options of a URL or connection string; None if it cannot be read.

    Messages of libpq quote what they do not understand, and so do errors that have one as their cause. With "@" or "/"
    in a password, a part of it becomes the host, the port or the name of the database, which messages show.
    """
    try:
        options = dict(conninfo_to_dict(text))
    except psycopg.ProgrammingError:
        return None
    shown = [str(options.get(name) or "") for name in ("host", "port", "dbname")]
    ports = shown[1].split(",")
    return (
        None if any("@" in each for each in shown) or any(p and not p.isdigit() for p in ports) else options
    )


RETRY_S = 1.0
"""Callers are told to wait this long before they write again."""
_REFUSALS = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
)


@contextmanager
def translated_errors(where: str) -> Iterator[None]:
    """Raise errors of PostgreSQL as errors of `scannery`; `where` is the database without credentials."""
    try:
        yield
    except psycopg.Error as error:
        raise _translated(where, error) from error


def _is_refused(error: psycopg.OperationalError) -> bool:
    """Return whether the server refuses these credentials, so that trying again does not help."""
    error_types = (
        errors.InvalidPassword,
        errors.InvalidAuthorizationSpecification,
        errors.InvalidCatalogName,
    )
    # Errors of the handshake have no code.
    return isinstance(error, error_types) or any(text in str(error) for text in _REFUSALS)


def _translated(where: str, error: psycopg.Error) -> Exception:
    text = " ".join(str(error).split())
    match error:
        case psycopg.OperationalError() if _is_refused(error):
            return LogRefusedError(f"the mutation log in {where} refuses the connection: {text}")
        case errors.ReadOnlySqlTransaction():
            return ReadOnlyError(
                f"the index takes no writes: {where} is read-only (a standby?); name the primary, or all servers with "
                "target_session_attrs=read-write"
            )
        case errors.InsufficientPrivilege():
            return LogRefusedError(f"the mutation log in {where} refuses an operation: {text}")
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return CorruptError(f"the mutation log in {where} is damaged: {text}")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            held = isinstance(error, errors.LockNotAvailable)
            why = "it is held by another writer" if held else text
            return LogUnavailableError(
                f"the mutation log in {where} cannot be used now: {why}", retry_after_s=RETRY_S
            )
        case _:
            return StoreError(f"the mutation log in {where} cannot be used: {text}")


SCHEMA_FORMAT = 1
"""Version of the tables that this code writes; later ones are refused."""
OLDEST_SERVER = 15

_CREATION_LOCK = 0x5363616E  # "Scan"

# A server notices by itself after hours that a machine is gone, whose sessions keep their locks as long. With these it
# takes half a minute. Servers without TCP keepalives ignore them.
_NOTICE_LOST_CLIENTS = """
SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
SET tcp_user_timeout = 30000
"""

_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS scannery;
CREATE TABLE scannery.format (version int NOT NULL);
INSERT INTO scannery.format VALUES (1);
CREATE TABLE scannery.logs (
    number int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    log_id text UNIQUE NOT NULL,
    index_id text UNIQUE,
    index_name text NOT NULL,
    store text NOT NULL,
    position bigint NOT NULL DEFAULT 0,
    chain bytea NOT NULL DEFAULT '',
    truncated bigint NOT NULL DEFAULT 0,
    truncated_chain bytea NOT NULL DEFAULT ''
) WITH (fillfactor = 20);
CREATE TABLE scannery.records (
    log int NOT NULL, sequence bigint NOT NULL, chain bytea NOT NULL, data bytea NOT NULL, PRIMARY KEY (log, sequence)
);
ALTER TABLE scannery.records ALTER data SET STORAGE EXTERNAL;
CREATE TABLE scannery.answers (
    log int NOT NULL, request bytea NOT NULL, sequence bigint NOT NULL, count int NOT NULL, digest bytea NOT NULL,
    answered_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (log, request)
);
CREATE INDEX answers_by_age ON scannery.answers (answered_at);
"""


def check_server(connection: psycopg.Connection, where: str) -> None:
    """Check the server's version and the format of the tables, if there are any, and set what sessions need.

    Raises:
        LogRefusedError: the server is too old.
        FormatError: a later release made the tables.

    """
    major = connection.info.server_version // 10_000
    if major < OLDEST_SERVER:
        raise LogRefusedError(f"{where} is PostgreSQL {major}; mutation logs need {OLDEST_SERVER} or later")
    connection.execute(_NOTICE_LOST_CLIENTS)
    row = connection.execute("SELECT current_setting('synchronous_commit')").fetchone()
    if row == ("off",):
        connection.execute("SET synchronous_commit = on")  # acknowledged writes survive a crash
    if has_schema(connection):
        version = connection.execute("SELECT version FROM scannery.format").fetchone()
        if version is None or version[0] > SCHEMA_FORMAT:
            raise FormatError(
                f"{where} has logs of format {version and version[0]}, this Scannery reads up to {SCHEMA_FORMAT}; "
                "upgrade it"
            )


def has_schema(connection: psycopg.Connection) -> bool:
    """Return whether the tables exist."""
    # Not by to_regclass, which in one transaction may answer again as before another process made them.
    query = "SELECT FROM pg_catalog.pg_tables WHERE schemaname = 'scannery' AND tablename = 'format'"
    return connection.execute(query).fetchone() is not None


def create_schema(connection: psycopg.Connection) -> None:
    """Create the tables unless they exist; once, if several processes try.

    Raises:
        LogRefusedError: the user may not.

    """
    if has_schema(connection):
        return
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION_LOCK,))
            if not has_schema(connection):
                connection.execute(_SCHEMA)
    except errors.InsufficientPrivilege as error:
        raise LogRefusedError(
            "the user of the database may not create the tables of the logs; its owner can allow it: "
            "GRANT CREATE ON DATABASE … TO …"
        ) from error


MAX_CONNECTIONS = 8
"""Connections of one process. Threads that find none wait."""
CONNECT_S = 5
ANSWER_S = 20.0
"""A statement without an answer for so long fails: the server is stopped, or the network lost it."""
REST_S = 0.25
"""Seconds of rest. After a failed attempt to connect, others fail at once for this long, or as long as it took."""

ResultT = TypeVar("ResultT")

_DEFAULTS: dict[str, Any] = {
    "application_name": "scannery",
    "connect_timeout": CONNECT_S,
    # What is sent and not acknowledged for so long breaks the connection; a lost machine would keep it for hours.
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 30,
}


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements fail if the server does not answer."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, ANSWER_S if timeout is None else timeout)


class Database:
    """A database with logs. Safe to use from several threads, and in forked children."""

    def __init__(self, location: DatabaseUrl) -> None:
        """Connect later.

        Raises:
            LogRefusedError: the URL cannot be read.

        """
        options = connection_options(location.url)
        if options is None:
            raise LogRefusedError(
                "the URL of the mutation logs cannot be read: it is postgresql://USER@HOST:PORT/DATABASE, with "
                "special characters as %XX"
            )
        self._options: dict[str, Any] = _DEFAULTS | options
        address = f"{options.get('host') or 'localhost'}:{options.get('port') or 5432}"
        self.where = f"postgresql://{address}/{options.get('dbname') or options.get('user') or ''}"
        """The database without credentials, for messages and for the registration in the store."""
        self.positions = Positions(self)
        self._reset()
        _DATABASES.add(self)

    @classmethod
    def of(cls, location: DatabaseUrl) -> Database:
        """Return the database of this process at a location; all callers get the same object."""
        with _SHARED_LOCK:
            if location.url not in _SHARED:
                _SHARED[location.url] = cls(location)
            return _SHARED[location.url]

    def _reset(self) -> None:
        self._idle: list[_Connection] = []
        self._open: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._idle_lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._failed: StoreError | None = None
        self._retry_at_s = 0.0

    def _after_fork_in_child(self) -> None:
        for connection in list(self._open):
            with suppress(OSError, psycopg.Error):  # not by libpq, which would end the session of the parent
                os.close(connection.pgconn.socket)
            _INHERITED.append(connection)
        self._reset()
        self.positions.after_fork()

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Give a connection that no other thread uses, in autocommit mode.

        Raises:
            LogUnavailableError, LogRefusedError, FormatError: there is none.

        """
        with self._slot(), translated_errors(self.where):
            connection = self._take()
            try:
                yield connection
            finally:
                self._put_back(connection)

    def ask(self, question: Callable[[psycopg.Connection[tuple[Any, ...]]], ResultT]) -> ResultT:
        """Return what a function reads from a connection; it is asked again if the server was restarted since.

        Raises:
            LogUnavailableError, LogRefusedError, FormatError: the database cannot be asked.

        """
        reused = bool(self._idle)
        try:
            with self.connection() as connection:
                return question(connection)
        except LogUnavailableError:
            if not reused:
                raise
        self.drop_idle()
        with self.connection() as connection:
            return question(connection)

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a new connection in autocommit mode that is the caller's alone, who closes it.

        Raises:
            LogUnavailableError, LogRefusedError, FormatError: there is none.

        """
        with translated_errors(self.where):
            return self._connected()

    @contextmanager
    def _slot(self) -> Iterator[None]:
        free = self._free
        if not free.acquire(timeout=ANSWER_S):
            raise LogUnavailableError(f"all connections to {self.where} are in use", retry_after_s=RETRY_S)
        try:
            yield
        finally:
            free.release()

    def _take(self) -> _Connection:
        with self._idle_lock:
            if self._idle:
                return self._idle.pop()
        if self._failed is not None and time.monotonic() < self._retry_at_s:
            raise self._failed.with_traceback(None)
        return self._connected()

    def _connected(self) -> _Connection:
        started_s = time.monotonic()
        try:
            with translated_errors(self.where):
                connection: _Connection = _Connection.connect(**self._options, autocommit=True)
        except StoreError as error:
            now_s = time.monotonic()
            self._failed, self._retry_at_s = error, now_s + max(REST_S, now_s - started_s)
            raise
        try:
            check_server(connection, self.where)
        except BaseException:
            connection.close()
            raise
        self._failed = None
        self._open.add(connection)
        return connection

    def _put_back(self, connection: _Connection) -> None:
        if connection.closed or connection.info.transaction_status is not TransactionStatus.IDLE:
            connection.close()
            return
        with self._idle_lock:
            self._idle.append(connection)

    def drop_idle(self) -> None:
        """Close the connections that are not in use: the server was restarted, or another one has taken its place."""
        with self._idle_lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


_SHARED: dict[str, Database] = {}
_SHARED_LOCK = threading.Lock()
_DATABASES: weakref.WeakSet[Database] = weakref.WeakSet()
_INHERITED: list[_Connection] = []
"""Connections of a parent. They are kept: closing them would end the sessions of the parent."""


def _forget_inherited() -> None:
    global _SHARED_LOCK  # noqa: PLW0603
    _SHARED_LOCK = threading.Lock()  # the thread that may hold it exists only in the parent
    for database in list(_DATABASES):
        database._after_fork_in_child()


os.register_at_fork(after_in_child=_forget_inherited)
