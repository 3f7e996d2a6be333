"""The last sequences of the logs that this process follows, asked for together.

A server looks at each of its logs hundreds of times a second. One query for all of them, at most every POLL_S, costs
the database little, however many indexes there are. NOTIFY would be quicker and takes a lock of the whole database at
each commit.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scannery.live.log.postgres.database import Database

__all__ = ["Position", "Positions"]

POLL_S = 0.01
"""Between two queries while something is being written."""
IDLE_POLL_S = 0.1
IDLE_AFTER_S = 1.0


@dataclass(frozen=True)
class Position:
    """The end of a log."""

    sequence: int
    chain: bytes
    """Hash of the last record."""


class Positions:
    """Ends of logs. Safe to use from several threads."""

    def __init__(self, database: Database) -> None:
        """Ask for nothing yet."""
        self._database = database
        self._followed: Counter[str] = Counter()
        self._known: dict[str, Position] = {}
        self._asked_at_s = self._changed_at_s = float("-inf")
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """Let go of a lock that a thread of the parent may have held."""
        self._lock = threading.Lock()

    def follow(self, log_id: str) -> None:
        """Ask for a log, too; `unfollow` ends it."""
        with self._lock:
            self._followed[log_id] += 1
            self._asked_at_s = float("-inf")

    def unfollow(self, log_id: str) -> None:
        """End one `follow`."""
        with self._lock:
            self._followed[log_id] -= 1
            self._followed += Counter()

    def of(self, log_id: str, *, since_s: float) -> Position | None:
        """Return the end of a log; None if the database does not have the log.

        Args:
            log_id: of a log that is followed.
            since_s: an earlier answer does not do, in seconds of `time.monotonic`.

        Raises:
            LogUnavailableError: the database cannot be asked.

        """
        with self._lock:
            now_s = time.monotonic()
            every_s = POLL_S if now_s - self._changed_at_s < IDLE_AFTER_S else IDLE_POLL_S
            if self._asked_at_s < since_s or now_s - self._asked_at_s >= every_s:
                found = self._ask()
                if found != self._known:
                    self._changed_at_s = now_s
                self._known, self._asked_at_s = found, now_s
            return self._known.get(log_id)

    def _ask(self) -> dict[str, Position]:
        followed = list(self._followed)
        rows = self._database.ask(
            lambda connection: connection.execute(
                "SELECT log_id, position, chain FROM scannery.logs WHERE log_id = ANY(%s)", (followed,)
            ).fetchall()
        )
        return {log_id: Position(sequence, chain) for log_id, sequence, chain in rows}
