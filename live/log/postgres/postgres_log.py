"""The mutation log of an index in a database of PostgreSQL: any number of processes and machines may append.

The hash of the last record that was read or written here is kept. If the database has another one at that sequence, it
has lost records: LogReplacedError makes its readers begin again from the version.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from scannery.indexer import IndexerError, StoreError
from scannery.live.log.mutation_log import KEEP_ANSWERS_S, LogEntry, LogIdentity, LogReplacedError
from scannery.live.log.postgres.database import Database
from scannery.live.log.postgres.reading import entries_after
from scannery.live.log.postgres.turn import PostgresTransaction, turn
from scannery.live.log.sqlite_log import write_copy

__all__ = ["PostgresLog"]

_LOG = logging.getLogger(__name__)

READ_BYTES = 16 << 20
TIDY_EVERY_S = 60.0
STANDS = 64
"""Records whose hashes are kept: readers may stand on different ones, while an index moves to another version."""
DELETE_AT_ONCE = 1000


class PostgresLog:
    """A `MutationLog` in a database; it stays usable after a fork, in parent and child."""

    def __init__(self, database: Database, log_id: str) -> None:
        """Open a log that the database has.

        Args:
            database: with the tables.
            log_id: id of the log.

        """
        self._database, self._log_id = database, log_id
        self._hashes: OrderedDict[int, bytes] = OrderedDict()
        self._seen = -1
        """The sequence up to which `changed` has told."""
        self._wrote_at_s = float("-inf")
        self._tidied_at_s = time.monotonic()
        self._lock = threading.Lock()
        self._closed = False
        database.positions.follow(log_id)

    @contextmanager
    def transaction(self, *, after: int, index_id: str | None = None) -> Iterator[PostgresTransaction]:
        """Wait for the lock, and append in a transaction; see MutationLog."""
        self._check_open()
        with turn(self._database, self._log_id, after=after, index_id=index_id) as transaction:
            self._check_stand(transaction)
            transaction.known_hash = self._hashes.get
            yield transaction
        with self._lock:
            self._wrote_at_s = time.monotonic()
            self._seen = transaction.position
            self._stand_on(transaction.position, transaction.chain)

    def _check_stand(self, transaction: PostgresTransaction) -> None:
        chain = self._hashes.get(transaction.position)
        if chain is not None and chain != transaction.chain:
            raise self._lost(transaction.position)

    def read(self, after: int, *, max_bytes: int = READ_BYTES) -> Sequence[LogEntry]:
        """Return the entries after a sequence; see MutationLog."""
        self._check_open()
        chain = self._hashes.get(after)
        answer = self._database.ask(
            lambda connection: entries_after(
                connection, self._log_id, after, max_bytes=max_bytes, expected_chain=chain
            )
        )
        if answer.last is not None:
            with self._lock:
                self._stand_on(after + len(answer.entries), answer.last)
        return answer.entries

    def _stand_on(self, sequence: int, chain: bytes) -> None:
        self._hashes[sequence] = chain
        self._hashes.move_to_end(sequence)
        if len(self._hashes) > STANDS:
            self._hashes.popitem(last=False)

    def changed(self, *, now: bool = False) -> bool:
        """Return whether another process may have written since the last call; see MutationLog."""
        self._check_open()
        with self._lock:
            since_s = time.monotonic() if now else self._wrote_at_s
            end = self._database.positions.of(self._log_id, since_s=since_s)
            if end is None:
                raise LogReplacedError(
                    f"the mutation log {self._log_id} was removed from {self._database.where}"
                )
            chain = self._hashes.get(end.sequence)
            if end.sequence < self._seen or (chain is not None and chain != end.chain):
                raise self._lost(end.sequence)
            before, self._seen = self._seen, end.sequence
            return end.sequence != before

    def _lost(self, sequence: int) -> LogReplacedError:
        return LogReplacedError(
            f"the mutation log in {self._database.where} has lost records at sequence {sequence}, which were read or "
            "written before: the database was restored, or another one took its place; the index is read again"
        )

    def position(self) -> int:
        """Return the last sequence."""
        return int(self._column("position"))

    def acknowledged(self) -> int:
        """Return the last sequence: the row that tells it is not one of the entries."""
        return self.position()

    def truncated(self) -> int:
        """Return the sequence up to which entries were removed."""
        return int(self._column("truncated"))

    def identity(self) -> LogIdentity:
        """Return the ids of the log and its index."""
        index_id, version = self._columns("index_id, current_setting('server_version')")
        return LogIdentity(self._log_id, index_id, f"PostgreSQL {version.split()[0]}")

    def size_bytes(self) -> int:
        """Return the size of the records in bytes."""
        return int(
            self._column(
                "(SELECT coalesce(sum(octet_length(data) + octet_length(chain)), 0) FROM scannery.records "
                "WHERE log = number AND sequence > truncated)"
            )
        )

    def _column(self, column: str) -> Any:
        return self._columns(column)[0]

    def _columns(self, columns: str) -> tuple[Any, ...]:
        self._check_open()
        query: Any = f"SELECT {columns} FROM scannery.logs WHERE log_id = %s"
        row: tuple[Any, ...] | None = self._database.ask(
            lambda connection: connection.execute(query, (self._log_id,)).fetchone()
        )
        if row is None:
            raise LogReplacedError(f"the mutation log {self._log_id} was removed from {self._database.where}")
        return row

    def truncate(self, up_to: int) -> None:
        """Remove the entries up to a sequence; writers wait only while it is noted, not while records are deleted."""
        if self.truncated() < up_to:
            with turn(self._database, self._log_id, after=0, index_id=None) as transaction:
                transaction.truncate(up_to)
        self._delete_truncated()

    def _delete_truncated(self) -> None:
        deleted = -1
        while deleted:
            deleted = self._database.ask(self._delete_some)

    def _delete_some(self, connection: psycopg.Connection[tuple[Any, ...]]) -> int:
        deleted: int = connection.execute(
            "DELETE FROM scannery.records r USING (SELECT log, sequence FROM scannery.records "
            "JOIN scannery.logs ON number = log WHERE log_id = %s AND sequence <= truncated LIMIT %s) AS old "
            "WHERE r.log = old.log AND r.sequence = old.sequence",
            (self._log_id, DELETE_AT_ONCE),
        ).rowcount
        return deleted

    def tidy(self) -> None:
        """Remove old responses, of all logs; see MutationLog."""
        if time.monotonic() - self._tidied_at_s < TIDY_EVERY_S:
            return
        self._tidied_at_s = time.monotonic()
        try:
            self._database.ask(self._forget_answers)
        except IndexerError as error:
            _LOG.warning("old responses cannot be removed now: %s", error)

    def _forget_answers(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        connection.execute(
            "DELETE FROM scannery.answers WHERE answered_at < clock_timestamp() - make_interval(secs => %s)",
            (KEEP_ANSWERS_S,),
        )

    def copy_to(self, path: Path, *, after: int = 0) -> None:
        """Write a consistent copy of the log to a new file; see MutationLog."""
        write_copy(path, self.identity(), max(after, self.truncated()), self.read)

    def close(self) -> None:
        """Follow the log no longer; its connections are others', too."""
        if not self._closed:
            self._closed = True
            self._database.positions.unfollow(self._log_id)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the mutation log {self._log_id} is closed")
