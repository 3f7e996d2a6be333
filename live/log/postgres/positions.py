"""The last sequences of the logs that this process follows, asked for together.

One query for all of them, at most every POLL_S, costs the database little, however many indexes there are. NOTIFY would
be quicker and takes a lock of the whole database at each commit.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scannery.live.log.postgres.database import Database

__all__ = ["Position", "PositionChanges", "Positions"]

POLL_S = 0.01
"""Seconds between two queries while something is being written."""
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
        self._ends: dict[str, Position] = {}
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

    def changes(self) -> PositionChanges:
        """Return a new reader of which logs have other ends."""
        return PositionChanges(self)

    def all(self, *, since_s: float = float("-inf")) -> Mapping[str, Position]:
        """Return the ends of all followed logs; those that the database does not have are left out.

        Args:
            since_s: an earlier answer does not do, in seconds of `time.monotonic`.

        Raises:
            LogUnavailableError: the database cannot be asked.

        """
        with self._lock:
            now_s = time.monotonic()
            every_s = POLL_S if now_s - self._changed_at_s < IDLE_AFTER_S else IDLE_POLL_S
            if self._asked_at_s < since_s or now_s - self._asked_at_s >= every_s:
                ends = self._ask()
                if ends != self._ends:
                    self._ends, self._changed_at_s = ends, now_s
                self._asked_at_s = now_s
            return self._ends

    def of(self, log_id: str, *, since_s: float) -> Position | None:
        """Return the end of a log that is followed; None if the database does not have it. Otherwise as `all`."""
        return self.all(since_s=since_s).get(log_id)

    def _ask(self) -> dict[str, Position]:
        followed = list(self._followed)
        rows = self._database.ask(
            lambda connection: connection.execute(
                "SELECT log_id, position, chain FROM scannery.logs WHERE log_id = ANY(%s)", (followed,)
            ).fetchall()
        )
        return {log_id: Position(sequence, chain) for log_id, sequence, chain in rows}


class PositionChanges:
    """The `Changes` of the logs in a database, by their ids."""

    def __init__(self, positions: Positions) -> None:
        """Ask for nothing yet."""
        self._positions = positions
        self._ends: Mapping[str, Position] = {}

    def changed(self) -> Container[str] | None:
        """Return the logs whose ends differ from those of the last call; raises as `Positions.all`."""
        before, self._ends = self._ends, self._positions.all()
        if before is self._ends:
            return None
        return {
            log_id
            for log_id in before.keys() | self._ends.keys()
            if before.get(log_id) != self._ends.get(log_id)
        }

    def close(self) -> None:
        """Do nothing: connections are those of the database."""
