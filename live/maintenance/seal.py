"""Sealing: the newest rows become segments, what they replace becomes tombstones, and both become a version.

What is sealed is read from the log, not from the memory of a server: any process can do it, once, for all of them.
Nobody needs to be told. A server notices the version, opens it, and keeps of its log what is not in there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    AllowedRows,
    AlreadyExistsError,
    Manifest,
    Segment,
    SegmentCache,
    SegmentEntry,
    Store,
    build_segment,
    commit,
    next_version,
    open_index,
    open_segment,
    read_manifest,
    segment_key,
    shards_of_ids,
)
from scannery.indexer.local.scratch_folders import scratch_folder
from scannery.indexer.versions.leases import WorkLease, read_leases, working
from scannery.indexer.versions.versions import hold_current
from scannery.live.log.home import LogPlace
from scannery.live.log.mutation_log import MutationLog
from scannery.live.memtable import LiveState, begin
from scannery.live.replay import state_after
from scannery.live.row_tables import live_rows, stored_schema

__all__ = ["SealReport", "seal"]

MAX_ATTEMPTS = 10
"""Against builds and merges that commit a version meanwhile: each of them is long, and so is the time between two."""


@dataclass(frozen=True, kw_only=True)
class SealReport:
    """What `seal` did."""

    version: int
    mutations: int
    rows: int
    """Rows that are in segments now."""
    deleted: int
    """Rows of older segments that they replace, or that were deleted."""
    segments: int


def seal(
    store: Store,
    index: str,
    *,
    log_root: Path | None = None,
    cache: SegmentCache | None = None,
    threads: int | None = None,
) -> SealReport | None:
    """Bring all mutations in the log into a new version; None if there are none.

    Raises:
        NotFoundError, CorruptError, FormatError: the index or its log cannot be read.
        WrongLogError: the index uses another log than the one in this folder.
        BuildError, StoreError: a segment cannot be built or stored.
        AlreadyExistsError: others committed versions all the time.

    """
    place = LogPlace(store, index, log_root)
    log = place.checked(read_manifest(store, index))
    if log is None:
        return None
    try:
        with working(store, index) as lease:
            return _sealed(store, index, place, log, cache, threads, lease)
    finally:
        log.close()


def _sealed(
    store: Store,
    index: str,
    place: LogPlace,
    log: MutationLog,
    cache: SegmentCache | None,
    threads: int | None,
    lease: WorkLease,
) -> SealReport | None:
    cache = cache or SegmentCache()
    opened = None
    for attempt in range(MAX_ATTEMPTS):
        held = hold_current(store, index, lease)
        opened = open_index(store, index, held.version if held else None, cache=cache, reuse=opened)
        parent = opened.manifest
        place.check(log, parent)  # it may be another index since the last attempt
        state = begin(opened)
        while entries := log.read(state.sequence):
            state = state_after(state, entries)
        if not state.mutations:
            return None
        # A log that an earlier release made is registered by no write yet, and without it another could be begun.
        place.claim(log, parent)
        added = _built(store, state, threads)
        for entry in added:
            # Here, and not in a server: to unpack it and to time its searches takes seconds.
            open_segment(store, index, entry, cache)
        dead_rows = _dead_rows(state)
        manifest = next_version(
            store,
            parent,
            added=added,
            dead_rows=dead_rows,
            log_sequence=state.sequence,
            documents=_documents_left(state, dead_rows),
        )
        try:
            published = commit(store, _described(manifest, state))
        except AlreadyExistsError:
            if attempt + 1 == MAX_ATTEMPTS:
                raise
            continue
        _cut(log, store, parent)
        return SealReport(
            version=published.version,
            mutations=state.mutations,
            rows=sum(entry.rows for entry in added),
            deleted=sum(map(len, dead_rows.values())),
            segments=len(added),
        )
    return None


def _cut(log: MutationLog, store: Store, parent: Manifest) -> None:
    """Remove from the log what nobody needs after a version that was made of `parent`."""
    # In this order: a build whose lease is gone by now has committed what needs the log.
    leased = read_leases(store, parent.index).log_after
    current = read_manifest(store, parent.index)
    # What the version before needs stays: somebody may be opening it, or go back to it.
    needed = [parent.log_sequence, current.log_sequence, *([] if leased is None else [leased])]
    log.truncate(min(needed))


def _built(store: Store, state: LiveState, threads: int | None) -> list[SegmentEntry]:
    """Build a segment of the new rows of each shard and put it into the store."""
    manifest = state.manifest
    table = live_rows(((piece.segment, piece.alive) for piece in state.pieces), stored_schema(manifest))
    if not table.num_rows:
        return []
    shards_N = shards_of_ids(table.column("document_id"), manifest.shards)
    entries = []
    with scratch_folder("seal") as folder:
        for shard in np.unique(shards_N).tolist():
            rows = table.filter(pa.array(shards_N == shard))
            built = build_segment(rows, spec=manifest.spec, shard=shard, directory=folder, threads=threads)
            store.write_file(segment_key(manifest.index, built.entry.key), built.path)
            entries.append(built.entry)
    return entries


def _dead_rows(state: LiveState) -> dict[str, np.ndarray]:
    """Return the rows of the version's segments that died since, by key."""
    parts = zip(state.index.segments, state.index.alive, state.alive, strict=True)
    found = {segment.entry.key: _died(segment, before, now) for segment, before, now in parts}
    return {key: rows for key, rows in found.items() if len(rows)}


def _documents_left(state: LiveState, dead_rows: Mapping[str, np.ndarray]) -> dict[str, int]:
    parts = zip(state.index.segments, state.alive, strict=True)
    return {
        segment.entry.key: segment.documents_without(np.flatnonzero(~now.mask_N))
        for segment, now in parts
        if now is not None and segment.entry.key in dead_rows
    }


def _died(segment: Segment, before: AllowedRows | None, now: AllowedRows | None) -> np.ndarray:
    if now is before or now is None:
        return np.empty(0, np.int64)
    return np.flatnonzero(~now.mask_N if before is None else before.mask_N & ~now.mask_N)


def _described(manifest: Manifest, state: LiveState) -> Manifest:
    statistics = {"mode": "live", "mutations": state.mutations, "builds": state.manifest.builds}
    return manifest.model_copy(update={"statistics": statistics})
