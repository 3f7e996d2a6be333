"""Tell what a build needs before anything starts: work, memory, disk, bytes, hours and price. Nothing is written.

Estimates, not promises: the number of passages follows from the size of the input, speeds and prices from
planning/hardware.py, memory and disk from measurements of smaller shards (planning/worker_resources.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from scannery.indexer.errors import NotFoundError
from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.spec.spec_files import parse_spec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.versions import read_manifest
from scannery.pipelines.errors import ModeError
from scannery.pipelines.execution.runners import check_engine
from scannery.pipelines.planning import worker_resources
from scannery.pipelines.planning.build_plan import cut_input, shards_of, vectors_of, with_headings
from scannery.pipelines.planning.planned_encoder import (
    PlannedEncoder,
    planned_encoders,
    recipe_of,
)
from scannery.pipelines.planning.worker_resources import (
    MACHINES,
    UNEVEN,
    Machine,
    RowSize,
    embed_memory,
    embeddings_bytes,
    row_size,
    segment_bytes,
    segment_disk,
    segment_memory,
)
from scannery.pipelines.sources import Fields, Part, arrange, find_files
from scannery.pipelines.state.job import Mode
from scannery.pipelines.state.work_units import BYTES_PER_TOKEN, expected_rows, group

__all__ = ["BuildPlan", "CostEstimate", "StageNeeds", "chosen_machines", "estimate"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageNeeds:
    """What a stage needs of every worker, and moves in all."""

    stage: str
    """`embed` or `segment`."""

    tasks: int
    """Units or shards: more workers than that are idle."""

    memory_bytes: int
    """Memory of a worker that does one task at a time."""

    disk_bytes: int
    """Temporary disk of such a worker."""

    read_bytes: int
    """Bytes read from inputs and store, by all workers."""

    written_bytes: int
    """Bytes written to the store, by all workers."""

    files: int
    """Objects in the store that it writes, their records included."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """Time and price of a build on one kind of machine."""

    machine: str
    what: str
    basis: str
    """M: its speed was measured; E: estimated; G: given by the caller."""

    workers: int
    passages_per_s: float
    """Embedded per second by one worker, with the models and the passages of this build."""

    embed_hours: float
    """Hours of all workers working side by side; 0 where the source has vectors."""

    segment_hours: float
    """The same for segments, on machines of this kind."""

    price: float
    """Price of both, in US dollars."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What a build of the whole input needs; work that an earlier run finished is not subtracted."""

    index: str
    files: int
    input_bytes: int
    records: int
    passages: int
    """Datapoints that the input is expected to become."""

    tokens_per_passage: float
    """Expected; 0 where the source has vectors."""

    dimensions: int
    """Components of the vectors of a datapoint, of all names."""

    units: int
    unit_bytes: int
    shards: int
    rows_per_shard: int
    """Rows of the mean shard, with the rows that an existing index keeps."""

    index_bytes: int
    """Bytes of the segments."""

    stages: Sequence[StageNeeds]
    costs: Sequence[CostEstimate]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready values."""
        return dataclasses.asdict(self)


def estimate(
    spec: IndexSpec | Mapping[str, Any],
    inputs: Sequence[str],
    store_uri: str,
    *,
    mode: str = "upsert",
    runner: str | None = None,
    runner_options: Sequence[str] = (),
    accelerator: str | None = None,
    workers: int = 1,
    machines: Sequence[Machine] = tuple(MACHINES.values()),
) -> BuildPlan:
    """Return what `build` with these arguments would need. Reads the input, starts nothing and writes nothing.

    Args:
        spec: what to build.
        inputs: as for `build`.
        store_uri: where the index lives, or will live.
        mode: as for `build`.
        runner: as for `build`.
        runner_options: as for `build`.
        accelerator: as for `build`.
        workers: number of machines that work side by side.
        machines: kinds of machines to estimate for.

    Raises:
        ModeError: there are no inputs, or no workers, or the mode is unknown.
        PipelineError, EmbedError, InvalidSpecError: as `build` before it starts.

    """
    if not inputs:
        raise ModeError("a plan needs inputs", field="inputs")
    if mode not in get_args(Mode):
        raise ModeError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}", field="mode")
    if workers < 1:
        raise ModeError(f"workers must be at least 1, got {workers}", field="workers")
    spec = spec if isinstance(spec, IndexSpec) else parse_spec(spec)
    check_engine(runner, runner_options, [*inputs, store_uri], accelerator=accelerator)
    files = arrange(find_files(inputs, store=store_uri), spec.source, Fields.of(spec))
    parent = _parent(store_uri, spec.index)
    spec = with_headings(spec, parent, files)
    parts, limit = cut_input(files, spec, None)
    encoders = planned_encoders(spec, store_uri)
    vectors = vectors_of(spec, parts, encoders, parent, updates=mode == "upsert")
    rows = expected_rows(parts, spec)
    kept = parent.rows if parent is not None and mode == "upsert" else 0
    work = _Work(
        spec=spec,
        parts=parts,
        rows=rows,
        kept=kept,
        units=len(group(parts, limit, {})),
        unit_bytes=max((part.size_bytes for part in parts), default=0),
        shards=shards_of(spec, parts, parent, vectors),
        row=row_size(parts, rows, spec, vectors),
        models=_Models.of(spec, encoders),
    )
    return BuildPlan(
        index=spec.index,
        files=len(files),
        input_bytes=sum(file.size_bytes for file in files),
        records=sum(part.records for part in parts),
        passages=work.rows,
        tokens_per_passage=round(work.tokens, 1),
        dimensions=work.row.dimensions,
        units=work.units,
        unit_bytes=limit,
        shards=work.shards,
        rows_per_shard=round(work.shard_rows),
        index_bytes=segment_bytes(work.rows + kept, work.row),
        stages=(work.embed_needs(limit), work.segment_needs()),
        costs=tuple(work.cost(machine, workers) for machine in machines),
    )


def chosen_machines(
    name: str | None = None, *, passages_per_s: float | None = None, price_per_h: float | None = None
) -> tuple[Machine, ...]:
    """Return the machines of an estimate: all that are known, one of them, or one with the caller's own figures.

    Args:
        name: in hardware.MACHINES; None: all, or with figures of the caller `cpu-bf16`.
        passages_per_s: embedded by one worker with this build's model and passages.
        price_per_h: of one worker, in US dollars.

    Raises:
        ModeError: the name is unknown, or a figure is not positive.

    """
    has_figures = passages_per_s is not None or price_per_h is not None
    if name is None and not has_figures:
        return tuple(MACHINES.values())
    if name is not None and name not in MACHINES:
        raise ModeError(f"machine must be one of {', '.join(MACHINES)}, got {name!r}", field="machine")
    for field, value in (("passages_per_s", passages_per_s), ("price_per_h", price_per_h)):
        if value is not None and not 0 < value < math.inf:
            raise ModeError(f"{field} must be a positive number, got {value:g}", field=field)
    machine = MACHINES[name or "cpu-bf16"]
    figures = {"passages_per_s": passages_per_s, "price_per_h": price_per_h}
    changed: dict[str, Any] = {field: value for field, value in figures.items() if value is not None}
    return (
        dataclasses.replace(machine, **changed, basis="G" if passages_per_s is not None else machine.basis),
    )


@dataclasses.dataclass(frozen=True)
class _Models:
    """Size of the models that make the vectors of a datapoint, as if it had a text for each name."""

    weights_bytes: int
    flops: float
    """Floating-point operations of their linear layers for one token, of all models together."""

    @classmethod
    def of(cls, spec: IndexSpec, encoders: Mapping[str, PlannedEncoder]) -> _Models | None:
        """Return the models of the vectors of each name; None if no vector is made from a text."""
        from scannery.embed.models.model_files import weights_bytes

        recipes = [recipe_of(encoder) for encoder in spec.document_encoders.values()]
        with contextlib.ExitStack() as stack:
            # A process loads an encoder once, for all of its names.
            folders = {recipe: stack.enter_context(encoders[recipe].folder()) for recipe in {*recipes}}
            weights = sum(map(weights_bytes, folders.values()))
            flops = sum(_flops(folders[recipe]) or worker_resources.REFERENCE_FLOPS for recipe in recipes)
        return cls(weights, flops) if recipes else None


def _flops(folder: Path) -> float | None:
    """Return the operations for one token, from the number and width of a transformer's layers."""
    for path in (folder / "config.json", *sorted(folder.glob("*/config.json"))):
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            return 2.0 * 12 * int(config["num_hidden_layers"]) * int(config["hidden_size"]) ** 2
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """The work of a build, from which its needs follow."""

    spec: IndexSpec
    parts: Sequence[Part]
    rows: int
    kept: int
    units: int
    unit_bytes: int
    shards: int
    row: RowSize
    models: _Models | None

    @property
    def tokens(self) -> float:
        """Tokens of a passage."""
        if self.models is None:
            return 0.0
        tokens = self.row.other_bytes / BYTES_PER_TOKEN
        chunk = self.spec.source.chunk
        return tokens if chunk is None else min(tokens + chunk.overlap_tokens, chunk.max_tokens)

    @property
    def shard_rows(self) -> float:
        return (self.rows + self.kept) / self.shards

    def embed_needs(self, limit: int) -> StageNeeds:
        """Return the needs of embedding; a unit is at most `limit` bytes, or one larger part."""
        unit = min(max(limit, self.unit_bytes), sum(part.size_bytes for part in self.parts))
        rows = self.rows * unit / max(1, sum(part.size_bytes for part in self.parts))
        weights = self.models.weights_bytes if self.models else 0
        return StageNeeds(
            stage="embed",
            tasks=self.units,
            memory_bytes=embed_memory(unit, rows, self.row, weights),
            disk_bytes=embeddings_bytes(rows, self.row),
            # The launcher reads the input too, to cut it.
            read_bytes=2 * sum(part.size_bytes for part in self.parts),
            written_bytes=embeddings_bytes(self.rows, self.row),
            files=2 * self.units,
        )

    def segment_needs(self) -> StageNeeds:
        largest = min(self.shard_rows * UNEVEN, self.rows + self.kept)
        return StageNeeds(
            stage="segment",
            tasks=self.shards,
            memory_bytes=segment_memory(largest, self.row),
            disk_bytes=segment_disk(largest, self.row),
            read_bytes=embeddings_bytes(self.rows, self.row) + segment_bytes(self.kept, self.row),
            written_bytes=segment_bytes(self.rows + self.kept, self.row),
            files=3 * self.shards,
        )

    def cost(self, machine: Machine, workers: int) -> CostEstimate:
        speed = machine.passages_per_s
        if self.models is not None and machine.basis != "G":
            speed *= worker_resources.REFERENCE_TOKENS / max(self.tokens, 1.0)
            speed *= worker_resources.REFERENCE_FLOPS / self.models.flops
        embed_s = 0.0 if self.models is None else self.rows / speed / min(workers, max(self.units, 1))
        rate = worker_resources.SEGMENT_ROWS_PER_S * machine.vcpus / worker_resources.SEGMENT_VCPUS
        shard_s = self.shard_rows * self.row.dimensions / worker_resources.SEGMENT_DIMENSIONS / rate
        segment_s = shard_s * math.ceil(self.shards / workers)
        return CostEstimate(
            machine=machine.name,
            what=machine.what,
            basis=machine.basis,
            workers=workers,
            passages_per_s=round(speed, 1),
            embed_hours=round(embed_s / 3600, 4),
            segment_hours=round(segment_s / 3600, 4),
            price=round((embed_s + segment_s) / 3600 * workers * machine.price_per_h, 2),
        )


def _parent(store_uri: str, index: str) -> Manifest | None:
    try:
        return read_manifest(Store.open(store_uri), index)
    except NotFoundError:
        return None
