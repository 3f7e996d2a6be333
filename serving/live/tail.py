"""Follow the logs: what other processes write becomes visible here within milliseconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from scannery.serving.live.index import LiveIndex

__all__ = ["Tail"]

_LOG = logging.getLogger(__name__)

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

    def __init__(self, indexes: Callable[[], Iterable[LiveIndex]]) -> None:
        self._indexes = indexes
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
            try:
                found = [index.catch_up() for index in self._indexes()]
            except Exception:  # noqa: BLE001
                # The next look may succeed; without this thread, nothing that others write would ever be seen.
                _LOG.exception("cannot follow a log")
                found, wait_s = [], 1.0
                continue
            now_s = time.monotonic()
            if any(found):
                active_at_s = now_s
                wait_s = min(MOST_S, max(BUSY_S, REST * (now_s - started_s)))
            else:
                wait_s = BUSY_S if now_s - active_at_s < IDLE_AFTER_S else IDLE_S
