"""Processor time for work in the background: one budget, and one way to give way to requests.

Time is saved up at a share of a core. A process is busy while requests are in flight, and while they took much of a
core lately: work then comes in small units with pauses between them, which are longer the longer a unit took.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["SpareTime", "machine_is_idle"]

SHARE = 0.05
"""Most share of a core for this work, over time."""
SHARE_BUSY = 0.02
"""The same of a busy process where nothing is urgent."""
SHARE_URGENT = 0.5
"""The same while something is urgent, and the process is idle."""
MOST_SAVED_S = 2.0
"""Seconds of work that may be saved up."""
AMPLE_S = 0.1
"""Saved seconds from which on there is time for more than what is needed."""
BUSY_LOAD = 0.15
"""Share of a core for requests from which on a process is busy, even if none is in flight at the moment."""
LOAD_S = 0.25
"""Seconds over which it is measured."""
LEAST_PAUSE_S = 0.5
"""Shortest pause between two units of work of a busy process."""
GIVE_WAY = 5
GIVE_WAY_S = 0.001
"""Waits between two steps of a unit of work, each of this many seconds, while requests are in flight."""
LOW_PRIORITY = 19
IDLE_LOAD = 0.2
"""Share of its processors that an idle machine uses."""


class SpareTime:
    """The budget of one thread. Other threads may read `is_ample`."""

    def __init__(self, requests_in_flight: Callable[[], int]) -> None:
        """Begin without saved time; `requests_in_flight` returns how many requests run."""
        self._in_flight = requests_in_flight
        self.is_urgent = False
        """Whether more of a core may be taken; set by the work itself."""
        self._saved_s = self._spent_s = self._load = self._used_here_s = 0.0
        self._next_s = self._saved_at_s = self._measured_at_s = time.monotonic()
        self._used_s = time.process_time()

    def refresh(self) -> None:
        """Save up time since the last call, and measure what requests take."""
        # On Linux a priority belongs to a thread.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        now_s = time.monotonic()
        share = SHARE_URGENT if self.is_urgent else SHARE
        self._saved_s = min(self._saved_s + share * (now_s - self._saved_at_s), MOST_SAVED_S)
        self._saved_at_s = now_s
        if (wall_s := now_s - self._measured_at_s) >= LOAD_S:
            used_s = time.process_time()
            self._load = (used_s - self._used_s - self._used_here_s) / wall_s
            self._measured_at_s, self._used_s, self._used_here_s = now_s, used_s, 0.0

    @property
    def requests_run(self) -> bool:
        """Whether requests are in flight at this moment."""
        return self._in_flight() > 0

    @property
    def is_busy(self) -> bool:
        """Whether requests take, or took lately, so much that work should be done in small units."""
        return self.requests_run or self._load > BUSY_LOAD

    @property
    def is_ample(self) -> bool:
        """Whether there is time for more than what is needed."""
        return self._saved_s >= AMPLE_S

    @property
    def is_available(self) -> bool:
        """Whether a unit of work may begin."""
        return self._saved_s > 0 and (not self.is_busy or time.monotonic() >= self._next_s)

    @contextmanager
    def spend(self, *, pause: bool = True) -> Iterator[None]:
        """Give a context whose processor time is taken from the budget; `pause`: a busy process pauses after it."""
        started_s, self._spent_s = time.thread_time(), 0.0
        try:
            yield
        finally:
            thread_s = time.thread_time() - started_s
            spent_s = self._spent_s + thread_s
            self._used_here_s += thread_s
            self._saved_s -= spent_s
            if pause:
                share = SHARE if self.is_urgent else SHARE_BUSY
                self._next_s = time.monotonic() + max(LEAST_PAUSE_S, spent_s / share)

    @contextmanager
    def with_helpers(self) -> Iterator[None]:
        """Give a context, inside that of `spend`, whose work may run in several threads."""
        started_s, worked_s, here_s = time.monotonic(), time.process_time(), time.thread_time()
        try:
            yield
        finally:
            # Other threads may answer requests meanwhile, and other processes may have had the core.
            spent_s = min(time.monotonic() - started_s, time.process_time() - worked_s)
            self._spent_s += max(0.0, spent_s - (time.thread_time() - here_s))

    def give_way(self) -> None:
        """Wait a little while requests are in flight: this thread holds the interpreter between two steps."""
        for _ in range(GIVE_WAY):
            if not self.requests_run:
                return
            time.sleep(GIVE_WAY_S)


def machine_is_idle() -> bool:
    """Return whether the machine had little to do in the last minute, in this process and all others."""
    return os.getloadavg()[0] < IDLE_LOAD * (os.cpu_count() or 1)
