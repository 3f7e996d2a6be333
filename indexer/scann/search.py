"""Search with ScaNN: it proposes candidates from quantized codes, and kernels rescore them exactly.

ScaNN could rescore too, but only from a copy of the vectors on the heap of each process. The segment's vectors are
memory-mapped: shared by all processes, also used by exact and filtered search, and not copied when a segment opens. At
200,000 × 128 both ways take the same time in batches and give the same recall; heap after load is 1 MB against 109 MB.

Shapes: Q queries, N rows, D dimensions, C candidates, K hits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scannery.indexer.errors import CorruptError
from scannery.indexer.scann.assets import MIDDLE_FILE
from scannery.indexer.scann.instructions import use_vector_instructions
from scannery.indexer.spec.spec import Distance
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.exact_search import BY_ROW, NO_ROW, Ties
from scannery.indexer.vectors.quantized_vectors import ScoredVectors
from scannery.indexer.vectors.row_test import ALL_ROWS, RowTest

__all__ = ["ScannSearcher", "load_kernels", "load_searcher"]

MOST_REPEATED = 0.75
"""If a larger share of the candidates repeats the vector of another row, they are too few: 400 equal rows near a query
displaced all better ones, and the settings were not measured for that."""
WIDENING = 4
"""Factor on the number of candidates when such a query is repeated."""
WIDENED = 3
"""Most repetitions."""


class RescoredCandidates(NamedTuple):
    """Rescored candidates."""

    rows_QK: np.ndarray
    """int64, best first; NO_ROW after the last hit."""
    scores_QK: np.ndarray
    """float32; minus infinity after the last hit."""
    scored_Q: np.ndarray
    """Allowed candidates, which were scored with their vectors."""
    depth_Q: np.ndarray
    """Number of candidates, in ScaNN's order, up to the k-th allowed one."""
    repeated_Q: np.ndarray
    """Number of candidates, allowed or not, that repeat the vector of another row."""


class ScannSearcher:
    """A ScaNN searcher with the vectors it was built from. Immutable; safe to use from several threads."""

    def __init__(
        self,
        searcher: Any,
        vectors: ScoredVectors,
        distance: Distance,
        ties: Ties,
        middle_D: np.ndarray | None = None,
    ) -> None:
        """Keep the parts of a searcher.

        Args:
            searcher: of the library `scann`.
            vectors: of the segment, as they are searched.
            distance: of the index.
            ties: of the segment.
            middle_D: vector that was subtracted from the vectors in training; None: none was.

        """
        from scannery.indexer.kernels import row_kernels  # imports numba: only where it is needed

        self._kernels = row_kernels
        # The native searcher: its Python wrapper only adds a map of docids, which are not used here.
        self._native = searcher.searcher
        self._vectors = vectors
        self._squared = distance == "squared_l2"
        self._ties = ties
        self._middle_D = middle_D

    def search(
        self, queries_QD: np.ndarray, k: int, *, rescore: int, leaves: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows_QK int64 (NO_ROW after the last hit) and scores_QK float32, best first.

        Args:
            queries_QD: contiguous float32, of length 1 for cosine.
            k: hits per query.
            rescore: candidates to rescore; at least k are.
            leaves: leaves to search.

        """
        if len(queries_QD) == 1:
            return self._search_one(queries_QD[0], k, rescore, leaves, ALL_ROWS)[:2]
        candidates = self.search_allowed(queries_QD, k, rescore=rescore, leaves=leaves)
        return candidates.rows_QK, candidates.scores_QK

    def search_allowed(
        self, queries_QD: np.ndarray, k: int, *, rescore: int, leaves: int, allowed: RowTest = ALL_ROWS
    ) -> RescoredCandidates:
        """Search as `search` does, and drop candidates that are not allowed."""
        if len(queries_QD) == 1:
            rows_1K, scores_1K, *counts = self._search_one(queries_QD[0], k, rescore, leaves, allowed)
            return RescoredCandidates(rows_1K, scores_1K, *(np.array([count]) for count in counts))
        candidates_QC = self._candidates(queries_QD, max(rescore, k), leaves)
        candidates = _rescored(
            self._vectors, queries_QD, candidates_QC, k, self._squared, allowed, self._ties
        )
        if self._ties.twins_2N.shape[1]:
            repeats_Q = candidates.repeated_Q > MOST_REPEATED * candidates_QC.shape[1]
            for query in np.flatnonzero(repeats_Q).tolist():
                single = self._search_one(queries_QD[query], k, rescore, leaves, allowed)
                for values, value in zip(candidates, single, strict=True):
                    values[query] = value
        return candidates

    def _search_one(
        self, query_D: np.ndarray, k: int, rescore: int, leaves: int, allowed: RowTest
    ) -> tuple[np.ndarray, np.ndarray, int, int, int]:
        """Return the fields of `RescoredCandidates`, (1, K); with more candidates if most repeat a vector."""
        rows = self._vectors.rows
        count = min(max(rescore, k), rows)
        asked_D = query_D if self._middle_D is None else query_D - self._middle_D
        rows_1K, scores_1K = np.empty((1, k), np.int64), np.empty((1, k), np.float32)
        for _ in range(1 + WIDENED):
            # A single search returns candidates without padding. A batch of one would take half as much time again.
            candidates_C, _ = self._native.search(asked_D, count, count, leaves)
            hits, scored, depth, repeated = self._kernels.rescore_one(
                self._vectors.vectors_ND,
                self._vectors.quantized_NB,
                query_D,
                candidates_C,
                self._squared,
                *allowed,
                *self._ties,
                rows_1K[0],
                scores_1K[0],
            )
            if len(candidates_C) < count or repeated <= MOST_REPEATED * count:
                break
            count = min(WIDENING * count, rows)
        if hits < k:
            rows_1K[0, hits:], scores_1K[0, hits:] = NO_ROW, -np.inf
        return rows_1K, scores_1K, scored, depth, repeated

    def propose(self, queries_QD: np.ndarray, count: int, *, leaves: int) -> tuple[np.ndarray, np.ndarray]:
        """Return candidates in ScaNN's order, rows_QC int64 (NO_ROW after the last), and their exact scores.

        The first of them are the candidates of a search for fewer.
        """
        candidates_QC = self._candidates(queries_QD, count, leaves)
        scores_QC = np.empty(candidates_QC.shape, np.float32)
        for query_D, candidates_C, scores_C in zip(queries_QD, candidates_QC, scores_QC, strict=True):
            # NO_ROW is scored as row 0, and overwritten below.
            rows_C = np.maximum(candidates_C, 0)
            self._kernels.score_rows(*self._vectors, rows_C, query_D, self._squared, scores_C)
        scores_QC[candidates_QC == NO_ROW] = -np.inf
        return candidates_QC, scores_QC

    def _candidates(self, queries_QD: np.ndarray, count: int, leaves: int) -> np.ndarray:
        count = min(count, self._vectors.rows)
        asked_QD = queries_QD if self._middle_D is None else queries_QD - self._middle_D
        rows_QC, values_QC = self._native.search_batched(asked_QD, count, count, leaves, False, 0)
        candidates_QC: np.ndarray = rows_QC.astype(np.int64)
        candidates_QC[np.isnan(values_QC)] = NO_ROW  # ScaNN pads with row 0 and NaN
        return candidates_QC


def _rescored(
    vectors: ScoredVectors,
    queries_QD: np.ndarray,
    candidates_QC: np.ndarray,
    k: int,
    squared: bool,
    allowed: RowTest,
    ties: Ties,
) -> RescoredCandidates:
    candidates = RescoredCandidates(
        np.full((len(queries_QD), k), NO_ROW, np.int64),
        np.full((len(queries_QD), k), -np.inf, np.float32),
        *np.empty((3, len(queries_QD)), np.int64),
    )
    from scannery.indexer.kernels import row_kernels

    row_kernels.rescore(
        vectors.vectors_ND,
        vectors.quantized_NB,
        queries_QD,
        candidates_QC,
        squared,
        *allowed,
        *ties,
        *candidates,
    )
    return candidates


def load_kernels(vectors_ND: np.ndarray, distance: Distance) -> None:
    """Load the kernels of batch searches, which takes a third of a second, before the first search."""
    from scannery.indexer.kernels import row_kernels

    squared = distance == "squared_l2"
    query_1D = np.zeros((1, vectors_ND.shape[1]), np.float32)
    candidates_11 = np.zeros((1, 1), np.int64)
    _rescored(ScoredVectors(vectors_ND), query_1D, candidates_11, 1, squared, ALL_ROWS, BY_ROW)
    row_kernels.score_rows(
        *ScoredVectors(vectors_ND), candidates_11[0], query_1D[0], squared, np.empty(1, np.float32)
    )


def load_searcher(
    folder: Path, vectors: ScoredVectors, distance: Distance, ties: Ties = BY_ROW
) -> ScannSearcher:
    """Return the ScaNN searcher whose files are in `folder`. The caller must have checked their hashes.

    Args:
        folder: with ScaNN's files.
        vectors: of the segment, as they are searched.
        distance: of the index.
        ties: of the segment.

    Raises:
        CorruptError: ScaNN cannot load the files.
    """
    from scann.scann_ops.py import scann_ops_pybind

    use_vector_instructions()
    try:
        searcher = scann_ops_pybind.load_searcher(str(folder), assets_backcompat_shim=False)
    except (RuntimeError, ValueError, OSError) as error:
        raise CorruptError(f"ScaNN cannot load the segment's data: {error}") from error
    middle = folder / MIDDLE_FILE
    return ScannSearcher(searcher, vectors, distance, ties, mapped(middle) if middle.exists() else None)
