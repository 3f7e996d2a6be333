"""How many rows of leaves a load wants: quickly more, slowly less.

As the horizontal autoscaler of Kubernetes does, it compares the load with a target, leaves small differences alone, and
removes only what all of the last minutes did not want.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from scannery.runtime.errors import ConfigError

__all__ = ["Limits", "Scaling", "wanted_rows"]

TOLERANCE = 0.1
"""Part of the target by which the load may be above it, or would be above it after a removal."""
_MOST_GROWTH = 2
"""Factor by which one decision adds rows at most: one measurement may be wrong."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Between what the number of rows is, and how fast it falls. Raises ConfigError."""

    min_rows: int
    max_rows: int
    target_load: float
    """Requests in flight of a leaf, as a part of its limit, that are wanted in the busiest group."""
    shrink_after_s: float
    """Time in which all measurements must want fewer rows before one is removed."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_rows <= self.max_rows:
            raise ConfigError(
                f"max_rows: must be at least min_rows, {max(self.min_rows, 1)}, got {self.max_rows}",
                field="max_rows",
            )
        if not 0 < self.target_load <= 1:
            raise ConfigError(
                f"target_load: must be above 0 and at most 1, got {self.target_load:g}", field="target_load"
            )


def wanted_rows(rows: int, demand: float, limits: Limits) -> int:
    """Return the number of rows for a load.

    Args:
        rows: that there are.
        demand: load of all leaves of the busiest group together: 1.5 are one leaf and a half at their limit.
        limits: the target and the bounds.

    """
    target = limits.target_load
    if demand <= rows * target * (1 + TOLERANCE):
        # With this many rows the load would not rise above the target, so that none is added again.
        wanted = min(rows, math.ceil(demand / target - 1e-9))
    else:
        wanted = min(math.ceil(demand / target - 1e-9), rows * _MOST_GROWTH)
    return min(max(wanted, limits.min_rows), limits.max_rows)


class Scaling:
    """Decides from one measurement after the other."""

    def __init__(self, limits: Limits) -> None:
        """Begin without a history: for `shrink_after_s` nothing is removed."""
        self._limits = limits
        self._wanted: deque[tuple[float, int]] = deque()
        """Times of measurements, and the rows that each wanted; the first one is at least `shrink_after_s` old."""

    def decide(self, now_s: float, rows: int, demand: float) -> int:
        """Return the number of rows that there should be: one less than now at least.

        Args:
            now_s: time of the measurement, by a clock that only goes forward.
            rows: that there are.
            demand: as `wanted_rows`.

        """
        wanted = wanted_rows(rows, demand, self._limits)
        self._wanted.append((now_s, wanted))
        since_s = now_s - self._limits.shrink_after_s
        while len(self._wanted) > 1 and self._wanted[1][0] <= since_s:
            self._wanted.popleft()
        if wanted >= rows:
            return wanted
        long_enough = self._wanted[0][0] <= since_s
        return rows - 1 if long_enough and max(each for _, each in self._wanted) < rows else rows

    def changed(self) -> None:
        """Forget the history: it was measured with another number of rows."""
        self._wanted.clear()
