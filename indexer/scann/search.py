"""Search with ScaNN: it proposes candidates from quantized codes, and we score those exactly.

ScaNN could rescore by itself, but only from a copy of the vectors on its heap, per process. Ours are memory-mapped:
shared by all processes, used by exact and filtered search too, and never copied when a segment opens. At 200,000 × 128
both ways take the same time in batches and give the same recall; heap after load is 1 MB against 109 MB.

Shapes: Q queries, D dimensions, C candidates, K hits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scannery.indexer.errors import CorruptError
from scannery.indexer.kernels import row_kernels
from scannery.indexer.scann.assets import MIDDLE_FILE
from scannery.indexer.spec.spec import Distance
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.exact_search import NO_ROW
from scannery.indexer.vectors.tie_order import BY_ROW, Ties

__all__ = ["ScannSearcher", "load_kernels", "load_searcher"]

_ALL_ROWS = np.zeros(0, bool)
_ALL_ROWS.setflags(write=False)  # as masks are: for each kind of array, code is compiled apart
MOST_REPEATED = 0.75
"""If more of the candidates than this repeat the vector of another row, they are too few: 400 equal rows near a query
took all places of better ones, which the settings were not measured for."""
WIDENING = 4
WIDENED = 3
"""So many times, such a query is asked again for that many times as many candidates."""


class Rescored(NamedTuple):
    """What a search found."""

    rows_QK: np.ndarray
    """int64, NO_ROW where there are fewer."""
    scores_QK: np.ndarray
    """float32, best first."""
    scored_Q: np.ndarray
    """Candidates that were allowed, and so scored with their vectors."""
    depth_Q: np.ndarray
    """Among how many candidates, most promising first, the first k of these were."""


class ScannSearcher:
    """An immutable ScaNN searcher with the vectors it was built from. Safe to use from several threads."""

    def __init__(
        self,
        searcher: Any,
        vectors_ND: np.ndarray,
        distance: Distance,
        ties: Ties,
        middle_D: np.ndarray | None = None,
    ) -> None:
        """Take ScaNN's searcher, which rows tie, and what was subtracted from the vectors that it was trained on."""
        # The wrapped searcher: the wrapper maps docids, which we never have.
        self._native = searcher.searcher
        self._vectors_ND = vectors_ND
        self._squared = distance == "squared_l2"
        self._ties = ties
        self._middle_D = middle_D

    def search(
        self, queries_QD: np.ndarray, k: int, *, rescore: int, leaves: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows_QK int64 (NO_ROW where fewer than k were found) and scores_QK float32, best first.

        Queries are contiguous float32, of length 1 for cosine. `rescore` candidates come from `leaves` leaves.
        """
        if len(queries_QD) == 1:
            return self._search_one(queries_QD[0], k, rescore, leaves, _ALL_ROWS)[:2]
        found = self.search_allowed(queries_QD, k, rescore=rescore, leaves=leaves, allowed_N=_ALL_ROWS)
        return found.rows_QK, found.scores_QK

    def search_allowed(
        self, queries_QD: np.ndarray, k: int, *, rescore: int, leaves: int, allowed_N: np.ndarray = _ALL_ROWS
    ) -> Rescored:
        """Return what `search` does, of allowed rows (bool mask, read-only; empty: all).

        `rescore` candidates come from `leaves` leaves, and those that are not allowed are dropped.
        """
        if len(queries_QD) == 1:
            rows_1K, scores_1K, scored, depth = self._search_one(queries_QD[0], k, rescore, leaves, allowed_N)
            return Rescored(rows_1K, scores_1K, np.array([scored]), np.array([depth]))
        candidates_QC = self._candidates(queries_QD, max(rescore, k), leaves)
        found = _rescored(
            self._vectors_ND, queries_QD, candidates_QC, k, self._squared, allowed_N, self._ties
        )
        for query in self._repeating(candidates_QC):
            rows_1K, scores_1K, found.scored_Q[query], found.depth_Q[query] = self._search_one(
                queries_QD[query], k, rescore, leaves, allowed_N
            )
            found.rows_QK[query], found.scores_QK[query] = rows_1K[0], scores_1K[0]
        return found

    def _search_one(
        self, query_D: np.ndarray, k: int, rescore: int, leaves: int, allowed_N: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, int, int]:
        count = min(max(rescore, k), len(self._vectors_ND))
        # As many candidates as there are, without padding. A batch of one would cost half as much again.
        asked_D = query_D if self._middle_D is None else query_D - self._middle_D
        candidates_C, _ = self._native.search(asked_D, count, count, leaves)
        if self._ties.twins_2N.shape[1]:
            candidates_C = self._widened(asked_D, candidates_C, count, leaves)
        rows_1K, scores_1K = np.empty((1, k), np.int64), np.empty((1, k), np.float32)
        found, scored, depth = row_kernels.rescore_one(
            self._vectors_ND,
            query_D,
            candidates_C,
            self._squared,
            allowed_N,
            *self._ties,
            rows_1K[0],
            scores_1K[0],
        )
        if found < k:
            rows_1K[0, found:], scores_1K[0, found:] = NO_ROW, -np.inf
        return rows_1K, scores_1K, scored, depth

    def _widened(self, asked_D: np.ndarray, candidates_C: np.ndarray, count: int, leaves: int) -> np.ndarray:
        """Return the candidates, or more of them where most have the vector of another one."""
        for _ in range(WIDENED):
            if len(candidates_C) < count or not self._repeating(candidates_C[None]):
                break
            count = min(WIDENING * count, len(self._vectors_ND))
            candidates_C, _ = self._native.search(asked_D, count, count, leaves)
        return candidates_C

    def _repeating(self, candidates_QC: np.ndarray) -> list[int]:
        """Return the queries most of whose candidates have the vector of another row."""
        twins_2N = self._ties.twins_2N
        if not twins_2N.shape[1]:
            return []
        most = MOST_REPEATED * candidates_QC.shape[1]
        return [
            query
            for query, candidates_C in enumerate(candidates_QC)
            if row_kernels.count_repeated(candidates_C, twins_2N) > most
        ]

    def propose(self, queries_QD: np.ndarray, count: int, *, leaves: int) -> tuple[np.ndarray, np.ndarray]:
        """Return candidates as rows_QC int64 (NO_ROW where there are fewer), most promising first, and their scores.

        The first of them are the candidates that a search for fewer rescores.
        """
        candidates_QC = self._candidates(queries_QD, count, leaves)
        scores_QC = np.empty(candidates_QC.shape, np.float32)
        for query_D, candidates_C, scores_C in zip(queries_QD, candidates_QC, scores_QC, strict=True):
            # NO_ROW, which is no candidate, is scored as the first row.
            rows_C = np.maximum(candidates_C, 0)
            row_kernels.score_rows(self._vectors_ND, rows_C, query_D, self._squared, scores_C)
        scores_QC[candidates_QC == NO_ROW] = -np.inf
        return candidates_QC, scores_QC

    def _candidates(self, queries_QD: np.ndarray, count: int, leaves: int) -> np.ndarray:
        count = min(count, len(self._vectors_ND))
        asked_QD = queries_QD if self._middle_D is None else queries_QD - self._middle_D
        rows_QC, values_QC = self._native.search_batched(asked_QD, count, count, leaves, False, 0)
        candidates_QC: np.ndarray = rows_QC.astype(np.int64)
        candidates_QC[np.isnan(values_QC)] = NO_ROW  # ScaNN pads with row 0 and NaN
        return candidates_QC


def _rescored(
    vectors_ND: np.ndarray,
    queries_QD: np.ndarray,
    candidates_QC: np.ndarray,
    k: int,
    squared: bool,
    allowed_N: np.ndarray,
    ties: Ties,
) -> Rescored:
    found = Rescored(
        np.full((len(queries_QD), k), NO_ROW, np.int64),
        np.full((len(queries_QD), k), -np.inf, np.float32),
        np.empty(len(queries_QD), np.int64),
        np.empty(len(queries_QD), np.int64),
    )
    row_kernels.rescore(vectors_ND, queries_QD, candidates_QC, squared, allowed_N, *ties, *found)
    return found


def load_kernels(vectors_ND: np.ndarray, distance: Distance) -> None:
    """Load the kernels of searches in batches, which takes a third of a second, before there is anything to search."""
    squared = distance == "squared_l2"
    query_1D = np.zeros((1, vectors_ND.shape[1]), np.float32)
    candidates_11 = np.zeros((1, 1), np.int64)
    _rescored(vectors_ND, query_1D, candidates_11, 1, squared, _ALL_ROWS, BY_ROW)
    row_kernels.score_rows(vectors_ND, candidates_11[0], query_1D[0], squared, np.empty(1, np.float32))


def load_searcher(
    folder: Path, vectors_ND: np.ndarray, distance: Distance, ties: Ties = BY_ROW
) -> ScannSearcher:
    """Return the ScaNN searcher whose files are in `folder`. Their hashes must have been checked before.

    Raises:
        CorruptError: ScaNN refuses the files.
    """
    from scann.scann_ops.py import scann_ops_pybind

    try:
        searcher = scann_ops_pybind.load_searcher(str(folder), assets_backcompat_shim=False)
    except (RuntimeError, ValueError, OSError) as error:
        raise CorruptError(f"ScaNN cannot load the segment's data: {error}") from error
    middle = folder / MIDDLE_FILE
    return ScannSearcher(searcher, vectors_ND, distance, ties, mapped(middle) if middle.exists() else None)
