"""Writes rows of the log in the background: no search waits for the store, and none fails with it.

Rows wait in memory, at most MAX_ROWS of them and MAX_BYTES; what does not fit is dropped and counted. A thread writes
them every EVERY_S, or earlier if a quarter of the room is taken. Rows that cannot be written wait for the next time.
A process that is killed loses the rows that wait, and no others: files are written whole.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from scannery.indexer import Store
from scannery.indexer.traffic.day_files import remove_days, write_rows
from scannery.indexer.traffic.rows import LoggedRow
from scannery.runtime.retry import RetryState
from scannery.serving.telemetry.metrics import ServerMetrics

__all__ = ["TrafficWriter"]

EVERY_S = 60.0
"""A minute is what a kill may lose; a worker with traffic all day writes 1,440 files."""
MAX_ROWS, MAX_BYTES = 20_000, 16 << 20
LAST_S = 10.0
"""Longest wait of a server that stops for the rows that are not written yet."""
CLEAN_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    index: str
    row: LoggedRow
    size_bytes: int


@dataclass(slots=True)
class _Size:
    """Rows, and the memory that they take."""

    rows: int = 0
    size_bytes: int = 0

    def add(self, rows: int, size_bytes: int) -> None:
        self.rows += rows
        self.size_bytes += size_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Return whether one more row may wait."""
        return self.rows < MAX_ROWS and self.size_bytes + size_bytes <= MAX_BYTES

    @property
    def is_large(self) -> bool:
        """Whether they are to be written at once."""
        return self.rows >= MAX_ROWS // 4 or self.size_bytes >= MAX_BYTES // 4


class TrafficWriter:
    """The writer of one process. Safe to use from several threads; `start` starts its own."""

    def __init__(
        self,
        store: Store,
        metrics: ServerMetrics,
        *,
        days: int,
        serves: Callable[[str], bool],
        indexes: Callable[[], list[str]],
        before_each: Callable[[], object] = lambda: None,
        every_s: float = EVERY_S,
    ) -> None:
        """Write nothing yet.

        Args:
            store: has the log.
            metrics: count rows.
            days: a day is removed when it is this many days old.
            serves: returns whether an index is still served: the folder of one that was dropped must not come back.
            indexes: returns the names of the indexes whose old days are removed.
            before_each: called by the thread before each look at the rows; its errors are logged.
            every_s: longest time that a row waits.

        """
        self._store, self._metrics, self._days, self._every_s = store, metrics, days, every_s
        self._serves, self._indexes, self._before_each = serves, indexes, before_each
        self._holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._numbers = itertools.count()
        self._waiting: list[_Waiting] = []
        self._size = _Size()
        """Size of the rows that wait, and of those that are being written."""
        self._changed = threading.Condition()
        self._stopped = False
        self._writing = threading.Lock()
        self._retry = RetryState(on_failure=lambda: metrics.background_failures.inc(("traffic",)))
        self._clean_at_s = 0.0
        self._thread = threading.Thread(target=self._run, name="scannery-traffic", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, for at most ten seconds, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(LAST_S)

    def add(self, index: str, row: LoggedRow, size_bytes: int) -> bool:
        """Have a row written that takes about this much memory; False: there is no room, it is dropped."""
        with self._changed:
            has_room = self._size.has_room(size_bytes) and not self._stopped
            if has_room:
                self._waiting.append(_Waiting(index, row, size_bytes))
                self._size.add(1, size_bytes)
                if self._size.is_large:
                    self._changed.notify()
        if not has_room:
            self._metrics.traffic_dropped.inc((row.FOLDER,))
        return has_room

    def forget(self, index: str) -> None:
        """Forget the rows that wait of an index that is gone, or was replaced by another one of its name."""
        with self._changed:
            self._keep([each for each in self._waiting if each.index != index])

    def flush(self) -> None:
        """Write the rows that wait.

        Raises:
            StoreError: the store cannot be written; rows that were not written wait again.

        """
        with self._writing:
            with self._changed:
                batch, self._waiting = self._waiting, []
            indexes = list(dict.fromkeys(each.index for each in batch))
            try:
                while indexes:
                    self._write(indexes[-1], [each.row for each in batch if each.index == indexes[-1]])
                    indexes.pop()
            finally:
                with self._changed:
                    self._keep([each for each in batch if each.index in indexes] + self._waiting)

    def _keep(self, waiting: list[_Waiting]) -> None:
        self._waiting = waiting
        self._size = _Size(len(waiting), sum(each.size_bytes for each in waiting))

    def _write(self, index: str, rows: list[LoggedRow]) -> None:
        if not self._serves(index):
            return
        write_rows(self._store, index, rows, f"{self._holder}-{next(self._numbers)}")
        for row in rows:
            self._metrics.traffic_rows.inc((row.FOLDER,))

    def _run(self) -> None:
        wait_s, ended = 0.0, False
        while not ended:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or (self._size.is_large and self._retry.due), wait_s
                )
                ended = self._stopped
            if ended:
                self._retry.reset()  # the last try does not wait
            self._retry.run("the log of queries cannot be written", self._work)
            wait_s = self._every_s

    def _work(self) -> None:
        self._before_each()
        self.flush()
        if time.monotonic() >= self._clean_at_s:
            self._clean_at_s = time.monotonic() + CLEAN_EVERY_S
            before = datetime.now(timezone.utc).date() - timedelta(days=self._days - 1)
            for index in self._indexes():
                remove_days(self._store, index, before)
