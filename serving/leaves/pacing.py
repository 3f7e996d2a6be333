"""How long calls to leaves take, and when a second one is sent.

The decaying average after Finagle's load balancer; hedging after Dean and Barroso, "The Tail at Scale" (2013).
"""

from __future__ import annotations

import math
from collections import deque

__all__ = ["FIRST_DELAY_S", "HedgeBudget", "LatencyAverage", "LatencyWindow"]

FIRST_DELAY_S = 0.1
"""A call is slow after this time where too few have been answered to tell."""

_DECAY_S = 5.0
_WEIGHT = 0.1
_WINDOW, _LEAST, _EVERY = 256, 20, 16
_QUANTILE = 0.95
_LEAST_DELAY_S = 0.001
"""Below it, a second call costs more than the wait."""


class LatencyAverage:
    """The average latency of a replica, in seconds, in which later calls count more.

    It decays while the replica is not asked, so that one that was slow is tried again.
    """

    def __init__(self) -> None:
        self._value_s = 0.0
        self._at_s = 0.0

    def add(self, latency_s: float, now_s: float) -> None:
        """Count a call that ended now."""
        old_s = self.at(now_s)
        self._value_s = old_s + _WEIGHT * (latency_s - old_s) if old_s else latency_s
        self._at_s = now_s

    def at(self, now_s: float) -> float:
        """Return the average at a time; 0: no call was counted."""
        return self._value_s * math.exp(-(now_s - self._at_s) / _DECAY_S) if self._value_s else 0.0


class LatencyWindow:
    """The latest latencies of one method of a group."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_WINDOW)
        self._added = 0
        self.slow_after_s = FIRST_DELAY_S
        """The 95th percentile, computed after every 16 values: sorting takes 15 µs."""

    def add(self, latency_s: float) -> None:
        """Count a call."""
        self._latest.append(latency_s)
        self._added += 1
        if self._added >= _LEAST and self._added % _EVERY == 0:
            ordered = sorted(self._latest)
            self.slow_after_s = max(_LEAST_DELAY_S, ordered[math.ceil(_QUANTILE * len(ordered)) - 1])


class HedgeBudget:
    """Allows a second call for a share of the calls: each call saves a part of one, up to a few."""

    def __init__(self, share: float = 0.05, most: float = 10.0) -> None:
        """Begin with all that can be saved: the first leaf that hangs may do so before many calls.

        Args:
            share: of calls.
            most: second calls that can be saved.

        """
        self._share, self._most = share, most
        self._saved = most

    def save(self) -> None:
        """Count a call."""
        self._saved = min(self._most, self._saved + self._share)

    def take(self, *, keep: float = 0) -> bool:
        """Return whether a second call is allowed when `keep` others stay saved, and count it."""
        if self._saved < 1 + keep:
            return False
        self._saved -= 1
        return True
