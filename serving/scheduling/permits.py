"""Permits that bound how many requests run at once.

Callers who wait take turns, however many requests each of them has. While others wait, a caller gets no more permits
than its share. A caller that holds none gets one at once while no more than `most` callers hold any, so that slow
requests of a few never stop the others.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import DeadlineError
from scannery.serving.telemetry.tracing import span

__all__ = ["CallerGoneError", "Permit", "Permits", "current_permit", "still_wanted", "waiting"]


class CallerGoneError(Exception):
    """The caller hung up."""


class Turns(Protocol):
    """Permits as one caller sees them; a semaphore is such."""

    def acquire(self, *, timeout: float | None = None) -> bool:
        """Take a permit; return False if none was free in time. None: wait for ever."""

    def release(self) -> None:
        """Give a permit back."""


class _Waiter:
    __slots__ = ("granted", "wake")

    def __init__(self) -> None:
        self.granted = False
        self.wake = threading.Lock()
        self.wake.acquire()


class Permits:
    """Permits of a process: `most` for any caller, and one for each of as many callers that hold none.

    Safe to use from several threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        """Permits by account."""
        self._taken = 0
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        """Requests that wait, by account; the account whose turn it is comes first."""

    def of(self, account: str) -> Turns:
        """Return the permits for an account."""
        return _Turns(self, account)

    def acquire(self, account: str, timeout_s: float | None = None) -> bool:
        """Take a permit for an account; return False if none was free in time. None: wait for ever."""
        with self._lock:
            if account not in self._waiting and self._may_take(account):
                self._take(account)
                return True
            waiter = _Waiter()
            self._waiting.setdefault(account, deque()).append(waiter)
        if waiter.wake.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return True
        with self._lock:
            if waiter.granted:
                return True
            self._waiting[account].remove(waiter)
            if not self._waiting[account]:
                del self._waiting[account]
            # The shares of the others are larger without it.
            self._grant()
            return False

    def release(self, account: str) -> None:
        """Give a permit back."""
        with self._lock:
            self._taken -= 1
            self._held[account] -= 1
            if not self._held[account]:
                del self._held[account]
            if self._waiting:
                self._grant()

    def _grant(self) -> None:
        while account := next((each for each in self._waiting if self._may_take(each)), None):
            waiters = self._waiting[account]
            waiter = waiters.popleft()
            if waiters:
                self._waiting.move_to_end(account)
            else:
                del self._waiting[account]
            self._take(account)
            waiter.granted = True
            waiter.wake.release()

    def _take(self, account: str) -> None:
        self._taken += 1
        self._held[account] = self._held.get(account, 0) + 1

    def _may_take(self, account: str) -> bool:
        held = self._held.get(account, 0)
        if not held:
            return len(self._held) <= self._most
        if self._taken >= self._most:
            return False
        others = len(self._waiting) - (account in self._waiting)
        if not others:
            return True
        callers = len(self._waiting.keys() | self._held.keys())
        return held < math.ceil(self._most / callers)


@dataclass(frozen=True, slots=True)
class _Turns:
    permits: Permits
    account: str

    def acquire(self, *, timeout: float | None = None) -> bool:
        return self.permits.acquire(self.account, timeout)

    def release(self) -> None:
        self.permits.release(self.account)


class Permit:
    """The permit of a request: a context that waits for it, and raises CallerGoneError if the caller hung up."""

    __slots__ = ("_held", "_permits", "_token", "deadline", "on_end", "wanted")

    def __init__(
        self,
        permits: Turns,
        deadline: Deadline,
        wanted: Callable[[], bool],
        on_end: Callable[[Callable[[], None]], bool] | None = None,
    ) -> None:
        """Take no permit yet.

        Args:
            permits: those of the process, for its caller.
            deadline: of the request; ends the wait.
            wanted: returns whether the caller still waits for the answer.
            on_end: registers a callback for the end of the call, answered or not; False: the call has ended already.

        """
        self._permits = permits
        self._held = False
        self.deadline, self.wanted, self.on_end = deadline, wanted, on_end

    def __enter__(self) -> None:
        with span("scannery.queue"):
            self.resume()
        if not self.wanted():
            self.pause()
            raise CallerGoneError
        self._token = _CURRENT.set(self)

    def __exit__(self, *error: object) -> None:
        _CURRENT.reset(self._token)
        self.pause()

    def pause(self) -> None:
        """Release the permit while the request waits, or has next to nothing left to do."""
        if self._held:
            self._held = False
            self._permits.release()

    def resume(self) -> None:
        """Take the permit again; DeadlineError if that takes too long."""
        if not self._permits.acquire(timeout=min(self.deadline.remaining_s, threading.TIMEOUT_MAX)):
            raise DeadlineError("the deadline passed while the request waited for its turn")
        self._held = True

    def insist(self) -> None:
        """Take the permit again, without a deadline."""
        self._permits.acquire()
        self._held = True


_CURRENT: ContextVar[Permit | None] = ContextVar("scannery_permit", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Release the permit of the current request, if it has one, inside the context."""
    permit = _CURRENT.get()
    if permit is None:
        yield
        return
    permit.pause()
    try:
        yield
    finally:
        permit.insist()


def current_permit() -> Permit | None:
    """Return the permit of the current request; None outside of one."""
    return _CURRENT.get()


def still_wanted() -> Callable[[], bool]:
    """Return the function that tells whether the caller of the current request still waits."""
    permit = _CURRENT.get()
    return permit.wanted if permit else _always


def _always() -> bool:
    return True
