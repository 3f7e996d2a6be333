"""Tell what an index will take of memory and disk, before anything is built. Nothing is written but temporary files.

Rows of a sample, half of them and all, are built as segments without ScaNN's data and unpacked as in the local cache of
a server. Each file grows with the rows as it did from half of the sample to the whole: postings in proportion, words as
a language has ever fewer new ones, values of an attribute hardly. What a segment of that size takes is then counted as
in a server (`scannery.indexer.memory`). ScaNN's data follow from its configuration.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.named_vectors import parts_by_vector
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.memory import IndexMemory, MemoryBytes, StoredSegment, added_memory, stored_memory
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.planning.value_order import ValueOrder
from scannery.indexer.scann.assets import expected_bytes
from scannery.indexer.scann.config import choose_config
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.build import build_segment
from scannery.indexer.segment.cold.cold_vectors import kept_bytes
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.spec.spec_files import parse_spec
from scannery.indexer.versions.creation import with_analyser
from scannery.indexer.versions.levels import LEVEL
from scannery.pipelines.errors import ModeError
from scannery.pipelines.planning.build_plan import auto_shards, cut_input, vectors_of, with_headings
from scannery.pipelines.planning.compact_vectors import CompactVectors, compacted, expected_page_bytes
from scannery.pipelines.planning.planned_encoder import PlannedEncoder, planned_encoders, recipe_of
from scannery.pipelines.planning.sampled_rows import TEXT_BYTES, sampled_rows, typical_rows
from scannery.pipelines.planning.worker_resources import RowSize
from scannery.pipelines.sources import Fields, Part, arrange, find_files
from scannery.pipelines.state.work_units import expected_rows
from scannery.runtime.memory import ENCODER_COPIES, ProcessMemory

__all__ = ["MemoryPlan", "Remedy", "plan_memory"]

LINEAR, CONSTANT = 0.9, 0.1
"""Exponents of growth from which on a file is taken to grow with the rows, and up to which not to grow: a sample tells
them within a few hundredths, which a thousandfold extrapolation would make a fifth of the size."""
HEADER_BYTES = 128
"""Bytes of a file of an array besides its numbers."""
CODES_SHARE = 0.55
"""Bytes in a segment file for each byte of ScaNN's codes: they have four bits in a byte, and are compressed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change with which an index fits."""

    change: str
    """Option of a server, or key of the spec."""
    needed_bytes: int
    """Bytes that are needed with it."""
    ceiling_bytes: int
    """Ceiling with it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What an index will take in a server, estimated; sizes in bytes."""

    index: str
    rows: int
    """Datapoints."""
    dimensions: Mapping[str, int]
    """Components of the vectors of each name, "" first; 0: none."""
    shards: int
    basis: str
    """What sizes follow from: a sample of the input, or what is assumed without one."""
    compact: Mapping[str, CompactVectors]
    """What becomes of the vectors of each name, "" first, if the index is served compact; empty: it is not."""
    components: Mapping[str, MemoryBytes]
    """Memory of the index by component, as `scannery.indexer.memory.COMPONENTS` name them."""
    processes: Mapping[str, int]
    """Needed by the processes of a server, by component; without a ceiling, without caches and requests."""
    workers: int
    memory_bytes: int | None
    """Ceiling of the server; None: none was asked about."""
    cache_bytes: int
    """Disk for the local cache of a server."""
    store_bytes: int
    """Size of the segments in the store."""
    fits: bool | None
    """Whether what is needed is within the ceiling; None without one."""
    remedies: Sequence[Remedy]
    """Changes with each of which it would fit; none if it fits."""

    @property
    def needed_bytes(self) -> int:
        """Memory that index and processes need."""
        return sum(size.needed for size in self.components.values()) + sum(self.processes.values())

    @property
    def mapped_bytes(self) -> int:
        """Memory that searches are fastest with, and that the kernel takes back where it is short."""
        return sum(size.mapped for size in self.components.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready values."""
        components = {
            name: {
                "needed_bytes": size.needed,
                "mapped_bytes": size.mapped,
                "row_bytes": round(size.total / max(self.rows, 1), 1),
            }
            for name, size in self.components.items()
        }
        totals = {"needed_bytes": self.needed_bytes, "mapped_bytes": self.mapped_bytes}
        return dataclasses.asdict(self) | {"components": components} | totals


def plan_memory(
    spec: IndexSpec | Mapping[str, Any],
    rows: int | None = None,
    *,
    inputs: Sequence[str] = (),
    dimensions: int | None = None,
    workers: int = 1,
    memory_bytes: int | None = None,
    cold: bool = False,
    compact: bool = False,
    store: str | None = None,
) -> MemoryPlan:
    """Return what an index will take of memory and disk in a server. Reads a sample of the input, and builds nothing.

    Args:
        spec: what to build.
        rows: datapoints of the index; None: as many as the inputs become.
        inputs: as for `build`; empty: texts and values of typical sizes are assumed.
        dimensions: components of an unnamed vector that the source has, where there are no inputs to tell them.
        workers: of the server.
        memory_bytes: ceiling of the server; None: none.
        cold: whether the index is cold: its vectors stay in the store.
        compact: whether it is compact: searched by vectors in 8 bits a number, where these keep enough true hits.
        store: URI of the store, for models `store:NAME@N`; None: there is none.

    Raises:
        ModeError: there is neither a number of rows nor an input, the dimensions are not known, or the index is to be
            both cold and compact.
        PipelineError, EmbedError, InvalidSpecError: as `build` before it starts.

    """
    if workers < 1:
        raise ModeError(f"workers must be at least 1, got {workers}", field="workers")
    if rows is None and not inputs:
        raise ModeError("a plan needs a number of rows, or inputs", field="rows")
    if cold and compact:
        raise ModeError("compact: an index is either cold or compact", field="compact")
    spec = with_analyser(spec if isinstance(spec, IndexSpec) else parse_spec(spec), None, level=LEVEL)
    encoders = planned_encoders(spec, store)
    if inputs:
        parts, spec = _parts(spec, inputs)
        infos = vectors_of(spec, parts, encoders, None, updates=False)
        sizes = {name: info.dimensions for name, info in infos.items()}
        rows = expected_rows(parts, spec) if rows is None else rows
        table = sampled_rows(parts, spec, sizes, encoders)
        basis = f"a sample of {len(table):,} rows of the input"
    else:
        sizes = _dimensions(spec, encoders, dimensions)
        table = typical_rows(spec, sizes)
        cut = "passages" if spec.source.chunk else f"{TEXT_BYTES} bytes"
        basis = f"typical values and texts of {cut}, since there is no input"
    assert rows is not None
    # Vectors that encoders would make, and those of typical rows, are random.
    real = frozenset(sizes) - frozenset(spec.encoders) if inputs else frozenset[str]()
    return _Estimate.of(table, spec, rows, sizes, real if compact else None).plan(
        basis, encoders, workers=workers, memory_bytes=memory_bytes, cold=cold
    )


def _parts(spec: IndexSpec, inputs: Sequence[str]) -> tuple[list[Part], IndexSpec]:
    input_files = arrange(find_files(inputs), spec.source, Fields.of(spec))
    spec = with_headings(spec, None, input_files)
    return cut_input(input_files, spec, None)[0], spec


def _dimensions(
    spec: IndexSpec, encoders: Mapping[str, PlannedEncoder], dimensions: int | None
) -> dict[str, int]:
    planned = {name: encoders[recipe_of(encoder)].dimensions for name, encoder in spec.encoders.items()}
    unnamed = planned.get("", dimensions)
    if unnamed is None and spec.source.vector is not None:
        raise ModeError(
            "dimensions: vectors of the source need their number of dimensions, or an input",
            field="dimensions",
        )
    named = {name: vectors.dimensions or planned[name] for name, vectors in spec.named_vectors.items()}
    return {"": unnamed or 0} | named


@dataclasses.dataclass(frozen=True)
class _SampledFile:
    """One file of a segment of a sample."""

    entry: SegmentEntry
    folder: Path
    sizes: Mapping[str, int]


def _sampled_files(table: pa.Table, spec: IndexSpec, folder: Path) -> dict[str, _SampledFile]:
    """Return the files of a segment of some rows by the names of their vectors, unpacked into a folder."""
    folder.mkdir()
    built = build_segment(table, spec=spec, shard=0, directory=folder, effort="none")
    unpacked = {}
    for number, (name, path) in enumerate(zip(built.entry.by_name, built.paths, strict=True)):
        target = folder / str(number)
        target.mkdir()
        files.unpack(path, target, path.name)
        sizes = {
            each.relative_to(target).as_posix(): each.stat().st_size
            for each in target.rglob("*")
            if each.is_file()
        }
        unpacked[name] = _SampledFile(built.entry.by_name[name], target, sizes)
    return unpacked


@dataclasses.dataclass(frozen=True)
class _Growth:
    """How sizes grow with rows."""

    ratio: float
    """Rows of the sample by those of a part of it."""
    factor: float
    """Rows that are planned by those of the sample."""

    def of(self, part: int, whole: int, fixed: int = 0) -> int:
        """Return the size for the planned rows of what has these sizes for the part and for the whole sample."""
        if part <= fixed or whole <= fixed or self.ratio <= 1:
            return fixed + round((whole - fixed) * self.factor)
        exponent = math.log((whole - fixed) / (part - fixed)) / math.log(self.ratio)
        exponent = 1.0 if exponent >= LINEAR else 0.0 if exponent <= CONSTANT else exponent
        return fixed + round(float((whole - fixed) * self.factor**exponent))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Estimate:
    """The memory of an index, from which plans for servers follow."""

    spec: IndexSpec
    rows: int
    dimensions: Mapping[str, int]
    shards: int
    compact: Mapping[str, CompactVectors]
    memory: IndexMemory
    pages_bytes: int
    """Size of the places of vectors in the store, by which a cold index reads them."""
    cache_bytes: int
    store_bytes: int

    @classmethod
    def of(
        cls,
        table: pa.Table,
        spec: IndexSpec,
        rows: int,
        dimensions: Mapping[str, int],
        measured: Set[str] | None,
    ) -> _Estimate:
        """Return the estimate for an index of `rows` rows like those of a table.

        Args:
            table: the sample.
            spec: of the index.
            rows: of the index.
            dimensions: of the vectors of each name.
            measured: names of the vectors that the sample has as they are, if the index is compact; None: it is not.

        """
        if not len(table):
            raise ModeError("the input has no records that can be indexed", field="inputs")
        memory, pages_bytes, cache_bytes, store_bytes, shards = [], 0, 0, 0, 1
        compact: dict[str, CompactVectors] = {}
        with tempfile.TemporaryDirectory(prefix="scannery-plan-") as parent:
            for number, part in enumerate(parts_by_vector(table)):
                share = len(part) / len(table)
                pair = [
                    _sampled_files(each, spec, Path(parent, f"{number}-{size}"))
                    for size, each in (("half", _half(part)), ("whole", part))
                ]
                if not number:
                    shards = _shards(spec, rows, pair[1][""], dimensions)
                for name, whole in pair[1].items():
                    stored, size_bytes = _expected(
                        name, pair[0].get(name, whole), whole, spec, rows * share / shards / len(part)
                    )
                    pages_bytes += shards * expected_page_bytes(stored)
                    if measured is not None and stored.bytes_of(files.VECTORS):
                        stored = compacted(
                            stored, name, spec, dimensions[name], compact, is_measured=name in measured
                        )
                    memory += [{each: _times(size, shards) for each, size in stored_memory(stored).items()}]
                    cache_bytes += shards * sum(stored.sizes.values())
                    store_bytes += shards * size_bytes
        return cls(
            spec=spec,
            rows=rows,
            dimensions=dimensions,
            shards=shards,
            compact=compact,
            memory=added_memory(memory),
            pages_bytes=pages_bytes,
            cache_bytes=cache_bytes,
            store_bytes=store_bytes,
        )

    def plan(
        self,
        basis: str,
        encoders: Mapping[str, PlannedEncoder],
        *,
        workers: int,
        memory_bytes: int | None,
        cold: bool,
    ) -> MemoryPlan:
        """Return the plan for a server; arguments as of `plan_memory`."""
        processes = ProcessMemory(
            workers=workers, ceiling_bytes=memory_bytes or 0, cold_bytes=kept_bytes() if cold else 0
        )
        by_component = (
            processes.by_component if memory_bytes else {"processes": processes.by_component["processes"]}
        )
        weights = {"encoders": _weights(self.spec, encoders)}
        memory = self._cold if cold else self.memory
        needed = sum(size.needed for size in memory.values()) + weights["encoders"]
        fits = None if memory_bytes is None else needed <= processes.room_bytes
        return MemoryPlan(
            index=self.spec.index,
            rows=self.rows,
            dimensions=self.dimensions,
            shards=self.shards,
            basis=basis,
            compact=self.compact,
            components=memory,
            processes=by_component | {name: size for name, size in weights.items() if size},
            workers=workers,
            memory_bytes=memory_bytes,
            cache_bytes=sum(size.total - size.heap for size in memory.values()) if cold else self.cache_bytes,
            store_bytes=self.store_bytes,
            fits=fits,
            remedies=() if fits is not False else tuple(self._remedies(processes, needed, cold=cold)),
        )

    @property
    def _cold(self) -> IndexMemory:
        """What is left of an index whose vectors and codes stay in the store; its words are not opened, either."""
        left_out = ("codes", "vectors", "quantized", "words")
        remaining = {name: size for name, size in self.memory.items() if name not in left_out}
        return added_memory([remaining, {"vectors": MemoryBytes(mapped=self.pages_bytes)}])

    def _remedies(self, processes: ProcessMemory, needed: int, *, cold: bool) -> list[Remedy]:
        """Return changes that make the index fit, the cheapest for its users first."""

        def remedy(change: str, with_it: ProcessMemory, index_bytes: int) -> Remedy | None:
            total = index_bytes + sum(with_it.by_component.values())
            fits = index_bytes <= with_it.room_bytes
            return (
                Remedy(change=change, needed_bytes=total, ceiling_bytes=with_it.ceiling_bytes)
                if fits
                else None
            )

        codes = self.memory.get("codes", MemoryBytes()).needed
        left_out = sum(size.needed for size in self.memory.values()) - sum(
            size.needed for size in self._cold.values()
        )
        coarser = self.spec.scann.dimensions_per_block is None and max(self.dimensions.values()) >= 16
        fitting = processes.with_room(needed)
        room = max(processes.room_bytes, 1)
        remedies = [
            remedy("--workers 1", dataclasses.replace(processes, workers=1), needed)
            if processes.workers > 1
            else None,
            remedy("scann: {dimensions_per_block: 4} in the spec", processes, needed - codes // 2)
            if coarser
            else None,
            None
            if cold
            else remedy(
                f"--cold {self.spec.index}",
                dataclasses.replace(processes, cold_bytes=kept_bytes()),
                needed - left_out,
            ),
            remedy(f"a cluster of {-(-needed // room)} leaves", processes, room) if room > 1 else None,
            remedy(f"--memory {-(-fitting.ceiling_bytes // (1 << 20))}MiB", fitting, needed),
        ]
        return [each for each in remedies if each is not None]


def _half(table: pa.Table) -> pa.Table:
    """Return the rows of every second document, spread over the table as all are."""
    encoded = table.column("document_id").combine_chunks().dictionary_encode()
    is_even_N = np.asarray(encoded.indices) % 2 == 0
    return table.filter(pa.array(is_even_N)) if is_even_N.sum() < len(table) else table


def _shards(spec: IndexSpec, rows: int, sample: _SampledFile, dimensions: Mapping[str, int]) -> int:
    other_bytes = sample.sizes[files.COLUMNS] / sample.entry.rows
    return auto_shards(spec, rows, RowSize(sum(dimensions.values()), other_bytes))


def _expected(
    name: str, half: _SampledFile, whole: _SampledFile, spec: IndexSpec, factor: float
) -> tuple[StoredSegment, int]:
    """Return a file of a segment at a multiple of the rows of a sample, and its size in the store.

    Args:
        name: of its vectors.
        half: of half of the sample.
        whole: of all of it.
        spec: of the index.
        factor: of the rows.

    """
    rows, growth = (
        max(1, round(factor * whole.entry.rows)),
        _Growth(whole.entry.rows / half.entry.rows, factor),
    )
    sizes = {
        path: growth.of(half.sizes.get(path, 0), size, HEADER_BYTES) for path, size in whole.sizes.items()
    }
    documents = growth.of(half.entry.documents or 0, whole.entry.documents or 0)
    entry = whole.entry.model_copy(update={"rows": rows, "documents": min(documents, rows) or None})
    size_bytes = growth.of(half.entry.size_bytes, whole.entry.size_bytes)
    stored = StoredSegment(
        entry,
        whole.folder,
        sizes,
        is_named=bool(name),
        counts_documents=spec.lexical is not None and spec.lexical.counts_documents,
    )
    of_name, vectors = spec.of_vectors(name), whole.sizes.get(files.VECTORS, 0)
    dimensions = (vectors - HEADER_BYTES) // (4 * whole.entry.rows) if vectors else 0
    config = choose_config(rows, dimensions, of_name.distance, of_name.scann) if dimensions else None
    if config is None:
        return stored, size_bytes
    heap, code_bytes = expected_bytes(config, rows, dimensions)
    ordered = sum(path.endswith("/positions.npy") for path in sizes)
    leaves = Leaves.expected_bytes(config.leaves, dimensions)
    scann_sizes = {
        f"{files.SCANN}/codes": code_bytes,
        f"{files.LEAVES}/statistics": leaves,
        f"{files.ATTRIBUTES}/leaf_counts": ordered * ValueOrder.counts_bytes(config.leaves),
    }
    stored = dataclasses.replace(stored, sizes=sizes | scann_sizes, searcher_bytes=heap)
    return stored, size_bytes + round(CODES_SHARE * code_bytes) + leaves // 2


def _times(size: MemoryBytes, shards: int) -> MemoryBytes:
    return MemoryBytes(shards * size.heap, shards * size.read, shards * size.mapped)


def _weights(spec: IndexSpec, encoders: Mapping[str, PlannedEncoder]) -> int:
    """Return the memory of the encoders of queries, each once."""
    from scannery.embed.models.model_files import weights_bytes

    with contextlib.ExitStack() as stack:
        recipes = {recipe_of(side) for encoder in spec.encoders.values() for side in encoder.sides}
        folders = [stack.enter_context(encoders[each].folder()) for each in recipes]
        return sum(int(ENCODER_COPIES * weights_bytes(folder)) for folder in folders)
