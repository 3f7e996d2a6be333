"""Cancels calls whose messages are late: gRPC has no time limit for the arrival of a message."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from scannery.runtime.periodic_task import PeriodicTask

__all__ = ["CallTimeouts", "Cancellable"]

_LOG = logging.getLogger(__name__)

CHECK_EVERY_S = 0.5
_TOO_LONG = "the request took too long to arrive, or the stream lasted too long"
_NOT_ALLOWED = "the credentials of the stream are no longer valid"


def _always() -> bool:
    return True


class Cancellable(Protocol):
    """A call that can be cancelled."""

    def cancel(self) -> object:
        """Cancel the call."""


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
    """Cancels watched calls after their time limit. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the thread; `clock` returns seconds."""
        super().__init__("call-timeouts", self._check, every_s=CHECK_EVERY_S)
        self._clock = clock
        # Single operations on a dict are atomic.
        self._calls: dict[int, tuple[float, Cancellable, Allowed]] = {}
        self.start()

    def watched(self, call: Cancellable, seconds: float, allowed: Allowed = _always) -> _Watch:
        """Return a context; inside it, the call is cancelled after `seconds`, or when `allowed()` is False."""
        return _Watch(self._calls, call, self._clock() + seconds, allowed)

    def _check(self) -> None:
        now_s = self._clock()
        for key, (until_s, call, allowed) in list(self._calls.items()):
            try:
                reason = _TOO_LONG if now_s > until_s else "" if allowed() else _NOT_ALLOWED
                if reason and key in self._calls:
                    self._calls.pop(key, None)
                    _LOG.info("a call is cancelled: %s", reason)
                    call.cancel()
            except Exception:  # noqa: BLE001  other calls must be checked as well
                _LOG.exception("a call could not be checked")
