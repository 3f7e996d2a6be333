"""Exact search: scores of vectors, and the best k of them.

Shapes: Q queries, N vectors, D dimensions, K hits, R rows given by number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scannery.indexer.spec import Distance

__all__ = ["NO_ROW", "all_scores", "best_k", "exact_search", "search_ready", "unit_length"]

NO_ROW = -1
"""Row number where there are fewer than k hits; its score is minus infinity."""

# Rows scored at once: their scores stay in the L2 cache, and their float64 copy is small.
BLOCK_ROWS = 1 << 14
BLOCK_QUERIES = 256
MANY_BETTER = 256
"""With more rows of a block than these better than what was found before, the block's best are selected first."""
# For so few queries a scan is bound by memory: the fused kernels need one core and no copy. A matrix product would wake
# the threads of the linear algebra library for it, which cost more than they save while other queries run.
FEW_QUERIES = 8
FEW_HITS = 100
"""A kernel that keeps the best rows as it goes is faster where these are few: no scores are written and sorted."""


def unit_length(vectors_ND: np.ndarray) -> np.ndarray:
    """Return the vectors scaled to length 1, float32; zero vectors stay zero. The input is not changed."""
    # float64: the square of a component of 1e15 must not overflow on its way to the sum.
    norms_N1 = np.sqrt(np.einsum("nd,nd->n", vectors_ND, vectors_ND, dtype=np.float64))[:, None]
    return (vectors_ND / np.where(norms_N1 == 0, 1, norms_N1)).astype(np.float32)


def search_ready(queries_QD: np.ndarray, distance: Distance) -> np.ndarray:
    """Return queries as segments search them: contiguous, float32, scaled to length 1 for cosine."""
    queries_QD = np.ascontiguousarray(queries_QD, np.float32)
    if distance != "cosine":
        return queries_QD
    from scannery.indexer import kernels  # compiles on import: only where it is needed

    units_QD = np.empty_like(queries_QD)
    kernels.unit_vectors(queries_QD, units_QD)
    return units_QD


def exact_search(
    vectors_ND: np.ndarray,
    queries_QD: np.ndarray,
    k: int,
    distance: Distance,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best rows of each query and their scores, best first.

    With `cosine`, vectors and queries must have length 1 already. Scores are inner products, or minus the squared
    distance for `squared_l2`. `allowed` restricts the rows: bool (N,), or row numbers, ascending.

    Returns:
        rows_QK int64 (NO_ROW where there are fewer) and scores_QK float32 (minus infinity there).

    """
    if len(queries_QD) < FEW_QUERIES and k <= FEW_HITS:
        return _few_best(vectors_ND, queries_QD, k, distance, allowed)
    rows_R = np.flatnonzero(allowed) if allowed is not None and allowed.dtype == bool else allowed
    return _many_best(vectors_ND, queries_QD, k, distance, rows_R)


def best_k(scores_QN: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns int64 and scores of the k largest per row, descending, ties by lower column; pads to k."""
    queries, count = scores_QN.shape
    kept = min(k, count)
    columns = np.argpartition(scores_QN, count - kept, axis=1)[:, count - kept :] if kept < count else None
    if columns is None:
        columns = np.broadcast_to(np.arange(count), (queries, count))
    scores = np.take_along_axis(scores_QN, columns, axis=1)
    order = np.lexsort((columns, -scores), axis=1)
    out_columns = np.full((queries, k), NO_ROW, np.int64)
    out_scores = np.full((queries, k), -np.inf, np.float32)
    out_columns[:, :kept] = np.take_along_axis(columns, order, axis=1)
    out_scores[:, :kept] = np.take_along_axis(scores, order, axis=1)
    return np.where(np.isneginf(out_scores), NO_ROW, out_columns), out_scores


def _few_best(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, k: int, distance: Distance, allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    from scannery.indexer import kernels  # compiles on import: only where it is needed

    if allowed is not None and not len(allowed):
        return _none_found(len(queries_QD), k)
    rows_QK, scores_QK = np.empty((len(queries_QD), k), np.int64), np.empty((len(queries_QD), k), np.float32)
    rows_R, mask_N = _NO_ROWS, _NO_MASK
    if allowed is not None and allowed.dtype == bool:
        mask_N = allowed
    elif allowed is not None:
        rows_R = allowed
    for query_D, rows_K, scores_K in zip(queries_QD, rows_QK, scores_QK, strict=True):
        kernels.nearest_rows(vectors_ND, query_D, distance == "squared_l2", rows_R, mask_N, rows_K, scores_K)
    return rows_QK, scores_QK


def _none_found(queries: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full((queries, k), NO_ROW, np.int64), np.full((queries, k), -np.inf, np.float32)


_NO_ROWS = np.zeros(0, np.int64)
_NO_MASK = np.zeros(0, bool)
_NO_MASK.setflags(write=False)  # as masks are: for each kind of array, code is compiled apart


def _many_best(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, k: int, distance: Distance, rows_R: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    total = len(vectors_ND) if rows_R is None else len(rows_R)
    rows_QK, scores_QK = _none_found(len(queries_QD), k)
    for start in range(0, total, BLOCK_ROWS):
        numbers_B = np.arange(start, min(start + BLOCK_ROWS, total))
        if rows_R is not None:
            numbers_B = rows_R[numbers_B]
        for some, scores_QB in _scored(
            vectors_ND, queries_QD, numbers_B, distance, contiguous=rows_R is None
        ):
            rows_QK[some], scores_QK[some] = _merge(rows_QK[some], scores_QK[some], numbers_B, scores_QB)
    return rows_QK, scores_QK


def _scored(
    vectors_ND: np.ndarray,
    queries_QD: np.ndarray,
    rows_B: np.ndarray,
    distance: Distance,
    *,
    contiguous: bool,
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield which queries, and the score of each of them and each row, float32 (Q, B)."""
    squared = distance == "squared_l2"
    if len(queries_QD) < FEW_QUERIES:
        yield slice(None), _fused_scores(vectors_ND, queries_QD, rows_B, squared=squared)
        return
    vectors_BD = vectors_ND[rows_B[0] : rows_B[-1] + 1] if contiguous else vectors_ND[rows_B]
    if squared:
        vectors_BD = vectors_BD.astype(np.float64)  # once for all queries
    for start in range(0, len(queries_QD), BLOCK_QUERIES):
        some = slice(start, start + BLOCK_QUERIES)
        yield some, all_scores(vectors_BD, queries_QD[some], distance)


def all_scores(vectors_BD: np.ndarray, queries_QD: np.ndarray, distance: Distance) -> np.ndarray:
    """Return the score of each query and vector, float32 (Q, B), by a matrix product."""
    if distance == "squared_l2":
        return _expanded_distances(vectors_BD, queries_QD)
    products_QB: np.ndarray = queries_QD @ vectors_BD.T
    return products_QB


def _fused_scores(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, rows_B: np.ndarray, *, squared: bool
) -> np.ndarray:
    from scannery.indexer import kernels

    kernel = kernels.squared_distances if squared else kernels.inner_products
    scores_QB = np.empty((len(queries_QD), len(rows_B)), np.float32)
    for query_D, scores_B in zip(queries_QD, scores_QB, strict=True):
        kernel(vectors_ND, rows_B, query_D, scores_B)
    return scores_QB


def _expanded_distances(vectors_BD: np.ndarray, queries_QD: np.ndarray) -> np.ndarray:
    """Return minus |x|² - 2xq + |q|², in float64: in float32 it cancels, and would misorder near neighbours."""
    vectors, queries = np.asarray(vectors_BD, np.float64), queries_QD.astype(np.float64)
    distances_QB = queries @ vectors.T
    distances_QB *= 2
    distances_QB -= np.einsum("bd,bd->b", vectors, vectors)
    distances_QB -= np.einsum("qd,qd->q", queries, queries)[:, None]
    return distances_QB.astype(np.float32)


def _merge(
    rows_QK: np.ndarray, scores_QK: np.ndarray, rows_B: np.ndarray, scores_QB: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best of what was found so far and of a block of further rows."""
    k = rows_QK.shape[1]
    if not k:
        return rows_QK, scores_QK
    # After the first blocks few rows are better than the k-th hit: a comparison is far cheaper than a selection.
    query_X, column_X = np.nonzero(scores_QB > scores_QK[:, -1:])
    counts_Q = np.bincount(query_X, minlength=len(rows_QK))
    better = int(counts_Q.max(initial=0))
    if better > MANY_BETTER:
        columns_QK, new_scores_QK = best_k(scores_QB, k)
        new_rows_QK = np.where(columns_QK == NO_ROW, NO_ROW, rows_B[columns_QK])
    else:
        place_X = np.arange(len(query_X)) - np.repeat(np.cumsum(counts_Q) - counts_Q, counts_Q)
        new_rows_QK = np.full((len(rows_QK), better), NO_ROW, np.int64)
        new_scores_QK = np.full((len(rows_QK), better), -np.inf, np.float32)
        new_rows_QK[query_X, place_X] = rows_B[column_X]
        new_scores_QK[query_X, place_X] = scores_QB[query_X, column_X]
    # What was found before comes from lower row numbers, so ties by lower column are ties by lower row.
    rows_QX = np.concatenate([rows_QK, new_rows_QK], axis=1)
    columns_QK, best_QK = best_k(np.concatenate([scores_QK, new_scores_QK], axis=1), k)
    return np.where(columns_QK == NO_ROW, NO_ROW, np.take_along_axis(rows_QX, columns_QK, axis=1)), best_QK
