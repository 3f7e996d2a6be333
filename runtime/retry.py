"""What is tried again and again in the background: when the next try is due, and what the last one said.

A task in the background survives any error, logs it, waits longer after each failure, and never delays other tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from scannery.indexer import IndexerError, StoreError
from scannery.runtime.errors import ServingError

__all__ = ["MAX_BACKOFF_S", "RetryState"]

_LOG = logging.getLogger(__name__)

MAX_BACKOFF_S = 60.0


class RetryState:
    """The failures in a row of one task. For one thread at a time; any thread may read."""

    def __init__(
        self,
        *,
        counted: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`counted` is called at each failure."""
        self._counted = counted
        self._clock = clock
        self._retry_at_s = float("-inf")
        self.failures = 0
        """Since it worked last."""
        self.error: Exception | None = None
        """The last one; None if the last try worked."""
        self.problem = ""
        """What cannot be done and why, for callers: without paths of this machine; empty if the last try worked."""

    @property
    def due(self) -> bool:
        """Whether it is time for a try."""
        return self._clock() >= self._retry_at_s

    def failed(self, what: str, error: Exception) -> None:
        """Log the error of a try, count it, and put off the next one; `what` says what cannot be done."""
        self.failures += 1
        wait_s = min(MAX_BACKOFF_S, 2.0 ** min(self.failures, 10))
        self._retry_at_s = self._clock() + wait_s
        expected = isinstance(error, (IndexerError, ServingError, OSError))
        # The chain of causes holds frames, and these may hold open segments: only the log gets it.
        _LOG.error(
            "%s: %s; trying again in %.0f s", what, error, wait_s, exc_info=None if expected else error
        )
        error.__cause__ = error.__context__ = error.__traceback__ = None
        self.problem = f"{what}: {_told(error)}"
        self.error = StoreError(self.problem) if isinstance(error, OSError) else error
        self._counted()

    def succeeded(self) -> None:
        """Take note that a try worked."""
        self.failures, self.error, self.problem = 0, None, ""
        self._retry_at_s = float("-inf")

    def run(self, what: str, task: Callable[[], object]) -> None:
        """Try it if it is due."""
        if not self.due:
            return
        try:
            task()
        except Exception as error:  # noqa: BLE001  the next try may work
            self.failed(what, error)
        else:
            self.succeeded()


def _told(error: Exception) -> str:
    if isinstance(error, (IndexerError, ServingError)):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
