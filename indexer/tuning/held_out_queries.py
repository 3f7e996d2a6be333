"""Held-out queries, which settings are measured with, and what an exact search finds for them.

Shapes: Q queries, N vectors, D dimensions, K hits, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scannery.indexer.manifest import CurvePoint
from scannery.indexer.scann.search import ScannSearcher
from scannery.indexer.spec.spec import Distance
from scannery.indexer.tuning.search_settings import TUNED_K
from scannery.indexer.tuning.settings_choice import (
    FRESH_QUERIES,
    QUERIES_PER_KIND,
    magnitudes,
    near,
    recall_by_score,
    score_to_reach,
)
from scannery.indexer.vectors.exact_search import NO_ROW, exact_search, unit_length

__all__ = ["Asked", "FreshQueries", "HeldOut", "held_out_queries"]

_NOBODY = NO_ROW - 1
"""No row, and not NO_ROW either, which stands where there are no more hits."""
_BLOCK = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Queries of one kind, and what an exact search finds for them."""

    queries_QD: np.ndarray
    own_Q: np.ndarray
    """The row that each query is, which is no answer to it; _NOBODY: none."""
    rows_QK: np.ndarray
    """The true hits, best first; NO_ROW where there are fewer."""
    truth_QK: np.ndarray
    """Scores of the true hits, best first; minus infinity where there are fewer."""
    magnitudes_QK: np.ndarray
    """How large the terms of each of these are (`tuning.magnitudes`)."""

    @property
    def reach_Q1(self) -> np.ndarray:  # noqa: N802  an array, as its shape says
        """The score from which a row counts as found, (Q, 1)."""
        return score_to_reach(self.truth_QK, self.magnitudes_QK[:, -1:])

    @property
    def alike(self) -> float:
        """How alike the answers are: 1 if all are the same rows, 0.01 if they are as different as 100 are."""
        return float(self.truth_QK.shape[1] / len(np.unique(self.rows_QK)))

    def first(self, k: int) -> Asked:
        """Return the same with the first k hits."""
        return Asked(
            queries_QD=self.queries_QD,
            own_Q=self.own_Q,
            rows_QK=self.rows_QK[:, :k],
            truth_QK=self.truth_QK[:, :k],
            magnitudes_QK=self.magnitudes_QK[:, :k],
        )

    def every(self, step: int) -> Asked:
        """Return a sample of this many queries."""
        return self._at(slice(None, None, step))

    def parts(self, count: int) -> list[Asked]:
        """Return the same in about this many parts."""
        step = -(-len(self.queries_QD) // count)
        places = [slice(start, start + step) for start in range(0, len(self.queries_QD), step)]
        return [self._at(place) for place in places]

    def _at(self, place: slice) -> Asked:
        return Asked(
            queries_QD=self.queries_QD[place],
            own_Q=self.own_Q[place],
            rows_QK=self.rows_QK[place],
            truth_QK=self.truth_QK[place],
            magnitudes_QK=self.magnitudes_QK[place],
        )

    def recalls(self, rows_QX: np.ndarray, scores_QX: np.ndarray) -> np.ndarray:
        """Return the recall of each query, by what was found: one hit more than the truth has, or any number more.

        The query's own row is left out.
        """
        others_QX = scores_QX[_without_own(rows_QX, self.own_Q)].reshape(len(scores_QX), -1)
        k = self.truth_QK.shape[1]
        return recall_by_score(others_QX[:, :k], self.truth_QK, self.magnitudes_QK[:, -1:])


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Queries of two kinds. A setting has to satisfy both.

    `alike` queries are stored vectors, which must find others than themselves: as in-distribution as can be.
    `apart` queries stand for what users ask. Questions lie off the passages that answer them, so their neighbours
    spread over more leaves: on 28,000 podcast passages, the leaves that give stored vectors a recall of 0.98 give
    real questions 0.89.
    """

    alike: Asked
    apart: Asked

    @property
    def kinds(self) -> tuple[Asked, Asked]:
        """Both kinds."""
        return self.alike, self.apart

    @property
    def k(self) -> int:
        """Hits per query."""
        return int(self.apart.truth_QK.shape[1])

    def first(self, k: int) -> HeldOut:
        """Return the same with the first k hits."""
        return HeldOut(alike=self.alike.first(k), apart=self.apart.first(k))


def held_out_queries(
    vectors_ND: np.ndarray,
    distance: Distance,
    *,
    seed: int,
    apart_QD: np.ndarray | None = None,
    k: int = TUNED_K,
    count: int = QUERIES_PER_KIND,
) -> HeldOut:
    """Return held-out queries for search-ready vectors (length 1 for cosine) with their k exact scores.

    Without `apart_QD`, which knows better, these are points between two random vectors. Zero vectors are no queries:
    to most distances all rows are alike for them, and any setting would do.
    """
    generator = np.random.default_rng(seed)
    rows_N = _telling_rows(vectors_ND)
    count = min(count, len(rows_N))
    rows_Q, one_Q, other_Q = (np.sort(generator.choice(rows_N, count, replace=False)) for _ in range(3))
    if apart_QD is None or not len(apart_QD):
        apart_QD = 0.7 * vectors_ND[one_Q] + 0.3 * vectors_ND[generator.permutation(other_Q)]
    else:
        apart_QD = apart_QD[:: -(-len(apart_QD) // (4 * count))]
    if distance == "cosine":
        apart_QD = unit_length(apart_QD)
    alike_QD, apart_QD = np.array(vectors_ND[rows_Q]), np.ascontiguousarray(apart_QD, np.float32)
    # In one search: most of its time goes into reading the vectors.
    queries_QD = np.concatenate([alike_QD, apart_QD])
    rows_QK, scores_QK = exact_search(vectors_ND, queries_QD, k + 1, distance)
    magnitudes_QK = _magnitudes(vectors_ND, queries_QD, rows_QK, distance)
    mine_QK = _without_own(rows_QK[:count], rows_Q)
    return HeldOut(
        alike=Asked(
            queries_QD=alike_QD,
            own_Q=rows_Q,
            rows_QK=rows_QK[:count][mine_QK].reshape(count, k),
            truth_QK=scores_QK[:count][mine_QK].reshape(count, k),
            magnitudes_QK=magnitudes_QK[:count][mine_QK].reshape(count, k),
        ),
        apart=Asked(
            queries_QD=apart_QD,
            own_Q=np.full(len(apart_QD), _NOBODY),
            rows_QK=rows_QK[count:, :k],
            truth_QK=scores_QK[count:, :k],
            magnitudes_QK=magnitudes_QK[count:, :k],
        ),
    )


def _telling_rows(vectors_ND: np.ndarray) -> np.ndarray:
    """Return the rows that are not zero vectors; all, if there is nothing else."""
    nonzero_N = np.concatenate(
        [vectors_ND[start : start + _BLOCK].any(axis=1) for start in range(0, len(vectors_ND), _BLOCK)]
    )
    rows_N = np.flatnonzero(nonzero_N)
    return rows_N if len(rows_N) else np.arange(len(vectors_ND))


def _magnitudes(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, rows_QK: np.ndarray, distance: Distance
) -> np.ndarray:
    if distance != "dot":
        return np.repeat(magnitudes(queries_QD, distance), rows_QK.shape[1], axis=1)
    lengths_QK = np.zeros(rows_QK.shape)
    for query, rows_K in enumerate(rows_QK):
        lengths_QK[query] = np.linalg.norm(vectors_ND[rows_K].astype(np.float64), axis=1)
    lengths_QK[rows_QK == NO_ROW] = 0
    return np.asarray(magnitudes(queries_QD, distance, 1.0) * lengths_QK)


def _without_own(rows_QK: np.ndarray, own_Q: np.ndarray) -> np.ndarray:
    """Return which hits are not the query's own row, or not the last where it was not found, bool (Q, K)."""
    own_QK = rows_QK == own_Q[:, None]
    own_QK[~own_QK.any(axis=1), -1] = True
    return np.asarray(~own_QK)


class FreshQueries:
    """Queries near stored vectors, others than those that decide: they tell what the decision is worth."""

    def __init__(self, vectors_ND: np.ndarray, distance: Distance, *, seed: int) -> None:
        """Take search-ready vectors, and look up what an exact search finds."""
        generator = np.random.default_rng([seed, 1])
        rows_N = _telling_rows(vectors_ND)
        rows_Q = np.sort(generator.choice(rows_N, FRESH_QUERIES))
        queries_QD = near(np.array(vectors_ND[rows_Q]), generator)
        self._queries_QD = unit_length(queries_QD) if distance == "cosine" else queries_QD
        rows_QK, self._truth_QK = exact_search(vectors_ND, self._queries_QD, TUNED_K, distance)
        self._magnitudes_QK = _magnitudes(vectors_ND, self._queries_QD, rows_QK, distance)

    def recall(self, searcher: ScannSearcher, point: CurvePoint) -> float:
        """Return the recall of a setting."""
        _, found_QK = searcher.search(self._queries_QD, TUNED_K, rescore=point.rescore, leaves=point.leaves)
        recalls_Q = recall_by_score(found_QK, self._truth_QK, self._magnitudes_QK[:, -1:])
        return round(float(recalls_Q.mean()), 5)
