"""The rows that queries are trained against: the vectors of an index, and which document each belongs to.

All of them are negatives of each query: none is encoded, so they cost a matrix product.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.reader import OpenIndex

__all__ = ["MOST_ROWS", "ScoredRows", "read_rows"]

MOST_ROWS = 1 << 18
"""Rows at most, besides those of judged documents: with 384 dimensions, 400 MB, and half a second for a step."""
READ_ROWS = 1 << 16
"""Rows whose vectors are read at once."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """Rows with a vector."""

    vectors_ND: np.ndarray
    """Vectors as they are searched, float32."""
    documents_N: np.ndarray
    """Number of what is judged of each row: its document, or the row itself; int64."""
    numbers: Mapping[str, int]
    """Numbers of what queries are judged by."""


def read_rows(index: OpenIndex, judged: Collection[str], *, passages: bool, seed: int) -> ScoredRows:
    """Return the rows of an index; of a large one all rows of judged documents, and a sample of the others.

    Args:
        index: of which the unnamed vectors are read.
        judged: names of what queries are judged by.
        passages: whether these are datapoints, not documents.
        seed: of the sample.

    """
    parts = list(_parts(index, "id" if passages else "document_id"))
    names = pa.chunked_array([part_names for _, _, part_names in parts], pa.string())
    codes = names.combine_chunks().dictionary_encode()
    documents_N = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    is_judged_N = pc.is_in(names, pa.array(sorted(judged), pa.string())).to_numpy()
    chosen_N = is_judged_N | _sampled(len(documents_N), seed)
    vectors, start = [], 0
    for number, rows_R, _ in parts:
        vectors.append(_vectors(index, number, rows_R[chosen_N[start : start + len(rows_R)]]))
        start += len(rows_R)
    dimensions = index.manifest.dimensions
    kept = {name: code for code, name in enumerate(codes.dictionary.to_pylist()) if name in judged}
    # Numbers without gaps: scores of documents are a column each.
    used, compact_N = np.unique(documents_N[chosen_N], return_inverse=True)
    return ScoredRows(
        np.concatenate([*vectors, np.empty((0, dimensions), np.float32)]),
        compact_N,
        {name: int(np.searchsorted(used, code)) for name, code in kept.items()},
    )


def _parts(index: OpenIndex, column: str) -> Iterator[tuple[int, np.ndarray, pa.Array]]:
    """Yield the number of each segment with vectors, its live rows, and their values of a column."""
    for number, (segment, rows_R) in enumerate(index.live_rows()):
        if segment.has_vectors and len(rows_R):
            yield number, rows_R, segment.take(rows_R, [column]).column(0).combine_chunks()


def _sampled(rows: int, seed: int) -> np.ndarray:
    """Return which rows are taken, whatever document they belong to: bool (N,)."""
    chosen_N = np.ones(rows, bool)
    if rows > MOST_ROWS:
        chosen_N[np.random.default_rng(seed).permutation(rows)[MOST_ROWS:]] = False
    return chosen_N


def _vectors(index: OpenIndex, number: int, rows_R: np.ndarray) -> np.ndarray:
    space = index.space("")
    parts = [
        space.vectors_of(number, rows_R[start : start + READ_ROWS])[0]
        for start in range(0, len(rows_R), READ_ROWS)
    ]
    return np.concatenate([*parts, np.empty((0, index.manifest.dimensions), np.float32)])
