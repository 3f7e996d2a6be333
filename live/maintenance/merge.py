"""Merging: small segments become larger ones, and deleted rows disappear.

Segments of a shard are kept in tiers, each for segments some times larger than the one before. When a tier is full, its
segments become one of the next tier (a log-structured merge tree): there are few segments whatever was written, and a
row is copied as many times as there are tiers. Besides, a segment of which a good part is deleted is written again.

A merge may take minutes, and sealing goes on meanwhile. What died in the merged segments since is looked up by id when
the result is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scannery.indexer import (
    AlreadyExistsError,
    BuiltSegment,
    LiveSpec,
    Manifest,
    Segment,
    SegmentCache,
    SegmentEntry,
    Store,
    build_segment,
    commit,
    expected_recall,
    id_hashes,
    open_segment,
    read_deleted,
    read_live_mask,
    read_manifest,
    segment_key,
    with_deleted,
)
from scannery.indexer.local.scratch_folders import scratch_folder
from scannery.indexer.versions.leases import working
from scannery.indexer.versions.versions import hold_current
from scannery.live.row_tables import live_rows, stored_schema

__all__ = ["MergeReport", "due", "merge"]

_LOG = logging.getLogger(__name__)

MAX_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class MergeReport:
    """What `merge` did."""

    version: int
    merged: int
    """Segments that are gone."""
    rows: int
    """Rows of those that took their place."""
    dropped: int
    """Deleted rows that are gone for good."""


def due(manifest: Manifest) -> list[tuple[SegmentEntry, ...]]:
    """Return the groups of segments that are to become one each, cheapest first."""
    live = manifest.spec.live
    groups: dict[tuple[int, int], list[SegmentEntry]] = {}
    for entry in manifest.segments:
        groups.setdefault((entry.shard, _tier(entry, live)), []).append(entry)
    found = [tuple(group) for group in groups.values() if len(group) >= live.merge_segments]
    grouped = {entry.key for group in found for entry in group}
    found += [
        (entry,)
        for entry in manifest.segments
        if entry.key not in grouped and 1 - entry.live_rows / entry.rows > live.merge_deleted_share
    ]
    return sorted(found, key=lambda group: sum(entry.live_rows for entry in group))


def _tier(entry: SegmentEntry, live: LiveSpec) -> int:
    tier, most = 0, live.seal_rows
    while entry.live_rows > most:
        tier, most = tier + 1, most * live.merge_segments
    return tier


def merge(
    store: Store, index: str, *, cache: SegmentCache | None = None, threads: int | None = None
) -> MergeReport | None:
    """Merge the cheapest group that is due, as a new version; None if none is.

    A group that cannot be merged, because a segment is damaged, say, does not keep others from it: it is passed over,
    and only when no other is due its error is raised.

    Raises:
        NotFoundError, CorruptError, FormatError: the index cannot be read.
        BuildError, StoreError: a segment cannot be built or stored.
        AlreadyExistsError: others committed versions all the time.

    """
    cache = cache or SegmentCache()
    if not due(read_manifest(store, index)):
        return None
    with working(store, index) as lease:
        manifest = hold_current(store, index, lease)
        return None if manifest is None else _first_merged(store, manifest, cache, threads)


def _first_merged(
    store: Store, manifest: Manifest, cache: SegmentCache, threads: int | None
) -> MergeReport | None:
    errors: list[Exception] = []
    for group in due(manifest):
        try:
            report = _merged(store, manifest, group, cache, threads)
        except Exception as error:  # noqa: BLE001  whatever it is, it is this group's
            _LOG.error("index %s: %d segments of shard %d cannot be merged: %s", manifest.index, len(group),
                       group[0].shard, error)  # fmt: skip
            errors.append(error)
            continue
        return report
    if errors:
        raise errors[0]
    return None


def _merged(
    store: Store,
    manifest: Manifest,
    group: Sequence[SegmentEntry],
    cache: SegmentCache,
    threads: int | None,
) -> MergeReport | None:
    index = manifest.index
    with scratch_folder("merge") as folder:
        built = _built(store, manifest, group, folder, cache, threads)
        if built is not None:
            store.write_file(segment_key(index, built.entry.key), built.path)
            # Here, and not in a server: to unpack it and to time its searches takes seconds.
            open_segment(store, index, built.entry, cache)
    published = _committed(store, index, group, built.entry if built else None, cache)
    if published is None:
        return None
    return MergeReport(
        version=published.version,
        merged=len(group),
        rows=built.entry.rows if built else 0,
        dropped=sum(entry.rows - entry.live_rows for entry in group),
    )


def _built(
    store: Store,
    manifest: Manifest,
    group: Sequence[SegmentEntry],
    folder: Path,
    cache: SegmentCache,
    threads: int | None,
) -> BuiltSegment | None:
    segments = [open_segment(store, manifest.index, entry, cache) for entry in group]
    masks = [read_live_mask(store, manifest.index, entry) for entry in group]
    alive = [
        None if mask_N is None else segment.allow(mask_N)
        for segment, mask_N in zip(segments, masks, strict=True)
    ]
    table = live_rows(zip(segments, alive, strict=True), stored_schema(manifest))
    if not table.num_rows:
        return None
    return build_segment(table, spec=manifest.spec, shard=group[0].shard, directory=folder, threads=threads)


def _committed(
    store: Store,
    index: str,
    group: Sequence[SegmentEntry],
    merged: SegmentEntry | None,
    cache: SegmentCache,
) -> Manifest | None:
    """Put the merged segment in the place of its parts; None if a build or a rollback has changed these meanwhile."""
    for attempt in range(MAX_ATTEMPTS):
        parent = read_manifest(store, index)
        now = {entry.key: entry for entry in parent.segments}
        if any(entry.key not in now for entry in group):
            return None
        if _came_back(store, index, group, [now[entry.key] for entry in group]):
            return None
        entries = [entry for entry in parent.segments if entry.key not in {part.key for part in group}]
        if merged is not None:
            died = _died_since(store, index, group, [now[entry.key] for entry in group], cache)
            entries.append(_without(store, index, merged, died, cache))
        left = tuple(entry for entry in entries if entry.live_rows)
        given = parent.recall.given_queries if parent.recall else None
        manifest = parent.model_copy(
            update={
                "parent": parent.version,
                "segments": left,
                "recall": expected_recall(left, parent.spec.target_recall, given_queries=given),
                "statistics": {"mode": "merge", "merged": len(group), "builds": parent.builds},
            }
        )
        try:
            return commit(store, manifest)
        except AlreadyExistsError:
            if attempt + 1 == MAX_ATTEMPTS:
                raise
    return None


def _came_back(store: Store, index: str, before: Sequence[SegmentEntry], now: Sequence[SegmentEntry]) -> bool:
    """Return whether rows are part of the index again that were not when the segments were read."""
    return any(
        len(np.setdiff1d(read_deleted(store, index, old), read_deleted(store, index, new)))
        for old, new in zip(before, now, strict=True)
        if old.deleted != new.deleted
    )


def _died_since(
    store: Store,
    index: str,
    before: Sequence[SegmentEntry],
    now: Sequence[SegmentEntry],
    cache: SegmentCache,
) -> list[str]:
    """Return the ids of rows that were deleted from some segments since they were read."""
    died: list[str] = []
    for old, new in zip(before, now, strict=True):
        if old.deleted != new.deleted:
            rows_R = np.setdiff1d(read_deleted(store, index, new), read_deleted(store, index, old))
            segment = open_segment(store, index, old, cache)
            died += segment.take(rows_R, ["id"]).column(0).to_pylist()
    return died


def _without(
    store: Store, index: str, entry: SegmentEntry, ids: Sequence[str], cache: SegmentCache
) -> SegmentEntry:
    if not ids:
        return entry
    segment: Segment = open_segment(store, index, entry, cache)
    rows_R = segment.rows_of(ids, id_hashes(ids))
    dead_R = rows_R[rows_R >= 0]
    return with_deleted(store, index, entry, dead_R, documents=segment.documents_without(dead_R))
