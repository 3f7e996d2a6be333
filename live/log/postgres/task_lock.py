"""Locks of maintenance in a database of logs: sessions that hold an advisory lock while a task runs."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import psycopg

from scannery.live.log.location import DatabaseUrl
from scannery.live.log.postgres.database import Database, translated_errors

__all__ = ["DatabaseLock", "lock_key", "try_task_lock"]


class DatabaseLock:
    """An advisory lock, held by a connection of its own: it ends with the connection."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Keep the connection, which holds the lock."""
        self._connection = connection

    def release(self) -> None:
        """Close the connection; no error if it is lost."""
        with suppress(psycopg.Error, OSError):
            self._connection.close()


def try_task_lock(location: DatabaseUrl, log_id: str, task: str) -> DatabaseLock | None:
    """Return the lock of a task of a log's index; None if another session has it.

    Raises:
        LogUnavailableError, LogRefusedError, FormatError: the database cannot be asked.

    """
    database = Database.of(location)
    connection = database.connect()
    try:
        with translated_errors(database.where):
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(log_id, task),)).fetchone()
    except BaseException:
        connection.close()
        raise
    if row is not None and row[0]:
        return DatabaseLock(connection)
    connection.close()
    return None


def lock_key(log_id: str, task: str) -> int:
    """Return the number of a lock, a bigint: the database has one space of numbers for all locks of all programs."""
    digest = hashlib.blake2b(f"scannery\0{log_id}\0{task}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
