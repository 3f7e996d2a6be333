"""A turn: the appends of one writer, between the lock of the log's row and the commit.

Two round trips: one takes the lock, one writes the records and commits. A writer that hangs in its turn is ended by the
server (idle_in_transaction_session_timeout) or, if it hangs while it sends or is sent something, by the next writer
(turn.py); its commit fails when it wakes up, so it cannot write between others.

If the connection breaks during the commit, its outcome is unknown. The chain tells it: the next turn of this process,
which begins when the server has finished or undone the former one, reads the hash at the last sequence.

End writers that keep the turn of a log and do nothing with it.

The server ends a session that is idle in its transaction. It does not end one that waits for the rest of a commit, or
for its client to take an answer: a process that was stopped meanwhile, or whose machine is lost, would hold up all
other writers for as long as that lasts. So a writer that waits for its turn ends such a session.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from scannery.indexer import CorruptError, StoreError
from scannery.live.log.mutation_log import (
    KEEP_ANSWERS_S,
    Answer,
    LogEntry,
    LogReplacedError,
    LogUnavailableError,
    Request,
)
from scannery.live.log.postgres.database import Database, translated_errors
from scannery.live.log.postgres.reading import chained, entries_after
from scannery.runtime.errors import ReadOnlyError

__all__ = ["PostgresTransaction", "turn"]


# Sessions that have locked a row of the logs, and whose client has neither sent a message nor taken one for so long.
_END = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity AS session
WHERE datname = current_database() AND wait_event_type = 'Client' AND xact_start IS NOT NULL
AND state_change < clock_timestamp() - make_interval(secs => %s)
AND EXISTS (
    SELECT FROM pg_locks WHERE pid = session.pid AND database = session.datid
    AND relation = 'scannery.logs'::regclass AND mode = 'RowShareLock' AND granted
)
"""


def end_hung_writers(database: Database, after_s: float) -> int:
    """End the sessions whose turn has waited for their client for `after_s` seconds, and return their number.

    Nothing is ended if the database does not answer, or does not let its user end them: those of other users.
    """

    def end(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
        return sum(bool(ended) for (ended,) in connection.execute(_END, (after_s,)))

    with suppress(StoreError):
        return database.ask(end)
    return 0


_LOG = logging.getLogger(__name__)

LOCK_MS = 1000
"""One attempt to get the lock. Between two, writers that hang are ended."""
TURN_S = 10.0
"""All attempts together; longer than a writer that hangs can hold the lock."""
IDLE_MS = 5000
"""A writer that neither sends nor takes anything for so long during its turn loses it."""
SETTLE_S = 10.0
"""Seconds to find out whether a commit took effect."""
SETTLE_PAUSE_S = 0.1

_BEGIN = """
BEGIN; SET LOCAL lock_timeout = %s; SET LOCAL idle_in_transaction_session_timeout = %s;
SELECT number, log_id, index_id, position, chain, truncated, truncated_chain FROM scannery.logs
WHERE log_id = %s FOR UPDATE
"""

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"


@dataclass
class _State:
    """The row of a log."""

    number: int
    log_id: str
    index_id: str | None
    position: int
    chain: bytes
    truncated: int
    truncated_chain: bytes


class PostgresTransaction:
    """A `LogTransaction` that holds the row of the log; what is appended is sent at the end."""

    def __init__(self, connection: Connection, state: _State, after: int) -> None:
        """Begin after the last sequence that is in use, whether the log has it or not."""
        self._connection, self._before, self.log_id = connection, state, state.log_id
        self.number, self.position, self.chain = state.number, state.position, state.chain
        self.truncated, self.truncated_chain = state.truncated, state.truncated_chain
        self.index_id = state.index_id
        self._records: list[tuple[LogEntry, bytes]] = []
        self._answers: dict[bytes, tuple[Answer, bytes]] = {}
        self._stored_answers: dict[bytes, tuple[Answer, bytes]] = {}
        self._read_keys: set[bytes] = set()
        self.known_hash: Callable[[int], bytes | None] = lambda sequence: None
        """Returns the hash of a record that the reader of this log has read."""
        if self.position < after:
            # The log is older than the version, or was lost: its records are in the segments, or lost.
            self.truncate(after)

    @property
    def last(self) -> tuple[int, bytes] | None:
        """The last appended record and its hash; None: nothing was appended."""
        return (self._records[-1][0].sequence, self._records[-1][1]) if self._records else None

    def adopt(self, index_id: str | None) -> None:
        """Bind the log to an index, if it has none yet.

        Raises:
            LogReplacedError: it belongs to another index.

        """
        if self.index_id and index_id and self.index_id != index_id:
            raise LogReplacedError(
                f"the log belongs to the index with id {self.index_id}, not to the one with id {index_id}"
            )
        self.index_id = self.index_id or index_id

    def truncate(self, up_to: int) -> None:
        """Remove the records up to a sequence; before anything is appended."""
        if up_to <= self.truncated:
            return
        if up_to >= self.position:
            self.position, self.truncated_chain = up_to, self.chain
        else:
            row = self._connection.execute(
                "SELECT chain FROM scannery.records WHERE log = %s AND sequence = %s", (self.number, up_to)
            ).fetchone()
            if row is None:
                raise CorruptError(f"the log has no record {up_to}, but a later one")
            self.truncated_chain = row[0]
        self.truncated = up_to

    def read(self, after: int) -> Sequence[LogEntry]:
        """Return all entries after a sequence; see LogTransaction."""
        appended = [entry for entry, _ in self._records if entry.sequence > after]
        if after >= self._before.position:
            return appended
        chain = self.known_hash(after)
        return [*entries_after(self._connection, self.log_id, after, expected_chain=chain).entries, *appended]

    def expect(self, requests: Sequence[Request]) -> None:
        """Read the responses to some requests; see LogTransaction."""
        keys = [_key(request) for request in requests if request.id]
        self._read_keys.update(keys)
        if not keys:
            return
        rows = self._connection.execute(
            "SELECT request, sequence, count, digest FROM scannery.answers WHERE log = %s AND request = ANY(%b) "
            "AND answered_at > clock_timestamp() - make_interval(secs => %s)",
            (self.number, keys, KEEP_ANSWERS_S),
        )
        self._stored_answers |= {
            key: (Answer(sequence, count), digest) for key, sequence, count, digest in rows
        }

    def answer_of(self, request: Request) -> Answer | None:
        """Return the response that the request got before; see LogTransaction."""
        key = _key(request)
        if key not in self._read_keys:
            self.expect([request])
        entry = self._answers.get(key) or self._stored_answers.get(key)
        if entry is None:
            return None
        answer, digest = entry
        request.check_repeated(digest, answer.sequence)
        return answer

    def append(self, data: bytes, *, request: Request | None = None, count: int = 0) -> int:
        """Append a batch and return its sequence; see LogTransaction."""
        self.position += 1
        self.chain = chained(self.chain, self.position, data)
        self._records.append((LogEntry(self.position, data), self.chain))
        if request is not None and request.id:
            self._answers[_key(request)] = (Answer(self.position, count), request.digest)
        return self.position

    def commit(self) -> None:
        """Write everything and commit, in one round trip.

        Raises:
            psycopg.Error: it may have taken effect or not, if the connection is broken.

        """
        with self._connection.pipeline(), self._connection.cursor() as cursor:
            self._write_records(cursor)
            self._write_state(cursor)
            cursor.execute("COMMIT")

    def _write_records(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        if self._records:
            cursor.executemany(
                "INSERT INTO scannery.records VALUES (%s, %s, %b, %b)",
                [(self.number, entry.sequence, chain, entry.data) for entry, chain in self._records],
            )
        if self._answers:
            cursor.executemany(
                "INSERT INTO scannery.answers (log, request, sequence, count, digest) VALUES (%s, %b, %s, %s, %b) "
                "ON CONFLICT (log, request) DO UPDATE SET sequence = excluded.sequence, count = excluded.count, "
                "digest = excluded.digest, answered_at = excluded.answered_at",
                [
                    (self.number, key, answer.sequence, answer.count, digest)
                    for key, (answer, digest) in self._answers.items()
                ],
            )

    def _write_state(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        before = self._before
        changed = (self.index_id, self.position, self.truncated)
        if changed != (before.index_id, before.position, before.truncated):
            cursor.execute(
                "UPDATE scannery.logs SET position = %s, chain = %b, truncated = %s, truncated_chain = %b, "
                "index_id = %s WHERE number = %s",
                (self.position, self.chain, self.truncated, self.truncated_chain, self.index_id, self.number),
            )


@contextmanager
def turn(
    database: Database, log_id: str, *, after: int, index_id: str | None
) -> Iterator[PostgresTransaction]:
    """Wait for the lock of a log, and commit at the end; see MutationLog.transaction."""
    with ExitStack() as stack:
        connection, state = _locked(database, log_id, stack)
        try:
            transaction = PostgresTransaction(connection, state, after)
            transaction.adopt(index_id)
            yield transaction
        except BaseException:
            _roll_back(connection)
            raise
        broken = _broken_commit(connection, transaction)
    if broken is not None:
        _settle(database, log_id, transaction, broken)


def _locked(database: Database, log_id: str, stack: ExitStack) -> tuple[Connection, _State]:
    """Return a connection that holds the lock of a log, and its row; `stack` gives the connection back."""
    end_s, tried_again = time.monotonic() + TURN_S, False
    while True:
        try:
            return stack.enter_context(_attempt(database, log_id))
        except LogUnavailableError as error:
            held = _is_held(error)
            if time.monotonic() >= end_s or (tried_again and not held):
                raise
            if held:
                _end_hung(database)
            else:  # the server was restarted, and the connection is of before
                tried_again = True
                database.drop_idle()


def _is_held(error: Exception) -> bool:
    """Return whether another writer has the turn."""
    return isinstance(error.__cause__, errors.LockNotAvailable)


def _end_hung(database: Database) -> None:
    if ended := end_hung_writers(database, IDLE_MS / 1000):
        _LOG.warning("%s: ended %d writers that hung in their turn", database.where, ended)


@contextmanager
def _attempt(database: Database, log_id: str) -> Iterator[tuple[Connection, _State]]:
    with database.connection() as connection:
        # One message with four statements. A pipeline would take as long, but after one, PostgreSQL 18 does not end a
        # session that is idle in its transaction.
        cursor = psycopg.ClientCursor(connection).execute(_BEGIN, (LOCK_MS, IDLE_MS, log_id))
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        if row is None:
            _roll_back(connection)
            raise LogReplacedError(f"the mutation log {log_id} was removed from {database.where}")
        yield connection, _State(*row)


def _roll_back(connection: Connection) -> None:
    with suppress(psycopg.Error):  # the connection is closed then, which does the same
        connection.execute("ROLLBACK")


def _broken_commit(connection: Connection, transaction: PostgresTransaction) -> psycopg.Error | None:
    """Commit; return the error after which the outcome is unknown. Other errors mean that nothing was committed."""
    try:
        transaction.commit()
    except psycopg.Error as error:
        answered = connection.info.transaction_status in (
            TransactionStatus.INERROR,
            TransactionStatus.INTRANS,
        )
        if answered and not connection.closed:
            raise
        connection.close()
        return error
    return None


def _settle(database: Database, log_id: str, transaction: PostgresTransaction, broken: psycopg.Error) -> None:
    """Find out whether a commit took effect; return if it did.

    Raises:
        LogUnavailableError: it did not; nothing was written.
        StoreError: the database cannot tell.

    """
    _LOG.warning("%s: the connection broke during a commit (%s)", database.where, broken)
    database.drop_idle()
    end_s = time.monotonic() + SETTLE_S
    while True:
        try:
            with _attempt(database, log_id) as (connection, state):
                committed = _took_effect(connection, state, transaction)
                _roll_back(connection)
            break
        # Also if the server refuses the question, as a standby does: that does not say that nothing was written.
        except (StoreError, ReadOnlyError) as error:
            if time.monotonic() >= end_s:
                committed = None
                broken.__cause__ = error
                break
            if _is_held(error):
                # Perhaps the session of this commit, whose connection only this side has lost.
                _end_hung(database)
            time.sleep(SETTLE_PAUSE_S)  # there is nothing to wait on: the server is down
    if committed is None:
        raise StoreError(
            f"the connection to {database.where} broke during the commit, and it cannot be told whether the write was "
            "done; repeat it with the same request id"
        ) from broken
    if not committed:
        with translated_errors(database.where):
            raise broken


def _took_effect(connection: Connection, state: _State, transaction: PostgresTransaction) -> bool | None:
    """Return whether the log has the last record of a transaction; None if that record was truncated since."""
    if transaction.last is None or state.position < transaction.last[0]:
        return False
    sequence, chain = transaction.last
    if state.truncated == sequence:
        return state.truncated_chain == chain
    row = connection.execute(
        "SELECT chain FROM scannery.records WHERE log = %s AND sequence = %s", (state.number, sequence)
    ).fetchone()
    return None if row is None else bool(row[0] == chain)


def _key(request: Request) -> bytes:
    return request.key.encode("utf-8", "surrogatepass")
