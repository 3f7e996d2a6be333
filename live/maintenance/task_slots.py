"""Bound how many tasks of maintenance a process runs at once, in the order in which they became due."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable

__all__ = ["TaskSlots"]

PATIENCE_S = 60.0
"""Who has not asked again for so long, as an idle client, keeps no place in the queue."""


class TaskSlots:
    """Slots for tasks. Safe to use from several threads; a forked process has all of them free."""

    def __init__(self, count: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with all slots free.

        Args:
            count: of slots.
            clock: seconds.

        """
        self._count, self._clock = count, clock
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._free = self._count
        self._waiting: dict[Hashable, float] = {}
        """When each that waits last asked, in the order of the queue."""

    def take(self, asker: Hashable) -> bool:
        """Take a slot, and return whether there was one; otherwise the asker keeps its place until it asks again."""
        with self._lock:
            now_s = self._clock()
            self._waiting[asker] = now_s
            if not self._free:
                return False
            self._waiting = {
                each: asked_s for each, asked_s in self._waiting.items() if now_s - asked_s < PATIENCE_S
            }
            if list(self._waiting).index(asker) >= self._free:
                return False
            del self._waiting[asker]
            self._free -= 1
            return True

    def leave(self, asker: Hashable) -> None:
        """Give up a place in the queue, if there is one."""
        with self._lock:
            self._waiting.pop(asker, None)

    def give_back(self) -> None:
        """Give back a slot."""
        with self._lock:
            # A forked process may give back what its parent took.
            self._free = min(self._count, self._free + 1)
