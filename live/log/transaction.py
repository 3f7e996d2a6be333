"""Reads and writes inside a transaction of the log: records, responses to past requests, identity."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import apsw

from scannery.indexer import CorruptError
from scannery.live.log.database import LOG_FORMAT, sqlite_version, upgrade
from scannery.live.log.mutation_log import (
    KEEP_ANSWERS_S,
    Answer,
    LogEntry,
    LogGapError,
    LogIdentity,
    LogReplacedError,
    Request,
)

__all__ = [
    "SqliteTransaction",
    "adopt",
    "answers_of",
    "entries_after",
    "identify",
    "identity_of",
    "keep_answers",
    "position_of",
    "truncated_of",
    "written_by",
]


class SqliteTransaction:
    """A `LogTransaction` in an SQLite transaction."""

    def __init__(self, connection: apsw.Connection, after: int, clock: Callable[[], float]) -> None:
        """Start after the last sequence that is in use.

        Args:
            connection: inside a transaction.
            after: sequences up to this one are in use, whether the log has them or not.
            clock: returns seconds since 1970.

        """
        self._connection = connection
        self._clock = clock
        self.position = position_of(connection)
        self.appended_bytes = 0
        self._answered = False
        if self.position < after:
            # The log is older than the version, or was lost: its records are in the segments, or lost.
            self.truncate(after)
            self.position = after

    def read(self, after: int) -> Sequence[LogEntry]:
        """Return all entries after a sequence; see LogTransaction."""
        return entries_after(self._connection, after, None)

    def expect(self, requests: Sequence[Request]) -> None:
        """Do nothing: `answer_of` reads from memory, or the disk of this machine."""

    def answer_of(self, request: Request) -> Answer | None:
        """Return the response that the request got before; see LogTransaction."""
        # In logs of format 1, responses have neither a caller nor a digest.
        row = self._connection.execute(
            "SELECT sequence, count, digest FROM answers "
            "WHERE (request_id = ? OR (request_id = ? AND digest IS NULL)) AND answered_at > ?",
            (request.key, request.id, self._clock() - KEEP_ANSWERS_S),
        ).fetchone()
        if row is None:
            return None
        sequence, count, digest = row
        if digest is not None:
            request.check_repeated(digest, sequence)
        return Answer(sequence, count)

    def append(self, data: bytes, *, request: Request | None = None, count: int = 0) -> int:
        """Append a batch and return its sequence; see LogTransaction."""
        sequence = self.position + 1
        self._connection.execute(
            "INSERT INTO records VALUES (?, ?, ?)", (sequence, _checksum(sequence, data), data)
        )
        if request is not None and request.id:
            self._answered = True
            self._connection.execute(
                "INSERT OR REPLACE INTO answers (request_id, sequence, count, answered_at, digest) "
                "VALUES (?, ?, ?, ?, ?)",
                (request.key, sequence, count, self._clock(), request.digest),
            )
        self.position = sequence
        self.appended_bytes += len(data)
        return sequence

    def truncate(self, up_to: int) -> None:
        """Remove the records up to a sequence."""
        self._connection.execute("DELETE FROM records WHERE sequence <= ?", (up_to,))
        self._connection.execute("UPDATE state SET value = ? WHERE name = 'truncated'", (up_to,))

    def forget_answers(self) -> None:
        """Remove responses older than KEEP_ANSWERS_S."""
        if self._answered:
            too_old = self._clock() - KEEP_ANSWERS_S
            self._connection.execute("DELETE FROM answers WHERE answered_at <= ?", (too_old,))


def adopt(connection: apsw.Connection, index_id: str | None) -> str:
    """Bind the log to an index, inside a transaction, and return the log's id.

    Raises:
        LogReplacedError: it belongs to another index.

    """
    identity = identity_of(connection)
    if identity.index_id and index_id and identity.index_id != index_id:
        raise LogReplacedError(
            f"the log belongs to the index with id {identity.index_id}, not to the one with id {index_id}"
        )
    log_id = identity.log_id or secrets.token_hex(16)
    updated = LogIdentity(log_id, identity.index_id or index_id, written_by())
    if updated != identity:
        identify(connection, updated)
    return log_id


def identify(connection: apsw.Connection, identity: LogIdentity) -> None:
    """Store the ids of the log and its index, inside a transaction."""
    upgrade(connection)
    rows = {"log_id": identity.log_id, "index_id": identity.index_id, "sqlite": sqlite_version()}
    connection.executemany(
        "INSERT OR REPLACE INTO state VALUES (?, ?)",
        # Stored as bytes: the column has integer affinity, which would convert ids that look like numbers.
        [(name, value.encode()) for name, value in rows.items() if value is not None],
    )


def written_by() -> str:
    """Return the software that writes now."""
    return f"SQLite {sqlite_version()}"


def identity_of(connection: apsw.Connection) -> LogIdentity:
    """Return the ids of the log and of its index."""
    rows = connection.execute("SELECT name, value FROM state WHERE name != 'truncated'")
    values = {name: value.decode() for name, value in rows if isinstance(value, bytes)}
    version = values.get("sqlite")
    return LogIdentity(values.get("log_id"), values.get("index_id"), f"SQLite {version}" if version else None)


def entries_after(connection: apsw.Connection, after: int, max_bytes: int | None) -> list[LogEntry]:
    """Return the records after a sequence, as `MutationLog.read` does; `max_bytes` None: all."""
    truncated = truncated_of(connection)
    if after < truncated:
        raise LogGapError(f"the log begins after sequence {truncated}, records after {after} were requested")
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


def position_of(connection: apsw.Connection) -> int:
    """Return the last sequence, 0 if there is none."""
    last: int | None = connection.execute("SELECT max(sequence) FROM records").get
    return max(last or 0, truncated_of(connection))


def truncated_of(connection: apsw.Connection) -> int:
    """Return the sequence up to which records were removed."""
    value: int = connection.execute("SELECT value FROM state WHERE name = 'truncated'").get
    return value


def answers_of(connection: apsw.Connection) -> Iterator[apsw.SQLiteValues]:
    """Yield the rows of the responses to past requests, for `keep_answers`."""
    digest = "digest" if connection.pragma("user_version") == LOG_FORMAT else "NULL"
    yield from connection.execute(f"SELECT request_id, sequence, count, answered_at, {digest} FROM answers")


def keep_answers(connection: apsw.Connection, rows: Iterable[apsw.SQLiteValues]) -> None:
    """Store rows of responses, inside a transaction."""
    connection.executemany(
        "INSERT INTO answers (request_id, sequence, count, answered_at, digest) VALUES (?, ?, ?, ?, ?)", rows
    )


def _checksum(sequence: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(sequence.to_bytes(8, "little")))
