"""The thread that keeps a catalog up to date."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from scannery.live.log_follower import Tail
from scannery.runtime.retry import RetryState
from scannery.serving.catalog.catalog import CHECK_EVERY_S, Catalog

__all__ = ["Watcher"]


class Watcher:
    """Opens new versions, has sealed and merged what is due, and follows the logs.

    Each of its tasks goes on whatever happens to the others.
    """

    def __init__(
        self, catalog: Catalog, *, every_s: float = CHECK_EVERY_S, after: Callable[[], None] | None = None
    ) -> None:
        """Take a catalog; `after` is called after each look."""
        self._catalog = catalog
        self._every_s = every_s
        self._after = after or _nothing
        self._tail = Tail(catalog.live_indexes, failed=partial(catalog.note_failure, "tail"))
        self._tasks = (
            ("cannot look for new versions", "look", lambda: catalog.refresh(encoders=True)),
            ("cannot start maintenance", "maintain", catalog.maintain),
            ("cannot report the health of indexes", "report", self._after),
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="scannery-watcher", daemon=True)

    def start(self) -> None:
        """Open everything, and then keep looking. Returns when all indexes that can be opened are.

        Raises:
            StoreError: the store cannot be read.

        """
        self._catalog.refresh(encoders=True)
        self._catalog.watched = True
        self._after()
        self._tail.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; waits for the version that is being opened."""
        self._stop.set()
        self._tail.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        attempts = [
            RetryState(counted=partial(self._catalog.note_failure, name)) for _, name, _ in self._tasks
        ]
        while not self._stop.wait(self._every_s):
            for (what, _, task), tries in zip(self._tasks, attempts, strict=True):
                tries.run(what, task)


def _nothing() -> None:
    """Tell nothing."""
