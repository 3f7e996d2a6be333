"""The connections of this process to one database, shared by the logs of all its indexes.

A connection is used by one thread at a time; most of the time there are two or three. One that had an error is closed.
After a fork, the child opens connections of its own: two processes on one would read each other's answers.

If the database cannot be reached, further attempts fail at once for a moment, so that queries that look at the log
(embedded ones do) do not each wait for a network that does not answer.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from scannery.indexer import StoreError
from scannery.live.log.location import DatabaseUrl
from scannery.live.log.mutation_log import LogRefusedError, LogUnavailableError
from scannery.live.log.postgres.connection_options import connection_options
from scannery.live.log.postgres.errors import RETRY_S, translated_errors
from scannery.live.log.postgres.positions import Positions
from scannery.live.log.postgres.schema import check_server

__all__ = ["Database"]

MAX_CONNECTIONS = 8
"""Of one process. Threads that find none wait."""
CONNECT_S = 5
ANSWER_S = 20.0
"""A statement without an answer for so long fails: the server is stopped, or the network lost it."""
REST_S = 0.25
"""After a failed attempt to connect, others fail at once for this long, or as long as it took."""

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
        given = connection_options(location.url)
        if given is None:
            raise LogRefusedError(
                "the URL of the mutation logs cannot be read: it is postgresql://USER@HOST:PORT/DATABASE, with "
                "special characters as %XX"
            )
        self._options: dict[str, Any] = _DEFAULTS | given
        place = f"{given.get('host') or 'localhost'}:{given.get('port') or 5432}"
        self.where = f"postgresql://{place}/{given.get('dbname') or given.get('user') or ''}"
        """The database without credentials, for messages and for the registration in the store."""
        self.positions = Positions(self)
        self._reset()
        _KNOWN.add(self)

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
_KNOWN: weakref.WeakSet[Database] = weakref.WeakSet()
_INHERITED: list[_Connection] = []
"""Connections of a parent. They are kept: closing them would end the sessions of the parent."""


def _forget_inherited() -> None:
    global _SHARED_LOCK  # noqa: PLW0603
    _SHARED_LOCK = threading.Lock()  # the thread that may hold it exists only in the parent
    for database in list(_KNOWN):
        database._after_fork_in_child()


os.register_at_fork(after_in_child=_forget_inherited)
