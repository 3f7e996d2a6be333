"""Ends calls whose messages are late: gRPC has no time limit for the arrival of a message."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from scannery.runtime.errors import DeadlineError, UnauthenticatedError
from scannery.runtime.periodic_task import PeriodicTask

__all__ = ["CallTimeouts", "Cancellable", "End", "cancelling"]

_LOG = logging.getLogger(__name__)

CHECK_EVERY_S = 0.5


def _always() -> bool:
    return True


def cancelling(call: Cancellable) -> End:
    """Return what cancels a call; its caller is not told why."""
    return lambda error: call.cancel()


class Cancellable(Protocol):
    """A call that can be cancelled."""

    def cancel(self) -> object:
        """Cancel the call."""


Allowed: TypeAlias = Callable[[], bool]
End: TypeAlias = Callable[[Exception], object]
"""Ends a call, from any thread. A call that waits for its body can only be cancelled, without the reason."""


class _Watch:
    __slots__ = ("_calls", "_key")

    def __init__(
        self,
        calls: dict[int, tuple[float, End, Allowed]],
        end: End,
        until_s: float,
        allowed: Allowed,
    ) -> None:
        self._calls, self._key = calls, id(self)
        calls[self._key] = (until_s, end, allowed)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._calls.pop(self._key, None)


class CallTimeouts(PeriodicTask):
    """Ends watched calls after their time limit. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the thread; `clock` returns seconds."""
        super().__init__("call-timeouts", self._check, every_s=CHECK_EVERY_S)
        self._clock = clock
        # Single operations on a dict are atomic.
        self._calls: dict[int, tuple[float, End, Allowed]] = {}
        self.start()

    def watched(self, end: End, seconds: float, allowed: Allowed = _always) -> _Watch:
        """Return a context; inside it, the call is ended after `seconds`, or when `allowed()` is False."""
        return _Watch(self._calls, end, self._clock() + seconds, allowed)

    def _check(self) -> None:
        now_s = self._clock()
        for key, (until_s, end, allowed) in list(self._calls.items()):
            try:
                reason: Exception | None = None
                if now_s > until_s:
                    reason = DeadlineError(
                        "the request took too long to arrive, or the stream lasted too long"
                    )
                elif not allowed():
                    reason = UnauthenticatedError("the credentials of the stream are no longer valid")
                if reason is not None and self._calls.pop(key, None) is not None:
                    _LOG.info("a call is ended: %s", reason)
                    end(reason)
            except Exception:  # noqa: BLE001  other calls must be checked as well
                _LOG.exception("a call could not be checked")
