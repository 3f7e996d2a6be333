"""From records of the log to the state after them."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.live.log.mutation_log import LogEntry
from scannery.live.log.records import decode, rows_fit
from scannery.live.memtable import LiveState, apply

__all__ = ["state_after"]


def state_after(state: LiveState, entries: Sequence[LogEntry]) -> LiveState:
    """Return the state after some entries of the log.

    Raises:
        CorruptError, FormatError: one cannot be read, or does not fit the version.

    """
    manifest = state.manifest
    mutations = [
        (
            entry.sequence,
            rows_fit(decode(entry.data, sequence=entry.sequence), manifest, sequence=entry.sequence),
        )
        for entry in entries
    ]
    return apply(state, mutations).logged(sum(len(entry.data) for entry in entries))
