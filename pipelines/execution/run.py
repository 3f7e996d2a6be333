"""Run the chain on an engine: once, or again where an earlier run's files turned out to be damaged."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from scannery.embed import Encoder
from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import PipelineError, StageDamagedError
from scannery.pipelines.execution.chain import (
    EncoderHandle,
    Until,
    first_elements,
    one_encoder,
    run_in_process,
)
from scannery.pipelines.execution.failures import restored
from scannery.pipelines.execution.runners import new_pipeline, stage_pools
from scannery.pipelines.execution.up_to_date import publish_finished
from scannery.pipelines.planning.padded_widths import with_widths
from scannery.pipelines.planning.planned_encoder import (
    PlannedEncoder,
    recipe_of,
)
from scannery.pipelines.stages.finished_units import find_finished, finished_units, read_outcomes
from scannery.pipelines.stages.publish import BuildRecord, embedded_record, read_record
from scannery.pipelines.stages.resolve import may_move, ranges_for
from scannery.pipelines.stages.update import ShardChange
from scannery.pipelines.state.embedding_cache import remove_catalogue, write_catalogue
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.named_cache import remove_named_catalogue, write_named_catalogue
from scannery.pipelines.state.progress import Progress, ProgressCallback, watched
from scannery.pipelines.state.stage_outputs import read_parent
from scannery.pipelines.state.unit_list import new_unit_list, remove_unit_list, write_unit_list
from scannery.pipelines.state.unit_sums import UnitSums, add_up, fan_in
from scannery.pipelines.state.work_units import WorkUnit, expected_rows

__all__ = ["Engine", "embed_only", "execute"]

ATTEMPTS = 3
"""Each run removes the damaged files that it meets; a run that still meets one after two repetitions fails."""

MAX_BYTES_HERE = 2**24
"""Without a named runner, input of at most this size is built by a loop in this process: Beam's import and start take
a second, half of a small build. Beam's runner in this process has one worker, so it does no more at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """The runner of the chain, with its options and the encoder."""

    runner: str | None = None
    """A name in runners.RUNNERS; None: a loop in this process for small input, else `local`."""

    options: Sequence[str] = ()
    """As on a command line."""

    encoder: PlannedEncoder | None = None
    """Encoder of the job; workers in this process use it if it is already loaded."""

    encoders: Mapping[str, PlannedEncoder] = dataclasses.field(default_factory=dict)
    """All encoders of the job by recipe, those of named vectors included."""

    accelerator: str | None = None
    """Accelerator of the machines that embed, for engines that have machines by stage (worker_options.py)."""

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
    encoder = engine.encoder.load if engine.encoder else None
    job = _with_groups(job, units, store)
    done = finished_units(units, job, store)
    if done is None or not publish_finished(job, store, done, shard_changes, encoder):
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
        planned = job if finished or not _encodes(job) else _with_plan(job, units, store, engine)
        try:
            with watched(planned, store, units, progress), _catalogue_removed(planned, store):
                _run(planned, units, shard_changes, engine, until)
            return
        except StageDamagedError:
            if attempt == ATTEMPTS:
                raise
            finished = finished_units(units, job, store) is not None


def _encodes(job: Job) -> bool:
    """Return whether workers need an encoder for texts of the input."""
    return job.embeds or bool(job.spec.named_encoders)


def _with_plan(job: Job, units: Sequence[WorkUnit], store: Store, engine: Engine) -> Job:
    """Return the job with what its workers need to embed."""
    job = with_widths(job, [part for unit in units for part in unit.parts], engine.encoder)
    # Another process that makes the same build has a catalogue of its own, and removes that when it ends.
    name = f"{job.build_id}.{uuid.uuid4().hex[:8]}"
    written = job.embeds and write_catalogue(store, job.index, name, dimensions=job.dimensions)
    named = bool(job.spec.named_encoders) and write_named_catalogue(store, job.index, name)
    return dataclasses.replace(job, catalogue=name if written else "", named_catalogue=name if named else "")


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
    run = _run_here if _runs_here(units, engine) else _run_by_beam
    try:
        run(job, units, shard_changes, engine, until)
    except Exception as failure:
        if str(failure).startswith("KeyboardInterrupt"):  # Beam wraps every exception of a stage
            raise KeyboardInterrupt from failure
        error = restored(failure)
        if error is None:
            raise
        raise error from failure


def _runs_here(units: Sequence[WorkUnit], engine: Engine) -> bool:
    size_bytes = sum(part.size_bytes for unit in units for part in unit.parts)
    return engine.runner is None and not engine.options and size_bytes <= MAX_BYTES_HERE


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
    encoders = new_encoder_handle(map(recipe_of, job.spec.encoders.values()))
    add_build(pipeline, job, elements, _with_loaded(encoders, job, engine), pools, until=until)
    state = pipeline.run().wait_until_finish()
    if state not in (None, "DONE"):
        raise PipelineError(f"the runner ended in state {state}")
    remove_unit_list(job, store)


def _same(encoder: Encoder) -> Encoder:
    return encoder


def _with_loaded(encoders: EncoderHandle, job: Job, engine: Engine) -> EncoderHandle:
    known = {recipe: planned.loaded for recipe, planned in engine.encoders.items() if planned.loaded}
    for recipe, loaded in known.items():
        if engine.encoder is not None and loaded is engine.encoder.loaded:
            loaded.use_widths(job.widths)
        encoders.acquire(recipe, partial(_same, loaded))
    return encoders
