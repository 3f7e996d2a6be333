"""Follow the logs: what other processes write becomes visible here within milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from scannery.live.live_index import LiveIndex
from scannery.runtime.periodic_task import PeriodicTask
from scannery.runtime.retry import RetryState

__all__ = ["LogFollower"]

BUSY_S = 0.003
"""Between two looks while something is being written. One look costs 5 µs an index."""
REST = 8
MOST_S = 0.02
"""After it applied something, it rests for `REST` times the seconds that took, at most `MOST_S`: under many writes it
applies several batches at once, which costs little more than one, and leaves queries most of the time."""
IDLE_S = 0.015
IDLE_AFTER_S = 1.0


class LogFollower(PeriodicTask):
    """A thread that makes indexes catch up with their logs."""

    def __init__(
        self,
        indexes: Callable[[], Iterable[LiveIndex[Any]]],
        *,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        """Start nothing yet.

        Args:
            indexes: returns the indexes to follow.
            on_failure: called each time that one of them cannot be followed.

        """
        super().__init__("log-follower", self.look, every_s=BUSY_S, on_failure=on_failure)
        self._indexes = indexes
        self._on_failure = on_failure
        self._active_at_s = time.monotonic()
        self._retries: WeakKeyDictionary[LiveIndex[Any], RetryState] = WeakKeyDictionary()

    def look(self) -> float:
        """Follow each log once, and return the seconds until the next look of the thread."""
        started_s = time.monotonic()
        found = [self._caught_up(index) for index in self._indexes()]
        now_s = time.monotonic()
        if any(found):
            self._active_at_s = now_s
            return min(MOST_S, max(BUSY_S, REST * (now_s - started_s)))
        return BUSY_S if now_s - self._active_at_s < IDLE_AFTER_S else IDLE_S

    def _caught_up(self, index: LiveIndex[Any]) -> bool:
        """Return whether there was anything; an index that cannot be followed does not delay the others."""
        retry = self._retries.get(index)
        if retry is not None and not retry.due:
            return False
        try:
            found = index.catch_up()
        except Exception as error:  # noqa: BLE001  without this thread, no write of another process would be seen
            if retry is None:
                retry = self._retries[index] = RetryState(on_failure=self._on_failure)
            retry.failed(f"index {index.state.manifest.index}: its log cannot be followed", error)
            return False
        if retry is not None:
            del self._retries[index]
        return found
