"""What decides between rows of equal scores: the order of their ids, and which rows have the same vector.

Of equal scores, the row with the smaller id comes first (by Unicode code points), at every cut: else `k` decided who is
first, and pages repeated hits and left others out. Ids are compared once, when a segment is unpacked; a search compares
their ranks. Of 60 rows with the same vector, ScaNN proposes any 30 when it is asked for 30 candidates; so rows with the
same vector are linked, and a candidate stands for all of them.

Shapes: N rows of a segment.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.arrays import mapped

__all__ = ["BY_ROW", "Ties", "find_twins", "id_ranks", "write_ties"]

_RANKS, _TWINS = "id_ranks.npy", "twins.npy"


class Ties(NamedTuple):
    """The order of rows with equal scores, as kernels take it."""

    ranks_N: np.ndarray
    """Place of each row's id among all ids of the segment, int32; empty: the row number decides."""
    twins_2N: np.ndarray
    """Of each row the first one with its vector, and the next one, by rank; -1: there is none. int32, (2, 0) if all
    vectors differ."""

    @classmethod
    def map(cls, folder: Path) -> Ties:
        """Return what `write_ties` wrote, memory-mapped."""
        twins = folder / _TWINS
        return cls(mapped(folder / _RANKS), mapped(twins) if twins.exists() else _NO_TWINS)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)  # kernels are compiled for read-only arrays apart
    return array


_NO_TWINS = _read_only(np.zeros((2, 0), np.int32))
BY_ROW = Ties(_read_only(np.zeros(0, np.int32)), _NO_TWINS)
"""Rows in the order of their numbers, all vectors taken for different ones."""


def id_ranks(ids: pa.ChunkedArray) -> np.ndarray:
    """Return the place of each id among all of them in order, int32 (N,), read-only."""
    # Arrow compares the bytes of UTF-8, which is the order of code points, and Python's.
    order_N = pc.sort_indices(ids).to_numpy(zero_copy_only=False)
    ranks_N = np.empty(len(order_N), np.int32)
    ranks_N[order_N] = np.arange(len(order_N), dtype=np.int32)
    return _read_only(ranks_N)


def find_twins(vectors_ND: np.ndarray, ranks_N: np.ndarray) -> np.ndarray:
    """Return for each row the first and the next one with the same vector, by rank, as `Ties.twins_2N`."""
    from scannery.indexer import row_kernels  # compiles on import: only where it is needed

    hashes_N = np.empty(len(vectors_ND), np.uint64)
    row_kernels.hash_rows(vectors_ND, hashes_N)
    order_N = np.lexsort((ranks_N, hashes_N))
    alike_N = hashes_N[order_N][1:] == hashes_N[order_N][:-1]
    if not alike_N.any():
        return _NO_TWINS
    twins_2N = np.full((2, len(vectors_ND)), -1, np.int32)
    starts = np.flatnonzero(np.concatenate([[True], ~alike_N]))
    ends = np.append(starts[1:], len(order_N))
    for place in np.flatnonzero(ends - starts > 1).tolist():
        _link(vectors_ND, order_N[starts[place] : ends[place]], twins_2N)
    return _read_only(twins_2N) if (twins_2N[0] >= 0).any() else _NO_TWINS


def _link(vectors_ND: np.ndarray, rows_R: np.ndarray, twins_2N: np.ndarray) -> None:
    """Note which of some rows, in the order of their ranks, have the vector of the first: their hashes are equal."""
    # Other vectors with the hash of the first are rare, and remain without twins.
    same_R = rows_R[_equal_first(vectors_ND, rows_R)]
    if len(same_R) > 1:
        twins_2N[0, same_R] = same_R[0]
        twins_2N[1, same_R[:-1]] = same_R[1:]


BLOCK_ROWS = 1 << 12
"""Compared at once: all rows of a segment may have one vector."""


def _equal_first(vectors_ND: np.ndarray, rows_R: np.ndarray) -> np.ndarray:
    first_D = vectors_ND[rows_R[0]]
    parts = [rows_R[start : start + BLOCK_ROWS] for start in range(0, len(rows_R), BLOCK_ROWS)]
    return np.concatenate([(vectors_ND[part] == first_D).all(axis=1) for part in parts])


def write_ties(vectors_ND: np.ndarray, ids: pa.ChunkedArray, folder: Path, *, proposed: bool) -> None:
    """Write the ties of a segment to a new folder, for `Ties.map`; `proposed`: ScaNN proposes candidates there."""
    folder.mkdir()
    ranks_N = id_ranks(ids)
    np.save(folder / _RANKS, ranks_N)
    twins_2N = find_twins(vectors_ND, ranks_N) if proposed else _NO_TWINS
    if twins_2N.shape[1]:
        np.save(folder / _TWINS, twins_2N)
