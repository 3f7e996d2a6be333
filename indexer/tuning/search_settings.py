"""How much of a segment a ScaNN search looks at: leaves and candidates, by the number of hits that are wanted.

The nearest ten rows lie in few leaves; the nearest thousand lie in more, and more candidates are needed to find them.
The tuner measures both for some numbers of hits (recall_curve.py), and a search takes what was measured for the next
greater.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

__all__ = ["TUNED_K", "Depth", "SearchSettings"]

TUNED_K = 10
"""Hits that the first curve of a segment is for."""
UNMEASURED_GROWTH = 0.6
"""Power of the number of hits by which leaves grow where this was not measured: in segments of earlier versions, and
beyond the deepest measurement. 0.3 was measured for twelve latent dimensions, 0.5 for copies of few vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """What a search for hits takes."""

    k: int
    """The largest number of hits that they are for."""
    leaves: int
    """Leaves of the partitioning tree that are searched."""
    rescore: int
    """Candidates that are scored again with the exact vectors."""
    recall: float
    """What was measured with these; 0: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """The knobs of ScaNN searches of one segment."""

    leaves: int
    """Leaves that are searched for the ten best hits."""
    rescore: int
    """Candidates that are scored again for the ten best hits."""
    recall: float = 0.0
    """Recall of the ten best hits that was measured with these; 0: nothing was."""
    others: tuple[Depth, ...] = ()
    """What other numbers of hits take, ascending; 10 is not among them."""
    least_k: int = 1
    most_k: int | None = None
    """For fewer hits than the one and more than the other (None: no bound), no setting reaches the target, and the
    search has to be exact."""
    growth: float = 0.0
    """Power of the number of hits by which leaves grow beyond what was measured. 0: as many for any number of hits."""

    def reaches(self, k: int) -> bool:
        """Return whether these settings reach the target for `k` hits; else the search has to be exact."""
        return self.least_k <= k and (self.most_k is None or k <= self.most_k)

    def at(self, k: int) -> Depth:
        """Return what k hits take; more leaves than there are mean all."""
        ten = Depth(k=TUNED_K, leaves=self.leaves, rescore=self.rescore, recall=self.recall)
        if k == TUNED_K:
            return ten
        below = [depth for depth in self.others if depth.k < TUNED_K]
        if k < TUNED_K:
            return _greatest(k, [ten, *(depth for depth in below if depth.k >= k or depth is below[-1])])
        known = [ten, *(depth for depth in self.others if depth.k > TUNED_K)]
        place = bisect_left([depth.k for depth in known], k)
        # Between two that were measured, what the greater takes will do. Something in between may not: one of them may
        # have many leaves and few candidates, and the other the opposite.
        return known[place] if place < len(known) else _beyond(known[-1], k, self.growth)

    def rescored_for(self, k: int) -> int:
        """Return how many candidates to rescore for k hits."""
        return self.rescore if k == TUNED_K else self.at(k).rescore

    def leaves_for(self, k: int) -> int:
        """Return how many leaves to search for k hits."""
        return self.leaves if k == TUNED_K else self.at(k).leaves


def _greatest(k: int, depths: list[Depth]) -> Depth:
    """Return the most that any of these takes."""
    return Depth(
        k=k,
        leaves=max(depth.leaves for depth in depths),
        rescore=max(k, *(depth.rescore for depth in depths)),
        recall=min(depth.recall for depth in depths),
    )


def _beyond(deepest: Depth, k: int, growth: float) -> Depth:
    """Return what more hits take than any that were measured."""
    more = k / deepest.k
    return Depth(
        k=k,
        leaves=math.ceil(deepest.leaves * math.pow(more, growth)),
        rescore=max(k, math.ceil(deepest.rescore * more)),
        recall=deepest.recall,
    )
