"""Calls whose senders take too long, ended from outside: gRPC has no time limit for the arrival of a message."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from scannery.runtime.periodic_task import PeriodicTask

__all__ = ["CallTimeouts", "Cancellable"]

_LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
_TOO_LONG = "a call that took too long to arrive, or a stream that stayed too long,"
_NOT_ALLOWED = "a stream whose credentials are not good any more"


def _always() -> bool:
    return True


class Cancellable(Protocol):
    """What can be ended."""

    def cancel(self) -> object:
        """End it."""


Allowed: TypeAlias = Callable[[], bool]


class _Watch:
    __slots__ = ("_calls", "_key")

    def __init__(
        self,
        calls: dict[int, tuple[float, Cancellable, Allowed]],
        call: Cancellable,
        until_s: float,
        allowed: Allowed,
    ) -> None:
        self._calls, self._key = calls, id(self)
        calls[self._key] = (until_s, call, allowed)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._calls.pop(self._key, None)


class CallTimeouts(PeriodicTask):
    """Cancels what is watched for longer than it may take. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the thread; `clock` returns seconds."""
        super().__init__("call-timeouts", self._look, every_s=LOOK_EVERY_S)
        self._clock = clock
        # Single operations on a dict are atomic.
        self._calls: dict[int, tuple[float, Cancellable, Allowed]] = {}
        self.start()

    def watched(self, call: Cancellable, seconds: float, allowed: Allowed = _always) -> _Watch:
        """Return a context in which the call may stay for `seconds`, and while `allowed()`, asked at intervals."""
        return _Watch(self._calls, call, self._clock() + seconds, allowed)

    def _look(self) -> None:
        now_s = self._clock()
        for key, (until_s, call, allowed) in list(self._calls.items()):
            try:
                why = _TOO_LONG if now_s > until_s else "" if allowed() else _NOT_ALLOWED
                if why and key in self._calls:
                    self._calls.pop(key, None)
                    _LOG.info("%s is ended", why)
                    call.cancel()
            except Exception:  # noqa: BLE001  the other calls must be looked at, too
                _LOG.exception("a call could not be looked at")
