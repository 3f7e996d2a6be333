"""Recall: how it is counted, and which of the settings that a build measured (curve.py) a target recall takes.

Shapes: Q queries, K hits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.indexer.exact import unit_length
from scannery.indexer.manifest import CurvePoint, Recall, SegmentEntry

__all__ = [
    "FRESH_QUERIES",
    "QUERIES_PER_KIND",
    "TUNED_K",
    "expected_recall",
    "near",
    "pick_point",
    "recall_by_score",
    "score_to_reach",
]

TUNED_K = 10
"""Hits per query that recall is measured for."""
QUERIES_PER_KIND = 300
"""Held-out queries of each of two kinds (curve.py)."""


FRESH_QUERIES = 200
"""Queries that nothing was tuned for: their recall has a standard error of about a hundredth."""


def recall_by_score(found_QK: np.ndarray, true_QK: np.ndarray) -> np.ndarray:
    """Return the recall of each query, by score: a hit as good as the k-th true one counts, so ties do.

    Both inputs are scores, bigger is better, best first (the measure of ann-benchmarks).
    """
    k = true_QK.shape[1]
    hits_Q: np.ndarray = (found_QK >= score_to_reach(true_QK)).sum(axis=1)
    recalls_Q: np.ndarray = hits_Q.clip(max=k) / k
    return recalls_Q


def score_to_reach(true_QK: np.ndarray) -> np.ndarray:
    """Return the score from which a found row counts as one of the true hits, (Q, 1)."""
    worst_Q1: np.ndarray = true_QK.min(axis=1, keepdims=True)
    reach_Q1: np.ndarray = worst_Q1 - 1e-5 * np.maximum(np.abs(worst_Q1), 1e-3)
    return reach_Q1


def near(vectors_QD: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return queries near given vectors, float32: each moved by 0.3 of its length in a random direction."""
    lengths_Q1 = np.linalg.norm(vectors_QD, axis=1, keepdims=True)
    noise_QD = unit_length(generator.standard_normal(vectors_QD.shape))
    return np.asarray(vectors_QD + 0.3 * lengths_Q1 * noise_QD, np.float32)


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
