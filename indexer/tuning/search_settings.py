"""Settings of a ScaNN search: numbers of leaves and candidates, by the number of hits.

The nearest ten rows are in few leaves; the nearest thousand are in more, and need more candidates. The tuner measures
settings for some numbers of hits (recall_curve.py), and a search uses those for the next greater number.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

__all__ = ["TUNED_K", "Depth", "SearchSettings"]

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
    others: tuple[Depth, ...] = ()
    """Settings for numbers of hits other than ten, ascending."""
    least_k: int = 1
    most_k: int | None = None
    """For fewer hits than `least_k` and more than `most_k` (None: no bound), no setting reaches the target recall, so
    the search must be exact."""
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
        below = [depth for depth in self.others if depth.k < TUNED_K]
        if k < TUNED_K:
            return _greatest(k, [ten, *(depth for depth in below if depth.k >= k or depth is below[-1])])
        known = [ten, *(depth for depth in self.others if depth.k > TUNED_K)]
        place = bisect_left([depth.k for depth in known], k)
        # Between two measured numbers, the settings for the greater one suffice. Interpolated ones may not: one may
        # have many leaves and few candidates, and the other one the opposite.
        return known[place] if place < len(known) else _beyond(known[-1], k, self.growth)

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
