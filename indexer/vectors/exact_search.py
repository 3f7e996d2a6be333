"""Exact search: the best k vectors by score in a total order: by score, then by id.

Batches of queries are scored by a matrix product, which adds in another order than the kernel for single queries. The
product only selects rows that can be among the best, within a bound of rounding errors. Their final scores come from
the kernel, so that a row has the same score and rank in a batch as for a single query.

Shapes: Q queries, N vectors, D dimensions, K hits, R rows given by number, B rows of a block, X pairs of row and query.

Of rows with equal scores, the one with the smaller id (by Unicode code points) comes first, for any k: otherwise the
order would depend on k, and pages of hits would repeat some and omit others. Ids are ranked once, when a segment is
unpacked; a search compares the ranks. Asked for 30 candidates, ScaNN proposes any 30 of 60 rows with the same vector.
So rows with equal vectors ("twins") are linked, and a candidate stands for all of its twins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.spec.spec import Distance
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.page_advice import expect
from scannery.indexer.vectors.quantized_vectors import ScoredVectors

__all__ = [
    "BY_ROW",
    "FEW_HITS",
    "FEW_QUERIES",
    "NO_ROW",
    "ROOM",
    "UNIT_ROUNDOFF",
    "Ties",
    "all_scores",
    "exact_search",
    "find_twins",
    "id_ranks",
    "row_scores",
    "search_ready",
    "unit_length",
    "write_ties",
]


_RANKS, _TWINS = "id_ranks.npy", "twins.npy"


class Ties(NamedTuple):
    """The order of rows with equal scores, for kernels."""

    ranks_N: np.ndarray
    """Rank of each row's id among all ids of the segment, int32; empty: order by row number."""
    twins_2N: np.ndarray
    """Rows: for each row the first and the next row with the same vector, by rank, int32; -1: none. (2, 0) if all
    vectors differ.
    """

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.ranks_N.nbytes + self.twins_2N.nbytes)

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


LINKED_ROWS = 1 << 12
"""Rows compared at once: their copies are small."""


def _are_equal(vectors_ND: np.ndarray, rows_N: np.ndarray, others_N: np.ndarray) -> np.ndarray:
    """Return for each pair of rows whether they are the same row or have equal vectors, bool (N,)."""
    equal_N: np.ndarray = rows_N == others_N
    apart = np.flatnonzero(~equal_N)
    for start in range(0, len(apart), LINKED_ROWS):
        part = apart[start : start + LINKED_ROWS]
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


NO_ROW = -1
"""Row number in the places after the last hit, if there are fewer than k; the score there is minus infinity."""

# Rows and queries scored at once: their scores stay in the L2 cache, and a float64 copy of the rows is small.
BLOCK_ROWS = 1 << 14
BLOCK_QUERIES = 256
MANY_BETTER = 256
"""If more rows of a block than this per query can be among the best, the block's own k-th score is a bound too."""
# With fewer queries a scan is bound by memory: the fused kernels need one core and no copy. A matrix product would wake
# the threads of the linear algebra library, which cost more than they save while other queries run.
FEW_QUERIES = 8
FEW_HITS = 100
"""Up to this k, a kernel that keeps the best rows as it scans is faster than writing and sorting all scores."""


def unit_length(vectors_ND: np.ndarray) -> np.ndarray:
    """Return the vectors scaled to length 1, float32; zero vectors stay zero. The input is not changed."""
    # float64, so that the square of a component of 1e15 does not overflow.
    norms_N1 = np.sqrt(np.einsum("nd,nd->n", vectors_ND, vectors_ND, dtype=np.float64))[:, None]
    return (vectors_ND / np.where(norms_N1 == 0, 1, norms_N1)).astype(np.float32)


def search_ready(queries_QD: np.ndarray, distance: Distance) -> np.ndarray:
    """Return queries as segments need them: contiguous, float32, scaled to length 1 for cosine."""
    queries_QD = np.ascontiguousarray(queries_QD, np.float32)
    if distance != "cosine":
        return queries_QD
    from scannery.indexer.kernels import fused  # compiles on import: only where it is needed

    units_QD = np.empty_like(queries_QD)
    fused.unit_vectors(queries_QD, units_QD)
    return units_QD


def exact_search(
    vectors: np.ndarray | ScoredVectors,
    queries_QD: np.ndarray,
    k: int,
    distance: Distance,
    allowed: np.ndarray | None = None,
    ranks_N: np.ndarray = BY_ROW.ranks_N,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best rows of each query and their scores, best first, equal scores by rank.

    Args:
        vectors: float32 (N, D), of length 1 for `cosine`.
        queries_QD: float32, of length 1 for `cosine`.
        k: hits per query.
        distance: scores are inner products, or minus squared distances for `squared_l2`.
        allowed: rows to search: bool (N,), or row numbers, each once, in any order; None: all.
        ranks_N: of `Ties`; empty: equal scores are ordered by row number.

    Returns:
        rows_QK int64 and scores_QK float32; NO_ROW and minus infinity after the last hit.

    """
    scored = _scored_vectors(vectors)
    if len(queries_QD) < FEW_QUERIES and k <= FEW_HITS:
        return _few_best(scored, queries_QD, k, distance, allowed, ranks_N)
    rows_R = np.flatnonzero(allowed) if allowed is not None and allowed.dtype == bool else allowed
    return _many_best(scored, queries_QD, k, distance, rows_R, ranks_N)


def _scored_vectors(vectors: np.ndarray | ScoredVectors) -> ScoredVectors:
    return vectors if isinstance(vectors, ScoredVectors) else ScoredVectors(vectors)


def row_scores(
    vectors: np.ndarray | ScoredVectors, rows_R: np.ndarray, query_D: np.ndarray, distance: Distance
) -> np.ndarray:
    """Return the scores that `exact_search` gives some rows, float32 (R,), in their order.

    Args:
        vectors: float32 (N, D), of length 1 for `cosine`.
        rows_R: their numbers, int64.
        query_D: float32, of length 1 for `cosine`.
        distance: scores are inner products, or minus squared distances for `squared_l2`.

    """
    if not len(rows_R):
        return np.empty(0, np.float32)
    scores_R: np.ndarray = _kernel_scores(_scored_vectors(vectors), query_D[None], rows_R, distance)[0]
    return scores_R


def _few_best(
    vectors: ScoredVectors,
    queries_QD: np.ndarray,
    k: int,
    distance: Distance,
    allowed: np.ndarray | None,
    ranks_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    from scannery.indexer.kernels import row_kernels  # compiles on import: only where it is needed

    if allowed is not None and not len(allowed):
        return _none_found(len(queries_QD), k)
    rows_QK, scores_QK = np.empty((len(queries_QD), k), np.int64), np.empty((len(queries_QD), k), np.float32)
    rows_R, mask_N = _NO_ROWS, _NO_MASK
    if allowed is not None and allowed.dtype == bool:
        mask_N = allowed
    elif allowed is not None:
        rows_R = allowed
    if allowed is None:
        expect(vectors.quantized_NB if len(vectors.quantized_NB) else vectors.vectors_ND)
    squared = distance == "squared_l2"
    for query_D, rows_K, scores_K in zip(queries_QD, rows_QK, scores_QK, strict=True):
        row_kernels.nearest_rows(*vectors, query_D, squared, rows_R, mask_N, ranks_N, rows_K, scores_K)
    return rows_QK, scores_QK


def _none_found(queries: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full((queries, k), NO_ROW, np.int64), np.full((queries, k), -np.inf, np.float32)


_NO_ROWS = np.zeros(0, np.int64)
_NO_MASK = np.zeros(0, bool)
for _empty in (
    _NO_ROWS,
    _NO_MASK,
):  # read-only like those of filters: writable arrays would be compiled separately
    _empty.setflags(write=False)


def _many_best(
    vectors: ScoredVectors,
    queries_QD: np.ndarray,
    k: int,
    distance: Distance,
    rows_R: np.ndarray | None,
    ranks_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    total = vectors.rows if rows_R is None else len(rows_R)
    rows_QK, scores_QK = _none_found(len(queries_QD), k)
    if not k:
        return rows_QK, scores_QK
    for start in range(0, total, BLOCK_ROWS):
        numbers_B = np.arange(start, min(start + BLOCK_ROWS, total))
        if rows_R is not None:
            numbers_B = rows_R[numbers_B]
        for some, scores_QB, least in _scored(
            vectors, queries_QD, numbers_B, distance, contiguous=rows_R is None
        ):
            query_X, column_X = _promising(scores_QB, scores_QK[some], least or np.asarray)
            rows_X = numbers_B[column_X]
            scores_X = (
                _pair_scores(vectors, rows_X, queries_QD[some], query_X, distance)
                if least
                else scores_QB[query_X, column_X]
            )
            rows_QK[some], scores_QK[some] = _merged(
                rows_QK[some], scores_QK[some], query_X, rows_X, scores_X, ranks_N
            )
    return rows_QK, scores_QK


_Least = Callable[[np.ndarray], np.ndarray]
"""Function from the kernel's scores (Q,), possibly minus infinity, to the least products of rows with these scores."""


def _scored(
    vectors: ScoredVectors,
    queries_QD: np.ndarray,
    rows_B: np.ndarray,
    distance: Distance,
    *,
    contiguous: bool,
) -> Iterator[tuple[slice, np.ndarray, _Least | None]]:
    """Yield a slice of queries, their scores for each row, float32 (Q, B), and the bound of these; None if exact."""
    if len(queries_QD) < FEW_QUERIES:
        yield slice(None), _kernel_scores(vectors, queries_QD, rows_B, distance), None
        return
    is_view = contiguous and len(vectors.vectors_ND) > 0
    if is_view:
        vectors_BD = vectors.vectors_ND[rows_B[0] : rows_B[-1] + 1]
        expect(vectors_BD)
    else:
        vectors_BD = vectors.take(rows_B)
    longest = _longest(vectors_BD)
    if distance == "squared_l2":
        vectors_BD = vectors_BD.astype(np.float64)  # once for all queries
    for start in range(0, len(queries_QD), BLOCK_QUERIES):
        some = slice(start, start + BLOCK_QUERIES)
        lengths_Q = np.sqrt(np.einsum("qd,qd->q", queries_QD[some], queries_QD[some], dtype=np.float64))
        least = partial(_least_product, lengths_Q, longest, queries_QD.shape[1], distance)
        yield some, all_scores(vectors_BD, queries_QD[some], distance), least


def all_scores(vectors_BD: np.ndarray, queries_QD: np.ndarray, distance: Distance) -> np.ndarray:
    """Return the score of each query and vector, float32 (Q, B), by a matrix product."""
    if distance == "squared_l2":
        return _expanded_distances(vectors_BD, queries_QD)
    products_QB: np.ndarray = queries_QD @ vectors_BD.T
    return products_QB


def _least_product(
    lengths_Q: np.ndarray, longest: float, dimensions: int, distance: Distance, scores_Q: np.ndarray
) -> np.ndarray:
    """Return the least value that `all_scores` can give for a row with the given score, float64 (Q,).

    A sum of n products has an error of at most n · u / (1 - n · u) times the sum of their absolute values, in any order
    (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). For inner products that sum is at most the product of
    the two lengths, and both computations have the error. The kernel's squared distance has an error in proportion to
    itself; the expanded one has that of float64, in proportion to the square of the sum of the lengths.
    """
    share = ROOM * (dimensions + 4) * UNIT_ROUNDOFF
    scores_Q = scores_Q.astype(np.float64)
    if distance == "squared_l2":
        expanded_Q = ROOM * (dimensions + 4) * 2.0**-53 * 4 * np.square(longest + lengths_Q)
        least_Q: np.ndarray = scores_Q * (1 + share) - expanded_Q - LEAST_ERROR
        return least_Q
    return scores_Q - 2 * share * longest * lengths_Q - LEAST_ERROR


UNIT_ROUNDOFF = 2.0**-24
ROOM = 1.5
"""Factor on the bound for what it leaves out: n · u in the denominator, and the rounding of the lengths."""
LEAST_ERROR = 1e-35
"""Error of products that are too small for float32."""


def _promising(scores_QB: np.ndarray, scores_QK: np.ndarray, least: _Least) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of query and column that can be among the best, by query, then column: two int64 (X,)."""
    k = scores_QK.shape[1]
    floor_Q = least(scores_QK[:, -1])
    # After the first blocks few rows reach the k-th hit: comparing is far cheaper than selecting.
    query_X, column_X = _reaching(scores_QB, floor_Q)
    if k < scores_QB.shape[1] and len(query_X) > MANY_BETTER * len(scores_QB):
        # At least k rows of this block have the k-th of these scores, less its error.
        position = scores_QB.shape[1] - k
        own_Q = np.partition(scores_QB, position, axis=1)[:, position]
        query_X, column_X = _reaching(scores_QB, np.maximum(floor_Q, least(least(own_Q))))
    return query_X, column_X


def _reaching(scores_QB: np.ndarray, floor_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of query and column that score at least the floor, or a rounding error less, by query.

    Float64 floors would have every score converted, and `nonzero` of two dimensions takes as long as the product.
    """
    floor_Q1 = np.nextafter(floor_Q.astype(np.float32), np.float32(-np.inf))[:, None]
    query_X, column_X = np.divmod(np.flatnonzero(scores_QB >= floor_Q1), scores_QB.shape[1])
    return query_X, column_X


def _kernel_scores(
    vectors: ScoredVectors, queries_QD: np.ndarray, rows_B: np.ndarray, distance: Distance
) -> np.ndarray:
    from scannery.indexer.kernels import row_kernels

    scores_QB = np.empty((len(queries_QD), len(rows_B)), np.float32)
    for query_D, scores_B in zip(queries_QD, scores_QB, strict=True):
        row_kernels.score_rows(*vectors, rows_B, query_D, distance == "squared_l2", scores_B)
    return scores_QB


def _pair_scores(
    vectors: ScoredVectors,
    rows_X: np.ndarray,
    queries_QD: np.ndarray,
    query_X: np.ndarray,
    distance: Distance,
) -> np.ndarray:
    from scannery.indexer.kernels import row_kernels

    scores_X = np.empty(len(rows_X), np.float32)
    row_kernels.score_pairs(*vectors, rows_X, queries_QD, query_X, distance == "squared_l2", scores_X)
    return scores_X


def _longest(vectors_BD: np.ndarray) -> float:
    from scannery.indexer.kernels import row_kernels

    return row_kernels.longest(vectors_BD)


def _expanded_distances(vectors_BD: np.ndarray, queries_QD: np.ndarray) -> np.ndarray:
    """Return minus (|x|² - 2xq + |q|²), computed in float64: cancellation in float32 would misorder near neighbours."""
    vectors, queries = np.asarray(vectors_BD, np.float64), queries_QD.astype(np.float64)
    distances_QB = queries @ vectors.T
    distances_QB *= 2
    distances_QB -= np.einsum("bd,bd->b", vectors, vectors)
    distances_QB -= np.einsum("qd,qd->q", queries, queries)[:, None]
    return distances_QB.astype(np.float32)


def _merged(
    rows_QK: np.ndarray,
    scores_QK: np.ndarray,
    query_X: np.ndarray,
    rows_X: np.ndarray,
    scores_X: np.ndarray,
    ranks_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best of the hits so far and of the pairs X, which are sorted by query."""
    from scannery.indexer.kernels import row_kernels

    order_X = np.lexsort((ranks_N[rows_X] if len(ranks_N) else rows_X, -scores_X, query_X))
    starts_Q = np.searchsorted(query_X, np.arange(len(rows_QK) + 1))
    merged = _none_found(*rows_QK.shape)
    row_kernels.merge_sorted(
        rows_QK, scores_QK, starts_Q, rows_X[order_X], scores_X[order_X], ranks_N, *merged
    )
    return merged
