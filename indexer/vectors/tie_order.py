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

from scannery.indexer.vectors.arrays import mapped

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
    from scannery.indexer.kernels import row_kernels  # compiles on import: only where it is needed

    hashes_N = np.empty(len(vectors_ND), np.uint64)
    row_kernels.hash_rows(vectors_ND, hashes_N)
    order_N = np.lexsort((ranks_N, hashes_N))
    new_N = np.concatenate([[True], hashes_N[order_N][1:] != hashes_N[order_N][:-1]])
    first_N = order_N[np.flatnonzero(new_N)[np.cumsum(new_N) - 1]]
    # Other vectors with the hash of the first are rare, and remain without twins.
    same = np.flatnonzero(_are_equal(vectors_ND, order_N, first_N))
    rows_S, first_S = order_N[same], first_N[same]
    before = np.flatnonzero(first_S[1:] == first_S[:-1])
    if not len(before):
        return _NO_TWINS
    twins_2N = np.full((2, len(vectors_ND)), -1, np.int32)
    twins_2N[0, rows_S[before]] = twins_2N[0, rows_S[before + 1]] = first_S[before]
    twins_2N[1, rows_S[before]] = rows_S[before + 1]
    return _read_only(twins_2N)


BLOCK_ROWS = 1 << 12
"""Compared at once: their copies are small."""


def _are_equal(vectors_ND: np.ndarray, rows_N: np.ndarray, others_N: np.ndarray) -> np.ndarray:
    """Return for each pair of rows whether they are the same row, or have the same vector: bool (N,)."""
    equal_N: np.ndarray = rows_N == others_N
    apart = np.flatnonzero(~equal_N)
    for start in range(0, len(apart), BLOCK_ROWS):
        part = apart[start : start + BLOCK_ROWS]
        equal_N[part] = (vectors_ND[rows_N[part]] == vectors_ND[others_N[part]]).all(axis=1)
    return equal_N


def write_ties(vectors_ND: np.ndarray, ids: pa.ChunkedArray, folder: Path, *, proposed: bool) -> None:
    """Write the ties of a segment to a new folder, for `Ties.map`; `proposed`: ScaNN proposes candidates there."""
    folder.mkdir()
    ranks_N = id_ranks(ids)
    np.save(folder / _RANKS, ranks_N)
    twins_2N = find_twins(vectors_ND, ranks_N) if proposed else _NO_TWINS
    if twins_2N.shape[1]:
        np.save(folder / _TWINS, twins_2N)
