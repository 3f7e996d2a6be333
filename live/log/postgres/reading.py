"""Reads of a log: one statement, so that what it sees is of one moment, however fast others append and truncate.

The chain of hashes over a log: each record's hash covers the hash before it.

So two logs with one hash at a sequence are the same up to it. A reader that finds another hash at the record it stands
on knows that the database lost that record (a failover to a standby that lagged, a restored backup) and that another
one took its sequence.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import psycopg

from scannery.indexer import CorruptError
from scannery.live.log.mutation_log import LogEntry, LogGapError, LogReplacedError

__all__ = ["LogEntries", "chained", "entries_after"]


CHAIN_BYTES = 16


def chained(before: bytes, sequence: int, data: bytes) -> bytes:
    """Return the hash of a record (16 bytes), after the hash of the record before it (empty before the first)."""
    digest = hashlib.blake2b(before, digest_size=CHAIN_BYTES)
    digest.update(sequence.to_bytes(8, "little"))
    digest.update(data)
    return digest.digest()


MAX_ROWS = 20_000
"""Records whose sizes one statement sums up to find those that it returns."""

# The record at `after` comes along, without its data: its hash says whether the reader stands in this log.
_QUERY = """
SELECT l.truncated, l.truncated_chain, l.position, r.sequence, r.chain, r.data
FROM scannery.logs l LEFT JOIN LATERAL (
    SELECT sequence, chain, CASE WHEN sequence > %(after)s THEN data END AS data
    FROM (
        SELECT sequence, chain, data,
            sum(CASE WHEN sequence > %(after)s THEN octet_length(data) ELSE 0 END)
                OVER (ORDER BY sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_bytes
        FROM scannery.records WHERE log = l.number AND sequence >= %(after)s ORDER BY sequence LIMIT %(rows)s
    ) AS bounded
    WHERE sequence = %(after)s OR coalesce(before_bytes, 0) < %(most)s
) AS r ON true
WHERE l.log_id = %(log_id)s ORDER BY r.sequence
"""


@dataclass(frozen=True)
class LogEntries:
    """Entries of a log."""

    entries: list[LogEntry]
    last: bytes | None
    """The hash of the last one, or of the record before the first if there are none; None: that record is gone."""


def entries_after(
    connection: psycopg.Connection[tuple[Any, ...]],
    log_id: str,
    after: int,
    *,
    max_bytes: int | None = None,
    expected_chain: bytes | None = None,
) -> LogEntries:
    """Return the entries after a sequence, as `MutationLog.read` does.

    Args:
        connection: outside of a turn, or in it.
        log_id: id of the log.
        after: the sequence.
        max_bytes: entries stop when they reach this size; None: all.
        expected_chain: hash of the record at `after` as the caller read it; None: it was never read.

    """
    rows = _rows(connection, log_id, after, max_bytes)
    truncated, truncated_chain, position = rows[0][:3]
    if after < truncated:
        raise LogGapError(f"the log begins after sequence {truncated}, records after {after} were requested")
    records = [(sequence, chain, data) for *_, sequence, chain, data in rows if sequence is not None]
    before = truncated_chain if after == truncated else b""
    if records and records[0][0] == after:
        before = records.pop(0)[1]
    if expected_chain is not None and (position < after or before != expected_chain):
        raise LogReplacedError(
            f"the log has lost records up to sequence {after}, which were read before: its database was restored, or "
            "another one took its place"
        )
    entries = _checked(records, after, before)
    expected = after if position <= after else after + 1
    if not entries and position >= expected > after:
        raise CorruptError(f"the log has no record {expected}, and its last one is {position}")
    return LogEntries(entries, records[-1][1] if records else (before or None))


def _rows(
    connection: psycopg.Connection[tuple[Any, ...]], log_id: str, after: int, max_bytes: int | None
) -> list[tuple[Any, ...]]:
    limit = 1 << 62 if max_bytes is None else max_bytes
    rows = 1 << 40 if max_bytes is None else MAX_ROWS
    parameters = {"log_id": log_id, "after": after, "most": limit, "rows": rows}
    records: list[tuple[Any, ...]] = connection.cursor(binary=True).execute(_QUERY, parameters).fetchall()
    if not records:
        raise LogReplacedError(f"the mutation log {log_id} was removed from its database")
    return records


def _checked(records: list[tuple[int, bytes, bytes]], after: int, chain: bytes) -> list[LogEntry]:
    """Return the entries; CorruptError if one is missing, or its hash is wrong."""
    entries = []
    for expected, (sequence, stored_chain, data) in enumerate(records, after + 1):
        if sequence != expected:
            raise CorruptError(f"the log has no record {expected}, but a later one")
        chain = chained(chain, sequence, data)
        if chain != stored_chain:
            raise CorruptError(f"record {sequence} of the log is damaged: its hash is wrong")
        entries.append(LogEntry(sequence, data))
    return entries
