"""Memory, disk and bytes that a build needs by stage, from its rows, their dimensions and their texts.

Constants were measured on shards of 50,000 to 250,000 rows (docs/operations/runners.md).

Machines that a build can run on: how fast each embeds, and its price per hour.

Every figure is an estimate (E) or a measurement (M) for all-MiniLM-L6-v2 and passages of 128 tokens. Prices are list
prices on demand, from memory, in US dollars: give your own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from scannery.indexer.manifest import VectorsInfo
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.sources import Part
from scannery.pipelines.sources.documents import TEXT_SHARE

__all__ = [
    "MACHINES",
    "REFERENCE_FLOPS",
    "REFERENCE_TOKENS",
    "SEGMENT_BYTES",
    "SEGMENT_DIMENSIONS",
    "SEGMENT_ROWS_PER_S",
    "SEGMENT_VCPUS",
    "Machine",
    "RowSize",
    "embed_memory",
    "embeddings_bytes",
    "row_size",
    "rows_within",
    "segment_bytes",
    "segment_disk",
    "segment_memory",
]


GIB = 2**30

SEGMENT_BYTES = 12 * GIB
"""Memory for building one shard that `shards: auto` aims at: a machine with 16 GB has it."""

PROCESS_BYTES = int(0.6 * GIB)
"""Memory of a worker's process with its libraries."""

VECTOR_COPIES, TRAINING_COPIES, TEXT_COPIES = 4.5, 2.0, 3.0
"""Bytes of memory while a segment is built, for each byte of vectors, of vectors that ScaNN trains on, and of texts,
attributes and payloads. All processes of the build together; measured: 4.4, 1.9 and 3."""

SCANN_COPIES = 1.5
"""Bytes of temporary disk for each byte of vectors, besides the draft of the segment; measured: 1.3."""

ENCODER_COPIES = 4.0
"""Bytes of memory for each byte of a model's weights: float32, the copy of lower precision, activations."""

DIGITS = 11
"""Bytes of a component of a vector in a file of text, about."""

_BINARY = ("parquet", "avro", "npy", "fvecs", "bvecs")

UNEVEN = 1.1
"""Rows of the largest shard, in units of the mean: documents differ in passages."""


@dataclasses.dataclass(frozen=True)
class RowSize:
    """Bytes of one datapoint before compression."""

    dimensions: int
    """Components of all vectors, as if every datapoint had one of each name."""

    other_bytes: float
    """Text, attributes and payload."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vectors, float32."""
        return 4 * self.dimensions


def row_size(
    parts: Iterable[Part], rows: int, spec: IndexSpec, vectors: Mapping[str, VectorsInfo]
) -> RowSize:
    """Return the expected size of a datapoint: the mean over the input, without its unnamed vectors if it has any."""
    held, dimensions = 0.0, vectors[""].dimensions
    for part in parts:
        held += part.size_bytes * TEXT_SHARE.get(part.format, 1.0)
        if spec.source.vector is not None:
            held -= part.records * dimensions * (4 if part.format in _BINARY else DIGITS)
    return RowSize(sum(info.dimensions for info in vectors.values()), max(0.0, held / max(rows, 1)))


def segment_memory(rows: float, row: RowSize) -> int:
    """Return the bytes of memory that building a shard of `rows` rows needs, its children included."""
    trained = min(rows, max(100_000, 200 * math.sqrt(rows)))
    vectors = (VECTOR_COPIES * rows + TRAINING_COPIES * trained) * row.vector_bytes
    return math.ceil(PROCESS_BYTES + vectors + TEXT_COPIES * rows * row.other_bytes)


def rows_within(memory_bytes: int, row: RowSize) -> int:
    """Return how many rows a shard may have so that building it stays within a worker's memory, at least 1."""
    low, high = 1, 2**32
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if segment_memory(middle, row) <= memory_bytes else (low, middle - 1)
    return low


def embed_memory(unit_bytes: int, rows: float, row: RowSize, weights_bytes: int) -> int:
    """Return the bytes of memory that embedding one unit needs.

    Args:
        unit_bytes: input of the unit.
        rows: datapoints in it.
        row: size of one.
        weights_bytes: of the model's files; 0 without an encoder.

    """
    held = 3 * (unit_bytes + rows * row.vector_bytes)
    return math.ceil(PROCESS_BYTES + ENCODER_COPIES * weights_bytes + 64 * 2**20 + held)


def embeddings_bytes(rows: float, row: RowSize) -> int:
    """Return the size of the embeddings files of `rows` rows."""
    return math.ceil(rows * (0.93 * row.vector_bytes + 0.4 * row.other_bytes + 20))


def segment_bytes(rows: float, row: RowSize) -> int:
    """Return the size of the segments of `rows` rows, with ScaNN's codes and the index of words."""
    return math.ceil(rows * (0.94 * row.vector_bytes + row.dimensions / 2 + 0.5 * row.other_bytes + 20))


def segment_disk(rows: float, row: RowSize) -> int:
    """Return the bytes of temporary disk for building a shard: vectors, ScaNN's files and the draft exist together."""
    return math.ceil(rows * SCANN_COPIES * row.vector_bytes) + segment_bytes(rows, row)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A kind of worker, with its price."""

    name: str
    what: str
    passages_per_s: float
    """Embedded per second by one worker: the slower of device and host."""

    price_per_h: float
    """Price of one worker, in US dollars."""

    vcpus: int
    basis: str
    """M: the speed of one vCPU is measured, on two; E: the speed is estimated."""


MACHINES = {
    machine.name: machine
    for machine in (
        Machine(name="cpu-bf16", what="8 vCPUs that multiply bfloat16 (c3, c4, c3d)", passages_per_s=8 * 56,
                price_per_h=8 * 0.07, vcpus=8, basis="M"),
        Machine(name="cpu-f32", what="8 vCPUs without bfloat16 (n2, e2)", passages_per_s=8 * 33,
                price_per_h=8 * 0.07, vcpus=8, basis="M"),
        Machine(name="l4", what="one L4 with 8 vCPUs (g2-standard-8)", passages_per_s=2_200,
                price_per_h=0.85, vcpus=8, basis="E"),
        Machine(name="h100", what="one H100 with 26 vCPUs (a3-highgpu-1g)", passages_per_s=2_900,
                price_per_h=11.0, vcpus=26, basis="E"),
        Machine(name="v5e", what="one chip of TPU v5e (ct5lp-hightpu-1t)", passages_per_s=2_500,
                price_per_h=1.2, vcpus=24, basis="E"),
    )
}  # fmt: skip
"""Machines by name. The accelerators are fed by their host, which is the slower side: alone, an L4 would embed about
9,500 passages per second, an H100 60,000, a v5e chip 15,000 (E).
"""

REFERENCE_FLOPS = 2 * 12 * 6 * 384**2
"""Floating-point operations of all-MiniLM-L6-v2 for one token, in its linear layers; a larger model is slower in
proportion.
"""

REFERENCE_TOKENS = 128

SEGMENT_VCPUS, SEGMENT_DIMENSIONS = 8, 384

SEGMENT_ROWS_PER_S = 3_500.0
"""Rows of a shard built per second by one worker with SEGMENT_VCPUS, of SEGMENT_DIMENSIONS (E). Measured are 0.57 ms of
processor time a row for 250,000 rows with the words of their texts; a row of a shard of a million needs about twice
that, and about half of the cores are used."""
