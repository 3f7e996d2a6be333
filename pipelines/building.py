"""Build an index from input files, or bring it up to date with them: plan, run the chain, report."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scannery.indexer.datapoints.schema import identifier
from scannery.indexer.errors import AlreadyExistsError, InUseError, MissingFileError, NotFoundError
from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.spec import IndexSpec, shard_of
from scannery.indexer.spec.spec_files import parse_spec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.creation import with_query_model
from scannery.indexer.versions.leases import WorkLease, working
from scannery.indexer.versions.versions import (
    check_no_alias,
    hold_current,
    is_dropped,
    latest_version,
    no_such_index,
    read_manifest,
)
from scannery.pipelines.errors import ModeError, NothingToIndexError
from scannery.pipelines.execution.chain import Until
from scannery.pipelines.execution.run import Engine, check_record, embed_only, execute
from scannery.pipelines.execution.runners import check_engine, check_processes
from scannery.pipelines.job_planning import build_id, plan_job
from scannery.pipelines.planning.build_plan import cut_input, with_headings
from scannery.pipelines.planning.compatibility import check_live_rows
from scannery.pipelines.planning.input_parts import CutMemory
from scannery.pipelines.planning.planned_encoder import PlannedEncoder, planned_encoders, recipe_of
from scannery.pipelines.planning.worker_resources import UNEVEN, row_size, segment_memory
from scannery.pipelines.report import BuildReport
from scannery.pipelines.sources import Fields, InputFile, Part, arrange, find_files, ids_to_delete
from scannery.pipelines.stages.update import ShardChange, write_deletes
from scannery.pipelines.state.job import Job, Mode
from scannery.pipelines.state.progress import ProgressCallback
from scannery.pipelines.state.work_units import expected_rows, group
from scannery.pipelines.tuning.tuning_queries import read_queries

__all__ = ["MODES", "build"]

MODES: tuple[Mode, ...] = ("upsert", "full")

ATTEMPTS = 4
"""Attempts to commit on top of the current version when others commit during the build. A repetition compares the
input with the shards again and writes those that change; it embeds nothing twice."""

_LOG = logging.getLogger(__name__)


def build(
    spec: IndexSpec | Mapping[str, Any],
    inputs: Sequence[str],
    store_uri: str,
    *,
    mode: str = "upsert",
    deletes: Iterable[str] = (),
    runner: str | None = None,
    runner_options: Sequence[str] = (),
    progress: ProgressCallback | None = None,
    max_dead_letters: float | None = None,
    queries: str | Path | None = None,
    before: Callable[[Store, str], object] | None = None,
    until: Until | None = None,
    accelerator: str | None = None,
) -> BuildReport:
    """Build the index that `spec` describes from all records in `inputs`, and commit it as a new version.

    An existing index is updated: documents of the input are added, or replaced with all of their passages, and all
    others stay. Work that an earlier run finished is reused, so a killed build resumes, and a build whose input changed
    embeds only the changes. If another process commits a version during the build, the build is applied on top of that
    version. Records that cannot be indexed become dead letters.

    Args:
        spec: what to build.
        inputs: files, folders and patterns, local or in object stores (sources.find_files). May be empty if there
            are `deletes`; the spec of the index stays as it is then.
        store_uri: where the index lives; a local folder is created.
        mode: `upsert` as above, or `full`: the input is the whole index, and documents missing from it are removed.
        deletes: ids of documents to remove from an existing index (of datapoints, where the source has no documents).
            Unknown ids are counted. An id that the input also has is removed as well.
        runner: which engine runs the pipeline (runners.RUNNERS); default: this process, without Beam.
        runner_options: options for that engine, as on a command line.
        progress: called from another thread as work is finished.
        max_dead_letters: fail without a version if more records are refused: a number from 1 (or 0), or a share of
            all records below 1. None: as `source.max_errors` of the spec says.
        queries: a file of queries as users will ask them (tuning/tuning_queries.py). The index is tuned for these
            instead of queries made from its own rows. They are stored and used by later builds.
        before: called with the store and the name of an index that exists, before the build reads its version. Give
            `scannery.live.maintenance.seal.seal`, as the command does, where live updates may be in a log: those that
            are not sealed win over rows of the build, although they are older. This room knows no logs.
        until: `embed` stops after the units are embedded, and makes no version. A later build without it finds them
            done, so that the segments can be built on other machines. None: the whole build.
        accelerator: Dataflow only: accelerator of the machines that embed, such as
            `type:nvidia-l4;count:1;install-nvidia-driver`; segments are built on machines without.

    Raises:
        InvalidSpecError: `spec` is a mapping that does not describe an index.
        InvalidRecordError: an id in `deletes` cannot be one.
        PipelineError: see errors.py; a failed build leaves no version, and the next run reuses its finished work.
        EmbedError: the encoder cannot be loaded.
        AlreadyExistsError: another process committed a version before this build did, in every attempt.
        InUseError: the index was dropped, and not all of its files are removed.
        IndexerError: the store failed, or a segment could not be built.

    """
    spec = spec if isinstance(spec, IndexSpec) else parse_spec(spec)
    clock = _Clock()
    _check_engine(spec, runner, runner_options, [*inputs, store_uri], accelerator)
    gone = {identifier(value, field="deletes") for value in deletes}
    _check_mode(mode, inputs, gone)
    _check_until(until, inputs)
    files = arrange(find_files(inputs, store=store_uri), spec.source, Fields.of(spec)) if inputs else []
    gone |= (
        ids_to_delete(files) if mode == "upsert" else set()
    )  # a full build removes all ids without a record
    store, parent = _opened(store_uri, spec.index, inputs)
    if parent is not None and before is not None and until is None:
        before(store, spec.index)
    with working(store, spec.index) as lease:
        parent = _hold_parent(store, spec.index, lease)
        began_at = parent.log_sequence if parent is not None else 0
        unpromoted = with_headings(spec if files or parent is None else _unpromoted(parent), parent, files)
        spec = with_query_model(unpromoted, parent)
        parts, limit = cut_input(files, spec, progress, _memory(mode, files, store, spec.index))
        engine = _engine(spec, store, runner, runner_options, accelerator)
        recall_queries = None if queries is None else read_queries(queries, _query_encoder(spec, engine))
        clock.lap("plan")
        for attempt in range(1, ATTEMPTS + 1):
            job = dataclasses.replace(
                plan_job(
                    spec,
                    store,
                    parts,
                    engine.encoders,
                    recall_queries,
                    parent,
                    "full" if mode == "full" else "upsert",
                ),
                newer_than=None if parent is None or parent.log_sequence <= began_at else began_at,
                log_after=began_at,
                lease=lease.key,
                deletes=len(gone),
                max_dead_letters=spec.source.max_dead_letters
                if max_dead_letters is None
                else max_dead_letters,
                started_at=clock.started_at,
                plan_seconds=clock.laps["plan"],
            )
            check_live_rows(job, parent, store)
            _check_overtaken(job, parent)
            units = group(parts, limit, job.recipe)
            shard_changes = _shard_changes(job, store, gone if parent else (), parent)
            if not units and not gone:
                raise NothingToIndexError("no record could be indexed (the input is empty)")
            job = dataclasses.replace(job, build_id=build_id(job, units, shard_changes))
            held = [*(unit.key for unit in units), job.build_id]  # the build's number type is among the units
            lease.hold(parent=job.parent, units=held)
            if until == "embed":
                record = embed_only(job, store, units, engine, progress)
                check_record(record, job)
                seconds = {**record.statistics["seconds"], "wall": clock.wall_s}
                return BuildReport.of_units(record, job, parent, files=files, seconds=seconds)
            try:
                record = execute(
                    job, store, units, shard_changes, _sized(engine, job, parts, parent), progress
                )
                break
            except (AlreadyExistsError, MissingFileError) as error:
                if attempt == ATTEMPTS:
                    raise
                _LOG.info("%s; starting again from the current version", error)
                parent = hold_current(store, spec.index, lease, units=held)
                # Another model for queries may have been promoted: publishing takes over that of the current version.
                spec = unpromoted
                if before is not None and parent is not None and parent.log_sequence < began_at:
                    # A build that began earlier has committed: updates sealed before this build are in the log again.
                    before(store, spec.index)
                    parent = hold_current(store, spec.index, lease, units=held)
        check_record(record, job)
        manifest = read_manifest(store, job.index, record.version)
    seconds = {**record.statistics["seconds"], "wall": clock.wall_s}
    return BuildReport.of(
        record,
        manifest,
        store=job.store_uri,
        files=files,
        seconds=seconds,
        errors_allowed=job.max_dead_letters is not None,
    )


def _unpromoted(parent: Manifest) -> IndexSpec:
    """Return the spec of a version as a build file has it: without the model for queries that was promoted."""
    encoder = parent.spec.encoder
    if encoder is None or parent.model is None:
        return parent.spec
    return parent.spec.model_copy(update={"encoder": encoder.documents})


def _memory(mode: str, files: Sequence[InputFile], store: Store, index: str) -> CutMemory | None:
    """Return how the last build cut its input; a full build repairs, so it reads every file."""
    return None if mode == "full" else CutMemory.of(files, store, index)


def _opened(store_uri: str, index: str, inputs: Sequence[str]) -> tuple[Store, Manifest | None]:
    """Return the store, made where there are inputs, and the current version."""
    store = Store.open(store_uri, create=bool(inputs))
    if is_dropped(store, index):
        raise InUseError(no_such_index(store, index), field="index")
    return store, _current(store, index, needed=not inputs)


def _sized(engine: Engine, job: Job, parts: Sequence[Part], parent: Manifest | None) -> Engine:
    """Return the engine with the memory that building the largest shard needs."""
    new = expected_rows(parts, job.spec)
    rows = new + (parent.rows if parent is not None and job.mode == "upsert" else 0)
    row = row_size(parts, new, job.spec, job.vectors)
    return dataclasses.replace(engine, segment_bytes=segment_memory(rows / job.shards * UNEVEN, row))


def _hold_parent(store: Store, index: str, lease: WorkLease) -> Manifest | None:
    """Return the current version, with a lease on it and on the log after it."""
    for _ in range(ATTEMPTS):
        parent = hold_current(store, index, lease)
        if parent is None:
            check_no_alias(store, index)  # the commit would refuse it, after all the work
        elif parent.mirror is not None:
            raise InUseError(
                f"index {index!r} cannot be built: it follows {parent.mirror.index!r}", field="index"
            )
        lease.keep_log(parent.log_sequence if parent else 0)
        # The commit of the version after the next one cuts the log here, and that process checks leases only after its
        # commit: so the lease is safe only if at most one version was committed meanwhile.
        if (latest_version(store, index) or 0) <= (parent.version if parent else 0) + 1:
            return parent
    raise AlreadyExistsError(
        f"index {index!r}: new versions were committed in each of {ATTEMPTS} attempts; run this again"
    )


def _check_overtaken(job: Job, parent: Manifest | None) -> None:
    """Refuse to publish where live updates that were sealed during the build would be lost.

    That they fit, `check_live_rows` has seen.

    Raises:
        AlreadyExistsError: another build or a rollback followed them, so the log cannot be replayed from there.

    """
    if parent is None or job.newer_than is None or job.keep_rows or job.mode != "full":
        return
    if parent.log_floor > job.newer_than:
        raise AlreadyExistsError(
            f"index {job.index!r}: live updates {job.newer_than + 1} to {parent.log_sequence} were sealed while this "
            "build ran, and another build or a rollback was committed; run this one again"
        )


class _Clock:
    def __init__(self) -> None:
        self.started_at = time.time()
        self._started = time.perf_counter()
        self.laps: dict[str, float] = {}

    @property
    def wall_s(self) -> float:
        return round(time.perf_counter() - self._started, 3)

    def lap(self, name: str) -> None:
        self.laps[name] = self.wall_s


def _engine(
    spec: IndexSpec, store: Store, runner: str | None, options: Sequence[str], accelerator: str | None
) -> Engine:
    encoders = planned_encoders(spec, store.uri)
    encoder = None if spec.encoder is None else encoders[recipe_of(spec.encoder)]
    return Engine(runner=runner, options=options, encoder=encoder, encoders=encoders, accelerator=accelerator)


def _query_encoder(spec: IndexSpec, engine: Engine) -> PlannedEncoder | None:
    return None if spec.encoder is None else engine.encoders[recipe_of(spec.encoder.queries)]


def _check_engine(
    spec: IndexSpec,
    runner: str | None,
    options: Sequence[str],
    locations: Sequence[str],
    accelerator: str | None,
) -> None:
    check_engine(runner, options, locations, accelerator=accelerator)
    for encoder in spec.encoders.values():
        check_processes(encoder.device, options)


def _check_mode(mode: str, inputs: Sequence[str], gone: set[str]) -> None:
    if mode not in MODES:
        raise ModeError(f"mode must be one of {', '.join(MODES)}, got {mode!r}", field="mode")
    if mode == "full" and gone:
        raise ModeError(
            "a full build removes what its input leaves out; give deletes to an update", field="deletes"
        )
    if not inputs and not gone:
        raise ModeError("give inputs, ids to delete, or both", field="inputs")


def _check_until(until: str | None, inputs: Sequence[str]) -> None:
    if until not in (None, "embed"):
        raise ModeError(f"until must be embed, got {until!r}", field="until")
    if until is not None and not inputs:
        raise ModeError("until needs inputs, whose records are embedded", field="until")


def _shard_changes(
    job: Job, store: Store, gone: Iterable[str], parent: Manifest | None
) -> dict[int, ShardChange]:
    """Return the changes to shards besides new rows: deletes, and shards to rewrite because the spec changed."""
    by_shard: dict[int, list[str]] = {}
    for document in gone:
        by_shard.setdefault(shard_of(document, job.shards), []).append(document)
    shard_changes = {
        shard: ShardChange(write_deletes(store, job.index, ids)) for shard, ids in by_shard.items()
    }
    # Rows that live updates wrote during a full build stay, also in shards for which the input has no row.
    keeps_newer = job.newer_than is not None and job.keep_rows
    if (job.merge or keeps_newer) and parent is not None:
        shard_changes = {entry.shard: ShardChange() for entry in parent.segments} | shard_changes
    return shard_changes


def _current(store: Store, index: str, *, needed: bool) -> Manifest | None:
    try:
        return read_manifest(store, index)
    except NotFoundError:
        if needed:
            raise
        return None
