"""Recall: how it is counted, and which of the settings that a build measured (recall_curve.py) a target recall takes.

Shapes: Q queries, N vectors, D dimensions, K hits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.indexer.manifest import CurvePoint, Recall, SegmentEntry
from scannery.indexer.spec.spec import Distance
from scannery.indexer.tuning.search_settings import TUNED_K, UNMEASURED_GROWTH, Depth, SearchSettings

__all__ = [
    "FRESH_QUERIES",
    "QUERIES_PER_KIND",
    "TUNED_K",
    "expected_recall",
    "magnitude_of",
    "magnitudes",
    "near",
    "pick_point",
    "pick_settings",
    "recall_by_score",
    "score_to_reach",
]

QUERIES_PER_KIND = 300
"""Held-out queries of each of two kinds (held_out_queries.py)."""


FRESH_QUERIES = 200
"""Queries that nothing was tuned for: their recall has a standard error of about a hundredth."""
NOISE = 0.3
ROUNDING = 2.0**-20
"""Two sums of the same float32 products in different orders lie so far apart at most, as a share of their terms: eight
times the precision of float32; 5 were seen at 4,096 dimensions."""
_SQUARED_ROUNDING = 1e-9
"""A squared distance by way of squared lengths, in float64, errs by so much less than by ROUNDING of these."""


def recall_by_score(
    found_QK: np.ndarray, true_QK: np.ndarray, magnitude_Q1: np.ndarray | float = 0.0
) -> np.ndarray:
    """Return the recall of each query, by score: a hit as good as the k-th true one counts, so ties do.

    Both inputs are scores, bigger is better, best first (the measure of ann-benchmarks); for `magnitude_Q1` see
    `magnitudes`.
    """
    k = true_QK.shape[1]
    hits_Q: np.ndarray = (found_QK >= score_to_reach(true_QK, magnitude_Q1)).sum(axis=1)
    recalls_Q: np.ndarray = hits_Q.clip(max=k) / k
    return recalls_Q


def score_to_reach(true_QK: np.ndarray, magnitude_Q1: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the score from which a found row counts as one of the true hits, float64 (Q, 1).

    That is the worst true one, less what float32 can have put between two equal scores: relative to the score, or to
    the terms that it is a sum of, which may be far larger (`magnitudes`).
    """
    worst_Q1: np.ndarray = true_QK.min(axis=1, keepdims=True).astype(np.float64)
    reach_Q1: np.ndarray = worst_Q1 - ROUNDING * np.maximum(np.abs(worst_Q1), magnitude_Q1)
    return reach_Q1


def magnitudes(queries_QD: np.ndarray, distance: Distance, lengths_Q: np.ndarray | float = 0.0) -> np.ndarray:
    """Return how large the terms are whose sum is the worst true score of each query, float64 (Q, 1).

    For `dot` the length of the query by that of the row (`lengths_Q`; 0 where it is not known: rounding is taken to
    be relative to the score), and 1 for `cosine`, whose queries are given at any length. Squared distances are sums
    without cancellation, and need next to nothing.
    """
    if distance == "cosine":
        return np.ones((len(queries_QD), 1))
    lengths_Q1 = np.linalg.norm(queries_QD.astype(np.float64), axis=1, keepdims=True)
    if distance == "squared_l2":
        return np.asarray(_SQUARED_ROUNDING * lengths_Q1**2)
    return np.asarray(lengths_Q1 * np.reshape(lengths_Q, (-1, 1)))


def magnitude_of(distance: Distance, row_D: np.ndarray, query_D: np.ndarray | None = None) -> float:
    """Return the same for one query and the row of its worst true hit; a query that is not known is as long as it."""
    asked_D = row_D if query_D is None else query_D
    length = float(np.linalg.norm(np.asarray(row_D, np.float64)))
    return float(magnitudes(np.asarray(asked_D)[None], distance, length)[0, 0])


def near(vectors_QD: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return queries near given vectors, float32: each moved in a random direction.

    By 0.3 of its length; or, where the vectors lie far from the origin, of its distance from their middle, as its
    distance from another one of them tells it. Else a query would be nowhere near any vector.
    """
    vectors_QD = np.asarray(vectors_QD, np.float64)
    lengths_Q = np.linalg.norm(vectors_QD, axis=1)
    apart_Q = np.linalg.norm(vectors_QD - vectors_QD[generator.permutation(len(vectors_QD))], axis=1)
    # Two vectors are apart by as much more than from their middle as a square's diagonal is longer than its side.
    middle = float(np.median(apart_Q)) / np.sqrt(2)
    moved_Q = np.where(lengths_Q > FAR * middle, np.minimum(apart_Q / np.sqrt(2), lengths_Q), lengths_Q)
    noise_QD = generator.standard_normal(vectors_QD.shape)
    noise_QD /= np.linalg.norm(noise_QD, axis=1, keepdims=True)
    return np.asarray(vectors_QD + NOISE * moved_Q[:, None] * noise_QD, np.float32)


FAR = 2.0
"""Vectors count as far from the origin where their length is this multiple of their distance from their mean."""


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


def pick_settings(
    entry: SegmentEntry, target_recall: float, *, anyway: bool = False
) -> SearchSettings | None:
    """Return the cheapest settings of a segment that meet a target, for any number of hits.

    None where none does, or where there is nothing to set: the search has to be exact. With `anyway`, those of best
    recall instead, where there are any.
    """
    if not entry.curve:
        return None
    point, reached = pick_point(entry.curve, target_recall)
    if not reached and not anyway:
        return None
    picked = [(depth.k, *pick_point(depth.curve, target_recall)) for depth in entry.depth_curves]
    missed = [] if anyway else [k for k, _, enough in picked if not enough]
    # Between a number of hits that meets the target and one that does not, nothing is known.
    too_few = max((k for k in missed if k < TUNED_K), default=0)
    too_many = min((k for k in missed if k > TUNED_K), default=None)
    others = [
        Depth(k=k, leaves=one.leaves, rescore=one.rescore, recall=one.recall)
        for k, one, _ in picked
        if too_few < k and (too_many is None or k < too_many)
    ]
    known = [TUNED_K, *(depth.k for depth in others)]
    return SearchSettings(
        leaves=point.leaves,
        rescore=point.rescore,
        recall=point.recall,
        others=tuple(others),
        least_k=min(known) if too_few else 1,
        most_k=None if too_many is None else max(known),
        growth=UNMEASURED_GROWTH,
    )


def expected_recall(
    segments: Sequence[SegmentEntry], target_recall: float, *, given_queries: str | None = None
) -> Recall:
    """Return what a default search over segments will recall: each one's measure, weighted by its rows.

    A true neighbour is found if its own segment finds it, and it lies in a segment with a probability in
    proportion to the segment's rows, since shards are hashed. A segment where no setting reaches the target is searched
    exactly. `given_queries` are noted.
    """
    settings = {s.key: pick_settings(s, target_recall) for s in segments}
    rows = sum(s.live_rows for s in segments)
    found = sum(s.live_rows * (chosen.recall if (chosen := settings[s.key]) else 1.0) for s in segments)
    measured = any(s.curve for s in segments)
    proposed = any(settings.values())
    return Recall(
        k=TUNED_K,
        target=target_recall,
        measured=round(found / max(rows, 1), 5) if rows else 1.0,
        queries=2 * QUERIES_PER_KIND if measured else 0,
        reached=all(settings[s.key] for s in segments if s.curve),
        whole=None if proposed else 1.0,
        given_queries=given_queries,
    )
