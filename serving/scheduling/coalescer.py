"""Concurrent items of work, done in batches by their callers (leader and followers).

Up to `concurrency` callers work at once, each on its own item. Further callers wait; when a batch ends, the first
waiter becomes a leader and takes the waiting items with the same key into its batch. So an item that comes alone waits
for nothing, batches grow with the load, and no thread is switched to for a single item.

Threads for calls, of which the one that ended last goes on first.

`concurrent.futures` hands work to the thread that is idle longest: a few calls at once wander over all threads that a
burst has made, and each finds its stack and its share of the heap out of the processor's cache. Besides, its futures
cost a call as much as decoding it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.scheduling.permits import CallerGoneError, current_permit, still_wanted

__all__ = ["CallThreads", "Coalescer"]


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class _Waiter(Generic[ItemT, ResultT]):
    """An item that waits, and what becomes of it."""

    __slots__ = ("deadline", "error", "is_wanted", "item", "key", "leads", "result", "wake", "weight")

    def __init__(self, key: object, item: ItemT, deadline: Deadline, weight: int) -> None:
        self.key, self.item, self.deadline, self.weight = key, item, deadline, weight
        self.is_wanted = still_wanted()
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
    if waiter.is_wanted():
        return False
    waiter.error = CallerGoneError()
    waiter.wake.release()
    return True


_LOG = logging.getLogger(__name__)


class _Call:
    """One call: the part of a future that gRPC uses."""

    __slots__ = ("_callbacks", "_ended", "_lock", "arguments", "work")

    def __init__(self, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.work, self.arguments = work, arguments
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Any], object]] = []
        self._ended = False

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        with self._lock:
            if not self._ended:
                self._callbacks.append(callback)
                return
        callback(self)

    def run(self) -> None:
        try:
            self.work(*self.arguments)
        except BaseException:  # noqa: BLE001  the thread serves further calls
            _LOG.exception("a call ended its thread's work")
        with self._lock:
            self._ended = True
        for callback in self._callbacks:
            callback(self)


class _Thread:
    __slots__ = ("call", "wake")

    def __init__(self, call: _Call | None) -> None:
        self.call = call
        """None: end."""
        self.wake = threading.Lock()
        self.wake.acquire()


class CallThreads:
    """A pool of threads, started when they are needed. Calls beyond its size wait in their order."""

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._waiting: deque[_Call] = deque()
        self._count = 0
        self._closed = False

    def submit(self, work: Callable[..., object], /, *arguments: Any) -> _Call:
        """Run `work(*arguments)` in a thread; RuntimeError after `close`."""
        call = _Call(work, arguments)
        with self._lock:
            if self._closed:
                raise RuntimeError("the thread pool is closed")
            if self._idle:
                thread = self._idle.pop()
                thread.call = call
                thread.wake.release()
                return call
            if self._count == self._size:
                self._waiting.append(call)
                return call
            self._count += 1
            name = f"{self._name}_{self._count}"
        try:
            threading.Thread(target=self._run, args=(_Thread(call),), name=name, daemon=True).start()
        except RuntimeError:  # the system has no more of them now; it may later
            with self._lock:
                self._count -= 1
            raise
        return call

    def close(self) -> None:
        """Refuse further calls, and end each thread when it is idle."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.call = None
            thread.wake.release()

    def _run(self, thread: _Thread) -> None:
        while (call := thread.call) is not None:
            call.run()
            # Free what the call refers to before the thread waits.
            del call
            thread.call = None
            if not self._has_next(thread):
                thread.wake.acquire()

    def _has_next(self, thread: _Thread) -> bool:
        """Set the next call of the thread, or None to end it; False: the thread has to wait."""
        with self._lock:
            if self._waiting:
                thread.call = self._waiting.popleft()
                return True
            if self._closed:
                return True
            self._idle.append(thread)
            return False
