"""The processes of a server: those that serve, those that replace them at a reload, and those that are ending.

Bookkeeping only; supervisor.py starts and ends them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["WORKER", "Generations", "Process"]

WORKER = "worker"
"""The role of processes that serve. Processes of other roles hold nothing that changes, and a reload keeps them."""

SharedT = TypeVar("SharedT")


@dataclass(slots=True)
class Process:
    """One that was started and has not ended."""

    role: str
    generation: int
    slot: int
    started_s: float = field(default_factory=time.monotonic)
    ready: bool = False
    leaving: bool = False
    kill_at_s: float = math.inf
    """When it is killed if it has not ended, by the monotonic clock."""


class Generations(Generic[SharedT]):
    """The processes of a server, by number. A reload begins a generation; both are kept up until the new one answers.

    Each generation has what its workers share: one that was started before the reload must not open what came with it.
    """

    def __init__(self, wanted: Mapping[str, int], shared: SharedT) -> None:
        """Start without processes.

        Args:
            wanted: number of processes of each role.
            shared: what the first workers share.

        """
        self._wanted = wanted
        self._standing = self._newest = 0
        self._shared = {0: shared}
        self.processes: dict[int, Process] = {}

    @property
    def newest(self) -> int:
        """The generation that serves, or is to."""
        return self._newest

    @property
    def reloading(self) -> bool:
        """Whether one generation is to take over from another."""
        return self._newest != self._standing

    @property
    def standing_shared(self) -> SharedT:
        """What the workers share that serve now."""
        return self._shared[self._standing]

    def shared(self, process: Process) -> SharedT:
        """Return what a worker shares with the others of its generation."""
        return self._shared[process.generation]

    def missing(self) -> list[tuple[str, int]]:
        """Return role and generation of each process that should be there and is not, those that serve first."""
        return [
            (role, generation)
            for generation in dict.fromkeys((self._standing, self._newest))
            for role in self._wanted
            for _ in range(self._wanted[role] - len(list(self._there(role, generation))))
            if role == WORKER or generation == self._newest
        ]

    def answering(self) -> bool:
        """Return whether every process of the newest generation is there and ready."""
        return all(
            len(there := list(self._there(role, self._newest))) == count and all(p.ready for p in there)
            for role, count in self._wanted.items()
        )

    def begin(self, shared: SharedT) -> None:
        """Begin a generation, whose workers share something else."""
        self._newest += 1
        self._shared[self._newest] = shared

    def take_over(self) -> dict[int, Process]:
        """Let the newest generation stand, and return the workers of the one before."""
        before, self._standing = self._standing, self._newest
        self._shared = {self._newest: self._shared[self._newest]}
        return self._workers_of(before)

    def give_up(self) -> dict[int, Process]:
        """Forget the newest generation, and return its workers."""
        given_up = self._workers_of(self._newest)
        del self._shared[self._newest]
        self._newest = self._standing
        return given_up

    def overdue(self) -> dict[int, Process]:
        """Return the processes that should have left by now."""
        now_s = time.monotonic()
        return {pid: p for pid, p in self.processes.items() if p.kill_at_s <= now_s}

    def next_kill_s(self) -> float:
        """Return when the next one is overdue; infinite if none leaves."""
        return min((process.kill_at_s for process in self.processes.values()), default=math.inf)

    def _there(self, role: str, generation: int) -> Iterator[Process]:
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
