"""Threads for calls, of which the one that ended last goes on first.

`concurrent.futures` hands work to the thread that is idle longest: a few calls at once wander over all threads that a
burst has made, and each finds its stack and its share of the heap out of the processor's cache. Besides, its futures
cost a call as much as decoding it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["CallThreads"]

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

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
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
            if self._count == self._most:
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
