"""Processes that compute on the same cores, such as the workers of a server.

A short text takes a quarter less time on two cores than on one. But OpenMP's threads spin while they wait for each
other, and two processes that both use all cores keep the one off the cores that the other waits for: on two cores, a
text took ten times as long as on one. So a process that finds others at work keeps to one core, and for a while.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Neighbours", "computing", "live_with"]

WARY_S = 0.05
"""After others were found at work: who came at the same time as they once will again, while there is load."""


class Neighbours:
    """Which of some processes compute. Shared memory: made before they are forked."""

    def __init__(self, count: int) -> None:
        self._working = mmap.mmap(-1, count)

    def work(self, number: int, *, works: bool) -> None:
        """Say whether a process, by its number, is at work."""
        self._working[number] = works

    def others_work(self, number: int) -> bool:
        """Return whether any but this process computes."""
        return self._working[:].count(1) > self._working[number]


class _Here:
    """Where a process is among its neighbours, if it has any."""

    neighbours: Neighbours | None = None
    number = 0
    wary_until_s = 0.0


def live_with(neighbours: Neighbours, number: int) -> None:
    """Heed these from now on; the number of each process is its own."""
    # Whoever had it before may have died at work.
    neighbours.work(number, works=False)
    _Here.neighbours, _Here.number = neighbours, number


@contextmanager
def computing() -> Iterator[bool]:
    """Compute; gives whether all cores may be used for it."""
    neighbours = _Here.neighbours
    if neighbours is None:
        yield True
        return
    now_s = time.monotonic()
    neighbours.work(_Here.number, works=True)
    try:
        if neighbours.others_work(_Here.number):
            _Here.wary_until_s = now_s + WARY_S
        yield now_s >= _Here.wary_until_s
    finally:
        neighbours.work(_Here.number, works=False)
