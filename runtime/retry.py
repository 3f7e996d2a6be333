"""Deadlines of requests, and when something that failed is tried again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from scannery.runtime.errors import CodedError, DeadlineError, OverloadedError

__all__ = ["FIRST_WAIT_S", "MAX_WAIT_S", "Backoff", "Deadline", "RetryState"]


_LOG = logging.getLogger(__name__)

FIRST_WAIT_S, MAX_WAIT_S = 2.0, 60.0


class Backoff:
    """Waits that double with each failure in a row."""

    def __init__(
        self,
        *,
        first_s: float = FIRST_WAIT_S,
        max_s: float = MAX_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without failures.

        Args:
            first_s: the wait after the first failure, in seconds.
            max_s: the longest wait.
            clock: seconds.

        """
        self._first_s, self._max_s, self._clock = first_s, max_s, clock
        self.failures = 0
        """Failures in a row, up to now."""
        self.retry_at_s = float("-inf")
        """When the next try is due, in the clock's seconds."""

    @property
    def due(self) -> bool:
        """Whether it is time for a try."""
        return self._clock() >= self.retry_at_s

    def back_off(self) -> float:
        """Count a failure, and return the seconds until the next try."""
        self.failures += 1
        wait_s = min(self._max_s, self._first_s * 2.0 ** min(self.failures - 1, 20))
        self.retry_at_s = self._clock() + wait_s
        return wait_s

    def ease(self) -> None:
        """Count a success where failures come and go: the next wait is half as long as it would have been."""
        self.failures = max(0, min(self.failures, math.ceil(math.log2(self._max_s / self._first_s))) - 1)

    def reset(self) -> None:
        """Forget the failures."""
        self.failures, self.retry_at_s = 0, float("-inf")


class RetryState(Backoff):
    """The failures in a row of one task. For one thread at a time; any thread may read."""

    def __init__(
        self,
        *,
        on_failure: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without failures.

        Args:
            on_failure: called at each failure.
            clock: seconds.

        """
        super().__init__(clock=clock)
        self._on_failure = on_failure
        self.error: Exception | None = None
        """The last one; None if the last try worked."""
        self.problem = ""
        """What cannot be done and why, for callers: without paths of this machine; empty if the last try worked."""

    def failed(self, what: str, error: Exception, *, put_off: bool = True) -> None:
        """Count the error of a try, and put off the next one.

        The same error as before is logged at debug level only. A lack of room that tells after how many seconds to try
        again puts it off no longer.

        Args:
            what: cannot be done.
            error: why.
            put_off: False: the next try is due at once.

        """
        problem = f"{what}: {_message(error)}"
        level = logging.DEBUG if problem == self.problem else logging.ERROR
        expected = isinstance(error, (CodedError, OSError))
        wait_s = self.back_off()
        if not put_off:
            wait_s, self.retry_at_s = 0.0, float("-inf")
        elif isinstance(error, OverloadedError) and error.retry_after_s is not None:
            wait_s = min(wait_s, error.retry_after_s)
            self.retry_at_s = self._clock() + wait_s
        # The chain of causes holds frames, and these may hold open segments: only the log gets it.
        _LOG.log(
            level, "%s: %s; trying again in %.0f s", what, error, wait_s, exc_info=None if expected else error
        )
        error.__cause__ = error.__context__ = error.__traceback__ = None
        self.problem = problem
        self.error = error
        self._on_failure()

    def succeeded(self) -> None:
        """Record that a try worked."""
        self.error, self.problem = None, ""
        self.reset()

    def run(self, what: str, task: Callable[[], object]) -> None:
        """Try it if it is due; `what` says what cannot be done if it fails."""
        if not self.due:
            return
        try:
            task()
        except Exception as error:  # noqa: BLE001  the next try may work
            self.failed(what, error)
        else:
            self.succeeded()


def _message(error: Exception) -> str:
    if isinstance(error, CodedError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


@dataclass(frozen=True)
class Deadline:
    """The moment until which the caller waits for the answer."""

    at_s: float
    """Time in seconds of `clock`; infinite: no deadline."""
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline in `seconds` from now; None: never."""
        return cls(math.inf if seconds is None else clock() + seconds, clock)

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 if it has passed."""
        return max(0.0, self.at_s - self.clock())

    def check(self) -> None:
        """Raise DeadlineError if it has passed. Long work calls this between steps; a running step is not stopped."""
        if self.clock() >= self.at_s:
            raise DeadlineError("the deadline passed before the answer was ready")
