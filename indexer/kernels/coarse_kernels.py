"""Kernels of exact search by way of vectors in bytes: those tell which rows can be among the best.

Shapes: N rows, D dimensions, K hits.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from scannery.indexer.kernels.fused import compiled
from scannery.indexer.kernels.row_kernels import insert, score

__all__ = ["make_coarse", "nearest_by_coarse"]

LARGEST = 127


@compiled
def make_coarse(
    vectors_ND: np.ndarray,
    coarse_ND: np.ndarray,
    scales_N: np.ndarray,
    residuals_N: np.ndarray,
    lengths_N: np.ndarray,
) -> None:
    """Write each vector as int8 times a scale (float32), the length of what is lost and its own (both float64)."""
    for row in range(vectors_ND.shape[0]):
        largest = np.float32(0)
        for component in range(vectors_ND.shape[1]):
            largest = max(largest, abs(vectors_ND[row, component]))
        scale = np.float32(largest / np.float32(LARGEST))
        scales_N[row] = scale
        lost, whole = np.float64(0), np.float64(0)
        for component in range(vectors_ND.shape[1]):
            value = np.float64(vectors_ND[row, component])
            step = np.float64(0) if scale == 0 else np.rint(value / np.float64(scale))
            step = min(max(step, np.float64(-LARGEST)), np.float64(LARGEST))
            coarse_ND[row, component] = np.int8(step)
            lost += (value - step * np.float64(scale)) ** 2
            whole += value * value
        residuals_N[row], lengths_N[row] = np.sqrt(lost), np.sqrt(whole)


@compiled
def _score_coarse(
    coarse_ND: np.ndarray, scales_N: np.ndarray, query_D: np.ndarray, scores_N: np.ndarray
) -> None:
    for row in range(coarse_ND.shape[0]):
        total = np.float32(0)
        for component in range(coarse_ND.shape[1]):
            total += np.float32(coarse_ND[row, component]) * query_D[component]
        scores_N[row] = total * scales_N[row]


@partial(compiled, fastmath=False)
def nearest_by_coarse(
    coarse_ND: np.ndarray,
    scales_N: np.ndarray,
    errors_N: np.ndarray,
    vectors_ND: np.ndarray,
    query_D: np.ndarray,
    ranks_N: np.ndarray,
    coarse_N: np.ndarray,
    limit: int,
    rows_K: np.ndarray,
    scores_K: np.ndarray,
) -> bool:
    """Write the best rows for a query as `row_kernels.nearest_rows` does among all rows, by inner product.

    Returns False, and leaves what it writes undefined, if more than `limit` rows can be among the best.

    Args:
        coarse_ND: of `make_coarse`, as `scales_N`.
        scales_N: float32.
        errors_N: by how much the product with a coarse row, times its scale, differs from the row's score at most.
        vectors_ND: float32.
        query_D: float32.
        ranks_N: of `Ties`.
        coarse_N: gets the coarse scores, float32.
        limit: rows to score.
        rows_K: gets the rows, int64; -1 after the last.
        scores_K: gets their scores, float32; minus infinity after the last.

    """
    k = rows_K.shape[0]
    _score_coarse(coarse_ND, scales_N, query_D, coarse_N)
    # At least k rows have the k-th of the least possible scores.
    scores_K[:] = -np.float32(np.inf)
    for row in range(coarse_N.shape[0]):
        least = coarse_N[row] - errors_N[row]
        if least > scores_K[k - 1]:
            position = k - 1
            while position > 0 and scores_K[position - 1] < least:
                scores_K[position] = scores_K[position - 1]
                position -= 1
            scores_K[position] = least
    floor = scores_K[k - 1]
    promising = 0
    for row in range(coarse_N.shape[0]):
        promising += coarse_N[row] + errors_N[row] >= floor
    if promising > limit:
        return False
    count = 0
    for row in range(coarse_N.shape[0]):
        if coarse_N[row] + errors_N[row] >= floor:
            value = score(vectors_ND, row, query_D, False)
            # Tested here, as in `nearest_rows`: the call takes longer than the score.
            if count < k or value >= scores_K[k - 1]:
                count = insert(rows_K, scores_K, count, row, value, ranks_N)
    rows_K[count:] = -1
    scores_K[count:] = -np.float32(np.inf)
    return True
