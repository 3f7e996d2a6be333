"""Memory, disk and bytes that a build needs by stage, from its rows, their dimensions and their texts.

Constants were measured on shards of 50,000 to 250,000 rows (docs/operations/runners.md).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.sources import Part
from scannery.pipelines.sources.documents import TEXT_SHARE

__all__ = [
    "SEGMENT_BYTES",
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
"""Of a worker's process with its libraries."""

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
    other_bytes: float
    """Text, attributes and payload."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vector, float32."""
        return 4 * self.dimensions

    def with_named(self, dimensions: Iterable[int]) -> RowSize:
        """Return the size with named vectors of these dimensions, as if every datapoint had all of them."""
        return dataclasses.replace(self, dimensions=self.dimensions + sum(dimensions))


def row_size(parts: Iterable[Part], rows: int, spec: IndexSpec, dimensions: int) -> RowSize:
    """Return the expected size of a datapoint: the mean over the input, without its vectors if it has any."""
    held = 0.0
    for part in parts:
        held += part.size_bytes * TEXT_SHARE.get(part.format, 1.0)
        if spec.source.vector is not None:
            held -= part.records * dimensions * (4 if part.format in _BINARY else DIGITS)
    return RowSize(dimensions, max(0.0, held / max(rows, 1)))


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
