"""Vectors of a segment, block by block: in files, and as they are searched. A segment's are never in memory twice.

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
    "search_vectors",
    "unit_blocks",
    "write_search_vectors",
    "write_vectors",
]

BLOCK_ROWS = 1 << 14
UNIT_TOLERANCE = 1e-6
FAR = 2.0
"""Vectors lie far from the origin if their mean does, compared with how far they lie from it. ScaNN's trees suffer from
about 100 on; images of non-negative values have 1, and nothing changes for them."""


def blocks_of(table: pa.Table | pa.RecordBatch) -> Iterator[np.ndarray]:
    """Yield the `embedding` column as views, float32 (B, D), in row order."""
    column = table.column("embedding")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    for chunk in chunks:
        # flatten(), not .values: it respects the offset of a sliced array.
        vectors_ND = chunk.flatten().to_numpy(zero_copy_only=True).reshape(-1, column.type.list_size)
        for start in range(0, len(vectors_ND), BLOCK_ROWS):
            yield vectors_ND[start : start + BLOCK_ROWS]


def is_unit(vectors_ND: np.ndarray) -> bool:
    """Return whether all vectors have length 1, as nearly as float32 can tell."""
    squares_N = np.einsum("nd,nd->n", vectors_ND, vectors_ND, dtype=np.float64)
    return bool(np.abs(squares_N - 1).max(initial=0) <= 2 * UNIT_TOLERANCE)


def search_vectors(vectors_ND: np.ndarray, distance: Distance) -> np.ndarray:
    """Return the vectors as they are searched: scaled to length 1 for cosine, else (or if they are) as given."""
    return vectors_ND if distance != "cosine" or is_unit(vectors_ND) else unit_length(vectors_ND)


def unit_blocks(vectors_ND: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the vectors scaled to length 1, float32 (B, D)."""
    for start in range(0, len(vectors_ND), BLOCK_ROWS):
        yield unit_length(vectors_ND[start : start + BLOCK_ROWS])


def far_middle(blocks: Callable[[], Iterable[np.ndarray]]) -> np.ndarray | None:
    """Return the mean of vectors that lie far from the origin, float32 (D,), else None; `blocks` gives them anew.

    Squared distances are the same between vectors less their mean. Far out float32 has no digits left for them, where
    they are computed by way of squared lengths, and codes and trees waste theirs.
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
    """Write what ScaNN is trained on; also return what was subtracted from each vector (D,), if anything was.

    That is what `search_vectors` returns for the `embedding` column, for `squared_l2` less the mean where it is far.
    """
    blocks, middle_D = blocks_of(table), None
    if distance == "cosine" and not all(map(is_unit, blocks_of(table))):
        blocks = map(unit_length, blocks)
    if distance == "squared_l2":
        middle_D = far_middle(lambda: blocks_of(table))
    if middle_D is not None:
        moved_D = middle_D  # as a closure takes it
        blocks = (block_BD - moved_D for block_BD in blocks_of(table))
    write_vectors(path, blocks, table.num_rows, table.schema.field("embedding").type.list_size)
    return middle_D
