"""How long the latest searches of a kind took, by which the next ones are expected to be quick or not."""

from __future__ import annotations

from collections import deque

__all__ = ["QUICK_S", "SearchTimes"]

QUICK_S = 0.002
"""A search that takes no longer may run on the event loop: other requests wait for it there."""
LATEST = 8


class SearchTimes:
    """The times of the latest searches. Safe to use from several threads."""

    __slots__ = ("_alike", "_latest_s")

    def __init__(self, *, alike: bool) -> None:
        """Begin without any.

        Args:
            alike: whether all do the same work. Then the fastest one tells how long they take, since a slow one says
                more about the machine. Of searches that differ, the mean does.

        """
        self._alike = alike
        self._latest_s: deque[float] = deque(maxlen=LATEST)

    def add(self, seconds: float) -> None:
        """Record how long a search took."""
        self._latest_s.append(seconds)

    @property
    def are_known(self) -> bool:
        """Whether there is any."""
        return bool(self._latest_s)

    @property
    def are_quick(self) -> bool:
        """Whether a search is expected to take at most QUICK_S; not without a measurement."""
        latest_s = self._latest_s
        if not latest_s:
            return False
        # Other threads add to these, but not within a call of C.
        return (min(latest_s) if self._alike else sum(latest_s) / len(latest_s)) <= QUICK_S
