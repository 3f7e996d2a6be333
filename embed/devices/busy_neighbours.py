"""Coordination of processes that compute on the same cores, such as the workers of a server.

A short text takes a quarter less time on two cores than on one. But OpenMP's threads spin while they wait for each
other, so two processes that both use all cores block each other: on two cores, a text took ten times as long as on one.
So a process that finds another one computing uses one core, for the next 50 ms too.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Neighbours", "computing", "live_with"]

ONE_CORE_S = 0.05
"""Seconds for which a process uses one core after it found another one computing: under load they will meet again."""


class Neighbours:
    """A flag in shared memory for each of some processes: whether it computes. Made before these are forked."""

    def __init__(self, count: int) -> None:
        """Make the flags, all unset.

        Args:
            count: number of processes, each with a slot from 0 to `count - 1`.

        """
        self._working = mmap.mmap(-1, count)

    def work(self, number: int, *, works: bool) -> None:
        """Set whether the process in slot `number` computes."""
        self._working[number] = works

    def others_work(self, number: int) -> bool:
        """Return whether a process in another slot than `number` computes."""
        return self._working[:].count(1) > self._working[number]


class _State:
    """The neighbours and the slot of this process."""

    neighbours: Neighbours | None = None
    number = 0
    one_core_until_s = 0.0
    """On the monotonic clock."""
    computing = 0
    """Threads of this process that do."""
    lock = threading.Lock()


def live_with(neighbours: Neighbours, number: int) -> None:
    """Register this process in slot `number`."""
    # A killed process that had this slot may have left its flag set.
    neighbours.work(number, works=False)
    _State.neighbours, _State.number = neighbours, number
    # A thread of the parent may have held the lock.
    _State.computing, _State.lock = 0, threading.Lock()


@contextmanager
def computing() -> Iterator[bool]:
    """Flag this process as computing within the context; give whether it may use all cores."""
    neighbours = _State.neighbours
    if neighbours is None:
        yield True
        return
    now_s = time.monotonic()
    _count(neighbours, 1)
    try:
        if neighbours.others_work(_State.number):
            _State.one_core_until_s = now_s + ONE_CORE_S
        yield now_s >= _State.one_core_until_s
    finally:
        _count(neighbours, -1)


def _count(neighbours: Neighbours, more: int) -> None:
    with _State.lock:
        _State.computing += more
        neighbours.work(_State.number, works=_State.computing > 0)
