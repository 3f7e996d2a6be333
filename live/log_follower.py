"""Follow the logs: what other processes write becomes visible here within milliseconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from scannery.live.live_index import LiveIndex
from scannery.runtime.retry import RetryState

__all__ = ["Tail"]

BUSY_S = 0.003
"""Between two looks while something is being written. One look costs 5 µs an index."""
REST = 8
MOST_S = 0.02
"""After it applied something, it rests so many times as long as that took, at most so long: under many writes it
applies several batches at once, which costs little more than one, and leaves queries most of the time."""
IDLE_S = 0.015
IDLE_AFTER_S = 1.0


class Tail:
    """A thread that makes indexes catch up with their logs."""

    def __init__(
        self, indexes: Callable[[], Iterable[LiveIndex[Any]]], *, failed: Callable[[], object] = lambda: None
    ) -> None:
        """Take what gives the indexes; `failed` is called when one of them cannot be followed."""
        self._indexes = indexes
        self._failed = failed
        self._attempts: WeakKeyDictionary[LiveIndex[Any], RetryState] = WeakKeyDictionary()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="scannery-tail", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following; waits for what is being applied."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        active_at_s = time.monotonic()
        wait_s = BUSY_S
        while not self._stop.wait(wait_s):
            started_s = time.monotonic()
            found = [self._caught_up(index) for index in self._indexes()]
            now_s = time.monotonic()
            if any(found):
                active_at_s = now_s
                wait_s = min(MOST_S, max(BUSY_S, REST * (now_s - started_s)))
            else:
                wait_s = BUSY_S if now_s - active_at_s < IDLE_AFTER_S else IDLE_S

    def _caught_up(self, index: LiveIndex[Any]) -> bool:
        """Return whether there was anything; an index that cannot be followed keeps no other from it."""
        attempts = self._attempts.get(index)
        if attempts is not None and not attempts.due:
            return False
        try:
            found = index.catch_up()
        except Exception as error:  # noqa: BLE001  without this thread, nothing that others write would ever be seen
            if attempts is None:
                attempts = self._attempts[index] = RetryState(counted=self._failed)
            attempts.failed(f"index {index.state.manifest.index}: its log cannot be followed", error)
            return False
        if attempts is not None:
            del self._attempts[index]
        return found
