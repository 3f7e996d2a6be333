"""Permits that bound how many requests run at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import DeadlineError
from scannery.serving.telemetry.tracing import span

__all__ = ["CallerGoneError", "Permit", "current_permit", "still_wanted", "waiting"]


class CallerGoneError(Exception):
    """The caller hung up."""


class Permit:
    """The permit of a request: a context that waits for it, and raises CallerGoneError if the caller hung up."""

    __slots__ = ("_held", "_permits", "_token", "deadline", "on_end", "wanted")

    def __init__(
        self,
        permits: threading.Semaphore,
        deadline: Deadline,
        wanted: Callable[[], bool],
        on_end: Callable[[Callable[[], None]], bool] | None = None,
    ) -> None:
        """Take no permit yet.

        Args:
            permits: those of the process.
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
