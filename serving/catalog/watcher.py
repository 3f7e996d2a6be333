"""Threads that keep a server's catalog up to date."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from scannery.indexer import IndexerError
from scannery.live.log_follower import LogFollower
from scannery.runtime.retry import RetryState
from scannery.runtime.tasks import PeriodicTask
from scannery.serving.catalog.catalog import Catalog

__all__ = ["Watcher"]

CHECK_EVERY_S = 1.0
ALIASES_EVERY_S = 0.5
"""Apart from versions, which may take minutes to open."""


class Watcher:
    """Opens new versions, starts maintenance, and follows the logs; each continues if another fails."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        every_s: float = CHECK_EVERY_S,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; `start` runs the threads.

        Args:
            catalog: to keep up to date.
            every_s: seconds between checks for new versions.
            after: called after each check.

        """
        self._catalog = catalog
        self._after = after
        failed = catalog.note_failure
        self._tasks = [
            (what, run, RetryState(on_failure=partial(failed, name)))
            for name, what, run in (
                ("look", "cannot check for new versions", catalog.refresh),
                ("maintain", "cannot start maintenance", catalog.maintain),
                ("report", "cannot report the health of indexes", after),
            )
        ]
        self._follower = LogFollower(
            catalog.live_indexes, catalog.log_changes(), on_failure=partial(failed, "tail")
        )
        self._refreshing = PeriodicTask("watcher", self._refresh, every_s=every_s)
        self._renaming = PeriodicTask(
            "aliases",
            catalog.aliases.refresh,
            every_s=min(every_s, ALIASES_EVERY_S),
            on_failure=partial(failed, "aliases"),
        )

    def start(self) -> None:
        """Open all indexes that can be opened, then start the threads.

        Raises:
            StoreError: the store cannot be read.

        """
        self._catalog.refresh()
        with suppress(IndexerError):  # the task tells it
            self._catalog.aliases.refresh()
        self._after()
        self._follower.start()
        self._refreshing.start()
        self._renaming.start()

    def stop(self) -> None:
        """Stop the threads; waits for a version that is being opened."""
        self._refreshing.stop()
        self._renaming.stop()
        self._follower.stop()

    def _refresh(self) -> None:
        for what, run, retry in self._tasks:
            retry.run(what, run)
