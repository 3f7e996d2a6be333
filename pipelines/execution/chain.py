"""The chain of stages, which every runner executes the same way, and the runner that is a loop in this process.

    units ─ embed ─▶ (shard, row group) ─ group ─▶ build segment ─▶ outcome ─ group ─▶ publish

An update also starts with shard changes, which the first stage passes on to their shards (stages/update.py). Where one
id can be in two shards, the first stage also yields blocks of ids, of units and of the parent's segments, and
`─ group ─▶ resolve a range of hashes ─▶` comes before the grouping by shard.

References to row groups are shuffled, not vectors: for a million vectors of 384 dimensions that takes 16 s instead of
28 s, and a seventh of the memory. There are no tagged outputs, side inputs or branches, because some runners lose
their data without an error; so dead letters are files, and counts and ids travel in the same stream under keys of their
own (`sums_key`, `range_key`). Outcomes of units are added up in two levels, so that no key has all of them.

Nothing here imports Beam, which takes a second; beam_pipeline.py makes the same stages a pipeline of it.

Runners pass on the text of an error only, so the error is packed into its message, and restored.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from scannery.embed import Encoder
from scannery.embed import errors as embed_errors
from scannery.indexer import errors as indexer_errors
from scannery.indexer.errors import CorruptError, NotFoundError
from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.spec import EncoderSpec
from scannery.pipelines import errors as pipeline_errors
from scannery.pipelines.planning.planned_encoder import agreed_encoder, both_sides, load_encoder, recipe_of
from scannery.pipelines.records.id_blocks import IdBlock
from scannery.pipelines.stages.embed import embed_unit, finished_unit
from scannery.pipelines.stages.publish import publish
from scannery.pipelines.stages.resolve import (
    may_move,
    merged_values,
    needs_resolving,
    parent_ids,
    resolve_range,
    unit_ids,
)
from scannery.pipelines.stages.segment import build_shard, finished_shard, shard_key
from scannery.pipelines.stages.update import ShardChange, update_shard
from scannery.pipelines.state.embedding_cache import Catalogue, NamedCatalogue
from scannery.pipelines.state.job import Job, ShardOutcome, UnitOutcome, read_parent
from scannery.pipelines.state.row_groups import RowGroup, row_groups_of
from scannery.pipelines.state.work_units import UnitSums, WorkUnit, add_up, read_run
from scannery.pipelines.tuning.tuning_queries import EncoderSources

__all__ = [
    "BuildSegment",
    "EmbedUnit",
    "EncoderHandle",
    "Publish",
    "ResolveDuplicates",
    "Stage",
    "StageFailedError",
    "Until",
    "carried",
    "first_elements",
    "one_encoder",
    "resolves",
    "restored",
    "run_in_process",
]


_MARK = re.compile(r"<<scannery-error (\{.*?\}) scannery-error>>")
_ERROR_KINDS: dict[str, Any] = {
    name: getattr(module, name)
    for module in (embed_errors, indexer_errors, pipeline_errors)
    for name in module.__all__
    if isinstance(getattr(module, name), type)
}


class StageFailedError(Exception):
    """A stage failed with a known error; the message holds it in a form that `restored` reads."""


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """Raise Scannery's errors as `StageFailedError`, which a runner can pass from a worker to the launcher."""
    try:
        yield
    except tuple(_ERROR_KINDS.values()) as error:
        raise _packed(error) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Temporary files: the store raises its own errors.
        folder = tempfile.gettempdir()
        raise _packed(
            indexer_errors.StoreError(f"temporary files in {folder}: {os.strerror(error.errno)}")
        ) from error


def _packed(error: Exception) -> StageFailedError:
    body = json.dumps(
        {"kind": type(error).__name__, "message": str(error), "field": getattr(error, "field", None)}
    )
    return StageFailedError(f"<<scannery-error {body} scannery-error>>")


def restored(failure: BaseException) -> Exception | None:
    """Return the error that `carried` packed into a runner's failure, or None for any other failure."""
    match = _MARK.search(str(failure))
    if match is None:
        return None
    data = json.loads(match[1])
    kind = _ERROR_KINDS.get(data["kind"], pipeline_errors.PipelineError)
    try:
        error: Exception = kind(data["message"], field=data["field"])
    except TypeError:  # an error class with further required arguments
        error = pipeline_errors.PipelineError(data["message"], field=data["field"])
    return error


_LOG = logging.getLogger(__name__)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_FIRST_RANGE = 2**40
_OLD_SEGMENT = "segment "


def range_key(number: int) -> int:
    """Return the key of the ids of a hash range; keys of rows are shards, from 0 on."""
    # Numbers, not strings: Dask groups by Python's hash, which differs between processes for strings. Neighbours, so
    # that they are spread evenly over any number of partitions.
    return _FIRST_RANGE + number


def sums_key(ordinal: int, job: Job) -> int:
    """Return the key under which the outcome of a unit is added up with those of its neighbours."""
    return -1 - ordinal // job.units_per_sum


Until: TypeAlias = Literal["embed"]
"""Stage after which a build stops: units are embedded, and a later build makes segments of them."""


class EncoderHandle(Protocol):
    """Gives the encoders that all workers of a process share."""

    def acquire(self, recipe: str, load: Callable[[], Encoder]) -> Encoder:
        """Return the encoder of a recipe (`recipe_of`); the first call loads it."""


class Stage:
    """One step of the chain. A runner makes one per worker, and gives it one element after another."""

    def setup(self) -> None:
        """Open what the stage needs, once per worker."""

    def teardown(self) -> None:
        """Close it."""

    def process(self, element: Any) -> Iterator[Any]:
        """Yield what becomes of one element."""
        raise NotImplementedError


def first_elements(
    units: Iterable[str], shard_changes: Mapping[int, ShardChange], job: Job, parent: Manifest | None
) -> list[str]:
    """Return the elements of the first stage: units, changes besides their rows, and segments whose ids they need.

    Args:
        units: as JSON, or runs of them (work_units.py).
        shard_changes: by shard.
        job: the build.
        parent: its parent version.

    """
    changes = (f"{shard} {change.to_json()}" for shard, change in sorted(shard_changes.items()))
    old = range(len(parent.segments)) if parent is not None and may_move(job) else ()
    return [*units, *changes, *(f"{_OLD_SEGMENT}{number}" for number in old)]


def resolves(job: Job) -> bool:
    """Return whether the chain has the stage that resolves duplicates."""
    return needs_resolving(job) or may_move(job)


def run_in_process(
    job: Job,
    units: Sequence[WorkUnit],
    shard_changes: Mapping[int, ShardChange],
    encoders: EncoderHandle,
    *,
    until: Until | None = None,
) -> None:
    """Run the chain in this thread; a failed stage raises as a Beam runner would.

    Args:
        job: the build.
        units: the input.
        shard_changes: by shard, changes besides the units' rows.
        encoders: from `one_encoder`.
        until: the last stage; None: all stages.

    """
    moves = units and may_move(job) and until is None
    parent = read_parent(job, job.open_store()) if moves else None
    first = first_elements([unit.to_json() for unit in units], shard_changes, job, parent)
    pairs = _outputs(EmbedUnit(job, encoders), first)
    if until == "embed":
        for _ in pairs:
            pass
        return
    if resolves(job):
        pairs = _outputs(ResolveDuplicates(job), _grouped(pairs))
    outcomes = _outputs(BuildSegment(job, encoders), _grouped(pairs))
    for _ in _outputs(Publish(job, encoders), _grouped(outcomes)):
        pass


def _outputs(stage: Stage, elements: Iterable[Any]) -> Iterator[Any]:
    stage.setup()
    try:
        for element in elements:
            yield from stage.process(element)
    finally:
        stage.teardown()


def _grouped(pairs: Iterable[tuple[KeyT, ValueT]]) -> Iterable[tuple[KeyT, list[ValueT]]]:
    groups: defaultdict[KeyT, list[ValueT]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups.items()


class _OwnEncoders:
    def __init__(self) -> None:
        self._encoders: dict[str, Encoder] = {}

    def acquire(self, recipe: str, load: Callable[[], Encoder]) -> Encoder:
        if recipe not in self._encoders:
            self._encoders[recipe] = load()
        return self._encoders[recipe]


def one_encoder() -> EncoderHandle:
    """Return the handle for a chain that runs in one thread."""
    return _OwnEncoders()


class EmbedUnit(Stage):
    """Unit (JSON), or run of them → what the next stages need of it, by key.

    (shard, row group as JSON) for each shard in it, (`sums_key`, UnitSums as JSON), and, if the build resolves
    duplicates, (`range_key`, block of ids). Segments of the parent version become blocks of ids; shard changes pass.

    Args:
        job: the build.
        encoders: from `one_encoder` or beam_pipeline.py; the other stages take the same.

    """

    def __init__(self, job: Job, encoders: EncoderHandle) -> None:
        self._job = job
        self._encoders = encoders

    def setup(self) -> None:
        """Open the store, once per worker."""
        self._store = self._job.open_store()
        self._loaded: dict[str, Encoder] = {}
        self._open = contextlib.ExitStack()
        self._catalogue: Catalogue | None = None
        self._named_catalogue: NamedCatalogue | None = None

    def teardown(self) -> None:
        """Close the catalogue."""
        self._open.close()

    def process(self, element: str) -> Iterator[tuple[int, bytes]]:
        """Embed units unless an earlier run did; pass on a shard change unchanged."""
        number, _, change = element.partition(" ")
        if number.isdecimal():
            yield int(number), change.encode()
            return
        with carried():
            if element.startswith(_OLD_SEGMENT):
                yield from self._old_ids(int(change))
                return
            run = read_run(element, self._job, self._store)
        for unit in [WorkUnit.from_json(element)] if run is None else run:
            yield from self._of_unit(unit)

    def _of_unit(self, unit: WorkUnit) -> Iterator[tuple[int, bytes]]:
        job, store = self._job, self._store
        with carried():
            outcome = finished_unit(unit, job, store) or self._embed(unit)
        groups = dict(row_groups_of(outcome))
        for shard, group in groups.items():
            yield shard, group.to_json().encode()
        yield sums_key(outcome.ordinal, job), UnitSums.of(outcome).to_json().encode()
        if resolves(job) and groups:
            with carried():
                block = unit_ids(outcome.ordinal, outcome.key, groups, job, store)
            yield from _by_range(block, job)

    def _old_ids(self, number: int) -> Iterator[tuple[int, bytes]]:
        parent = read_parent(self._job, self._store)
        assert parent is not None
        yield from _by_range(parent_ids(number, parent, self._job, self._store), self._job)

    def _embed(self, unit: WorkUnit) -> UnitOutcome:
        self._prepare()
        return embed_unit(unit, self._job, self._store, self._loaded, self._catalogue, self._named_catalogue)

    def _prepare(self) -> None:
        """Load encoders and the catalogue for the first unit that needs them; finished units need neither."""
        job = self._job
        if not self._loaded:
            self._loaded = {name: self._agreed(spec) for name, spec in job.spec.document_encoders.items()}
        if job.catalogue and self._catalogue is None:
            opened = Catalogue.open(self._store, job.index, job.catalogue)
            with contextlib.suppress(NotFoundError):  # removed by gc, after the launcher was killed
                self._catalogue = self._open.enter_context(opened)
        if job.named_catalogue and self._named_catalogue is None:
            texts = NamedCatalogue.open(self._store, job.spec, job.named_catalogue)
            with contextlib.suppress(NotFoundError):
                self._named_catalogue = self._open.enter_context(texts)

    def _agreed(self, spec: EncoderSpec) -> Encoder:
        """Return an encoder, one per process for all threads of the runner."""
        job, recipe = self._job, recipe_of(spec)
        return agreed_encoder(
            job, self._store, spec, partial(_load, job), partial(self._encoders.acquire, recipe)
        )


def _load(job: Job, spec: EncoderSpec) -> Encoder:
    """Load an encoder; that of the unnamed vector with the widths that were planned for its texts."""
    encoder = job.spec.encoder
    is_own = encoder is not None and encoder.documents.model_copy(update={"dtype": spec.dtype}) == spec
    return load_encoder(spec, job.store_uri, job.widths if is_own else ())


def _by_range(block: IdBlock, job: Job) -> Iterator[tuple[int, bytes]]:
    for number, part in block.by_range(job.hash_ranges):
        yield range_key(number), part.to_bytes()


class ResolveDuplicates(Stage):
    """(`range_key`, its blocks of ids) → (shard, rows lost or change) for the shards concerned; other pairs pass."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        """Resolve one range."""
        key, values = element
        if key < _FIRST_RANGE:
            for value in values:
                yield key, value
            return
        with carried():
            resolved = list(resolve_range(map(IdBlock.from_bytes, values), self._job))
        for shard, result in resolved:
            yield shard, result.to_json().encode()


class BuildSegment(Stage):
    """(shard, its row groups and changes) → outcome as JSON; (`sums_key`, sums) → their sum. All under one key."""

    def __init__(self, job: Job, encoders: EncoderHandle) -> None:
        self._job = job
        self._encoders = encoders

    def setup(self) -> None:
        """Open the store, once per worker."""
        self._store = self._job.open_store()

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        """Build the segment of one shard, unless an earlier run built it from the same rows."""
        key, values = element
        if key < 0:
            sums = add_up(map(UnitSums.from_json, values))
            yield 0, f"units {sums.to_json()}".encode()
            return
        with carried():
            outcome = self._outcome(key, merged_values(value.decode() for value in values))
        yield 0, f"shard {outcome.to_json()}".encode()

    def _outcome(self, shard: int, values: list[str]) -> ShardOutcome:
        job, store, encoders = self._job, self._store, _encoder_sources(self._job, self._encoders)
        parent = read_parent(job, store) if job.mode == "upsert" or job.keep_rows else None
        if job.mode == "upsert" and parent is not None:
            return update_shard(shard, values, parent, job, store, encoders=encoders)
        rows = [RowGroup.from_json(value) for value in values if ShardChange.from_json(value) is None]
        key = shard_key(job, shard, rows)
        if (job.newer_than is None or parent is None) and (done := finished_shard(key, job, store)):
            return done
        if parent is not None:
            try:
                return update_shard(shard, values, parent, job, store, encoders=encoders)
            except (CorruptError, NotFoundError) as error:  # a full build repairs
                _LOG.warning("shard %d is rebuilt: %s", shard, error)
        return build_shard(key, shard, rows, job, store, encoders=encoders)


class Publish(Stage):
    """All outcomes → the status of the build."""

    def __init__(self, job: Job, encoders: EncoderHandle) -> None:
        self._job = job
        self._encoders = encoders

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[str]:
        """Commit the version."""
        units, shards = [], []
        for value in element[1]:
            kind, _, body = value.partition(b" ")
            if kind == b"units":
                units.append(UnitSums.from_json(body))
            else:
                shards.append(ShardOutcome.from_json(body))
        with carried():
            encoders = _encoder_sources(self._job, self._encoders)
            yield publish(self._job, self._job.open_store(), add_up(units), shards, encoders=encoders).status


def _encoder_sources(job: Job, encoders: EncoderHandle) -> EncoderSources:
    def load(side: EncoderSpec) -> Encoder:
        return encoders.acquire(recipe_of(side), partial(_load, job, side))

    return {name: partial(both_sides, spec, load) for name, spec in job.spec.encoders.items()}
