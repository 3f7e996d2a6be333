"""Run the chain on an engine: once, or again where an earlier run's files turned out to be damaged."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import PipelineError, StageDamagedError
from scannery.pipelines.execution.chain import EncoderHandle, Until, one_encoder, run_in_process
from scannery.pipelines.execution.failures import restored
from scannery.pipelines.execution.runners import new_pipeline, stage_pools
from scannery.pipelines.execution.up_to_date import publish_finished
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.pipelines.stages.embed import finished_unit
from scannery.pipelines.stages.publish import BuildRecord, embedded_record, read_record
from scannery.pipelines.stages.update import ShardChange
from scannery.pipelines.state.counts import UnitOutcome
from scannery.pipelines.state.embedding_cache import write_catalogue
from scannery.pipelines.state.job import Job, stage_key
from scannery.pipelines.state.progress import Progress, ProgressCallback, watched
from scannery.pipelines.state.stage_outputs import read_unit
from scannery.pipelines.state.work_units import WorkUnit

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
    if not publish_finished(job, store, units, shard_changes, encoder):
        _run_until_sound(job, store, units, shard_changes, engine, progress)
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
    before = {unit.key for unit in units if finished_unit(unit, job, store) is not None}
    if len(before) < len(units):
        _run_until_sound(job, store, units, {}, engine, progress, until="embed")
    outcomes = [_outcome(unit, job, store, worked=unit.key not in before) for unit in units]
    return embedded_record(job, store, outcomes)


def _outcome(unit: WorkUnit, job: Job, store: Store, *, worked: bool) -> UnitOutcome:
    outcome = read_unit(store, job.index, unit.key) if worked else finished_unit(unit, job, store)
    if outcome is None:
        raise PipelineError(f"the record of work unit {unit.key} is missing; run the build again")
    return dataclasses.replace(outcome, ordinal=unit.ordinal)


def _run_until_sound(
    job: Job,
    store: Store,
    units: Sequence[WorkUnit],
    shard_changes: Mapping[int, ShardChange],
    engine: Engine,
    progress: ProgressCallback | None,
    *,
    until: Until | None = None,
) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        planned = _with_catalogue(job, units, store)
        try:
            with watched(planned, store, units, progress), _catalogue_removed(planned, store):
                _run(planned, units, shard_changes, engine, until)
            return
        except StageDamagedError:
            if attempt == ATTEMPTS:
                raise


def _with_catalogue(job: Job, units: Sequence[WorkUnit], store: Store) -> Job:
    pending = any(finished_unit(unit, job, store) is None for unit in units)
    if not (job.embeds and pending):
        return job
    has_catalogue = write_catalogue(store, job.index, job.build_id, dimensions=job.dimensions)
    return dataclasses.replace(job, has_catalogue=has_catalogue)


@contextlib.contextmanager
def _catalogue_removed(job: Job, store: Store) -> Iterator[None]:
    """Remove the catalogue after the build, its only reader; the next run overwrites that of a killed build."""
    yield
    if job.has_catalogue:
        for suffix in (".npy", ".json"):
            store.delete(stage_key(job.index, "reuse", f"{job.build_id}{suffix}"))


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
    run_in_process(job, units, shard_changes, _with_loaded(one_encoder(), engine), until=until)


def _run_by_beam(
    job: Job,
    units: Sequence[WorkUnit],
    shard_changes: Mapping[int, ShardChange],
    engine: Engine,
    until: Until | None,
) -> None:
    pipeline = new_pipeline(engine.runner, engine.options)
    from scannery.pipelines.execution.beam_pipeline import add_build, new_encoder_handle

    encoders = _with_loaded(new_encoder_handle(), engine)
    pools = stage_pools(
        engine.runner, engine.options, accelerator=engine.accelerator, segment_bytes=engine.segment_bytes
    )
    add_build(pipeline, job, units, encoders, shard_changes, pools, until=until)
    state = pipeline.run().wait_until_finish()
    if state not in (None, "DONE"):
        raise PipelineError(f"the runner ended in state {state}")


def _with_loaded(encoders: EncoderHandle, engine: Engine) -> EncoderHandle:
    loaded = engine.encoder.loaded if engine.encoder else None
    if loaded is not None:
        encoders.acquire(lambda: loaded)
    return encoders
