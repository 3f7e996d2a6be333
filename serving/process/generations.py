"""Bookkeeping of a server's processes across reloads; supervisor.py starts and ends them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["WORKER", "Generations", "Process"]

WORKER = "worker"
"""The role of serving processes. A reload replaces these only; other roles hold no state that changes."""

SharedT = TypeVar("SharedT")


@dataclass(slots=True)
class Process:
    """A process that was started and has not ended."""

    role: str
    generation: int
    slot: int
    started_s: float = field(default_factory=time.monotonic)
    ready: bool = False
    leaving: bool = False
    kill_at_s: float = math.inf
    """Monotonic time after which it is killed if it still runs."""


class Generations(Generic[SharedT]):
    """The processes of a server by process id, in generations.

    A reload begins a generation; dead workers of both are restarted until the new one is ready. Each generation keeps
    its own shared state: a restarted worker of the old one must not open the state of the new one.
    """

    def __init__(self, wanted: Mapping[str, int], shared: SharedT) -> None:
        """Begin the first generation, without processes.

        Args:
            wanted: number of processes of each role.
            shared: state of the first generation.

        """
        self._wanted = wanted
        self._standing = self.newest = 0
        """Number of the generation that serves; of the newest one, ready or not."""
        self._shared = {0: shared}
        self.processes: dict[int, Process] = {}

    @property
    def reloading(self) -> bool:
        """Whether the newest generation has not taken over yet."""
        return self.newest != self._standing

    @property
    def standing_shared(self) -> SharedT:
        """Shared state of the generation that serves."""
        return self._shared[self._standing]

    def shared(self, process: Process) -> SharedT:
        """Return the shared state of a worker's generation."""
        return self._shared[process.generation]

    def missing(self) -> list[tuple[str, int]]:
        """Return role and generation of each process to be started, the serving generation first."""
        return [
            (role, generation)
            for generation in dict.fromkeys((self._standing, self.newest))
            for role in self._wanted
            for _ in range(self._wanted[role] - len(list(self._running(role, generation))))
            if role == WORKER or generation == self.newest
        ]

    def answering(self) -> bool:
        """Return whether every process of the newest generation is ready."""
        return all(
            len(running := list(self._running(role, self.newest))) == count and all(p.ready for p in running)
            for role, count in self._wanted.items()
        )

    def begin(self, shared: SharedT) -> None:
        """Begin a generation with the shared state of its workers."""
        self.newest += 1
        self._shared[self.newest] = shared

    def take_over(self) -> dict[int, Process]:
        """Make the newest generation the serving one, and return the workers of the one before."""
        before, self._standing = self._standing, self.newest
        self._shared = {self.newest: self._shared[self.newest]}
        return self._workers_of(before)

    def give_up(self) -> dict[int, Process]:
        """Forget the newest generation, and return its workers."""
        given_up = self._workers_of(self.newest)
        del self._shared[self.newest]
        self.newest = self._standing
        return given_up

    def overdue(self) -> dict[int, Process]:
        """Return the processes that are to be killed now."""
        now_s = time.monotonic()
        return {pid: p for pid, p in self.processes.items() if p.kill_at_s <= now_s}

    def next_kill_s(self) -> float:
        """Return when the next process is to be killed; infinite if none is."""
        return min((process.kill_at_s for process in self.processes.values()), default=math.inf)

    def _running(self, role: str, generation: int) -> Iterator[Process]:
        return (
            p
            for p in self.processes.values()
            if p.role == role and not p.leaving and (role != WORKER or p.generation == generation)
        )

    def _workers_of(self, generation: int) -> dict[int, Process]:
        return {
            pid: p
            for pid, p in self.processes.items()
            if p.role == WORKER and p.generation == generation and not p.leaving
        }
