"""Build an index from input files, or bring it up to date with them: plan, run the chain, report."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scannery.indexer.datapoints.schema import identifier
from scannery.indexer.errors import AlreadyExistsError, MissingFileError, NotFoundError
from scannery.indexer.lexical.analyser import ANALYSER_VERSION
from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.sharding import shard_of
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.spec.spec_files import parse_spec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.leases import WorkLease, working
from scannery.indexer.versions.versions import hold_current, latest_version, read_manifest
from scannery.pipelines.errors import ModeError, NothingToIndexError, SpecConflictError
from scannery.pipelines.execution.outcome import check_record
from scannery.pipelines.execution.run import Engine, execute
from scannery.pipelines.execution.runners import check_engine
from scannery.pipelines.planning.build_plan import cut_input, dimensions_of, shards_of
from scannery.pipelines.planning.compatibility import check_compatible, needs_rewriting
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.pipelines.report import BuildReport
from scannery.pipelines.sources import Part, arrange, find_files, ids_to_delete
from scannery.pipelines.stages.update import Touch, write_deletes
from scannery.pipelines.state.job import Job, Mode
from scannery.pipelines.state.progress import ProgressCallback
from scannery.pipelines.state.work_units import WorkUnit, group, key_of
from scannery.pipelines.tuning.tuning_queries import queries_of, read_queries, write_queries

__all__ = ["MODES", "build", "build_id", "new_job"]

MODES: tuple[Mode, ...] = ("upsert", "full")

ATTEMPTS = 4
"""How often a build starts from the current version, if others commit while it works. Nothing is embedded twice: what
it repeats is to compare its input with the shards, and to write those that change."""

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
) -> BuildReport:
    """Build the index that `spec` describes from all records in `inputs`, and commit it as a new version.

    Where the index exists it is updated: documents of the input are added, or replaced with all of their passages,
    and all others stay. What earlier runs finished is not done again, so a build that was killed goes on where it
    stood, and one whose input changed embeds what changed. Where somebody else commits a version meanwhile, the build
    goes on from that one. Records that cannot be indexed become dead letters.

    Args:
        spec: what to build.
        inputs: files, folders and patterns, local or in object stores (sources.find_files). May be empty if there
            are `deletes`; the spec of the index stays as it is then.
        store_uri: where the index lives; a local folder is created.
        mode: `upsert` as above, or `full`: the input is the whole index, and what it has no longer is removed.
        deletes: ids of documents to remove from an existing index (of datapoints, where these are not parts of
            documents). Ids that are not there are counted. One that is in the input too is removed all the same.
        runner: which engine runs the pipeline (runners.RUNNERS); default `local`, in this process.
        runner_options: options for that engine, as on a command line.
        progress: called from another thread as work gets done.
        max_dead_letters: fail without a version if more records are refused: a number from 1 (or 0), or a share of
            all records below 1.
        queries: a file of queries as users will ask them (tuning/tuning_queries.py), to tune the index for in place
            of such as are made of its own rows. They are kept, for later builds too.
        before: called with the store and the name of an index that exists, before the build reads its version. The
            command line seals live updates there, so that the build replaces them.

    Raises:
        InvalidSpecError: `spec` is a mapping that does not describe an index.
        InvalidRecordError: an id in `deletes` cannot be one.
        PipelineError: see errors.py; a build that fails leaves no version, and what was finished is reused.
        EmbedError: the encoder cannot be loaded.
        AlreadyExistsError: others committed a version each time that this build was about to.
        IndexerError: the store failed, or a segment could not be built.

    """
    spec = spec if isinstance(spec, IndexSpec) else parse_spec(spec)
    clock = _Clock()
    check_engine(runner, runner_options, [*inputs, store_uri])
    gone = {identifier(value, field="deletes") for value in deletes}
    _check_mode(mode, inputs, gone)
    files = arrange(find_files(inputs), spec.source) if inputs else []
    gone |= ids_to_delete(files) if mode == "upsert" else set()  # a full build has what its input has
    store = Store.open(store_uri, create=bool(inputs))
    parent = _current(store, spec.index, needed=not inputs)
    if parent is not None and before is not None:
        before(store, spec.index)
    with working(store, spec.index) as lease:
        parent = _held(store, spec.index, lease)
        began_at = parent.log_sequence if parent is not None else 0
        if parent is not None and not files:
            spec = parent.spec
        parts, limit = cut_input(files, spec, progress)
        encoder = None if spec.encoder is None else PlannedEncoder(spec.encoder)
        given = None if queries is None else read_queries(queries, encoder)
        clock.lap("plan")
        engine = Engine(runner=runner, options=runner_options, encoder=encoder)
        for attempt in range(1, ATTEMPTS + 1):
            job = dataclasses.replace(
                _job(spec, store, parts, encoder, given, parent, "full" if mode == "full" else "upsert"),
                newer_than=None if parent is None or parent.log_sequence <= began_at else began_at,
                log_after=began_at,
                lease=lease.key,
                deletes=len(gone),
                max_dead_letters=max_dead_letters,
                started_at=clock.started_at,
                plan_seconds=clock.laps["plan"],
            )
            _check_overtaken(job, parent)
            units = group(parts, limit, job.recipe)
            touches = _touches(job, store, gone if parent else (), parent)
            if not units and not gone:
                raise NothingToIndexError("no record could be indexed (the input is empty)")
            job = dataclasses.replace(job, build_id=build_id(job, units, touches))
            lease.hold(parent=job.parent, units=[unit.key for unit in units])
            try:
                record = execute(job, store, units, touches, engine, progress)
                break
            except (AlreadyExistsError, MissingFileError) as error:
                if attempt == ATTEMPTS:
                    raise
                _LOG.info("%s; going on from there", error)
                held = [unit.key for unit in units]
                parent = hold_current(store, spec.index, lease, units=held)
                if before is not None and parent is not None and parent.log_sequence < began_at:
                    # A build that began earlier: what was sealed before this one is in the log again.
                    before(store, spec.index)
                    parent = hold_current(store, spec.index, lease, units=held)
        check_record(record, job)
        manifest = read_manifest(store, job.index, record.version)
    seconds = {**record.statistics["seconds"], "wall": clock.wall_s}
    return BuildReport.of(record, manifest, store=job.store_uri, files=files, seconds=seconds)


def _held(store: Store, index: str, lease: WorkLease) -> Manifest | None:
    """Return the current version, with a lease of it and of all that the log has after it."""
    for _ in range(ATTEMPTS):
        parent = hold_current(store, index, lease)
        lease.keep_log(parent.log_sequence if parent else 0)
        # Whoever makes the version after the next one cuts the log here, and looks at leases after its commit.
        if (latest_version(store, index) or 0) <= (parent.version if parent else 0) + 1:
            return parent
    raise AlreadyExistsError(f"index {index!r} gets new versions all the time; run this again")


def _check_overtaken(job: Job, parent: Manifest | None) -> None:
    """Refuse to go on where live updates that were sealed while the build ran could not be kept.

    Raises:
        SpecConflictError: they are of another space, or of other types.
        AlreadyExistsError: they came before another build or a rollback, so the log is not applied again from there.

    """
    if parent is None or job.newer_than is None or job.keep_rows or job.mode != "full":
        return
    numbers = f"{job.newer_than + 1} to {parent.log_sequence}"
    what = f"index {job.index!r}: live updates {numbers} were sealed while this build ran"
    old, new = parent.spec.attributes, job.spec.attributes
    retyped = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    if retyped or not _same_space(parent, job.dimensions, job.fingerprint):
        raise SpecConflictError(
            f"{what}, and do not fit its {', '.join(retyped) or 'encoder and dimensions'}; nothing was published: "
            "run it again while nothing is written"
        )
    if parent.log_floor > job.newer_than:
        raise AlreadyExistsError(f"{what}, and so did another build or a rollback; run this one again")


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


def _check_mode(mode: str, inputs: Sequence[str], gone: set[str]) -> None:
    if mode not in MODES:
        raise ModeError(f"mode must be one of {', '.join(MODES)}, got {mode!r}", field="mode")
    if mode == "full" and gone:
        raise ModeError(
            "a full build removes what its input leaves out; give deletes to an update", field="deletes"
        )
    if not inputs and not gone:
        raise ModeError("give inputs, ids to delete, or both", field="inputs")


def _job(
    spec: IndexSpec,
    store: Store,
    parts: Sequence[Part],
    encoder: PlannedEncoder | None,
    given_QD: np.ndarray | None,
    parent: Manifest | None,
    mode: Mode,
) -> Job:
    """Return the job, without what the caller chose and without the name that depends on its input.

    Raises:
        SpecConflictError: rows of the index and of the spec do not mix.

    """
    updates = mode == "upsert" and parent is not None
    if parent is not None and not parts and updates:  # only deletes: nothing is read, nothing encoded
        dimensions, fingerprint = parent.dimensions, parent.encoder
    else:
        dimensions = dimensions_of(spec, parts, encoder, parent)
        fingerprint = _fingerprint(encoder, parent)
    if parent is not None and updates:
        check_compatible(spec, parent, dimensions=dimensions, fingerprint=fingerprint)
    job = new_job(
        spec,
        store,
        dimensions=dimensions,
        shards=shards_of(spec, parts, parent),
        fingerprint=fingerprint,
        parent=parent,
        mode="upsert" if updates else "full",
        queries=None if given_QD is None else write_queries(store, spec.index, given_QD, dimensions),
    )
    return dataclasses.replace(
        job, keep_rows=not updates and parent is not None and _can_keep_rows(job, parent)
    )


def _can_keep_rows(job: Job, parent: Manifest) -> bool:
    """Return whether the segments of an index are as this job would make them of the same rows."""
    try:
        check_compatible(job.spec, parent, dimensions=job.dimensions, fingerprint=job.fingerprint)
    except SpecConflictError:
        return False
    same_queries = job.queries == queries_of(parent)
    return job.shards == parent.shards and same_queries and not needs_rewriting(job.spec, parent)


def new_job(
    spec: IndexSpec,
    store: Store,
    *,
    dimensions: int,
    shards: int,
    fingerprint: dict[str, Any] | None,
    parent: Manifest | None,
    mode: Mode,
    queries: str | None = None,
) -> Job:
    """Return a job, without what the caller of `build` chose and without a name.

    The words of the index are made by the rules that it has, unless the spec names others.

    Without `queries` to tune for, those that the parent was tuned for stay, if they are of the same encoder.
    """
    spec = _with_rules(spec, parent if mode == "upsert" else None)
    known = None if parent is None else queries_of(parent)
    if queries is None and parent is not None and _same_space(parent, dimensions, fingerprint):
        queries = known
    rewritten = parent is not None and (needs_rewriting(spec, parent) or queries != known)
    recipe = {
        "source": spec.source.model_dump(),
        "attributes": spec.attributes,
        "distance": spec.distance,
        "encoder": fingerprint["digest"] if fingerprint and spec.source.vector is None else None,
        "dimensions": dimensions,
        "shards": shards,
    }
    if spec.source.text is not None:
        recipe["text"] = TEXT_VERSION
    return Job(
        store_uri=str(store.local_root or store.uri),
        spec=spec,
        dimensions=dimensions,
        shards=shards,
        fingerprint=fingerprint,
        recipe=recipe,
        build_id="",
        parent=parent.version if parent else None,
        index_id=parent.index_id if parent else None,
        mode=mode,
        queries=queries,
        merge=mode == "upsert" and rewritten,
    )


TEXT_VERSION = 2
"""Part of the recipe where there are texts: raise it when some text would be embedded or searched in another way.

Units are made again then; documents whose content hash stays (records/passages.py) are not embedded again."""


def _with_rules(spec: IndexSpec, parent: Manifest | None) -> IndexSpec:
    """Return the spec with the version of the rules for words: that of the index, of a new one the newest."""
    if spec.lexical is None or spec.lexical.analyser is not None:
        return spec
    old = None if parent is None else parent.spec.lexical
    lexical = spec.lexical.model_copy(update={"analyser": old.analyser if old else ANALYSER_VERSION})
    return spec.model_copy(update={"lexical": lexical})


def _same_space(parent: Manifest, dimensions: int, fingerprint: dict[str, Any] | None) -> bool:
    digests = [(known or {}).get("digest") for known in (fingerprint, parent.encoder)]
    return dimensions == parent.dimensions and digests[0] == digests[1]


def build_id(job: Job, units: Sequence[WorkUnit], touches: Mapping[int, Touch]) -> str:
    """Return the name of a build: equal for builds that do the same."""
    # Not of the mode: a first build and its repetition, which is an update, are one build.
    spec, keys = job.spec.model_dump(mode="json"), [unit.key for unit in units]
    changes = sorted((shard, touch.key) for shard, touch in touches.items())
    return key_of("build", spec, job.recipe, keys, job.merge, job.queries, changes)[:16]


def _fingerprint(encoder: PlannedEncoder | None, parent: Manifest | None) -> dict[str, Any] | None:
    """Return the encoder's fingerprint; as the index has it if it is the same, under whatever name it was loaded."""
    if encoder is None:
        return None
    known = parent.encoder if parent is not None else None
    same = known is not None and known.get("digest") == encoder.fingerprint.digest
    return known if same else encoder.fingerprint.to_dict()


def _touches(job: Job, store: Store, gone: Iterable[str], parent: Manifest | None) -> dict[int, Touch]:
    """Return what happens to shards besides new rows: deletes, and making anew what the spec has changed."""
    by_shard: dict[int, list[str]] = {}
    for document in gone:
        by_shard.setdefault(shard_of(document, job.shards), []).append(document)
    touches = {shard: Touch(write_deletes(store, job.index, ids)) for shard, ids in by_shard.items()}
    # Rows that live updates wrote while a full build ran stay, also in shards of which its input has nothing.
    keeps_newer = job.newer_than is not None and job.keep_rows
    if (job.merge or keeps_newer) and parent is not None:
        touches = {entry.shard: Touch() for entry in parent.segments} | touches
    return touches


def _current(store: Store, index: str, *, needed: bool) -> Manifest | None:
    try:
        return read_manifest(store, index)
    except NotFoundError:
        if needed:
            raise
        return None
