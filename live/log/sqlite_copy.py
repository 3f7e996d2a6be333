"""Copies of a log as a single file, whatever kind of log it comes from: an SQLite database, in backups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from scannery.live.log.database import connected, create_database, translated_errors
from scannery.live.log.files import open_private
from scannery.live.log.forks import no_forks
from scannery.live.log.mutation_log import LogEntry, LogIdentity
from scannery.live.log.transaction import (
    SqliteTransaction,
    entries_after,
    identify,
    truncated_of,
)

__all__ = ["read_copy", "write_copy"]

READ_BYTES = 16 << 20


def write_copy(
    path: Path, identity: LogIdentity, truncated: int, read: Callable[[int], Sequence[LogEntry]]
) -> None:
    """Write entries to a new file.

    Args:
        path: of the file, which must not exist.
        identity: of the log.
        truncated: the sequence after which it begins.
        read: returns some entries after a sequence; none: there are none.

    """
    os.close(open_private(path))
    with translated_errors(path), no_forks():
        create_database(path)
        with closing(connected(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            identify(connection, identity)
            transaction = SqliteTransaction(connection, truncated, lambda: 0.0)
            while entries := read(transaction.position):
                for entry in entries:
                    transaction.append(entry.data)
            connection.execute("COMMIT")


def read_copy(path: Path) -> tuple[int, Iterator[LogEntry]]:
    """Return the sequence after which a copy begins, and its entries."""
    with translated_errors(path), no_forks(), closing(connected(path)) as connection:
        truncated = truncated_of(connection)
    return truncated, _entries(path, truncated)


def _entries(path: Path, after: int) -> Iterator[LogEntry]:
    with translated_errors(path), closing(connected(path)) as connection:
        while entries := entries_after(connection, after, READ_BYTES):
            yield from entries
            after = entries[-1].sequence
