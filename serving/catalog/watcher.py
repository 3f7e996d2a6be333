"""The threads that keep a catalog up to date."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from scannery.live.log_follower import LogFollower
from scannery.runtime.periodic_task import PeriodicTask
from scannery.runtime.retry import RetryState
from scannery.serving.catalog.server_catalog import ServerCatalog

__all__ = ["Watcher"]

CHECK_EVERY_S = 1.0


class Watcher:
    """Opens new versions, has sealed and merged what is due, and follows the logs; a failure of one stops no other."""

    def __init__(
        self,
        catalog: ServerCatalog,
        *,
        every_s: float = CHECK_EVERY_S,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Start nothing yet.

        Args:
            catalog: to keep up to date.
            every_s: seconds between two looks for new versions.
            after: called after each look.

        """
        self._catalog = catalog
        self._after = after
        failed = catalog.note_failure
        self._tasks = [
            (what, run, RetryState(on_failure=partial(failed, name)))
            for name, what, run in (
                ("look", "cannot look for new versions", catalog.refresh),
                ("maintain", "cannot start maintenance", catalog.maintain),
                ("report", "cannot report the health of indexes", after),
            )
        ]
        self._follower = LogFollower(catalog.live_indexes, on_failure=partial(failed, "tail"))
        self._looking = PeriodicTask("watcher", self._look, every_s=every_s)

    def start(self) -> None:
        """Open everything, and then keep looking. Returns when all indexes that can be opened are.

        Raises:
            StoreError: the store cannot be read.

        """
        self._catalog.refresh()
        self._after()
        self._follower.start()
        self._looking.start()

    def stop(self) -> None:
        """Stop looking; waits for the version that is being opened."""
        self._looking.stop()
        self._follower.stop()

    def _look(self) -> None:
        for what, run, retry in self._tasks:
            retry.run(what, run)
