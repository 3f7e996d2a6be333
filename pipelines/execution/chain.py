"""The chain of stages, which every runner executes the same way, and the runner that is a loop in this process.

    units ─ embed ─▶ (shard, row group) ─ group ─▶ build segment ─▶ outcome ─ group ─▶ publish

An update also starts with shard changes, which the first stage passes on to their shards (stages/update.py). Where one
id can be in two shards, `─ group ─▶ resolve duplicates ─▶` comes before the first grouping.

References to row groups are shuffled, not vectors: for a million vectors of 384 dimensions that takes 16 s instead of
28 s, and a seventh of the memory. There are no tagged outputs, side inputs or branches, because some runners lose
their data without an error; so dead letters are files, and counts travel in the records under the key COUNTS.

Nothing here imports Beam, which takes a second; beam_pipeline.py makes the same stages a pipeline of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from scannery.embed import Encoder
from scannery.indexer.errors import CorruptError, NotFoundError
from scannery.pipelines.execution.failures import carried
from scannery.pipelines.planning.agreed_dtype import agreed_encoder
from scannery.pipelines.planning.planned_encoder import load_encoder
from scannery.pipelines.stages.embed import embed_unit, finished_unit
from scannery.pipelines.stages.publish import publish
from scannery.pipelines.stages.resolve import may_move, moved_ids, needs_resolving, resolve
from scannery.pipelines.stages.segment import build_shard, finished_shard, shard_key
from scannery.pipelines.stages.update import ShardChange, update_shard
from scannery.pipelines.state.counts import ShardOutcome, UnitOutcome
from scannery.pipelines.state.embedding_cache import Catalogue
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.row_groups import RowGroup, row_groups_of
from scannery.pipelines.state.stage_outputs import read_parent
from scannery.pipelines.state.work_units import WorkUnit
from scannery.pipelines.tuning.synthetic_queries import EncoderSource

__all__ = [
    "BuildSegment",
    "EmbedUnit",
    "EncoderHandle",
    "Publish",
    "ResolveDuplicates",
    "Stage",
    "Until",
    "first_elements",
    "one_encoder",
    "resolves",
    "run_in_process",
]

_LOG = logging.getLogger(__name__)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

Until: TypeAlias = Literal["embed"]
"""Stage after which a build stops: units are embedded, and a later build makes segments of them."""

COUNTS = -1
"""Key in place of a shard number: its records are outcomes of units, for the last stage."""


class EncoderHandle(Protocol):
    """Gives the encoder that all workers of a process share."""

    def acquire(self, load: Callable[[], Encoder]) -> Encoder:
        """Return the encoder; the first call loads it."""


class Stage:
    """One step of the chain. A runner makes one per worker, and gives it one element after another."""

    def setup(self) -> None:
        """Open what the stage needs, once per worker."""

    def teardown(self) -> None:
        """Close it."""

    def process(self, element: Any) -> Iterator[Any]:
        """Yield what becomes of one element."""
        raise NotImplementedError


def first_elements(units: Sequence[WorkUnit], shard_changes: Mapping[int, ShardChange]) -> list[str]:
    """Return the elements of the first stage: the units, and by shard the changes besides the units' rows."""
    changes = (f"{shard} {change.to_json()}" for shard, change in sorted(shard_changes.items()))
    return [*(unit.to_json() for unit in units), *changes]


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
    pairs = _outputs(EmbedUnit(job, encoders), first_elements(units, shard_changes))
    if until == "embed":
        for _ in pairs:
            pass
        return
    if resolves(job):
        pairs = _outputs(ResolveDuplicates(job), [("", list(pairs))])
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


class _OneEncoder:
    def __init__(self) -> None:
        self._encoder: Encoder | None = None

    def acquire(self, load: Callable[[], Encoder]) -> Encoder:
        if self._encoder is None:
            self._encoder = load()
        return self._encoder


def one_encoder() -> EncoderHandle:
    """Return the handle for a chain that runs in one thread."""
    return _OneEncoder()


class EmbedUnit(Stage):
    """Unit (JSON) → (shard, row group as JSON) for each shard in it, and (COUNTS, outcome as JSON).

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
        self._encoder: Encoder | None = None
        self._open = contextlib.ExitStack()
        self._catalogue: Catalogue | None = None

    def teardown(self) -> None:
        """Close the catalogue."""
        self._open.close()

    def process(self, element: str) -> Iterator[tuple[int, str]]:
        """Embed one unit unless an earlier run did; pass on a shard change unchanged."""
        number, _, change = element.partition(" ")
        if number.isdecimal():
            yield int(number), change
            return
        unit = WorkUnit.from_json(element)
        with carried():
            outcome = finished_unit(unit, self._job, self._store) or self._embed(unit)
        for shard, group in row_groups_of(outcome):
            yield shard, group.to_json()
        yield COUNTS, outcome.to_json()

    def _embed(self, unit: WorkUnit) -> UnitOutcome:
        self._prepare()
        return embed_unit(unit, self._job, self._store, self._encoder, self._catalogue)

    def _prepare(self) -> None:
        """Load the encoder and the catalogue for the first unit that needs them; finished units need neither."""
        job, spec = self._job, self._job.spec.encoder
        if job.embeds and spec is not None and self._encoder is None:
            # One per process, for all threads of the runner.
            self._encoder = agreed_encoder(job, self._store, spec, load_encoder, self._encoders.acquire)
        if job.has_catalogue and self._catalogue is None:
            opened = Catalogue.open(self._store, job.index, job.build_id)
            with contextlib.suppress(
                NotFoundError
            ):  # a concurrent run of this build has ended and removed it
                self._catalogue = self._open.enter_context(opened)


class ResolveDuplicates(Stage):
    """All pairs from EmbedUnit → the same, with the rows marked that are duplicates of records in other shards."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def process(self, element: tuple[str, Iterable[tuple[int, str]]]) -> Iterator[tuple[int, str]]:
        """Read the ids of all units and yield the marked pairs."""
        groups = []
        for shard, value in element[1]:
            if shard == COUNTS or ShardChange.from_json(value):
                yield shard, value
            else:
                groups.append((shard, RowGroup.from_json(value)))
        with carried():
            store = self._job.open_store()
            resolved = (
                list(resolve(groups, self._job, store)) if groups and needs_resolving(self._job) else groups
            )
            for shard, group in resolved:
                yield shard, group.to_json()
            for shard, change in moved_ids(resolved, self._job, store).items():
                yield shard, change.to_json()


class BuildSegment(Stage):
    """(shard, its row groups) → ("shard", outcome as JSON); outcomes of units pass through as ("unit", …)."""

    def __init__(self, job: Job, encoders: EncoderHandle) -> None:
        self._job = job
        self._encoders = encoders

    def setup(self) -> None:
        """Open the store, once per worker."""
        self._store = self._job.open_store()

    def process(self, element: tuple[int, Iterable[str]]) -> Iterator[tuple[str, str]]:
        """Build the segment of one shard, unless an earlier run built it from the same rows."""
        shard, values = element
        if shard == COUNTS:
            for value in values:
                yield "", f"unit {value}"
            return
        with carried():
            outcome = self._outcome(shard, list(values))
        yield "", f"shard {outcome.to_json()}"

    def _outcome(self, shard: int, values: list[str]) -> ShardOutcome:
        job, store, encoder = self._job, self._store, _encoder_source(self._job, self._encoders)
        parent = read_parent(job, store) if job.mode == "upsert" or job.keep_rows else None
        if job.mode == "upsert" and parent is not None:
            return update_shard(shard, values, parent, job, store, encoder=encoder)
        rows = [RowGroup.from_json(value) for value in values if ShardChange.from_json(value) is None]
        key = shard_key(job, shard, rows)
        if (job.newer_than is None or parent is None) and (done := finished_shard(key, job, store)):
            return done
        if parent is not None:
            try:
                return update_shard(shard, values, parent, job, store, encoder=encoder)
            except (CorruptError, NotFoundError) as error:  # a full build repairs
                _LOG.warning("shard %d is rebuilt: %s", shard, error)
        return build_shard(key, shard, rows, job, store, encoder=encoder)


class Publish(Stage):
    """All outcomes → the status of the build."""

    def __init__(self, job: Job, encoders: EncoderHandle) -> None:
        self._job = job
        self._encoders = encoders

    def process(self, element: tuple[str, Iterable[str]]) -> Iterator[str]:
        """Commit the version."""
        units, shards = [], []
        for value in element[1]:
            kind, _, body = value.partition(" ")
            if kind == "unit":
                units.append(UnitOutcome.from_json(body))
            else:
                shards.append(ShardOutcome.from_json(body))
        with carried():
            encoder = _encoder_source(self._job, self._encoders)
            yield publish(self._job, self._job.open_store(), units, shards, encoder=encoder).status


def _encoder_source(job: Job, encoders: EncoderHandle) -> EncoderSource | None:
    spec = job.spec.encoder
    return None if spec is None else lambda: encoders.acquire(lambda: load_encoder(spec))
