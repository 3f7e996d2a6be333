"""Files of vectors, read and written block by block, so that a segment's vectors are never in memory twice.

Shapes: N rows, B rows of a block, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from scannery.indexer.spec.spec import Distance
from scannery.indexer.vectors.exact_search import unit_length

__all__ = [
    "BLOCK_ROWS",
    "blocks_of",
    "far_middle",
    "is_unit",
    "no_vectors",
    "search_vectors",
    "unit_blocks",
    "write_search_vectors",
    "write_vectors",
]

BLOCK_ROWS = 1 << 14
UNIT_TOLERANCE = 1e-6
FAR = 2.0
"""Vectors are far from the origin if the length of their mean is more than this multiple of their distance from it.
ScaNN's trees get worse from about 100 on; images of non-negative values have 1, and are not moved."""


def blocks_of(table: pa.Table | pa.RecordBatch) -> Iterator[np.ndarray]:
    """Yield the `embedding` column as views, float32 (B, D), in row order."""
    column = table.column("embedding")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    for chunk in chunks:
        # flatten(), not .values, which ignores the offset of a sliced array.
        vectors_ND = chunk.flatten().to_numpy(zero_copy_only=True).reshape(-1, column.type.list_size)
        for start in range(0, len(vectors_ND), BLOCK_ROWS):
            yield vectors_ND[start : start + BLOCK_ROWS]


def no_vectors(rows: int) -> np.ndarray:
    """Return what stands for the vectors of rows without any: float32 (N, 0), read-only."""
    empty_N0 = np.zeros((rows, 0), np.float32)
    empty_N0.setflags(write=False)
    return empty_N0


def is_unit(vectors_ND: np.ndarray) -> bool:
    """Return whether all vectors have length 1, within the precision of float32."""
    squares_N = np.einsum("nd,nd->n", vectors_ND, vectors_ND, dtype=np.float64)
    return bool(np.abs(squares_N - 1).max(initial=0) <= 2 * UNIT_TOLERANCE)


def search_vectors(vectors_ND: np.ndarray, distance: Distance) -> np.ndarray:
    """Return the vectors to search: scaled to length 1 for cosine; the same array if no change is needed."""
    return vectors_ND if distance != "cosine" or is_unit(vectors_ND) else unit_length(vectors_ND)


def unit_blocks(vectors_ND: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the vectors scaled to length 1, float32 (B, D)."""
    for start in range(0, len(vectors_ND), BLOCK_ROWS):
        yield unit_length(vectors_ND[start : start + BLOCK_ROWS])


def far_middle(blocks: Callable[[], Iterable[np.ndarray]]) -> np.ndarray | None:
    """Return the mean of vectors that are far from the origin, float32 (D,), else None.

    Subtracting the mean does not change squared distances. Without that, float32 has too few digits for distances that
    are computed from squared lengths, and for ScaNN's codes and trees.

    Args:
        blocks: returns an iterator over all vectors, float32 (B, D); called three times.

    """
    rows = sum(len(block_BD) for block_BD in blocks())
    sums = [block_BD.sum(axis=0, dtype=np.float64) for block_BD in blocks()]
    middle_D = (np.sum(sums, axis=0) / max(rows, 1)).astype(np.float32)
    squares = sum(float(np.square(block_BD - middle_D, dtype=np.float64).sum()) for block_BD in blocks())
    far = float(np.square(middle_D, dtype=np.float64).sum()) > FAR**2 * squares / max(rows, 1)
    return middle_D if far else None


def write_vectors(path: Path, blocks: Iterable[np.ndarray], rows: int, dimensions: int) -> None:
    """Write float32 vectors as a `.npy` file."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dimensions)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block_BD in blocks:
            file.write(np.ascontiguousarray(block_BD, "<f4").data)


def write_search_vectors(path: Path, table: pa.Table, distance: Distance) -> np.ndarray | None:
    """Write the vectors that ScaNN is trained on; return the mean that was subtracted from each (D,), or None.

    These are `search_vectors` of the `embedding` column; for `squared_l2` less their mean if `far_middle` returns it.
    """
    blocks, middle_D = blocks_of(table), None
    if distance == "cosine" and not all(map(is_unit, blocks_of(table))):
        blocks = map(unit_length, blocks)
    if distance == "squared_l2":
        middle_D = far_middle(lambda: blocks_of(table))
    if middle_D is not None:
        moved_D = middle_D  # not None, also for the type checker within the closure
        blocks = (block_BD - moved_D for block_BD in blocks_of(table))
    write_vectors(path, blocks, table.num_rows, table.schema.field("embedding").type.list_size)
    return middle_D
