"""Held-out queries that measure settings, with their true hits from exact search.

Shapes: Q queries, N vectors, D dimensions, K hits, X hits of the search that is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scannery.indexer.manifest import CurvePoint
from scannery.indexer.scann.search import ScannSearcher
from scannery.indexer.spec.spec import Distance
from scannery.indexer.tuning.settings_choice import (
    FRESH_QUERIES,
    QUERIES_PER_KIND,
    TUNED_K,
    magnitudes,
    near,
    recall_by_score,
    score_to_reach,
)
from scannery.indexer.vectors.exact_search import NO_ROW, exact_search, unit_length

__all__ = ["FreshQueries", "HeldOut", "LabelledQueries", "held_out_queries"]

_NO_OWN_ROW = NO_ROW - 1
"""Own row of a query that is not a stored vector. Not NO_ROW, which marks missing hits."""
_BLOCK = 1 << 14


@dataclass(frozen=True, kw_only=True)
class LabelledQueries:
    """Queries of one kind, with their true hits."""

    queries_QD: np.ndarray
    """float32, of length 1 for cosine."""
    own_Q: np.ndarray
    """The row whose vector each query is, which does not count as a hit; _NO_OWN_ROW: none."""
    rows_QK: np.ndarray
    """The true hits, best first; NO_ROW after the last."""
    truth_QK: np.ndarray
    """Scores of the true hits, best first; minus infinity after the last."""
    magnitudes_QK: np.ndarray
    """Magnitude of the terms of each score (`settings_choice.magnitudes`)."""

    @property
    def reach_Q1(self) -> np.ndarray:  # noqa: N802  an array with a shape suffix
        """The least score of a found row that counts as a hit, (Q, 1)."""
        return score_to_reach(self.truth_QK, self.magnitudes_QK[:, -1:])

    @property
    def alike(self) -> float:
        """Hits per query divided by distinct hits of all queries: 1 if all queries have the same hits."""
        return float(self.truth_QK.shape[1] / len(np.unique(self.rows_QK)))

    def first(self, k: int) -> LabelledQueries:
        """Return the same queries with the first k hits."""
        return LabelledQueries(
            queries_QD=self.queries_QD,
            own_Q=self.own_Q,
            rows_QK=self.rows_QK[:, :k],
            truth_QK=self.truth_QK[:, :k],
            magnitudes_QK=self.magnitudes_QK[:, :k],
        )

    def every(self, step: int) -> LabelledQueries:
        """Return every `step`-th query."""
        return self._at(slice(None, None, step))

    def parts(self, count: int) -> list[LabelledQueries]:
        """Return the queries in at most `count` parts of equal size, the last one smaller."""
        step = -(-len(self.queries_QD) // count)
        slices = [slice(start, start + step) for start in range(0, len(self.queries_QD), step)]
        return [self._at(part) for part in slices]

    def _at(self, part: slice) -> LabelledQueries:
        return LabelledQueries(
            queries_QD=self.queries_QD[part],
            own_Q=self.own_Q[part],
            rows_QK=self.rows_QK[part],
            truth_QK=self.truth_QK[part],
            magnitudes_QK=self.magnitudes_QK[part],
        )

    def recalls(self, rows_QX: np.ndarray, scores_QX: np.ndarray) -> np.ndarray:
        """Return the recall of each query, float64 (Q,), without its own row.

        Args:
            rows_QX: rows found, best first; at least one more than the true hits.
            scores_QX: their scores.

        """
        others_QX = scores_QX[_without_own(rows_QX, self.own_Q)].reshape(len(scores_QX), -1)
        k = self.truth_QK.shape[1]
        return recall_by_score(others_QX[:, :k], self.truth_QK, self.magnitudes_QK[:, -1:])


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Queries of two kinds. A setting must reach the target recall for both.

    `alike` queries are stored vectors; they have the distribution of the rows, and their own row does not count.
    `apart` queries resemble those of users. A question's vector differs from those of the passages that answer it, so
    its neighbours spread over more leaves: on 28,000 podcast passages, the leaves that give stored vectors a recall of
    0.98 give real questions 0.89.
    """

    alike: LabelledQueries
    apart: LabelledQueries
    is_real: bool = False
    """Whether the queries apart were given (or made from texts), and not made from vectors."""

    @property
    def names(self) -> tuple[str, str]:
        """Names of both kinds in `CurvePoint.recalls`."""
        return "stored", "given" if self.is_real else "between"

    @property
    def kinds(self) -> tuple[LabelledQueries, LabelledQueries]:
        """Both kinds."""
        return self.alike, self.apart

    @property
    def k(self) -> int:
        """Hits per query."""
        return int(self.apart.truth_QK.shape[1])

    def first(self, k: int) -> HeldOut:
        """Return the same queries with the first k hits."""
        return HeldOut(alike=self.alike.first(k), apart=self.apart.first(k), is_real=self.is_real)


def held_out_queries(
    vectors_ND: np.ndarray,
    distance: Distance,
    *,
    seed: int,
    apart_QD: np.ndarray | None = None,
    k: int = TUNED_K,
    count: int = QUERIES_PER_KIND,
) -> HeldOut:
    """Return held-out queries with their k true hits.

    Zero vectors are not used as queries: by most distances all rows score the same for them, and any setting has full
    recall.

    Args:
        vectors_ND: as they are searched (length 1 for cosine).
        distance: of the index.
        seed: of the random choice.
        apart_QD: real queries, of any length; None: points between two random vectors.
        k: true hits per query.
        count: queries of each kind; of `apart_QD`, up to four times as many.

    """
    generator = np.random.default_rng(seed)
    rows_N = _nonzero_rows(vectors_ND)
    count = min(count, len(rows_N))
    rows_Q, one_Q, other_Q = (np.sort(generator.choice(rows_N, count, replace=False)) for _ in range(3))
    has_queries = apart_QD is not None and len(apart_QD) > 0
    if apart_QD is None or not has_queries:
        apart_QD = 0.7 * vectors_ND[one_Q] + 0.3 * vectors_ND[generator.permutation(other_Q)]
    else:
        apart_QD = apart_QD[:: -(-len(apart_QD) // (4 * count))]
    if distance == "cosine":
        apart_QD = unit_length(apart_QD)
    alike_QD, apart_QD = np.array(vectors_ND[rows_Q]), np.ascontiguousarray(apart_QD, np.float32)
    # One search for both kinds: most of its time is spent reading the vectors.
    queries_QD = np.concatenate([alike_QD, apart_QD])
    rows_QK, scores_QK = exact_search(vectors_ND, queries_QD, k + 1, distance)
    magnitudes_QK = _magnitudes(vectors_ND, queries_QD, rows_QK, distance)
    mine_QK = _without_own(rows_QK[:count], rows_Q)
    return HeldOut(
        is_real=has_queries,
        alike=LabelledQueries(
            queries_QD=alike_QD,
            own_Q=rows_Q,
            rows_QK=rows_QK[:count][mine_QK].reshape(count, k),
            truth_QK=scores_QK[:count][mine_QK].reshape(count, k),
            magnitudes_QK=magnitudes_QK[:count][mine_QK].reshape(count, k),
        ),
        apart=LabelledQueries(
            queries_QD=apart_QD,
            own_Q=np.full(len(apart_QD), _NO_OWN_ROW),
            rows_QK=rows_QK[count:, :k],
            truth_QK=scores_QK[count:, :k],
            magnitudes_QK=magnitudes_QK[count:, :k],
        ),
    )


def _nonzero_rows(vectors_ND: np.ndarray) -> np.ndarray:
    """Return the rows that are not zero vectors; all rows if all are zero."""
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
    """Return a mask (Q, K) that drops one hit of each query: its own row, or the last hit if that was not found."""
    own_QK = rows_QK == own_Q[:, None]
    own_QK[~own_QK.any(axis=1), -1] = True
    return np.asarray(~own_QK)


class FreshQueries:
    """Queries near stored vectors that are not used in choosing settings, to validate the choice."""

    def __init__(self, vectors_ND: np.ndarray, distance: Distance, *, seed: int) -> None:
        """Make FRESH_QUERIES queries, and find their true hits.

        Args:
            vectors_ND: as they are searched (length 1 for cosine).
            distance: of the index.
            seed: of the random choice.

        """
        generator = np.random.default_rng([seed, 1])
        rows_N = _nonzero_rows(vectors_ND)
        rows_Q = np.sort(generator.choice(rows_N, FRESH_QUERIES))
        queries_QD = near(np.array(vectors_ND[rows_Q]), generator)
        self._queries_QD = unit_length(queries_QD) if distance == "cosine" else queries_QD
        rows_QK, self._truth_QK = exact_search(vectors_ND, self._queries_QD, TUNED_K, distance)
        self._magnitudes_QK = _magnitudes(vectors_ND, self._queries_QD, rows_QK, distance)

    def recall(self, searcher: ScannSearcher, point: CurvePoint) -> float:
        """Return the mean recall of a setting, 0 to 1."""
        _, found_QK = searcher.search(self._queries_QD, TUNED_K, rescore=point.rescore, leaves=point.leaves)
        recalls_Q = recall_by_score(found_QK, self._truth_QK, self._magnitudes_QK[:, -1:])
        return round(float(recalls_Q.mean()), 5)
