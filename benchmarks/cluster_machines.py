"""Processors, processes and times of work in the model of a cluster: queues for cores, and pauses."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Events", "Host", "Job", "Process", "Work", "still"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """How long things take, in seconds of a processor that nothing else uses."""

    root_s: float
    """At the root for each query, half of it before leaves are asked."""
    root_group_s: float
    """At the root for each group, half of it before leaves are asked."""
    leaf_s: float
    """At a leaf for each query."""
    caller_s: float = 0.0
    """At the caller; it counts where all processes share the cores."""
    hop_s: float = 0.0001
    """From one process to another: network, and until the other runs."""
    variation: float = 0.3
    """Standard deviation over mean, of the work of a leaf and of hops; lognormal."""
    pauses_per_s: float = 0.0
    """Of each leaf: collections of garbage, neighbours, disks."""
    pause_s: tuple[float, float] = (0.01, 0.06)
    """Shortest and longest."""


class Events:
    """What happens when."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()

    def after(self, delay_s: float, what: Callable[..., None], *arguments: Any) -> None:
        """Call a function after a delay."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._count), what, arguments))

    def step(self) -> bool:
        """Do what happens next, and return whether there was anything."""
        if not self._heap:
            return False
        self.now_s, _, what, arguments = heapq.heappop(self._heap)
        what(*arguments)
        return True


@dataclass
class Job:
    """Some work of a process."""

    work_s: float
    done: Callable[[], None]
    process: Process
    cancelled: bool = False


class Host:
    """Some cores, and a queue before them."""

    def __init__(self, events: Events, cores: int) -> None:
        self._events, self._free = events, cores
        self._waiting: deque[Job] = deque()

    def add(self, job: Job) -> None:
        """Work on a job as soon as a core is free."""
        self._waiting.append(job)
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            job = self._waiting.popleft()
            if job.cancelled:
                job.process.ended(job)
                continue
            self._free -= 1
            self._events.after(job.process.ends_in_s(job.work_s), self._ended, job)

    def _ended(self, job: Job) -> None:
        self._free += 1
        job.process.ended(job)
        self._start()


class Process:
    """A process on a host, which uses some cores of it at most, and stands still at times."""

    def __init__(
        self, events: Events, host: Host, work: Work, cores: int, stops: Sequence[tuple[float, float]] = ()
    ) -> None:
        self._events, self._host, self._work, self._free = events, host, work, cores
        self._waiting: deque[Job] = deque()
        self._stops = deque(sorted(stops))
        self._drawn_s = self._gap_s()

    def run(self, work_s: float, done: Callable[[], None]) -> Job:
        """Do some work when a core of the process and one of the host are free, and call `done`."""
        job = Job(work_s, done, self)
        self._waiting.append(job)
        self._start()
        return job

    def ended(self, job: Job) -> None:
        """Give the core of a job back; a cancelled one may not have been worked on."""
        self._free += 1
        if not job.cancelled:
            job.done()
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            job = self._waiting.popleft()
            if not job.cancelled:
                self._free -= 1
                self._host.add(job)

    def ends_in_s(self, work_s: float) -> float:
        """Return when work that begins now ends, after the pauses that fall into it."""
        at_s, left_s = self._events.now_s, work_s
        self._draw(at_s + work_s)
        while self._stops and self._stops[0][1] <= at_s:
            self._stops.popleft()
        for begin_s, end_s in self._stops:
            if at_s + left_s <= begin_s:
                break
            left_s -= max(0.0, begin_s - at_s)
            at_s = max(at_s, end_s)
        return at_s + left_s - self._events.now_s

    def stopped_until_s(self) -> float:
        """Return the end of the pause of this moment; 0: there is none."""
        now_s = self._events.now_s
        return max((end_s for begin_s, end_s in self._stops if begin_s <= now_s < end_s), default=0.0)

    def _gap_s(self) -> float:
        return random.expovariate(self._work.pauses_per_s) if self._work.pauses_per_s else math.inf

    def _draw(self, until_s: float) -> None:
        while self._drawn_s <= until_s:
            end_s = self._drawn_s + random.uniform(*self._work.pause_s)
            self._stops.append((self._drawn_s, end_s))
            self._stops = deque(sorted(self._stops))
            self._drawn_s = end_s + self._gap_s()


def still(work: Work) -> Work:
    """Return the work of a process that does not pause."""
    return Work(root_s=work.root_s, root_group_s=work.root_group_s, leaf_s=work.leaf_s)
