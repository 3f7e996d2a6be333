"""What the plans of a filtered search cost on this machine, for one segment (planner.py).

Timed when the segment is unpacked (plan_timing.py), and kept beside it in the local cache.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["BATCH", "BUSY", "COSTS", "COSTS_AGAIN", "SHARES", "TIMED_K", "Costs", "latest_costs"]

COSTS, COSTS_AGAIN = "costs.json", "costs-again.json"
"""Files beside a segment in the local cache: what was timed first, and again."""
SHARES = (0.9, 0.5, 0.2, 0.05, 0.01)
"""Shares of rows allowed for which plans are timed."""
TIMED_K = 10
BUSY = 1.2
BATCH = 8
"""From so many queries on, exact search is a matrix product."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a search among allowed rows costs on this machine, in microseconds; lists go along SHARES."""

    row_us: float
    """A row scored for one query."""
    gather_us: float
    """A row copied for a batch."""
    product_us: float
    """A row scored for one query of a batch."""
    scan_us: list[float]
    """A query by `leaves`."""
    proposed_us: list[float]
    """A query by `scann_allowed`."""
    leaves_reached: list[int]
    """Leaves, by what they promise, in which nearly all of the best allowed rows of queries lie."""
    pressure: float = 1.0
    """Time of the fastest rounds, as a multiple of what the processor worked; beyond BUSY, others disturbed them."""

    @property
    def disturbed(self) -> bool:
        """Whether they are worth being timed again, when the machine has less to do."""
        return self.pressure > BUSY

    def choose(self, queries: int, rows: int, share: float, k: int) -> str:
        """Return the cheapest plan for a number of queries, of allowed rows (and their share of all), and of hits."""
        # The first 1,000 of half of the rows lie as deep as the first ten of a two-hundredth.
        deep = min(share, share * TIMED_K / k)
        plans = {
            "scann_allowed": self.proposed(deep, queries),
            "leaves": max(self.scan(share, queries), self.scan(deep, queries)),
            "exact_allowed": self.exact(rows, queries),
        }
        return min(plans, key=lambda plan: plans[plan])

    def exact(self, rows: int, queries: int) -> float:
        """Return the cost of `exact_allowed`."""
        if queries < BATCH:
            return queries * rows * self.row_us
        return rows * (self.gather_us + queries * self.product_us)

    def scan(self, share: float, queries: int) -> float:
        """Return the cost of `leaves`."""
        return queries * _along_shares(self.scan_us, share)

    def proposed(self, share: float, queries: int) -> float:
        """Return the cost of `scann_allowed`; infinite for shares at which it was not timed."""
        return queries * _along_shares(self.proposed_us, share) if share >= SHARES[-1] else math.inf

    def more_leaves(self, share: float) -> int:
        """Return how many leaves more it takes than a search without a filter.

        The nearest rows of those that are allowed lie farther away than the nearest of all, and so in more leaves.
        Told as a difference: without a filter leaves are so few that a ratio would be chance.
        """
        return max(0, math.ceil(_along_shares(self.leaves_reached, share) - self.leaves_reached[0]))

    def to_json(self) -> str:
        """Return what `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Costs:
        """Return the costs that `to_json` wrote; TypeError for those of a version that timed something else."""
        return cls(**json.loads(text))


def latest_costs(path: Path) -> Costs | None:
    """Return what plans cost: timed again, if they were, else as they were timed first."""
    for candidate in (path.with_name(COSTS_AGAIN), path):
        # Only the first is under the cache's checksums.
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Costs.from_json(candidate.read_text())
    return None


def _along_shares(values: Sequence[float], share: float) -> float:
    """Return the value for a share of allowed rows, between those that were measured."""
    if share >= SHARES[0]:
        return values[0]
    for i in range(1, len(SHARES)):
        if share >= SHARES[i]:
            above, below = SHARES[i - 1], SHARES[i]
            part = math.log(share / below) / math.log(above / below)
            return values[i] + part * (values[i - 1] - values[i])
    return values[-1]
