"""Writes rows of the log in the background: no search waits for the store, and none fails with it.

Rows wait in memory, at most MAX_ROWS of them and MAX_BYTES; what does not fit is dropped and counted. A thread makes
them, of what searches leave for it, every MAKE_EVERY_S, and writes them every EVERY_S, or earlier if a quarter of the
room is taken. Rows that cannot be written wait for the next time. A process that is killed loses the rows that wait,
and no others: files are written whole.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import partial

from scannery.indexer import Store
from scannery.indexer.traffic.day_files import remove_days, write_rows
from scannery.indexer.traffic.merging import merge_days
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery, LoggedRow
from scannery.runtime.retry import RetryState
from scannery.serving.telemetry.metrics import ServerMetrics

__all__ = ["ROW_BYTES", "TrafficWriter"]

_LOG = logging.getLogger(__name__)

EVERY_S = 60.0
"""A minute is what a kill may lose; a worker with traffic all day writes 1,440 files, which are merged after it."""
MAKE_EVERY_S = 1.0
"""What a row is made of, such as a whole answer, is larger than the row."""
MAX_ROWS, MAX_BYTES = 20_000, 16 << 20
ROW_BYTES = 1000
"""Memory of a row without what has a length."""
LAST_S = 10.0
"""Longest wait of a server that stops for the rows that are not written yet."""
CLEAN_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A row of an index, and about how much memory it takes."""

    index: str
    row: LoggedRow
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Unmade:
    """What makes a row of an index, and how much memory that takes."""

    index: str
    row_of: Callable[[], LoggedQuery]
    size_bytes: int


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
                Raises StoreError if that cannot be known now.
            indexes: returns the names of the indexes whose old days are removed.
            before_each: called by the thread before each writing; its errors are logged.
            every_s: longest time that a row waits.

        """
        self._store, self._metrics, self._days, self._every_s = store, metrics, days, every_s
        self._serves, self._indexes, self._before_each = serves, indexes, before_each
        self._holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._numbers: Counter[str] = Counter()
        """Writings of each index. One that fails is repeated under its name: what it has written is replaced."""
        self._unmade: list[_Unmade] = []
        self._waiting: list[_Waiting] = []
        self._rows = self._bytes = 0
        """Number and memory of both, and of those that are being made or written."""
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

    def add(self, index: str, row: LoggedEvent, size_bytes: int) -> bool:
        """Have an event written that takes about this much memory; False: there is no room, it is dropped."""
        with self._changed:
            if has_room := self._takes(size_bytes):
                self._waiting.append(_Waiting(index, row, size_bytes))
        return self._added(row.FOLDER, has_room=has_room)

    def add_later(self, index: str, row_of: Callable[[], LoggedQuery], size_bytes: int) -> bool:
        """Have a query written whose row is made later; until then it takes this much memory. Else as `add`."""
        with self._changed:
            if has_room := self._takes(size_bytes):
                self._unmade.append(_Unmade(index, row_of, size_bytes))
        return self._added(LoggedQuery.FOLDER, has_room=has_room)

    def forget(self, index: str) -> None:
        """Forget the rows that wait of an index that is gone, or was replaced by another one of its name."""
        with self._changed:
            self._unmade = [each for each in self._unmade if each.index != index]
            self._waiting = [each for each in self._waiting if each.index != index]
            self._measure()

    def flush(self) -> None:
        """Write the rows that wait.

        Raises:
            StoreError: the store cannot be written; rows that were not written wait again.

        """
        with self._writing:
            self._make()
            with self._changed:
                batch, self._waiting = self._waiting, []
            indexes = list(dict.fromkeys(each.index for each in batch))
            try:
                while indexes:
                    self._write(indexes[-1], [each.row for each in batch if each.index == indexes[-1]])
                    indexes.pop()
            finally:
                with self._changed:
                    self._waiting[:0] = [each for each in batch if each.index in indexes]
                    self._measure()

    def _takes(self, size_bytes: int) -> bool:
        """Return whether there is room for a row, and count it if there is. With the lock."""
        if self._stopped or self._rows >= MAX_ROWS or self._bytes + size_bytes > MAX_BYTES:
            return False
        self._rows += 1
        self._bytes += size_bytes
        if self._is_large:
            self._changed.notify()
        return True

    def _added(self, folder: str, *, has_room: bool) -> bool:
        if not has_room:
            self._metrics.traffic_dropped.inc((folder,))
        return has_room

    @property
    def _is_large(self) -> bool:
        """Whether what waits is to be written at once."""
        return self._rows >= MAX_ROWS // 4 or self._bytes >= MAX_BYTES // 4

    def _measure(self) -> None:
        waiting: Iterable[_Waiting | _Unmade] = (*self._unmade, *self._waiting)
        sizes = [each.size_bytes for each in waiting]
        self._rows, self._bytes = len(sizes), sum(sizes)

    def _make(self) -> None:
        """Make the rows of what searches have left. With `_writing`."""
        with self._changed:
            unmade, self._unmade = self._unmade, []
        made = []
        for each in unmade:
            try:
                row = each.row_of()
            except Exception:  # noqa: BLE001  such as of an index that was dropped meanwhile; others are not to be lost
                _LOG.debug("index %s: a query is not logged", each.index, exc_info=True)
                self._added(LoggedQuery.FOLDER, has_room=False)
            else:
                made.append(_Waiting(each.index, row, _size_of(row)))
        with self._changed:
            self._waiting += made
            self._measure()

    def _write(self, index: str, rows: list[LoggedRow]) -> None:
        if not self._serves(index):
            return
        write_rows(self._store, index, rows, f"{self._holder}-{self._numbers[index]}")
        self._numbers[index] += 1
        for row in rows:
            self._metrics.traffic_rows.inc((row.FOLDER,))

    def _run(self) -> None:
        wait_s, write_at_s, ended = 0.0, 0.0, False
        while not ended:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or (self._is_large and self._retry.due), wait_s)
                ended = self._stopped
            with self._writing:
                self._make()
            if ended:
                self._retry.reset()  # the last try does not wait
            if ended or self._is_large or time.monotonic() >= write_at_s:
                self._retry.run("the log of queries cannot be written", self._work)
                write_at_s = time.monotonic() + self._every_s
            wait_s = MAKE_EVERY_S

    def _work(self) -> None:
        self._before_each()
        self.flush()
        if time.monotonic() >= self._clean_at_s:
            self._clean_at_s = time.monotonic() + CLEAN_EVERY_S
            self._clean((datetime.now(timezone.utc) - timedelta(hours=1)).date())

    def _clean(self, day: date) -> None:
        """Remove the days that are old, and merge others before a day; a file that is damaged keeps nothing else."""
        before = day - timedelta(days=self._days - 1)
        for index in self._indexes():
            for task in (partial(remove_days, before=before), partial(merge_days, before=day)):
                try:
                    task(self._store, index)
                except Exception:  # noqa: BLE001  old days of other indexes are to go all the same
                    _LOG.exception("index %s: days of the log of queries are not removed or merged", index)
                    self._metrics.background_failures.inc(("traffic",))


def _size_of(row: LoggedQuery) -> int:
    """Return about how much memory a row takes."""
    texts = sum(map(len, row.query_response_hit_ids)) + len(row.user_query or "") + len(row.query_attributes)
    numbers = len(row.scores) + len(row.vector or ())
    return ROW_BYTES + texts + 64 * len(row.query_response_hit_ids) + 32 * numbers
