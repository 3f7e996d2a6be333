"""Publish a build without a runner if earlier runs did all of its work: starting a runner takes longer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from scannery.indexer.manifest import Manifest
from scannery.indexer.store.object_store import Store
from scannery.pipelines.stages.publish import publish
from scannery.pipelines.stages.resolve import (
    ROWS_PER_RANGE,
    LostRows,
    may_move,
    merged_values,
    needs_resolving,
    parent_ids,
    resolve_range,
    unit_ids,
)
from scannery.pipelines.stages.segment import finished_shard, shard_key
from scannery.pipelines.stages.update import ShardChange, finished_update
from scannery.pipelines.state.counts import ShardOutcome, UnitOutcome
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.row_groups import RowGroup, row_groups_of
from scannery.pipelines.state.stage_outputs import read_parent
from scannery.pipelines.state.unit_sums import UnitSums, add_up
from scannery.pipelines.tuning.synthetic_queries import EncoderSource

__all__ = ["publish_finished"]

MOST_ROWS = ROWS_PER_RANGE
"""Most rows, new and old, whose ids this process compares; more are compared by workers."""


def publish_finished(
    job: Job,
    store: Store,
    units: Sequence[UnitOutcome],
    shard_changes: Mapping[int, ShardChange],
    encoder: EncoderSource | None,
) -> bool:
    """Publish a build if all its segments exist already; return whether it was published.

    Args:
        job: the build.
        store: of the index.
        units: outcomes of all its units, which earlier runs finished.
        shard_changes: by shard, changes besides the units' rows.
        encoder: gives the encoder, where queries are made for a measurement.

    Raises:
        AlreadyExistsError: another build published a version meanwhile.

    """
    if needs_resolving(job):  # only the runner's stages find duplicates across shards
        return False
    shards = _finished_shards(job, store, units, shard_changes)
    if shards is None:
        return False
    publish(job, store, add_up(map(UnitSums.of, units)), shards, encoder=encoder)
    return True


def _finished_shards(
    job: Job, store: Store, units: Sequence[UnitOutcome], shard_changes: Mapping[int, ShardChange]
) -> list[ShardOutcome] | None:
    parent = read_parent(job, store) if job.mode == "upsert" or job.keep_rows else None
    moved = _moved_ids(job, store, units, parent)
    if moved is None:
        return None
    values: dict[int, list[str]] = defaultdict(list)
    for shard, change in shard_changes.items():
        values[shard].append(change.to_json())
    for unit in units:
        for shard, group in row_groups_of(unit):
            values[shard].append(group.to_json())
    for shard, found in moved:
        values[shard].append(found.to_json())
    shards = []
    for shard, items in values.items():
        outcome = _finished_shard(shard, merged_values(items), parent, job, store)
        if outcome is None:
            return None
        shards.append(outcome)
    return shards


def _moved_ids(
    job: Job, store: Store, units: Sequence[UnitOutcome], parent: Manifest | None
) -> list[tuple[int, LostRows | ShardChange]] | None:
    """Return the changes for ids that move between shards; None if these are too many for this process."""
    if parent is None or not may_move(job) or not any(unit.row_groups for unit in units):
        return []
    if parent.rows + sum(unit.counts.passages for unit in units) > MOST_ROWS:
        return None
    new = [unit_ids(unit.ordinal, unit.key, dict(row_groups_of(unit)), job, store) for unit in units]
    old = [parent_ids(number, parent, job, store) for number in range(len(parent.segments))]
    return list(resolve_range([*new, *old], job))


def _finished_shard(
    shard: int, values: Sequence[str], parent: Manifest | None, job: Job, store: Store
) -> ShardOutcome | None:
    if job.mode == "full" and (job.newer_than is None or parent is None):
        rows = [RowGroup.from_json(value) for value in values]
        if done := finished_shard(shard_key(job, shard, rows), job, store):
            return done
    return None if parent is None else finished_update(shard, values, parent, job, store)
