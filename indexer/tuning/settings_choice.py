"""Recall by score, and the choice of measured settings (recall_curve.py) for a target recall.

Shapes: Q queries, N vectors, D dimensions, K hits.

Settings of a ScaNN search: numbers of leaves and candidates, by the number of hits.

The nearest ten rows are in few leaves; the nearest thousand are in more, and need more candidates. The tuner measures
settings for some numbers of hits (recall_curve.py), and a search uses those for the next greater number.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scannery.indexer.manifest import CurvePoint, Manifest, Recall, SegmentEntry
from scannery.indexer.spec.spec import Distance

__all__ = [
    "FRESH_QUERIES",
    "QUERIES_PER_KIND",
    "TUNED_K",
    "Depth",
    "ExpectedSearch",
    "SearchSettings",
    "expected_recall",
    "expected_searches",
    "magnitude_of",
    "magnitudes",
    "named_recalls",
    "near",
    "pick_point",
    "pick_settings",
    "recall_by_score",
    "score_to_reach",
]


TUNED_K = 10
"""Number of hits of a segment's first curve."""
UNMEASURED_GROWTH = 0.6
"""Exponent of the growth of leaves with the number of hits where it was not measured: in segments of earlier releases,
and above the largest measured number. 0.3 was measured for twelve latent dimensions, 0.5 for copies of few vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Settings for a number of hits."""

    k: int
    """Largest number of hits that these settings are for."""
    leaves: int
    """Leaves of the partitioning tree to search."""
    rescore: int
    """Candidates to rescore with the exact vectors."""
    recall: float
    """Measured recall; 0: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Settings of ScaNN searches of one segment, for any number of hits."""

    leaves: int
    """Leaves to search for ten hits."""
    rescore: int
    """Candidates to rescore for ten hits."""
    recall: float = 0.0
    """Measured recall@10; 0: not measured."""
    depths: tuple[Depth, ...] = ()
    """Settings for numbers of hits other than ten, ascending."""
    least_k: int = 1
    most_k: int | None = None
    """Most hits. For fewer hits than `least_k` and more than `most_k` (None: no bound), no setting reaches the target
    recall, so the search must be exact.
    """
    growth: float = 0.0
    """Exponent of the growth of leaves above the largest measured number of hits. 0: leaves do not grow."""

    def reaches(self, k: int) -> bool:
        """Return whether these settings reach the target recall for `k` hits; if not, the search must be exact."""
        return self.least_k <= k and (self.most_k is None or k <= self.most_k)

    def at(self, k: int) -> Depth:
        """Return the settings for k hits. Their leaves can be more than the segment has."""
        ten = Depth(k=TUNED_K, leaves=self.leaves, rescore=self.rescore, recall=self.recall)
        if k == TUNED_K:
            return ten
        below = [depth for depth in self.depths if depth.k < TUNED_K]
        if k < TUNED_K:
            return _greatest(k, [ten, *(depth for depth in below if depth.k >= k or depth is below[-1])])
        depths = [ten, *(depth for depth in self.depths if depth.k > TUNED_K)]
        position = bisect_left([depth.k for depth in depths], k)
        # Between two measured numbers, the settings for the greater one suffice. Interpolated ones may not: one may
        # have many leaves and few candidates, and the other one the opposite.
        return depths[position] if position < len(depths) else _beyond(depths[-1], k, self.growth)

    def rescored_for(self, k: int) -> int:
        """Return the number of candidates to rescore for k hits."""
        return self.rescore if k == TUNED_K else self.at(k).rescore

    def leaves_for(self, k: int) -> int:
        """Return the number of leaves to search for k hits."""
        return self.leaves if k == TUNED_K else self.at(k).leaves


def _greatest(k: int, depths: list[Depth]) -> Depth:
    """Return settings for k hits with the most leaves and candidates, and the least recall, of `depths`."""
    return Depth(
        k=k,
        leaves=max(depth.leaves for depth in depths),
        rescore=max(k, *(depth.rescore for depth in depths)),
        recall=min(depth.recall for depth in depths),
    )


def _beyond(deepest: Depth, k: int, growth: float) -> Depth:
    """Return settings for k hits, more than `deepest` was measured for."""
    more = k / deepest.k
    return Depth(
        k=k,
        leaves=math.ceil(deepest.leaves * math.pow(more, growth)),
        rescore=max(k, math.ceil(deepest.rescore * more)),
        recall=deepest.recall,
    )


QUERIES_PER_KIND = 300
"""Held-out queries of each of two kinds (held_out_queries.py)."""


FRESH_QUERIES = 200
"""Number of queries that settings were not tuned for; their mean recall has a standard error of about 0.01."""
NOISE = 0.3
"""Distance of such a query from a stored vector, as a share of the vector's length (see `near`)."""
ROUNDING = 2.0**-20
"""Bound on the difference of two sums of the same float32 products in different orders, as a share of their terms:
eight times the precision of float32; 5 times was measured at 4,096 dimensions."""
_SQUARED_ROUNDING = 1e-9
"""Error of a squared distance computed from squared lengths in float64, as a share of these: far below ROUNDING."""


def recall_by_score(
    found_QK: np.ndarray, true_QK: np.ndarray, magnitude_Q1: np.ndarray | float = 0.0
) -> np.ndarray:
    """Return the recall of each query, float64 (Q,): the share of hits that score at least as the k-th true hit.

    So ties count, as in ann-benchmarks.

    Args:
        found_QK: scores of the hits found, bigger is better, best first.
        true_QK: scores of the true hits, likewise.
        magnitude_Q1: of `magnitudes`.

    """
    k = true_QK.shape[1]
    hits_Q: np.ndarray = (found_QK >= score_to_reach(true_QK, magnitude_Q1)).sum(axis=1)
    recalls_Q: np.ndarray = hits_Q.clip(max=k) / k
    return recalls_Q


def score_to_reach(true_QK: np.ndarray, magnitude_Q1: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the least score of a found row that counts as a true hit, float64 (Q, 1).

    It is the score of the worst true hit, less the rounding error of float32: relative to the score, or to the terms
    of its sum, which can be far larger (`magnitudes`).
    """
    worst_Q1: np.ndarray = true_QK.min(axis=1, keepdims=True).astype(np.float64)
    reach_Q1: np.ndarray = worst_Q1 - ROUNDING * np.maximum(np.abs(worst_Q1), magnitude_Q1)
    return reach_Q1


def magnitudes(queries_QD: np.ndarray, distance: Distance, lengths_Q: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the magnitude of the terms whose sum is the worst true score of each query, float64 (Q, 1).

    For `dot` the length of the query times that of the row; for `cosine` 1; for `squared_l2`, whose sums have no
    cancellation, almost 0.

    Args:
        queries_QD: of any length.
        distance: of the index.
        lengths_Q: length of the row of each query's worst true hit; 0: unknown, rounding is relative to the score.

    """
    if distance == "cosine":
        return np.ones((len(queries_QD), 1))
    lengths_Q1 = np.linalg.norm(queries_QD.astype(np.float64), axis=1, keepdims=True)
    if distance == "squared_l2":
        return np.asarray(_SQUARED_ROUNDING * lengths_Q1**2)
    return np.asarray(lengths_Q1 * np.reshape(lengths_Q, (-1, 1)))


def magnitude_of(distance: Distance, row_D: np.ndarray, query_D: np.ndarray | None = None) -> float:
    """Return `magnitudes` for one query and the row of its worst true hit; None: a query as long as the row."""
    asked_D = row_D if query_D is None else query_D
    length = float(np.linalg.norm(np.asarray(row_D, np.float64)))
    return float(magnitudes(np.asarray(asked_D)[None], distance, length)[0, 0])


def near(vectors_QD: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return queries near given vectors, float32: each vector moved in a random direction.

    It is moved by NOISE times its length; or, if the vectors are far from the origin, times its distance from their
    mean, estimated from its distance from another vector. Otherwise the query would be far from all vectors.
    """
    vectors_QD = np.asarray(vectors_QD, np.float64)
    lengths_Q = np.linalg.norm(vectors_QD, axis=1)
    apart_Q = np.linalg.norm(vectors_QD - vectors_QD[generator.permutation(len(vectors_QD))], axis=1)
    # The distance of two vectors is √2 times their distance from the mean, on average.
    middle = float(np.median(apart_Q)) / np.sqrt(2)
    moved_Q = np.where(lengths_Q > FAR * middle, np.minimum(apart_Q / np.sqrt(2), lengths_Q), lengths_Q)
    noise_QD = generator.standard_normal(vectors_QD.shape)
    noise_QD /= np.linalg.norm(noise_QD, axis=1, keepdims=True)
    return np.asarray(vectors_QD + NOISE * moved_Q[:, None] * noise_QD, np.float32)


FAR = 2.0
"""A vector is far from the origin if its length is more than this multiple of the vectors' distance from their mean."""


def pick_point(curve: Sequence[CurvePoint], target_recall: float) -> tuple[CurvePoint, bool]:
    """Return the cheapest point that meets the target, else the one of best recall, and whether it meets the target.

    A point meets the target if its recall less a standard error does: the tuner's queries are a sample, and half of
    the points that meet the target exactly would miss it on other queries.
    """
    for point in curve:
        if point.recall - point.error >= target_recall:
            return point, True
    best = max(curve, key=lambda point: point.recall)
    return best, best.recall >= target_recall


def pick_settings(
    entry: SegmentEntry, target_recall: float, *, anyway: bool = False
) -> SearchSettings | None:
    """Return the cheapest settings of a segment that meet a target recall, for any number of hits.

    None if no setting meets it, or the segment has no ScaNN data: the search must be exact. With `anyway`, the settings
    of best recall if none meets the target.
    """
    if not entry.curve:
        return None
    point, reached = pick_point(entry.curve, target_recall)
    if not reached and not anyway:
        return None
    picked = [(depth.k, *pick_point(depth.curve, target_recall)) for depth in entry.depth_curves]
    missed = [] if anyway else [k for k, _, enough in picked if not enough]
    # Between a number of hits at which the target is met and one at which it is missed, recall is unknown.
    too_few = max((k for k in missed if k < TUNED_K), default=0)
    too_many = min((k for k in missed if k > TUNED_K), default=None)
    deeper = [
        Depth(k=k, leaves=setting.leaves, rescore=setting.rescore, recall=setting.recall)
        for k, setting, _ in picked
        if too_few < k and (too_many is None or k < too_many)
    ]
    ks = [TUNED_K, *(depth.k for depth in deeper)]
    return SearchSettings(
        leaves=point.leaves,
        rescore=point.rescore,
        recall=point.recall,
        depths=tuple(deeper),
        least_k=min(ks) if too_few else 1,
        most_k=None if too_many is None else max(ks),
        growth=UNMEASURED_GROWTH,
    )


def named_recalls(manifest: Manifest) -> dict[str, Recall]:
    """Return the expected recall of a default search of each named vector."""
    target = manifest.spec.target_recall
    return {
        name: expected_recall(manifest.of_vectors(name).segments, target) for name in manifest.named_vectors
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSearch:
    """What searches with a target recall are expected to do, over all segments."""

    target: float
    """Target recall."""
    recall: float
    """Mean recall of the segments, weighted by rows, for TUNED_K hits."""
    error: float
    """Standard error of `recall`."""
    query_us: float
    """Time of one query in a batch on one core, without segments that are searched exactly."""
    leaves: int
    """Leaves searched in all segments."""
    exact_rows: int
    """Datapoints of segments that are searched exactly."""


def expected_searches(segments: Sequence[SegmentEntry], target_recall: float) -> list[ExpectedSearch]:
    """Return what a version was measured to do for several target recalls, ascending; empty without a curve.

    Args:
        segments: of the version.
        target_recall: of the spec; the others are those that the points of the largest curve reach.

    """
    segments = [segment for segment in segments if segment.vectors]
    curves = [segment for segment in segments if segment.curve]
    if not curves:
        return []
    largest = max(curves, key=lambda segment: segment.live_rows)
    reached = {max(point.recall - point.error, 0.0) for point in largest.curve}
    return [_expected_search(segments, target) for target in sorted({target_recall, *reached})]


def _expected_search(segments: Sequence[SegmentEntry], target: float) -> ExpectedSearch:
    picked = [
        (segment.live_rows, *pick_point(segment.curve, target)) for segment in segments if segment.curve
    ]
    points = [(rows, point) for rows, point, reached in picked if reached]
    total = sum(segment.live_rows for segment in segments)
    exact = total - sum(rows for rows, _ in points)
    return ExpectedSearch(
        target=target,
        recall=(exact + sum(rows * point.recall for rows, point in points)) / max(total, 1),
        error=math.hypot(*(rows * point.error for rows, point in points)) / max(total, 1),
        query_us=sum(point.query_us for _, point in points),
        leaves=sum(point.leaves for _, point in points),
        exact_rows=exact,
    )


def expected_recall(
    segments: Sequence[SegmentEntry], target_recall: float, *, given_queries: str | None = None
) -> Recall:
    """Return the expected recall of a default search: the mean of the segments' recalls, weighted by rows.

    A true neighbour is found if the segment that has it finds it, and the probability that a segment has it is in
    proportion to its rows, since shards are hashed. A segment of which no setting reaches the target is searched
    exactly.

    Args:
        segments: of the version.
        target_recall: of the spec.
        given_queries: key of the user's queries that segments were tuned for; stored in the result.

    """
    segments = [s for s in segments if s.vectors]
    settings = {s.key: pick_settings(s, target_recall) for s in segments}
    rows = sum(s.live_rows for s in segments)
    total = sum(s.live_rows * (chosen.recall if (chosen := settings[s.key]) else 1.0) for s in segments)
    measured = any(s.curve for s in segments)
    proposed = any(settings.values())
    return Recall(
        k=TUNED_K,
        target=target_recall,
        measured=round(total / max(rows, 1), 5) if rows else 1.0,
        queries=2 * QUERIES_PER_KIND if measured else 0,
        reached=all(settings[s.key] for s in segments if s.curve),
        whole=None if proposed else 1.0,
        given_queries=given_queries,
    )
