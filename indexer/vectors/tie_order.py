"""The order of rows with equal scores, by id, and links between rows with equal vectors.

Of rows with equal scores, the one with the smaller id (by Unicode code points) comes first, for any k: otherwise the
order would depend on k, and pages of hits would repeat some and omit others. Ids are ranked once, when a segment is
unpacked; a search compares the ranks. Asked for 30 candidates, ScaNN proposes any 30 of 60 rows with the same vector.
So rows with equal vectors ("twins") are linked, and a candidate stands for all of its twins.

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
    """The order of rows with equal scores, for kernels."""

    ranks_N: np.ndarray
    """Rank of each row's id among all ids of the segment, int32; empty: order by row number."""
    twins_2N: np.ndarray
    """Rows: for each row the first and the next row with the same vector, by rank, int32; -1: none. (2, 0) if all
    vectors differ.
    """

    @classmethod
    def map(cls, folder: Path) -> Ties:
        """Return what `write_ties` wrote, memory-mapped."""
        twins = folder / _TWINS
        return cls(mapped(folder / _RANKS), mapped(twins) if twins.exists() else _NO_TWINS)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(
        write=False
    )  # kernels are compiled for read-only arrays; writable ones would be compiled separately
    return array


_NO_TWINS = _read_only(np.zeros((2, 0), np.int32))
BY_ROW = Ties(_read_only(np.zeros(0, np.int32)), _NO_TWINS)
"""Order by row number, and no twins."""


def id_ranks(ids: pa.ChunkedArray) -> np.ndarray:
    """Return the rank of each id in sorted order, int32 (N,), read-only."""
    # Arrow compares UTF-8 bytes, which gives the order of code points, as in Python.
    order_N = pc.sort_indices(ids).to_numpy(zero_copy_only=False)
    ranks_N = np.empty(len(order_N), np.int32)
    ranks_N[order_N] = np.arange(len(order_N), dtype=np.int32)
    return _read_only(ranks_N)


def find_twins(vectors_ND: np.ndarray, ranks_N: np.ndarray) -> np.ndarray:
    """Return for each row the first and the next one with the same vector, by rank, as `Ties.twins_2N`."""
    from scannery.indexer.kernels import row_kernels  # compiles on import: only where it is needed

    hashes_N = np.empty(len(vectors_ND), np.uint64)
    row_kernels.hash_rows(vectors_ND.view(np.uint32), hashes_N)
    order_N = np.lexsort((ranks_N, hashes_N))
    new_N = np.concatenate([[True], hashes_N[order_N][1:] != hashes_N[order_N][:-1]])
    first_N = order_N[np.flatnonzero(new_N)[np.cumsum(new_N) - 1]]
    # Different vectors with equal hashes are rare; those that differ from the first have no twins.
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
"""Rows compared at once: their copies are small."""


def _are_equal(vectors_ND: np.ndarray, rows_N: np.ndarray, others_N: np.ndarray) -> np.ndarray:
    """Return for each pair of rows whether they are the same row or have equal vectors, bool (N,)."""
    equal_N: np.ndarray = rows_N == others_N
    apart = np.flatnonzero(~equal_N)
    for start in range(0, len(apart), BLOCK_ROWS):
        part = apart[start : start + BLOCK_ROWS]
        equal_N[part] = (vectors_ND[rows_N[part]] == vectors_ND[others_N[part]]).all(axis=1)
    return equal_N


def write_ties(vectors_ND: np.ndarray, ids: pa.ChunkedArray, folder: Path, *, proposed: bool) -> None:
    """Write the ties of a segment to a new folder, for `Ties.map`; twins only if ScaNN proposes candidates there."""
    folder.mkdir()
    ranks_N = id_ranks(ids)
    np.save(folder / _RANKS, ranks_N)
    twins_2N = find_twins(vectors_ND, ranks_N) if proposed else _NO_TWINS
    if twins_2N.shape[1]:
        np.save(folder / _TWINS, twins_2N)
