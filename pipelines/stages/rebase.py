"""Commit a compaction on top of versions that were committed while it ran, without repeating its work.

Merging large segments takes minutes, and live mutations are committed more often: a compaction that started again for
each commit would never end. Its result holds the datapoints of its start, so later deletes are marked in its result,
and segments that were added later stay beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.errors import AlreadyExistsError
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import expected_recall
from scannery.indexer.versions.tombstones import read_deleted, with_deleted
from scannery.indexer.versions.versions import commit, read_manifest
from scannery.pipelines.stages.old_rows import read_live_rows
from scannery.pipelines.state.counts import ShardOutcome
from scannery.pipelines.state.job import Job
from scannery.pipelines.tuning.tuning_queries import queries_of

__all__ = ["rebase"]

ATTEMPTS = 10
"""An attempt takes milliseconds; a commit by another process in each of them points to another cause than chance."""


def rebase(outcomes: Sequence[ShardOutcome], base: Manifest, job: Job, store: Store) -> Manifest:
    """Commit merged shards of `base` on top of the current version, and return the version that is then current.

    Shards stay as they are if another process has replaced their segments meanwhile, or if a rollback has restored rows
    in them, which the outcomes lack. If no merged shard remains, nothing is committed.

    Raises:
        AlreadyExistsError: another process committed a version in each attempt.

    """
    for attempt in range(1, ATTEMPTS + 1):
        current = read_manifest(store, job.index)
        segments = _segments(outcomes, base, current, job, store)
        if segments == current.segments:
            return current
        recall = expected_recall(segments, current.spec.target_recall, given_queries=queries_of(current))
        update = {"parent": current.version, "segments": segments, "recall": recall}
        update["index_id"] = base.index_id or current.index_id  # another index of the name is refused
        try:
            return commit(store, current.model_copy(update=update))
        except AlreadyExistsError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError


def _segments(
    outcomes: Sequence[ShardOutcome], base: Manifest, current: Manifest, job: Job, store: Store
) -> tuple[SegmentEntry, ...]:
    done = {outcome.shard: outcome for outcome in outcomes}
    entries: list[SegmentEntry] = [entry for entry in current.segments if entry.shard not in done]
    for shard, outcome in done.items():
        before, now = (
            [entry for entry in manifest.segments if entry.shard == shard] for manifest in (base, current)
        )
        entries += _carried(outcome, before, now, job, store)
    return tuple(sorted(entries, key=lambda entry: (entry.shard, -entry.rows, entry.key)))


def _carried(
    outcome: ShardOutcome,
    before: Sequence[SegmentEntry],
    now: Sequence[SegmentEntry],
    job: Job,
    store: Store,
) -> Sequence[SegmentEntry]:
    """Return the segments of a shard: the merged one and later ones, or the current ones if it stays as it is."""
    merged = {entry.content for entry in before}
    known = {entry.content: entry for entry in now}
    if not merged <= known.keys() or any(
        _has_restored_rows(entry, known[entry.content], job, store) for entry in before
    ):
        return now
    gone: set[str] = set()
    for entry in before:
        gone |= _deleted_since(entry, known[entry.content], job, store)
    added = [entry for entry in now if entry.content not in merged]
    marked = [_without(entry, gone, job, store) for entry in outcome.entries] if gone else outcome.entries
    return [*(entry for entry in marked if entry.live_rows), *added]


def _has_restored_rows(before: SegmentEntry, now: SegmentEntry, job: Job, store: Store) -> bool:
    """Return whether a rollback has restored rows that were deleted when the compaction began."""
    if before.deleted == now.deleted:
        return False
    then_R, now_R = (read_deleted(store, job.index, entry) for entry in (before, now))
    return len(np.setdiff1d(then_R, now_R)) > 0


def _deleted_since(before: SegmentEntry, now: SegmentEntry, job: Job, store: Store) -> set[str]:
    """Return the ids of rows that were deleted since the compaction began."""
    if before.labelled_keys == now.labelled_keys:
        return set()
    table, rows_N = read_live_rows(before, job, store, ["id"])
    gone_N = np.isin(rows_N, read_deleted(store, job.index, now))
    return set(table.column("id").filter(pa.array(gone_N)).to_pylist())


def _without(entry: SegmentEntry, gone: set[str], job: Job, store: Store) -> SegmentEntry:
    table, rows_N = read_live_rows(entry, job, store, ["id", "document_id"])
    gone_N = pc.is_in(table.column("id"), value_set=pa.array(sorted(gone), pa.string())).to_numpy()
    left = table.column("document_id").filter(pa.array(~gone_N))
    return with_deleted(store, job.index, entry, rows_N[gone_N], documents=pc.count_distinct(left).as_py())
