"""Recall against cost: measured after a build, so that a target recall is a promise and not a guess.

Shapes: Q queries, N vectors, D dimensions, K hits, C candidates in the order that ScaNN proposes them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from scannery.indexer.exact import NO_ROW, exact_search, unit_length
from scannery.indexer.manifest import CurvePoint
from scannery.indexer.scann_search import ScannSearcher
from scannery.indexer.spec import Distance
from scannery.indexer.tuning import (
    FRESH_QUERIES,
    QUERIES_PER_KIND,
    TUNED_K,
    near,
    recall_by_score,
    score_to_reach,
)

__all__ = ["FreshQueries", "HeldOut", "held_out_queries", "measure_curve"]

WORTHWHILE = 0.001
"""Gains of recall below this are not looked for."""
LEAF_SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0)
RESCORED = (20, 40, 80, 160, 320, 640)
FIRST_DEPTH = 160
"""Most settings need no more candidates than this; deeper ones are asked for where these still help."""
EXPLORED = 3
"""Every third query says which settings are worth to be measured with all of them."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Queries of two kinds, and what an exact search finds for them. A setting has to satisfy both.

    `alike` queries are stored vectors, which must find others than themselves: as in-distribution as can be.
    `apart` queries stand for what users ask. Questions lie off the passages that answer them, so their neighbours
    spread over more leaves: on 28,000 podcast passages, the leaves that give stored vectors a recall of 0.98 give
    real questions 0.89.
    """

    alike_QD: np.ndarray
    alike_rows_Q: np.ndarray
    apart_QD: np.ndarray
    alike_truth_QK: np.ndarray
    apart_truth_QK: np.ndarray


def held_out_queries(
    vectors_ND: np.ndarray, distance: Distance, *, seed: int, apart_QD: np.ndarray | None = None
) -> HeldOut:
    """Return held-out queries for search-ready vectors (length 1 for cosine) with their exact scores.

    Without `apart_QD`, which knows better, these are points between two random vectors.
    """
    generator = np.random.default_rng(seed)
    count = min(QUERIES_PER_KIND, len(vectors_ND))
    rows_Q, one_Q, other_Q = (
        np.sort(generator.choice(len(vectors_ND), count, replace=False)) for _ in range(3)
    )
    if apart_QD is None or not len(apart_QD):
        apart_QD = 0.7 * vectors_ND[one_Q] + 0.3 * vectors_ND[generator.permutation(other_Q)]
    if distance == "cosine":
        apart_QD = unit_length(apart_QD)
    alike_QD, apart_QD = np.array(vectors_ND[rows_Q]), np.ascontiguousarray(apart_QD, np.float32)
    # In one search: most of its time goes into reading the vectors.
    rows_QK, scores_QK = exact_search(vectors_ND, np.concatenate([alike_QD, apart_QD]), TUNED_K + 1, distance)
    return HeldOut(
        alike_QD=alike_QD,
        alike_rows_Q=rows_Q,
        apart_QD=apart_QD,
        alike_truth_QK=_without_own(rows_QK[:count], scores_QK[:count], rows_Q),
        apart_truth_QK=scores_QK[count:, :TUNED_K],
    )


class FreshQueries:
    """Queries near stored vectors, others than those that decide: they tell what the decision is worth."""

    def __init__(self, vectors_ND: np.ndarray, distance: Distance, *, seed: int) -> None:
        """Take search-ready vectors, and look up what an exact search finds."""
        generator = np.random.default_rng([seed, 1])
        rows_Q = np.sort(generator.integers(0, len(vectors_ND), FRESH_QUERIES))
        queries_QD = near(np.array(vectors_ND[rows_Q]), generator)
        self._queries_QD = unit_length(queries_QD) if distance == "cosine" else queries_QD
        _, self._truth_QK = exact_search(vectors_ND, self._queries_QD, TUNED_K, distance)

    def recall(self, searcher: ScannSearcher, point: CurvePoint) -> float:
        """Return the recall of a setting."""
        _, found_QK = searcher.search(self._queries_QD, TUNED_K, rescore=point.rescore, leaves=point.leaves)
        return round(float(recall_by_score(found_QK, self._truth_QK).mean()), 5)


def measure_curve(
    searcher: ScannSearcher, queries: HeldOut, *, leaves: int, threads: int, rescore: int | None = None
) -> tuple[CurvePoint, ...]:
    """Return the settings that no cheaper one beats, cheapest first, with their recall and time of one thread.

    Settings are tried from cheap to dear, and no further than they help: more candidates until they find nothing
    more, more leaves until nothing is missed. They are tried with some of the queries, and those that seem worth it
    are measured with all. With `rescore`, all settings have so many candidates.
    """
    settings: list[_Setting] = []
    depths = RESCORED if rescore is None else (rescore,)
    with ThreadPoolExecutor(threads) as pool:
        probe = _Probe(searcher, queries, pool, threads)
        for searched in _leaves_searched(leaves):
            settings += _worthwhile(probe, searched, depths)
            if settings[-1].recall >= 1 - WORTHWHILE:
                break
    unbeaten = [one for one in settings if not any(other.beats(one) for other in settings)]
    return tuple(_pareto(_measure(searcher, queries, one.leaves, one.rescore) for one in unbeaten))


@dataclass(frozen=True, slots=True)
class _Setting:
    leaves: int
    rescore: int
    recall: float

    def beats(self, other: _Setting) -> bool:
        """Return whether this finds as much with no more work."""
        cheaper = self.leaves <= other.leaves and self.rescore <= other.rescore
        return self is not other and cheaper and self.recall >= other.recall


class _Probe:
    """Asks for many candidates once, and tells from their order about what fewer would have found.

    About: where rows stand in two leaves (SOAR), a search for few candidates also loses some of the first.
    """

    def __init__(
        self, searcher: ScannSearcher, queries: HeldOut, pool: ThreadPoolExecutor, parts: int
    ) -> None:
        self._searcher, self._pool, self._parts = searcher, pool, parts
        nobody_Q = np.full(len(queries.apart_QD), NO_ROW)
        kinds = (
            (queries.alike_QD, queries.alike_rows_Q, queries.alike_truth_QK),
            (queries.apart_QD, nobody_Q, queries.apart_truth_QK),
        )
        self._kinds = [tuple(values[::EXPLORED] for values in kind) for kind in kinds]

    def settings(self, leaves: int, depths: Sequence[int]) -> list[_Setting]:
        """Return the settings with so many leaves and each of these numbers of candidates, ascending."""
        found = [self._hits(*kind, leaves=leaves, depth=depths[-1]) for kind in self._kinds]
        return [
            _Setting(
                leaves, rescore, min(_share(hits_QC[:, :rescore], true_QK) for hits_QC, true_QK in found)
            )
            for rescore in depths
        ]

    def _hits(
        self, queries_QD: np.ndarray, own_Q: np.ndarray, true_QK: np.ndarray, *, leaves: int, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which candidates of each query are true hits, other than its own row, bool (Q, C), and the truth."""
        reached_Q1 = score_to_reach(true_QK)

        def part(some: slice) -> np.ndarray:
            candidates_QC, scores_QC = self._searcher.propose(queries_QD[some], depth, leaves=leaves)
            others_QC = (candidates_QC != NO_ROW) & (candidates_QC != own_Q[some, None])
            hits_QC: np.ndarray = others_QC & (scores_QC >= reached_Q1[some])
            return hits_QC

        step = -(-len(queries_QD) // self._parts)
        parts = [slice(start, start + step) for start in range(0, len(queries_QD), step)]
        return np.concatenate(list(self._pool.map(part, parts))), true_QK


def _worthwhile(probe: _Probe, leaves: int, depths: Sequence[int]) -> list[_Setting]:
    """Return the settings with so many leaves, up to the first whose candidates find next to nothing more."""
    first = [depth for depth in depths if depth <= FIRST_DEPTH]
    for tried in [first, depths] if len(first) > 1 else [depths]:
        settings = probe.settings(leaves, tried)
        for number, (less, more) in enumerate(itertools.pairwise(settings), 2):
            if more.recall - less.recall < WORTHWHILE:
                return settings[:number]
    return settings


def _share(hits_QC: np.ndarray, true_QK: np.ndarray) -> float:
    """Return the share of the true hits that are found; a truth is shorter than K where there are fewer rows."""
    wanted_Q = np.isfinite(true_QK).sum(axis=1)
    return float(np.minimum(hits_QC.sum(axis=1), wanted_Q).sum() / max(wanted_Q.sum(), 1))


def _measure(searcher: ScannSearcher, queries: HeldOut, leaves: int, rescore: int) -> CurvePoint:
    started = time.perf_counter()
    rows_QK, scores_QK = searcher.search(queries.alike_QD, TUNED_K + 1, rescore=rescore, leaves=leaves)
    _, apart_QK = searcher.search(queries.apart_QD, TUNED_K, rescore=rescore, leaves=leaves)
    elapsed = time.perf_counter() - started
    alike_QK = _without_own(rows_QK, scores_QK, queries.alike_rows_Q)
    kinds = [(alike_QK, queries.alike_truth_QK), (apart_QK, queries.apart_truth_QK)]
    recall, error = min(_mean_and_error(recall_by_score(found, truth)) for found, truth in kinds)
    return CurvePoint(
        leaves=leaves,
        rescore=rescore,
        recall=round(recall, 5),
        error=round(error, 5),
        query_us=round(elapsed / (len(alike_QK) + len(apart_QK)) * 1e6, 1),
    )


def _without_own(rows_QK: np.ndarray, scores_QK: np.ndarray, own_Q: np.ndarray) -> np.ndarray:
    """Return the scores (Q, K - 1) without the query's own row, or without the worst where it was not found."""
    own_QK = rows_QK == own_Q[:, None]
    own_QK[~own_QK.any(axis=1), -1] = True
    others_QK: np.ndarray = scores_QK[~own_QK].reshape(len(scores_QK), -1)
    return others_QK


def _mean_and_error(recalls_Q: np.ndarray) -> tuple[float, float]:
    return float(recalls_Q.mean()), float(recalls_Q.std() / math.sqrt(len(recalls_Q)))


def _leaves_searched(leaves: int) -> list[int]:
    return sorted({max(1, round(share * leaves)) for share in LEAF_SHARES})


def _pareto(points: Iterable[CurvePoint]) -> Iterable[CurvePoint]:
    best = -1.0
    for point in sorted(points, key=lambda p: (p.query_us, -p.recall)):
        if point.recall > best:
            best = point.recall
            yield point
