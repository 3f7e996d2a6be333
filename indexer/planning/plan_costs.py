"""Measured costs of the plans of a filtered search (planner.py), per segment, on this machine.

They are measured when the segment is unpacked (plan_timing.py), and stored beside it in the local cache.
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
"""Files beside a segment in the local cache: the first measurement, and a later one."""
SHARES = (0.9, 0.5, 0.2, 0.05, 0.01)
"""Shares of allowed rows for which plans are timed."""
TIMED_K = 10
"""Hits per query for which plans are timed."""
BUSY = 1.2
"""Value of `Costs.pressure` above which plans are timed again."""
BATCH = 8
"""Number of queries from which on exact search is a matrix product."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a search among allowed rows on this machine, in microseconds; lists have an entry for each of SHARES."""

    row_us: float
    """Scoring a row for a single query."""
    gather_us: float
    """Copying a row for a batch."""
    product_us: float
    """Scoring a row for one query of a batch."""
    scan_us: list[float]
    """A query by the plan `leaves`."""
    proposed_us: list[float]
    """A query by the plan `scann_allowed`."""
    leaves_reached: list[int]
    """Number of leaves, best prediction first, that hold nearly all of the best allowed rows of a query."""
    pressure: float = 1.0
    """Elapsed time of the fastest rounds divided by their CPU time; above BUSY, other processes disturbed them."""

    @property
    def disturbed(self) -> bool:
        """Whether other processes disturbed the measurement, so that it should be repeated."""
        return self.pressure > BUSY

    def choose(self, queries: int, rows: int, share: float, k: int) -> str:
        """Return the cheapest plan.

        Args:
            queries: number of queries.
            rows: number of allowed rows.
            share: of allowed rows in all rows.
            k: hits per query.

        """
        # The first 1,000 hits among half of the rows lie as deep as the first ten among a two-hundredth.
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
        """Return the number of leaves that a search needs beyond those without a filter.

        The nearest allowed rows are farther away than the nearest of all, and therefore in more leaves. A difference,
        not a ratio: without a filter the leaves are so few that a ratio would be noise.
        """
        return max(0, math.ceil(_along_shares(self.leaves_reached, share) - self.leaves_reached[0]))

    def to_json(self) -> str:
        """Return the costs as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Costs:
        """Return the costs that `to_json` wrote; TypeError for those of a release with other fields."""
        return cls(**json.loads(text))


def latest_costs(path: Path) -> Costs | None:
    """Return the later measurement, else the first one, else None; `path` is the file of the first one."""
    for candidate in (path.with_name(COSTS_AGAIN), path):
        # The cache has no checksum of the later file, so it may be damaged.
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Costs.from_json(candidate.read_text())
    return None


def _along_shares(values: Sequence[float], share: float) -> float:
    """Return the value for a share of allowed rows, interpolated between the measured ones by its logarithm."""
    if share >= SHARES[0]:
        return values[0]
    for i in range(1, len(SHARES)):
        if share >= SHARES[i]:
            above, below = SHARES[i - 1], SHARES[i]
            part = math.log(share / below) / math.log(above / below)
            return values[i] + part * (values[i - 1] - values[i])
    return values[-1]
