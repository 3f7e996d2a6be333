"""Exact search of all rows for single queries, by way of a copy of the vectors with a byte for each component.

Reading the vectors is what a scan of a few thousand rows takes: 165 µs for 4,410 rows of 384 dimensions, 300 behind the
encoding of a text, which leaves none of them in the processor's cache. The copy has a quarter of their bytes. It gives
each score within a bound; the rows that can be among the best, a few dozen, are scored as everywhere else, so hits and
scores are the same to the last bit.

Shapes: Q queries, N vectors, D dimensions, K hits.
"""

from __future__ import annotations

import numpy as np

from scannery.indexer.vectors.exact_search import ROOM, UNIT_ROUNDOFF, exact_search

__all__ = ["CoarseRows"]

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
        self._limit, self._plain_left = rows // MOST_SHARE, 0
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

    @staticmethod
    def size_bytes_of(rows: int, dimensions: int) -> int:
        """Return the bytes of a copy: a byte of each component, scale and error of each row."""
        return rows * (dimensions + 8)

    def search(self, queries_QD: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what `exact_search` does for all rows and `cosine`: rows_QK, int64, and scores_QK, float32.

        Args:
            queries_QD: float32, of length 1, or zeros.
            k: hits per query, at least 1.

        """
        rows_QK = np.empty((len(queries_QD), k), np.int64)
        scores_QK = np.empty((len(queries_QD), k), np.float32)
        coarse_N = np.empty(len(self._scales_N), np.float32)
        for number, query_D in enumerate(queries_QD):
            if not self._search_one(query_D, coarse_N, rows_QK[number], scores_QK[number]):
                row = slice(number, number + 1)
                rows_QK[row], scores_QK[row] = exact_search(
                    self._vectors_ND, queries_QD[row], k, "cosine", ranks_N=self._ranks_N
                )
        return rows_QK, scores_QK

    def _search_one(
        self, query_D: np.ndarray, coarse_N: np.ndarray, rows_K: np.ndarray, scores_K: np.ndarray
    ) -> bool:
        """Write the hits of a query; return whether the copy was of use."""
        # Not locked: threads that count at the same time only change how many queries scan all rows.
        if self._plain_left > 0:
            self._plain_left -= 1
            return False
        is_complete: bool = self._nearest(
            self._coarse_ND, self._scales_N, self._errors_N, self._vectors_ND, query_D, self._ranks_N,
            coarse_N, self._limit, rows_K, scores_K,
        )  # fmt: skip
        if not is_complete:
            self._plain_left = PLAIN_QUERIES
        return is_complete
