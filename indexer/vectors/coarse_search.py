"""Exact search of all rows for single queries, by way of a copy of the vectors with a byte for each component.

Reading the vectors is what a scan of a few thousand rows takes: 165 µs for 4,410 rows of 384 dimensions, 300 behind the
encoding of a text, which leaves none of them in the processor's cache. The copy has a quarter of their bytes. It gives
each score within a bound; the rows that can be among the best, a few dozen, are scored as everywhere else, so hits and
scores are the same to the last bit.

Shapes: Q queries, N vectors, D dimensions, K hits.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from scannery.indexer.kernels.fused import compiled
from scannery.indexer.kernels.row_kernels import insert, score
from scannery.indexer.vectors.exact_search import ROOM, UNIT_ROUNDOFF, exact_search

__all__ = ["CoarseRows", "make_coarse", "nearest_by_coarse"]


MOST_BYTES = 1 << 24
"""Largest copy: of larger segments it is not worth its memory."""
FEWEST_ROWS = 256
"""Fewer rows are scanned as fast."""
FEWEST_DIMENSIONS = 16
"""Least number of dimensions. With fewer, the scale, the error and the coarse score of a row take as many bytes as its
vector.
"""
MOST_SHARE = 8
"""A scan of all rows is as fast if more than one in so many can be among the best, as of a cluster near the query."""
PLAIN_QUERIES = 31
"""Queries that are then compared with all rows: the next ones mostly meet the same cluster."""
UNIT = 1.0001
"""Length of a query of length 1, with room for its rounding."""
LEAST_ERROR = 1e-30


class CoarseRows:
    """The copy of the vectors of a segment, all of about length 1 or shorter, as for `cosine`."""

    def __init__(self, vectors_ND: np.ndarray, ranks_N: np.ndarray) -> None:
        """Make the copy: 1 ms for a million components.

        Args:
            vectors_ND: float32, C-contiguous, finite; kept.
            ranks_N: of `Ties`; empty: equal scores are ordered by row number.

        """
        from scannery.indexer.kernels import coarse_kernels  # compiles on import: only where it is needed

        rows, dimensions = vectors_ND.shape
        self._nearest = coarse_kernels.nearest_by_coarse
        self._most, self._plain_left = rows // MOST_SHARE, 0
        self._vectors_ND, self._ranks_N = vectors_ND, ranks_N
        self._coarse_ND = np.empty((rows, dimensions), np.int8)
        self._scales_N = np.empty(rows, np.float32)
        residuals_N, lengths_N = np.empty(rows), np.empty(rows)
        coarse_kernels.make_coarse(vectors_ND, self._coarse_ND, self._scales_N, residuals_N, lengths_N)
        # What a row loses, times the length of the query (Cauchy and Schwarz), and the rounding of both sums, of
        # vectors of about the row's length (exact_search.py).
        share = ROOM * (dimensions + 4) * UNIT_ROUNDOFF
        errors_N = UNIT * (residuals_N + share * (2 * lengths_N + residuals_N)) + LEAST_ERROR
        self._errors_N = np.nextafter(errors_N.astype(np.float32), np.float32(np.inf))

    @classmethod
    def fits(cls, rows: int, dimensions: int) -> bool:
        """Return whether a copy of so many vectors is worth its memory."""
        worth = rows >= FEWEST_ROWS and dimensions >= FEWEST_DIMENSIONS
        return worth and rows * dimensions <= MOST_BYTES

    def search(self, queries_QD: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what `exact_search` does for all rows and `cosine`: rows_QK, int64, and scores_QK, float32.

        Args:
            queries_QD: float32, of length 1, or zeros.
            k: hits per query, at least 1.

        """
        rows_QK = np.empty((len(queries_QD), k), np.int64)
        scores_QK = np.empty((len(queries_QD), k), np.float32)
        coarse_N = np.empty(len(self._scales_N), np.float32)
        for place, query_D in enumerate(queries_QD):
            if not self._found(query_D, coarse_N, rows_QK[place], scores_QK[place]):
                one = slice(place, place + 1)
                rows_QK[one], scores_QK[one] = exact_search(
                    self._vectors_ND, queries_QD[one], k, "cosine", ranks_N=self._ranks_N
                )
        return rows_QK, scores_QK

    def _found(
        self, query_D: np.ndarray, coarse_N: np.ndarray, rows_K: np.ndarray, scores_K: np.ndarray
    ) -> bool:
        """Write the hits of a query; return whether the copy was of use."""
        # Not locked: threads that count at the same time only change how many queries scan all rows.
        if self._plain_left > 0:
            self._plain_left -= 1
            return False
        found: bool = self._nearest(
            self._coarse_ND, self._scales_N, self._errors_N, self._vectors_ND, query_D, self._ranks_N,
            coarse_N, self._most, rows_K, scores_K,
        )  # fmt: skip
        if not found:
            self._plain_left = PLAIN_QUERIES
        return found


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
        most = np.float32(0)
        for component in range(vectors_ND.shape[1]):
            most = max(most, abs(vectors_ND[row, component]))
        scale = np.float32(most / np.float32(LARGEST))
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
    most: int,
    rows_K: np.ndarray,
    scores_K: np.ndarray,
) -> bool:
    """Write the best rows for a query as `row_kernels.nearest_rows` does among all rows, by inner product.

    Returns False, and leaves what it writes undefined, if more than `most` rows can be among the best.

    Args:
        coarse_ND: of `make_coarse`, as `scales_N`.
        scales_N: float32.
        errors_N: by how much the product with a coarse row, times its scale, differs from the row's score at most.
        vectors_ND: float32.
        query_D: float32.
        ranks_N: of `Ties`.
        coarse_N: gets the coarse scores, float32.
        most: rows to score.
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
            place = k - 1
            while place > 0 and scores_K[place - 1] < least:
                scores_K[place] = scores_K[place - 1]
                place -= 1
            scores_K[place] = least
    floor = scores_K[k - 1]
    promising = 0
    for row in range(coarse_N.shape[0]):
        promising += coarse_N[row] + errors_N[row] >= floor
    if promising > most:
        return False
    found = 0
    for row in range(coarse_N.shape[0]):
        if coarse_N[row] + errors_N[row] >= floor:
            value = score(vectors_ND, row, query_D, False)
            # Tested here, as in `nearest_rows`: the call takes longer than the score.
            if found < k or value >= scores_K[k - 1]:
                found = insert(rows_K, scores_K, found, row, value, ranks_N)
    rows_K[found:] = -1
    scores_K[found:] = -np.float32(np.inf)
    return True
