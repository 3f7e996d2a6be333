"""Find the log of an index in a database, and check that it is the one that the index uses.

The registration in the store names the log by its id, and so does its row; the row names the index by its id. So
several stores may use one database, and a copy of a store on the same machine is noticed.
"""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors

from scannery.indexer import AlreadyExistsError, CorruptError, Manifest, Store, new_index_id
from scannery.indexer.versions.levels import level_of
from scannery.live.log.location import DatabaseUrl
from scannery.live.log.mutation_log import LogReplacedError, MutationLog, WrongLogError
from scannery.live.log.postgres.database import Database, create_schema
from scannery.live.log.postgres.postgres_log import PostgresLog
from scannery.live.log.postgres.turn import turn
from scannery.live.log.registry import (
    ADVICE,
    FORGET,
    Registration,
    check_begun,
    check_current,
    check_index,
    check_registered,
    register,
    registered,
)
from scannery.live.log.sqlite_log import read_copy

__all__ = ["PostgresHome"]

_LOG = logging.getLogger(__name__)

ABSENT_S = 0.5
"""How long an index that had no log is taken to have none: each look reads the store."""
COPY_BYTES = 16 << 20
"""Bytes of one turn, while a backup is restored."""


class PostgresHome:
    """A `LogHome` in a database of PostgreSQL."""

    writable = True
    """Whether there is a place for a log."""

    def __init__(self, store: Store, index: str, root: DatabaseUrl) -> None:
        """Connect later.

        Raises:
            LogRefusedError: the URL cannot be read.

        """
        self._store, self._index = store, index
        self._database = Database.of(root)
        local = store.local_root
        self._folder = store.uri if local is None else f"{socket.gethostname()}:{local}"
        self._absent_until_s = float("-inf")
        self.key = ""

    @property
    def where(self) -> str:
        """The place of the log, for messages."""
        return f"in {self._database.where}"

    def open(self) -> PostgresLog | None:
        """Return the opened log, None if it does not exist; see LogHome."""
        now_s = time.monotonic()
        if now_s < self._absent_until_s:
            return None
        registration = registered(self._store, self._index)
        if registration is None or self._row(registration.log_id) is None:
            self._absent_until_s = now_s + ABSENT_S
            return None
        self.key = registration.log_id
        return PostgresLog(self._database, registration.log_id)

    def look_again(self) -> None:
        """Look for the log at the next `open`; see LogHome."""
        self._absent_until_s = float("-inf")

    def _row(self, log_id: str) -> tuple[str | None, str] | None:
        """Return the id of the index and the store of a log; None: the database does not have it."""

        def ask(connection: psycopg.Connection[tuple[Any, ...]]) -> tuple[str | None, str] | None:
            try:
                query = "SELECT index_id, store FROM scannery.logs WHERE log_id = %s"
                row: tuple[str | None, str] | None = connection.execute(query, (log_id,)).fetchone()
            except errors.UndefinedTable:
                return None
            return row

        return self._database.ask(ask)

    def check(self, log: MutationLog | None, manifest: Manifest) -> None:
        """Check that the log is the one that the index uses; see LogHome."""
        registration = registered(self._store, self._index)
        if log is None:
            if registration is not None:
                self._check_missing(registration)
            return
        check_index(log, manifest, where=self.where)
        if registration is not None:
            check_registered(
                log, self._index, registration.log_id, where=self.where, registered=registration.where
            )
            self._check_not_copied(registration)

    def _check_missing(self, registration: Registration) -> None:
        if self._row(registration.log_id) is not None:
            return  # another process created it since; it is checked when it is opened
        if registration.path == self._database.where:
            raise CorruptError(
                f"the log of index {self._index!r} is gone from {registration.path}: restore the database, or {FORGET}"
            )
        raise WrongLogError(
            f"index {self._index!r} has live updates in a log {registration.where}, and there is none "
            f"{self.where}: {ADVICE}"
        )

    def _check_not_copied(self, registration: Registration) -> None:
        """Raise WrongLogError if another copy of the store uses the log: each would seal the updates of both."""
        row = self._row(registration.log_id)
        if row is None or row[1] == self._folder:
            return
        host, _, folder = row[1].partition(":")
        if host != socket.gethostname() or not Path(folder).is_absolute():
            return  # this machine cannot check it, or the store was moved to it
        former, local_root = Path(folder) / self._index, self._store.local_root
        if former.exists() and (local_root is None or not former.samefile(local_root / self._index)):
            raise WrongLogError(
                f"index {self._index!r} of this store is a copy of the one in {folder}, which still exists and uses "
                f"the same log {self.where}: make copies with `scannery index snapshot`"
            )

    def claim(self, log: MutationLog | None, manifest: Manifest) -> MutationLog:
        """Return the log to write to; see LogHome."""
        level_of(self._store)
        check_current(self._store, self._index, manifest)
        new_log = None
        if log is None:
            self.check(None, manifest)
            log = new_log = self._created(manifest)
        try:
            check_index(log, manifest, where=self.where)
            log_id = log.identity().log_id
            assert log_id is not None
            register(self._store, self._index, log_id, self._database.where)
            self._absent_until_s = float("-inf")
            self._note_store(log_id)
            if new_log is not None:
                self._check_own(log_id, manifest)
        except BaseException:
            if new_log is not None:
                new_log.close()
            raise
        return log

    def _created(self, manifest: Manifest) -> PostgresLog:
        """Return the log of an index, made once if several processes try."""
        registration = registered(self._store, self._index)
        log_id = self.key = self._insert(
            registration.log_id if registration else new_index_id(), manifest.index_id
        )
        return PostgresLog(self._database, log_id)

    def _insert(self, log_id: str, index_id: str | None) -> str:
        def insert(connection: psycopg.Connection[tuple[Any, ...]]) -> str:
            create_schema(connection)
            connection.execute(
                "INSERT INTO scannery.logs (log_id, index_id, index_name, store) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT DO NOTHING",
                (log_id, index_id, self._index, self._folder),
            )
            row = connection.execute(
                "SELECT log_id FROM scannery.logs WHERE log_id = %s OR index_id = %s", (log_id, index_id)
            ).fetchone()
            if row is None:
                raise LogReplacedError(f"the log of index {self._index!r} was removed while it was made")
            return str(row[0])

        return self._database.ask(insert)

    def _note_store(self, log_id: str) -> None:
        self._database.ask(
            lambda connection: connection.execute(
                "UPDATE scannery.logs SET store = %s WHERE log_id = %s AND store <> %s",
                (self._folder, log_id, self._folder),
            )
        )

    def _check_own(self, log_id: str, manifest: Manifest) -> None:
        """Check again after a log was begun, and remove it if its index was dropped meanwhile."""
        try:
            check_begun(self._store, self._index, manifest, log_id)
        except LogReplacedError:
            self._delete(log_id)
            raise

    def check_absent(self) -> None:
        """Check that the database has no log of the index; see LogHome."""
        registration = registered(self._store, self._index)
        if registration is not None and self._row(registration.log_id) is not None:
            raise AlreadyExistsError(
                f"{self._database.where} has the log of index {self._index!r} already: seal it, or set it aside first: "
                f"UPDATE scannery.logs SET log_id = 'former {registration.log_id}', index_id = NULL "
                f"WHERE log_id = '{registration.log_id}'"
            )

    def place(self, copy: Path, *, log_id: str, index_id: str) -> int:
        """Write a copy of a log to the database, and return its last sequence; see LogHome."""
        # First, so that a drop finds what a killed process leaves.
        register(self._store, self._index, log_id, self._database.where)
        self._insert(log_id, index_id)
        position, entries = read_copy(copy)
        batch: list[bytes] = []
        size_bytes = 0
        for entry in entries:
            batch.append(entry.data)
            size_bytes += len(entry.data)
            if size_bytes >= COPY_BYTES:
                position = self._append(log_id, batch, position)
                batch, size_bytes = [], 0
        return self._append(log_id, batch, position)

    def _append(self, log_id: str, batch: list[bytes], after: int) -> int:
        with turn(self._database, log_id, after=after, index_id=None) as transaction:
            for data in batch:
                transaction.append(data)
        return transaction.position

    def remove(self, log_id: str | None) -> bool:
        """Remove a log; see LogHome."""
        return log_id is not None and self._delete(log_id)

    def _delete(self, log_id: str) -> bool:
        def delete(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
            try:
                with connection.transaction():
                    row = connection.execute(
                        "DELETE FROM scannery.logs WHERE log_id = %s RETURNING number", (log_id,)
                    ).fetchone()
                    for table in ("records", "answers") if row is not None else ():
                        query: Any = f"DELETE FROM scannery.{table} WHERE log = %s"
                        connection.execute(query, row)
            except errors.UndefinedTable:
                return False
            return row is not None

        return self._database.ask(delete)
