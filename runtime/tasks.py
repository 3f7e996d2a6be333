"""Work in the background: threads that repeat it, and log lines of what may be slow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from scannery.runtime.retry import RetryState

__all__ = ["PeriodicTask", "SlowProgress"]


class PeriodicTask:
    """Runs a function at an interval, in a thread of its own.

    An error ends neither the thread nor the task: it is logged once until another one comes, and the waits grow while
    it lasts.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[], float | None],
        *,
        every_s: float,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        """Start nothing yet.

        Args:
            name: of the task; the thread is called `scannery-NAME`.
            run: one run; returns the seconds until the next one, None: `every_s`.
            every_s: seconds between two runs, and before the first one.
            on_failure: called when a run raises.

        """
        self._name, self._run_once, self._every_s = name, run, every_s
        self._retry = RetryState(on_failure=on_failure)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"scannery-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the wait at once, and return when a run that is under way has ended."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        wait_s = self._every_s
        while not self._stopped.wait(wait_s):
            wait_s = self._every_s
            if not self._retry.due:
                continue
            try:
                wait_s = self._run_once() or self._every_s
            except Exception as error:  # noqa: BLE001  the next run may work
                self._retry.failed(f"the task {self._name!r} failed", error)
            else:
                self._retry.succeeded()


EVERY_S = 5.0
"""Seconds between two lines; work that takes less logs none."""


class SlowProgress:
    """Counts steps, and logs how many are done, every EVERY_S."""

    def __init__(self, log: logging.Logger, what: str, total: int) -> None:
        """Count no step yet.

        Args:
            log: where lines go.
            what: is done in each step, such as "indexes opened".
            total: number of steps.

        """
        self._log, self._what, self._total, self._done = log, what, total, 0
        self._logged_at_s = time.monotonic()

    def step(self) -> None:
        """Count a step."""
        self._done += 1
        now_s = time.monotonic()
        if now_s - self._logged_at_s >= EVERY_S:
            self._logged_at_s = now_s
            self._log.info("%d of %d %s", self._done, self._total, self._what)
