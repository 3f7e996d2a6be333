"""Exact search: scores of vectors, and the best k of them.

Shapes: Q queries, N vectors, D dimensions, K hits, R rows given by number.
"""

from __future__ import annotations

import numpy as np

from scannery.indexer.spec import Distance

__all__ = ["NO_ROW", "all_scores", "best_k", "exact_search", "unit_length"]

NO_ROW = -1
"""Row number where there are fewer than k hits; its score is minus infinity."""

# Rows scored at once: their scores stay in the L2 cache, and their float64 copy is small.
BLOCK_ROWS = 1 << 14
BLOCK_QUERIES = 256
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
    found = [
        _search_block(vectors_ND, queries_QD[start : start + BLOCK_QUERIES], k, distance, rows_R)
        for start in range(0, len(queries_QD), BLOCK_QUERIES)
    ]
    if not found:
        return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
    return np.concatenate([rows for rows, _ in found]), np.concatenate([scores for _, scores in found])


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

    rows_QK = np.full((len(queries_QD), k), NO_ROW, np.int64)
    scores_QK = np.full((len(queries_QD), k), -np.inf, np.float32)
    rows_R, mask_N = _NO_ROWS, _NO_MASK
    if allowed is not None and not len(allowed):
        return rows_QK, scores_QK
    if allowed is not None and allowed.dtype == bool:
        mask_N = allowed
    elif allowed is not None:
        rows_R = allowed
    for query_D, rows_K, scores_K in zip(queries_QD, rows_QK, scores_QK, strict=True):
        kernels.nearest_rows(vectors_ND, query_D, distance == "squared_l2", rows_R, mask_N, rows_K, scores_K)
    return rows_QK, scores_QK


_NO_ROWS = np.zeros(0, np.int64)
_NO_MASK = np.zeros(0, bool)
_NO_MASK.setflags(write=False)  # as masks are: for each kind of array, code is compiled apart


def _search_block(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, k: int, distance: Distance, rows_R: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    total = len(vectors_ND) if rows_R is None else len(rows_R)
    rows_QK = np.full((len(queries_QD), k), NO_ROW, np.int64)
    scores_QK = np.full((len(queries_QD), k), -np.inf, np.float32)
    for start in range(0, total, BLOCK_ROWS):
        numbers = np.arange(start, min(start + BLOCK_ROWS, total))
        if rows_R is not None:
            numbers = rows_R[numbers]
        scores_QB = _scores(vectors_ND, queries_QD, numbers, distance, contiguous=rows_R is None)
        columns, new_scores = best_k(scores_QB, k)
        new_rows = np.where(columns == NO_ROW, NO_ROW, numbers[columns])
        rows_QK, scores_QK = _merge(rows_QK, scores_QK, new_rows, new_scores)
    return rows_QK, scores_QK


def _scores(
    vectors_ND: np.ndarray,
    queries_QD: np.ndarray,
    rows_B: np.ndarray,
    distance: Distance,
    *,
    contiguous: bool,
) -> np.ndarray:
    """Return the score of each query and row, float32 (Q, B)."""
    squared = distance == "squared_l2"
    if len(queries_QD) < FEW_QUERIES:
        return _fused_scores(vectors_ND, queries_QD, rows_B, squared=squared)
    vectors_BD = vectors_ND[rows_B[0] : rows_B[-1] + 1] if contiguous else vectors_ND[rows_B]
    return all_scores(vectors_BD, queries_QD, distance)


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
    vectors, queries = vectors_BD.astype(np.float64), queries_QD.astype(np.float64)
    distances_QB = queries @ vectors.T
    distances_QB *= 2
    distances_QB -= np.einsum("bd,bd->b", vectors, vectors)
    distances_QB -= np.einsum("qd,qd->q", queries, queries)[:, None]
    return distances_QB.astype(np.float32)


def _merge(
    rows_a: np.ndarray, scores_a: np.ndarray, rows_b: np.ndarray, scores_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    # `a` comes from lower row numbers, so ties by lower column are ties by lower row.
    rows = np.concatenate([rows_a, rows_b], axis=1)
    columns, scores = best_k(np.concatenate([scores_a, scores_b], axis=1), rows_a.shape[1])
    return np.where(columns == NO_ROW, NO_ROW, np.take_along_axis(rows, columns, axis=1)), scores
