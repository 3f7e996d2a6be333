"""The right to work: as many requests have it at once as a process has threads for."""

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
    """Nobody waits for the answer any more: the caller hung up."""


class Permit:
    """A turn, awaited no longer than the deadline. A context manager, which raises GoneError if the caller is gone."""

    __slots__ = ("_held", "_token", "_turns", "deadline", "on_end", "wanted")

    def __init__(
        self,
        turns: threading.Semaphore,
        deadline: Deadline,
        wanted: Callable[[], bool],
        on_end: Callable[[Callable[[], None]], bool] | None = None,
    ) -> None:
        self._turns = turns
        self._held = False
        self.deadline = deadline
        """Of the request."""
        self.wanted = wanted
        """Whether somebody still waits for the answer."""
        self.on_end = on_end
        """Registers what is called when the call ends, however it does; False: it has ended already."""

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
        """Let another request work while this one waits for something, or has next to nothing left to do."""
        if self._held:
            self._held = False
            self._turns.release()

    def resume(self) -> None:
        """Go on."""
        if not self._turns.acquire(timeout=min(self.deadline.remaining_s, threading.TIMEOUT_MAX)):
            raise DeadlineError("the deadline passed while the request waited for its turn")
        self._held = True

    def insist(self) -> None:
        """Go on, however late it is."""
        self._turns.acquire()
        self._held = True


_CURRENT: ContextVar[Permit | None] = ContextVar("scannery_turn", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Give the turn of the current request back for a while, if it has one."""
    turn = _CURRENT.get()
    if turn is None:
        yield
        return
    turn.pause()
    try:
        yield
    finally:
        turn.insist()


def current_permit() -> Permit | None:
    """Return the turn of the current request; None outside of one."""
    return _CURRENT.get()


def still_wanted() -> Callable[[], bool]:
    """Return what tells whether somebody waits for the answer to the current request."""
    turn = _CURRENT.get()
    return turn.wanted if turn else _always


def _always() -> bool:
    return True
