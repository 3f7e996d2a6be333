"""How long the latest searches of a kind took, by which the next ones are expected to be quick or not."""

from __future__ import annotations

from collections import deque

__all__ = ["QUICK_S", "SearchTimes"]

QUICK_S = 0.002
"""A search that takes no longer may run on the event loop: other requests wait for it there."""
LATEST = 8


class SearchTimes:
    """The times of the latest searches. Safe to use from several threads."""

    __slots__ = ("_latest_s", "_may_be_slow")

    def __init__(self, *, alike: bool) -> None:
        """Begin without any.

        Args:
            alike: whether all do the same work. Then the fastest one tells how long they take, since a slow one says
                more about the machine. Of searches that differ, all but one must have been quick.

        """
        self._latest_s: deque[float] = deque(maxlen=LATEST)
        self._may_be_slow = LATEST - 1 if alike else 1

    def add(self, seconds: float) -> None:
        """Record how long a search took."""
        self._latest_s.append(seconds)

    @property
    def are_quick(self) -> bool:
        """Whether a search is expected to take at most QUICK_S; not without a measurement."""
        latest_s = list(self._latest_s)
        quick = sum(seconds <= QUICK_S for seconds in latest_s)
        return quick > 0 and len(latest_s) - quick <= self._may_be_slow
