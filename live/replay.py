"""Replay records of the log."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.live.log.mutation_log import LogEntry
from scannery.live.log.records import Mutation, decode, rows_fit
from scannery.live.memtable import LiveState, apply

__all__ = ["state_after"]


def state_after(state: LiveState, entries: Sequence[LogEntry]) -> LiveState:
    """Return the state after further entries of the log.

    Raises:
        CorruptError, FormatError: an entry cannot be read, or does not fit the version.

    """

    def mutation(entry: LogEntry) -> Mutation:
        return rows_fit(decode(entry.data, sequence=entry.sequence), state.manifest, sequence=entry.sequence)

    return apply(state, [(entry.sequence, mutation(entry)) for entry in entries]).logged(
        sum(len(entry.data) for entry in entries)
    )
