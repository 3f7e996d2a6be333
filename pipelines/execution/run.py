"""Run the chain on an engine: once, or again where an earlier run's files turned out to be damaged.

Publish a build without a runner if earlier runs did all of its work: starting a runner takes longer.

Errors for builds that ran to their end without committing a version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from scannery.embed import Encoder
from scannery.indexer.manifest import Manifest
from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import (
    NothingToIndexError,
    PipelineError,
    StageDamagedError,
    TooManyDeadLettersError,
)
from scannery.pipelines.execution.chain import (
    EncoderHandle,
    Until,
    first_elements,
    one_encoder,
    restored,
    run_in_process,
)
from scannery.pipelines.execution.runners import new_pipeline, stage_pools
from scannery.pipelines.planning.planned_encoder import PlannedEncoder, both_sides, recipe_of, with_widths
from scannery.pipelines.stages.embed import find_finished, finished_units, read_outcomes
from scannery.pipelines.stages.publish import BuildRecord, embedded_record, publish, read_record
from scannery.pipelines.stages.resolve import (
    ROWS_PER_RANGE,
    LostRows,
    may_move,
    merged_values,
    needs_resolving,
    parent_ids,
    ranges_for,
    resolve_range,
    unit_ids,
)
from scannery.pipelines.stages.segment import finished_shard, shard_key
from scannery.pipelines.stages.update import ShardChange, finished_update
from scannery.pipelines.state.embedding_cache import (
    remove_catalogue,
    remove_named_catalogue,
    write_catalogue,
    write_named_catalogue,
)
from scannery.pipelines.state.job import Job, ShardOutcome, UnitOutcome, read_parent
from scannery.pipelines.state.progress import Progress, ProgressCallback, watched
from scannery.pipelines.state.row_groups import RowGroup, row_groups_of
from scannery.pipelines.state.work_units import (
    UnitSums,
    WorkUnit,
    add_up,
    expected_rows,
    fan_in,
    new_unit_list,
    remove_unit_list,
    write_unit_list,
)
from scannery.pipelines.tuning.tuning_queries import EncoderSources

__all__ = ["Engine", "check_record", "embed_only", "execute"]


MOST_ROWS = ROWS_PER_RANGE
"""Most rows, new and old, whose ids this process compares; more are compared by workers."""


def publish_finished(
    job: Job,
    store: Store,
    units: Sequence[UnitOutcome],
    shard_changes: Mapping[int, ShardChange],
    encoders: EncoderSources,
) -> bool:
    """Publish a build if all its segments exist already; return whether it was published.

    Args:
        job: the build.
        store: of the index.
        units: outcomes of all its units, which earlier runs finished.
        shard_changes: by shard, changes besides the units' rows.
        encoders: give the encoders, where queries are made for a measurement.

    Raises:
        AlreadyExistsError: another build published a version meanwhile.

    """
    if needs_resolving(job):  # only the runner's stages find duplicates across shards
        return False
    shards = _finished_shards(job, store, units, shard_changes)
    if shards is None:
        return False
    publish(job, store, add_up(map(UnitSums.of, units)), shards, encoders=encoders)
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
    for shard, shard_change in moved:
        values[shard].append(shard_change.to_json())
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


ATTEMPTS = 3
"""Each run removes the damaged files that it meets; a run that still meets one after two repetitions fails."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """The runner of the chain, with its options and the encoder."""

    runner: str | None = None
    """A name in runners.RUNNERS; None: a loop in this process. Beam's runner in this process has one worker, so it does
    no more at once, and its import and start take a second."""

    options: Sequence[str] = ()
    """Options, as on a command line."""

    encoder: PlannedEncoder | None = None
    """Encoder of the job; workers in this process use it if it is already loaded."""

    encoders: Mapping[str, PlannedEncoder] = dataclasses.field(default_factory=dict)
    """All encoders of the job by recipe, those of named vectors included."""

    accelerator: str | None = None
    """Accelerator of the machines that embed, for engines that have machines by stage (runners.py)."""

    segment_bytes: int = 0
    """Memory that building the largest shard needs, as planned; 0: not known."""


def execute(
    job: Job,
    store: Store,
    units: Sequence[WorkUnit],
    shard_changes: Mapping[int, ShardChange],
    engine: Engine,
    progress: ProgressCallback | None,
) -> BuildRecord:
    """Run the chain to its end and return the build's record.

    Raises:
        PipelineError, IndexerError, EmbedError: as the failed stage raised them.

    """
    encoders = {
        name: partial(both_sides, spec, lambda side: engine.encoders[recipe_of(side)].load())
        for name, spec in job.spec.encoders.items()
        if recipe_of(spec) in engine.encoders
    }
    job = _with_groups(job, units, store)
    done = finished_units(units, job, store)
    if done is None or not publish_finished(job, store, done, shard_changes, encoders):
        finished = done is not None
        _run_until_sound(job, store, units, shard_changes, engine, progress, finished=finished)
    record = read_record(job, store)
    if progress is not None:
        dead = sum(record.counts.dead_letters.values())
        progress(Progress(stage="done", done=1, total=1, passages=record.counts.passages, dead=dead))
    return record


def embed_only(
    job: Job,
    store: Store,
    units: Sequence[WorkUnit],
    engine: Engine,
    progress: ProgressCallback | None,
) -> BuildRecord:
    """Embed all units and make no segments; return counts of the units.

    A later build of the same input and spec finds the units done.

    Raises:
        PipelineError, IndexerError, EmbedError: as the failed stage raised them.

    """
    job = _with_groups(job, units, store)
    before = {outcome.key for outcome in find_finished(units, job, store)}
    if not before.issuperset(unit.key for unit in units):
        _run_until_sound(job, store, units, {}, engine, progress, finished=False, until="embed")
    outcomes = read_outcomes(units, job, store, before=before)
    return embedded_record(job, store, add_up(UnitSums.of(outcome) for outcome in outcomes))


def _run_until_sound(
    job: Job,
    store: Store,
    units: Sequence[WorkUnit],
    shard_changes: Mapping[int, ShardChange],
    engine: Engine,
    progress: ProgressCallback | None,
    *,
    finished: bool,
    until: Until | None = None,
) -> None:
    """Run the chain, again after it has removed damaged files; `finished`: no unit is left to embed at first."""
    for attempt in range(1, ATTEMPTS + 1):
        planned = job if finished or not job.spec.document_encoders else _with_plan(job, units, store, engine)
        try:
            with watched(planned, store, units, progress), _catalogue_removed(planned, store):
                _run(planned, units, shard_changes, engine, until)
            return
        except StageDamagedError:
            if attempt == ATTEMPTS:
                raise
            finished = finished_units(units, job, store) is not None


def _with_plan(job: Job, units: Sequence[WorkUnit], store: Store, engine: Engine) -> Job:
    """Return the job with what its workers need to embed."""
    job = with_widths(job, [part for unit in units for part in unit.parts], engine.encoder)
    # Another process that makes the same build has a catalogue of its own, and removes that when it ends.
    name = f"{job.build_id}.{uuid.uuid4().hex[:8]}"
    has_catalogue = job.embeds and write_catalogue(store, job.index, name, dimensions=job.dimensions)
    named = bool(job.spec.named_encoders) and write_named_catalogue(store, job.index, name)
    return dataclasses.replace(
        job, catalogue=name if has_catalogue else "", named_catalogue=name if named else ""
    )


def _with_groups(job: Job, units: Sequence[WorkUnit], store: Store) -> Job:
    """Return the job with the sizes of its groups, which depend on the number of rows and of units."""
    parent = read_parent(job, store) if units and may_move(job) else None
    rows = expected_rows((part for unit in units for part in unit.parts), job.spec)
    ranges = ranges_for(rows + (parent.rows if parent is not None else 0))
    return dataclasses.replace(job, hash_ranges=ranges, units_per_sum=fan_in(len(units)))


@contextlib.contextmanager
def _catalogue_removed(job: Job, store: Store) -> Iterator[None]:
    """Remove the catalogue after the build, its only reader; garbage collection removes that of a killed build."""
    yield
    if job.catalogue:
        remove_catalogue(store, job.index, job.catalogue)
    if job.named_catalogue:
        remove_named_catalogue(store, job.index, job.named_catalogue)


def _run(
    job: Job,
    units: Sequence[WorkUnit],
    shard_changes: Mapping[int, ShardChange],
    engine: Engine,
    until: Until | None,
) -> None:
    run = _run_here if engine.runner is None and not engine.options else _run_by_beam
    try:
        run(job, units, shard_changes, engine, until)
    except Exception as failure:
        if str(failure).startswith("KeyboardInterrupt"):  # Beam wraps every exception of a stage
            raise KeyboardInterrupt from failure
        error = restored(failure)
        if error is None:
            raise
        raise error from failure


def _run_here(
    job: Job,
    units: Sequence[WorkUnit],
    shard_changes: Mapping[int, ShardChange],
    engine: Engine,
    until: Until | None,
) -> None:
    run_in_process(job, units, shard_changes, _with_loaded(one_encoder(), job, engine), until=until)


def _run_by_beam(
    job: Job,
    units: Sequence[WorkUnit],
    shard_changes: Mapping[int, ShardChange],
    engine: Engine,
    until: Until | None,
) -> None:
    pipeline = new_pipeline(engine.runner, engine.options)
    from scannery.pipelines.execution.beam_pipeline import add_build, new_encoder_handle

    job = new_unit_list(job)
    store = job.open_store()
    runs = write_unit_list(units, job, store)
    parent = read_parent(job, store) if units and may_move(job) and until is None else None
    elements = first_elements(runs, shard_changes, job, parent)
    pools = stage_pools(
        engine.runner, engine.options, accelerator=engine.accelerator, segment_bytes=engine.segment_bytes
    )
    sides = (side for encoder in job.spec.encoders.values() for side in encoder.sides)
    encoders = new_encoder_handle(map(recipe_of, sides))
    add_build(pipeline, job, elements, _with_loaded(encoders, job, engine), pools, until=until)
    state = pipeline.run().wait_until_finish()
    if state not in (None, "DONE"):
        raise PipelineError(f"the runner ended in state {state}")
    remove_unit_list(job, store)


def _same(encoder: Encoder) -> Encoder:
    return encoder


def _with_loaded(encoders: EncoderHandle, job: Job, engine: Engine) -> EncoderHandle:
    loaded_encoders = {
        recipe: planned.loaded for recipe, planned in engine.encoders.items() if planned.loaded
    }
    for recipe, loaded in loaded_encoders.items():
        if engine.encoder is not None and loaded is engine.encoder.loaded:
            loaded.use_widths(job.widths)
        encoders.acquire(recipe, partial(_same, loaded))
    return encoders


MOST_EXAMPLES = 3
"""Reasons of which a message of a failed build gives the first record."""


def check_record(record: BuildRecord, job: Job) -> None:
    """Raise NothingToIndexError or TooManyDeadLettersError if the build committed no version for that reason."""
    dead = ", ".join(f"{count} × {reason}" for reason, count in record.counts.dead_letters.items())
    key = record.statistics["dead_letters_key"]
    first = [f"; first {text}" for text in record.statistics.get("dead_letter_examples", {}).values()]
    where = f"{''.join(first[:MOST_EXAMPLES])}; see {job.store_uri}/{key}" if key else ""
    if record.status == "empty":
        raise NothingToIndexError(f"no record could be indexed ({dead or 'the input is empty'}){where}")
    if record.status == "too_many_dead_letters":
        raise TooManyDeadLettersError(
            f"{sum(record.counts.dead_letters.values())} dead letters ({dead}), more than the {job.max_dead_letters:g} "
            f"allowed{where}",
            field="max_dead_letters",
        )
