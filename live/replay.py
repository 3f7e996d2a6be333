"""Replay records of the log."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.indexer import Manifest
from scannery.live.log.mutation_log import LogEntry
from scannery.live.log.records import Mutation, decode, rows_fit
from scannery.live.memtable import LiveState, apply

__all__ = ["mutations_of", "state_after"]


def state_after(state: LiveState, entries: Sequence[LogEntry]) -> LiveState:
    """Return the state after further entries of the log.

    Raises:
        CorruptError, FormatError: an entry cannot be read, or does not fit the version.

    """
    size_bytes = sum(len(entry.data) for entry in entries)
    return apply(state, mutations_of(entries, state.manifest)).logged(size_bytes)


def mutations_of(entries: Sequence[LogEntry], manifest: Manifest) -> list[tuple[int, Mutation]]:
    """Return the mutations of entries with their sequences, as rows of a version; raises as `state_after`."""
    return [
        (
            entry.sequence,
            rows_fit(decode(entry.data, sequence=entry.sequence), manifest, sequence=entry.sequence),
        )
        for entry in entries
    ]
