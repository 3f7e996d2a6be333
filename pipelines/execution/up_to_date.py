"""Publish a build without a runner if earlier runs did all of its work: starting a runner takes longer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from scannery.indexer.manifest import Manifest
from scannery.indexer.store.object_store import Store
from scannery.pipelines.stages.embed import finished_unit
from scannery.pipelines.stages.publish import publish
from scannery.pipelines.stages.resolve import moved_ids, needs_resolving
from scannery.pipelines.stages.segment import finished_shard, shard_key
from scannery.pipelines.stages.update import ShardChange, finished_update
from scannery.pipelines.state.counts import ShardOutcome, UnitOutcome
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.row_groups import RowGroup, row_groups_of
from scannery.pipelines.state.stage_outputs import read_parent
from scannery.pipelines.state.work_units import WorkUnit
from scannery.pipelines.tuning.synthetic_queries import EncoderSource

__all__ = ["publish_finished"]


def publish_finished(
    job: Job,
    store: Store,
    units: Sequence[WorkUnit],
    shard_changes: Mapping[int, ShardChange],
    encoder: EncoderSource | None,
) -> bool:
    """Publish a build if all its units and segments exist already; return whether it was published.

    Raises:
        AlreadyExistsError: another build published a version meanwhile.

    """
    if needs_resolving(job):  # only the runner's stages find duplicates across shards
        return False
    outcomes = [finished_unit(unit, job, store) for unit in units]
    done = [outcome for outcome in outcomes if outcome is not None]
    if len(done) < len(units):
        return False
    shards = _finished_shards(job, store, done, shard_changes)
    if shards is None:
        return False
    publish(job, store, done, shards, encoder=encoder)
    return True


def _finished_shards(
    job: Job, store: Store, units: Sequence[UnitOutcome], shard_changes: Mapping[int, ShardChange]
) -> list[ShardOutcome] | None:
    parent = read_parent(job, store) if job.mode == "upsert" or job.keep_rows else None
    values: dict[int, list[str]] = defaultdict(list)
    for shard, change in shard_changes.items():
        values[shard].append(change.to_json())
    groups = [pair for unit in units for pair in row_groups_of(unit)]
    for shard, row_group in groups:
        values[shard].append(row_group.to_json())
    for shard, change in moved_ids(groups, job, store).items():
        values[shard].append(change.to_json())
    shards = []
    for shard, items in values.items():
        outcome = _finished_shard(shard, items, parent, job, store)
        if outcome is None:
            return None
        shards.append(outcome)
    return shards


def _finished_shard(
    shard: int, values: Sequence[str], parent: Manifest | None, job: Job, store: Store
) -> ShardOutcome | None:
    if job.mode == "full" and (job.newer_than is None or parent is None):
        rows = [RowGroup.from_json(value) for value in values]
        if done := finished_shard(shard_key(job, shard, rows), job, store):
            return done
    return None if parent is None else finished_update(shard, values, parent, job, store)
