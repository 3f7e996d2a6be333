"""Log lines of work that may be slow, so that nobody takes it for a hang."""

from __future__ import annotations

import logging
import time

__all__ = ["SlowProgress"]

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
