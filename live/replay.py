"""Replay records of the log.

Live updates that the current version does not hold yet, as one change to its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from scannery.indexer import Manifest, Store
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogEntry, MutationLog, WrongLogError
from scannery.live.log.records import Mutation, decode, rows_fit
from scannery.live.log.registry import registered
from scannery.live.memtable import LiveState, apply, net_effect

__all__ = ["UnsealedChange", "change_of", "mutations_of", "state_after", "unsealed_change"]


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


@dataclass(frozen=True, kw_only=True)
class UnsealedChange:
    """What the mutations after a version change in it: rows of the version die, then new rows are added."""

    ids: list[str]
    """Rows of the version with these ids die."""
    documents: list[str]
    """Rows of the version of these documents die."""
    rows: pa.Table
    """New rows, with at least the columns of `written_schema`."""
    mutations: int
    """Batches of the log."""
    sequence: int
    """Sequence of the last one."""


def unsealed_change(
    store: Store, manifest: Manifest, *, log_root: LogRoot | None = None
) -> UnsealedChange | None:
    """Return what the log of an index changes in its current version; None if it changes nothing.

    Reads the log only, not the segments. Holds all unsealed rows in memory, as every server does.

    Args:
        store: of the index.
        manifest: of its current version.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        WrongLogError: the log of the index is not in that place, so that its live updates would be missing.
        CorruptError, FormatError: the log cannot be read, or does not fit the version.
        LogGapError: there is a later version.

    """
    home = log_home(store, manifest.index, log_root)
    if not home.writable and (registration := registered(store, manifest.index)) is not None:
        raise WrongLogError(
            f"the log of index {manifest.index!r} is {registration.where}; pass its place with --log, or the live "
            "updates that are not sealed would be missing"
        )
    log = checked_log(home, manifest)
    if log is None:
        return None
    try:
        return change_of(log, manifest)
    finally:
        log.close()


def change_of(log: MutationLog, manifest: Manifest) -> UnsealedChange | None:
    """Return what an open log changes in a version; None if it changes nothing. Raises as `MutationLog.read`."""
    mutations: list[tuple[int, Mutation]] = []
    while entries := log.read(mutations[-1][0] if mutations else manifest.log_sequence):
        mutations += mutations_of(entries, manifest)
    if not mutations:
        return None
    net = net_effect(mutations)
    return UnsealedChange(
        ids=net.ids,
        documents=net.documents,
        rows=net.rows,
        mutations=len(mutations),
        sequence=mutations[-1][0],
    )
