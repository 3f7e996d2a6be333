"""Recall against cost: measured after a build, so that a target recall is a promise and not a guess.

Shapes: Q queries, N vectors, D dimensions, K hits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scannery.indexer.exact import exact_search, unit_length
from scannery.indexer.manifest import CurvePoint, Recall, SegmentEntry
from scannery.indexer.spec import Distance

__all__ = [
    "TUNED_K",
    "HeldOut",
    "expected_recall",
    "held_out_queries",
    "measure_curve",
    "pick_point",
    "recall_by_score",
]

TUNED_K = 10
"""Hits per query that recall is measured for."""
QUERIES_PER_KIND = 300
WORTHWHILE = 0.001
"""Gains of recall below this are not looked for."""
LEAF_SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0)
RESCORED = (20, 40, 80, 160, 320, 640)

BatchSearch = Callable[[np.ndarray, int, int, int], tuple[np.ndarray, np.ndarray]]
"""(queries_QD, k, rescore, leaves) → rows_QK, scores_QK (bigger is better)."""


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
    found_rows, found_scores = exact_search(vectors_ND, alike_QD, TUNED_K + 1, distance)
    return HeldOut(
        alike_QD=alike_QD,
        alike_rows_Q=rows_Q,
        apart_QD=apart_QD,
        alike_truth_QK=_without_own(found_rows, found_scores, rows_Q),
        apart_truth_QK=exact_search(vectors_ND, apart_QD, TUNED_K, distance)[1],
    )


def recall_by_score(found_QK: np.ndarray, true_QK: np.ndarray) -> np.ndarray:
    """Return the recall of each query, by score: a hit as good as the k-th true one counts, so ties do.

    Both inputs are scores, bigger is better, best first (the measure of ann-benchmarks).
    """
    worst_Q1 = true_QK.min(axis=1, keepdims=True)
    tolerance_Q1 = 1e-5 * np.maximum(np.abs(worst_Q1), 1e-3)
    k = true_QK.shape[1]
    hits_Q: np.ndarray = (found_QK >= worst_Q1 - tolerance_Q1).sum(axis=1)
    recalls_Q: np.ndarray = hits_Q.clip(max=k) / k
    return recalls_Q


def measure_curve(search: BatchSearch, queries: HeldOut, *, leaves: int) -> tuple[CurvePoint, ...]:
    """Return the settings that no cheaper one beats, cheapest first, with their recall and time.

    Settings are tried from cheap to dear, and no further than they help: more candidates until they find nothing
    more, more leaves until nothing is missed.
    """
    points: list[CurvePoint] = []
    for searched in _leaves_searched(leaves):
        best = -1.0
        for rescore in RESCORED:
            point = _measure(search, queries, searched, rescore)
            points.append(point)
            if point.recall - best < WORTHWHILE:
                break
            best = point.recall
        if points[-1].recall >= 1 - WORTHWHILE:
            break
    return tuple(_pareto(points))


def pick_point(curve: Sequence[CurvePoint], target_recall: float) -> tuple[CurvePoint, bool]:
    """Return the cheapest point that meets the target, and whether it does; else the one of best recall.

    A point meets the target when it does so by a standard error: the tuner's queries are a sample, and so
    half of the points that meet it exactly would miss it on other queries.
    """
    for point in curve:
        if point.recall - point.error >= target_recall:
            return point, True
    best = max(curve, key=lambda point: point.recall)
    return best, best.recall >= target_recall


def expected_recall(
    segments: Sequence[SegmentEntry], target_recall: float, *, given_queries: str | None = None
) -> Recall:
    """Return what a default search over segments will recall: each one's measure, weighted by its rows.

    A true neighbour is found if its own segment finds it, and it lies in a segment with a probability in
    proportion to the segment's rows, since shards are hashed. `given_queries` are noted.
    """
    picked = [(s.live_rows, *pick_point(s.curve, target_recall)) for s in segments if s.curve]
    exact_rows = sum(s.live_rows for s in segments if not s.curve)
    rows = exact_rows + sum(count for count, _, _ in picked)
    found = exact_rows + sum(count * point.recall for count, point, _ in picked)
    return Recall(
        k=TUNED_K,
        target=target_recall,
        measured=round(found / max(rows, 1), 5) if rows else 1.0,
        queries=2 * QUERIES_PER_KIND if picked else 0,
        reached=all(reached for _, _, reached in picked),
        whole=None if picked else 1.0,
        given_queries=given_queries,
    )


def _measure(search: BatchSearch, queries: HeldOut, leaves: int, rescore: int) -> CurvePoint:
    started = time.perf_counter()
    rows_QK, scores_QK = search(queries.alike_QD, TUNED_K + 1, rescore, leaves)
    _, apart_QK = search(queries.apart_QD, TUNED_K, rescore, leaves)
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
