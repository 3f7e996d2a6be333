"""Concurrent items of work, done in batches by their callers (leader and followers).

Up to `concurrency` callers work at once, each on its own item. Further callers wait; when a batch ends, the first
waiter becomes a leader and takes the waiting items with the same key into its batch. So an item that comes alone waits
for nothing, batches grow with the load, and no thread is switched to for a single item.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import DeadlineError
from scannery.serving.scheduling.permits import CallerGoneError, current_permit, still_wanted

__all__ = ["Coalescer"]

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class _Waiter(Generic[ItemT, ResultT]):
    """An item that waits, and what becomes of it."""

    __slots__ = ("deadline", "error", "item", "key", "leads", "result", "wake", "wanted", "weight")

    def __init__(self, key: object, item: ItemT, deadline: Deadline, weight: int) -> None:
        self.key, self.item, self.deadline, self.weight = key, item, deadline, weight
        self.wanted = still_wanted()
        self.leads = False
        self.result: tuple[ResultT] | None = None
        self.error: Exception | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class Coalescer(Generic[ItemT, ResultT]):
    """Runs work on items in batches. Safe to use from several threads."""

    def __init__(self, *, concurrency: int, max_weight: int) -> None:
        """Start without work.

        Args:
            concurrency: batches that run at once.
            max_weight: of the items of a batch of several.

        """
        self._concurrency, self._max_weight = concurrency, max_weight
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: deque[_Waiter[ItemT, ResultT]] = deque()

    def run(
        self,
        key: object,
        item: ItemT,
        deadline: Deadline,
        work: Callable[[Sequence[ItemT], Deadline], Sequence[ResultT]],
        *,
        weight: int = 1,
    ) -> ResultT:
        """Return the result of `work` for an item. While the item waits, its request holds no permit.

        Args:
            key: items of a batch have the identical key.
            item: the item.
            deadline: of the item; that of a batch is the latest of its items.
            work: returns a result for each item of a batch; called without locks in the thread of one of the callers.
            weight: of the item.

        Raises:
            DeadlineError: the deadline passed while the item waited.
            CallerGoneError: the caller hung up while the item waited.
            Exception: what `work` raises for this item alone.

        """
        with self._lock:
            waits = self._running >= self._concurrency
            if waits:
                waiter: _Waiter[ItemT, ResultT] = _Waiter(key, item, deadline, weight)
                self._waiting.append(waiter)
            else:
                self._running += 1
        if not waits:
            try:
                return work([item], deadline)[0]
            finally:
                self._release()
        self._wait(waiter)
        if waiter.leads:
            self._lead(waiter, work)
        if waiter.result is not None:
            return waiter.result[0]
        raise waiter.error or RuntimeError("the thread that worked on the batch was ended")

    def _wait(self, waiter: _Waiter[ItemT, ResultT]) -> None:
        if permit := current_permit():
            permit.pause()
        if waiter.wake.acquire(timeout=min(waiter.deadline.remaining_s, threading.TIMEOUT_MAX)):
            return
        with self._lock:
            leads = waiter.leads
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        if leads:
            self._release()
        raise DeadlineError("the deadline passed while the request waited for its turn")

    def _lead(
        self,
        leader: _Waiter[ItemT, ResultT],
        work: Callable[[Sequence[ItemT], Deadline], Sequence[ResultT]],
    ) -> None:
        """Work on a batch, and wake its followers."""
        followers = self._followers(leader)
        try:
            _work([leader, *followers], work)
        finally:
            self._release()
            for follower in followers:
                follower.wake.release()

    def _followers(self, leader: _Waiter[ItemT, ResultT]) -> list[_Waiter[ItemT, ResultT]]:
        """Take the waiters with the leader's key, in their order, as far as the weight allows."""
        taken: list[_Waiter[ItemT, ResultT]] = []
        weight = leader.weight
        with self._lock:
            for _ in range(len(self._waiting)):
                waiter = self._waiting.popleft()
                if _dropped(waiter):
                    continue
                if waiter.key is leader.key and weight + waiter.weight <= self._max_weight:
                    weight += waiter.weight
                    taken.append(waiter)
                else:
                    self._waiting.append(waiter)
        return taken

    def _release(self) -> None:
        """Wake the first waiter as a leader, or end with one batch less."""
        with self._lock:
            while self._waiting:
                first = self._waiting.popleft()
                if not _dropped(first):
                    first.leads = True
                    first.wake.release()
                    return
            self._running -= 1


def _work(
    batch: Sequence[_Waiter[ItemT, ResultT]],
    work: Callable[[Sequence[ItemT], Deadline], Sequence[ResultT]],
) -> None:
    """Set the result or the error of each item."""
    try:
        deadline = max((each.deadline for each in batch), key=lambda each: each.at_s)
        results = work([each.item for each in batch], deadline)
        for each, result in zip(batch, results, strict=True):
            each.result = (result,)
    except Exception as error:  # noqa: BLE001  raised by the caller of the item
        if len(batch) == 1:
            batch[0].error = error
            return
        # One item may be at fault: each one by itself tells which.
        for each in batch:
            _work([each], work)


def _dropped(waiter: _Waiter[ItemT, ResultT]) -> bool:
    """Return whether the caller of an item hung up; if so, wake it."""
    if waiter.wanted():
        return False
    waiter.error = CallerGoneError()
    waiter.wake.release()
    return True
