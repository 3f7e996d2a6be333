"""Parts of one request on cores that are idle, besides the thread of the caller.

A helper thread takes a part at a time, and looks after each whether it lost time: to another thread that wanted the
core, or to one that wanted the interpreter. If it did, the cores are not idle. Then it leaves the rest to the caller,
and no request of this process is helped for a moment, which is longer each time that this happens again. So what a
single query may lose to the helpers is a part, now and then; and no process needs to know what the others do: the
kernel does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from scannery.runtime.retry import Backoff
from scannery.serving.scheduling.coalescer import CallThreads

__all__ = ["IdleCores"]

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")

LOST_SHARE = 0.15
"""Share of the time of a part that a helper on an idle core loses at most: the system needs some of it."""
LOST_S = 0.0003
"""Time that such a helper loses at most, however short the part."""
BUSY_S = 0.01
"""How long no request is helped after a helper lost more: about a batch, since on an idle machine this happens, too."""
MOST_BUSY_S = 0.16
"""The same where helpers have lost more again and again: the time doubles with each part that did, and halves with each
that did not."""


class IdleCores:
    """Runs parts of requests in threads. Safe to use from several threads."""

    def __init__(self, helpers: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start no thread yet.

        Args:
            helpers: most threads besides those of the callers, of all requests together; 0: there are none.
            clock: in seconds.

        """
        self._threads = CallThreads(max(1, helpers), "scannery-helper")
        self._free = threading.BoundedSemaphore(helpers) if helpers else None
        self._helpers = helpers
        self._pause = Backoff(first_s=BUSY_S, max_s=MOST_BUSY_S, clock=clock)

    @property
    def helps(self) -> bool:
        """Whether a request is likely to be helped now: no helper has lost time lately."""
        return self._helpers > 0 and self._pause.due

    def run(self, work: Callable[[PartT], ResultT], parts: Sequence[PartT]) -> list[ResultT]:
        """Return the results of `work` for all parts, in their order.

        The calling thread works on them, and helpers do while cores are idle. Parts are begun in their order. After an
        error no further part is begun, and the error of the first part with one is raised when no part runs any more.
        """
        request = _Request(work, parts)
        if len(parts) > 1:
            self._call_helpers(request, len(parts) - 1)
        request.work_off(_always)
        return request.results()

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def _call_helpers(self, request: _Request[PartT, ResultT], count: int) -> None:
        for _ in range(min(count, self._helpers)):
            if self._free is None or not self.helps or not self._free.acquire(blocking=False):
                return
            request.helpers += 1
            try:
                self._threads.submit(self._help, request)
            except RuntimeError:  # closed, or the system has no more threads
                request.helpers -= 1
                self._free.release()
                return

    def _help(self, request: _Request[PartT, ResultT]) -> None:
        assert self._free is not None
        try:
            request.work_off(self._was_idle)
        finally:
            self._free.release()
            request.note_end()

    def _was_idle(self, took_s: float, worked_s: float) -> bool:
        """Return whether a part that took so long, of which the thread worked so long, had a core for itself."""
        lost_s = took_s - worked_s
        if lost_s <= max(LOST_S, LOST_SHARE * took_s):
            self._pause.ease()
            return True
        self._pause.back_off()
        return False


class _Request(Generic[PartT, ResultT]):
    """The parts of one request, and what became of them."""

    def __init__(self, work: Callable[[PartT], ResultT], parts: Sequence[PartT]) -> None:
        self._work, self._parts = work, parts
        self._lock = threading.Lock()
        self._next = 0
        self._done: list[tuple[ResultT] | None] = [None] * len(parts)
        self._failed: dict[int, BaseException] = {}
        self._ends = threading.Semaphore(0)
        self.helpers = 0
        """Called, by the thread of the caller."""

    def work_off(self, goes_on: Callable[[float, float], bool]) -> None:
        """Work on parts until none is left, or `goes_on` returns False for the seconds that one took, and worked."""
        while (number := self._taken()) is not None:
            started_s, worked_s = time.perf_counter(), time.thread_time()
            try:
                self._done[number] = (self._work(self._parts[number]),)
            except BaseException as error:  # noqa: BLE001  raised in the thread of the caller
                with self._lock:
                    self._failed[number], self._next = error, len(self._parts)
                return
            if not goes_on(time.perf_counter() - started_s, time.thread_time() - worked_s):
                return

    def note_end(self) -> None:
        """Note that a helper has ended its work."""
        self._ends.release()

    def results(self) -> list[ResultT]:
        """Wait for the helpers, and return the results; raises the error of the first part with one."""
        for _ in range(self.helpers):
            self._ends.acquire()
        if self._failed:
            raise self._failed[min(self._failed)]
        return [done[0] for done in self._done if done is not None]

    def _taken(self) -> int | None:
        with self._lock:
            if self._next >= len(self._parts):
                return None
            self._next += 1
            return self._next - 1


def _always(took_s: float, worked_s: float) -> bool:
    return True
