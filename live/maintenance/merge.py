"""Merging: combine small segments into larger ones, and drop deleted rows.

merge_policy.py chooses the segments. A segment with more than `merge_deleted_share` of its rows deleted is also
rewritten.

A merge may take minutes, during which sealing continues. Rows that died in the merged segments meanwhile are looked up
by id when the result is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scannery.indexer import (
    AlreadyExistsError,
    BuiltSegment,
    Effort,
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
    store_segment,
    with_deleted,
)
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.segment.expired_rows import unexpired_rows
from scannery.indexer.versions.leases import working
from scannery.indexer.versions.versions import hold_current
from scannery.live.maintenance.merge_policy import due, full_tiers, largest_tried
from scannery.live.row_tables import live_rows, stored_schema
from scannery.runtime.times import WALL_SECONDS

__all__ = ["MergeReport", "merge"]

_LOG = logging.getLogger(__name__)

MAX_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class MergeReport:
    """Result of `merge`."""

    version: int
    """The new version."""
    merged: int
    """Segments that were merged."""
    rows: int
    """Rows of the new segment; 0 if no row was left."""
    dropped: int
    """Rows that the new segment does not contain, since they are deleted or have expired."""


def merge(
    store: Store,
    index: str,
    *,
    cache: SegmentCache | None = None,
    fill_cache: bool = True,
    threads: int | None = None,
    filling: bool = False,
    rewritten: Collection[str] = (),
    seconds: Callable[[], int] = WALL_SECONDS,
) -> MergeReport | None:
    """Merge the due group with the fewest rows, as a new version; return None if none is due.

    If a group cannot be merged, for example because a segment is damaged, another group is, or one of its tiers. The
    first error is raised only if none can be merged.

    Args:
        store: of the index.
        index: its name.
        cache: of this machine; None: the default cache.
        fill_cache: whether the new segment is unpacked into the cache, for servers on this machine. If not, the cache
            is not used: segments are unpacked into a folder that is removed after the merge.
        threads: for building segments; None: one per available core.
        filling: whether rows are added quickly: merges that can wait are not due, and others take less effort.
        rewritten: keys of segments of which one is written anew without its deleted rows, in place of what is due.
        seconds: returns the second since 1970, by which rows have expired: the new segment does not contain them.

    Raises:
        NotFoundError, CorruptError, FormatError: the index cannot be read.
        BuildError, StoreError: a segment cannot be built or stored.
        AlreadyExistsError: other processes committed versions during all MAX_ATTEMPTS attempts.

    """
    if not _groups(read_manifest(store, index), filling, rewritten):
        return None
    with _opening(cache, fill_cache) as opening, working(store, index) as lease:
        manifest = hold_current(store, index, lease)
        if manifest is None:
            return None
        groups = _groups(manifest, filling, rewritten)
        return _merge_first(store, manifest, groups, opening, threads, filling, seconds())


def _groups(manifest: Manifest, filling: bool, rewritten: Collection[str]) -> list[tuple[SegmentEntry, ...]]:
    """Return the groups to merge, in the order in which they are tried."""
    if rewritten:
        return [(entry,) for entry in manifest.segments if entry.key in rewritten]
    groups = due(manifest, filling=filling)
    return [*groups, *(full_tiers(manifest) if groups else ())]


@dataclass(frozen=True)
class _Opening:
    """How a merge opens segments."""

    cache: SegmentCache
    fills: bool
    """Whether it opens the new segment too, which unpacks it."""


@contextmanager
def _opening(cache: SegmentCache | None, fill_cache: bool) -> Iterator[_Opening]:
    if fill_cache:
        yield _Opening(cache or SegmentCache(), fills=True)
        return
    with scratch_folder("merged") as folder:
        yield _Opening(SegmentCache(folder), fills=False)


def _merge_first(
    store: Store,
    manifest: Manifest,
    groups: Sequence[Sequence[SegmentEntry]],
    opening: _Opening,
    threads: int | None,
    filling: bool,
    second: int,
) -> MergeReport | None:
    errors: list[Exception] = []
    tried: list[set[str]] = []
    for group in groups:
        if (keys := {entry.key for entry in group}) in tried:
            continue
        tried.append(keys)
        try:
            effort: Effort = "light" if filling else "full"
            return _merge_group(store, manifest, group, opening, threads, effort, second)
        except Exception as error:  # noqa: BLE001  the next group may succeed
            _LOG.error("index %s: %d segments of shard %d cannot be merged: %s", manifest.index, len(group),
                       group[0].shard, error)  # fmt: skip
            errors.append(error)
    if errors:
        raise errors[0]
    return None


def _merge_group(
    store: Store,
    manifest: Manifest,
    group: Sequence[SegmentEntry],
    opening: _Opening,
    threads: int | None,
    effort: Effort,
    second: int,
) -> MergeReport | None:
    index = manifest.index
    with scratch_folder("merge") as folder:
        built = _build_merged(store, manifest, group, folder, opening.cache, threads, effort, second)
        if built is not None:
            store_segment(store, index, built)
            if opening.fills:  # unpacking the segment and timing its searches would take a server seconds
                open_segment(store, index, built.entry, opening.cache)
    published = _committed(store, index, group, built.entry if built else None, opening.cache)
    if published is None:
        return None
    return MergeReport(
        version=published.version,
        merged=len(group),
        rows=built.entry.rows if built else 0,
        dropped=sum(entry.rows for entry in group) - (built.entry.rows if built else 0),
    )


def _build_merged(
    store: Store,
    manifest: Manifest,
    group: Sequence[SegmentEntry],
    folder: Path,
    cache: SegmentCache,
    threads: int | None,
    effort: Effort,
    second: int,
) -> BuiltSegment | None:
    segments = [open_segment(store, manifest.index, entry, cache) for entry in group]
    masks = [read_live_mask(store, manifest.index, entry) for entry in group]
    alive = [
        None if mask_N is None else segment.allow(mask_N)
        for segment, mask_N in zip(segments, masks, strict=True)
    ]
    table = live_rows(zip(segments, alive, strict=True), stored_schema(manifest))
    table = unexpired_rows(table, manifest.spec.live.expire, second)
    if not table.num_rows:
        return None
    return build_segment(
        table,
        spec=manifest.spec,
        shard=group[0].shard,
        directory=folder,
        threads=threads,
        effort=effort,
        earlier=largest_tried(manifest.segments),
    )


def _committed(
    store: Store,
    index: str,
    group: Sequence[SegmentEntry],
    merged: SegmentEntry | None,
    cache: SegmentCache,
) -> Manifest | None:
    """Commit a version with the merged segment instead of its parts; None if a build or rollback changed the parts."""
    for attempt in range(MAX_ATTEMPTS):
        parent = read_manifest(store, index)
        now = {entry.key: entry for entry in parent.segments}
        if any(entry.key not in now or now[entry.key].content != entry.content for entry in group):
            return None
        if _rows_revived(store, index, group, [now[entry.key] for entry in group]):
            return None
        entries = [entry for entry in parent.segments if entry.key not in {part.key for part in group}]
        if merged is not None:
            died = _died_since(store, index, group, [now[entry.key] for entry in group], cache)
            entries.append(_without(store, index, merged, died, cache))
        remaining = tuple(entry for entry in entries if entry.live_rows)
        recall_queries = parent.recall.given_queries if parent.recall else None
        manifest = parent.model_copy(
            update={
                "parent": parent.version,
                "segments": remaining,
                "recall": expected_recall(remaining, parent.spec.target_recall, given_queries=recall_queries),
                "statistics": {"mode": "merge", "merged": len(group), "builds": parent.builds},
            }
        )
        try:
            return commit(store, manifest)
        except AlreadyExistsError:
            if attempt + 1 == MAX_ATTEMPTS:
                raise
    return None


def _rows_revived(
    store: Store, index: str, before: Sequence[SegmentEntry], now: Sequence[SegmentEntry]
) -> bool:
    """Return whether rows that were deleted when the segments were read are part of the index again."""
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
    """Return the ids of rows that were deleted since the segments were read."""
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
