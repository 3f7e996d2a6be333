"""Follow the logs: what other processes write becomes visible here within milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from scannery.indexer import IndexerError
from scannery.indexer.store.changes import Changes
from scannery.live.live_index import LiveIndex
from scannery.runtime.retry import RetryState
from scannery.runtime.tasks import PeriodicTask

__all__ = ["LogFollower"]

BUSY_S = 0.003
"""Seconds between two looks while something is being written. One look costs 5 µs, however many logs there are."""
PAUSE_RATIO = 8
MAX_REST_S = 0.02
"""Most seconds of rest. After it applied something, it rests for `REST` times the seconds that took, at most
`MAX_REST_S`: under many writes it applies several batches at once, which costs little more than one, and leaves queries
most of the time.
"""
IDLE_S = 0.015
IDLE_AFTER_S = 1.0
SWEEP_S = 2.0
"""Longest time until a log is looked at whose change was not noted. Such a look costs 10 µs."""
LOOKS_PER_S = 200.0
"""Looks at logs of which no change was noted: at more than 400 logs, each has its turn later than after SWEEP_S."""
SWEEP_EVERY_S = 0.1
"""Least seconds between two checks which logs have not been looked at for so long."""
CHECKS_PER_S = 2000.0
"""Logs that are checked so: of more than 200 logs, checks are less frequent. Each takes about a microsecond."""


class LogFollower(PeriodicTask):
    """A thread that makes indexes catch up with their logs."""

    def __init__(
        self,
        indexes: Callable[[], Iterable[LiveIndex[Any]]],
        changes: Changes,
        *,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        """Start nothing yet.

        Args:
            indexes: returns the indexes to follow.
            changes: tells which logs have changed, by their keys.
            on_failure: called each time that one of them cannot be followed.

        """
        super().__init__("log-follower", self.look, every_s=BUSY_S, on_failure=on_failure)
        self._indexes, self._changes = indexes, changes
        self._on_failure = on_failure
        self._active_at_s = time.monotonic()
        self._swept_at_s, self._count = float("-inf"), 0
        self._noted: Container[str] | None = None
        """Keys of the logs that have changed by the last look; None: none has."""
        self._retries: WeakKeyDictionary[LiveIndex[Any], RetryState] = WeakKeyDictionary()

    def look(self) -> float:
        """Follow each log that has changed once, and return the seconds until the next look of the thread."""
        started_s = time.monotonic()
        due = self._due(started_s)
        has_new = [self._caught_up(index) for index in due]
        now_s = time.monotonic()
        for index, caught_up in zip(due, has_new, strict=True):
            noted = self._noted is not None and index.log_key in self._noted
            again = noted and not caught_up  # another thread may have held its lock
            index.followed_at_s = float("-inf") if again else now_s
        if any(has_new):
            self._active_at_s = now_s
            return min(MAX_REST_S, max(BUSY_S, PAUSE_RATIO * (now_s - started_s)))
        return BUSY_S if now_s - self._active_at_s < IDLE_AFTER_S else IDLE_S

    def stop(self) -> None:
        """End the thread, and close what tells of changes."""
        super().stop()
        self._changes.close()

    def _due(self, now_s: float) -> Sequence[LiveIndex[Any]]:
        """Return the indexes whose log has changed, or was not looked at for SWEEP_S."""
        try:
            self._noted = keys = self._changes.changed()
        except IndexerError:  # the sweep tells it, for each index
            self._noted = keys = None
        sweep_every_s = max(SWEEP_EVERY_S, self._count / CHECKS_PER_S)
        sweeps = now_s - self._swept_at_s >= sweep_every_s
        if keys is None and not sweeps:
            return ()
        self._swept_at_s = now_s if sweeps else self._swept_at_s
        indexes = list(self._indexes())
        self._count = len(indexes)
        # What will be due before the next sweep is looked at now: no log waits longer for rare sweeps.
        long_ago_s = now_s - max(SWEEP_S, len(indexes) / LOOKS_PER_S) + sweep_every_s
        return [
            index
            for index in indexes
            if (keys is not None and index.log_key in keys) or (sweeps and index.followed_at_s <= long_ago_s)
        ]

    def _caught_up(self, index: LiveIndex[Any]) -> bool:
        """Return whether there was anything; an index that cannot be followed does not delay the others."""
        retry = self._retries.get(index) if self._retries else None
        if retry is not None and not retry.due:
            return False
        try:
            has_new = index.catch_up()
        except Exception as error:  # noqa: BLE001  without this thread, no write of another process would be seen
            if retry is None:
                retry = self._retries[index] = RetryState(on_failure=self._on_failure)
            retry.failed(f"index {index.state.manifest.index}: its log cannot be followed", error)
            return False
        if retry is not None:
            del self._retries[index]
        return has_new
