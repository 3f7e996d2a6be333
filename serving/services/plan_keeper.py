"""Keeps the costs of filtered searches true while a server runs.

When the machine is idle, a thread of the lowest priority times the plans of a segment again if other processes
disturbed the first timing, or if searches disagree with it; and it asks sampled queries by every plan (plan_book.py).
Its share of a processor is bounded. On a server that is never idle it still asks a query now and then, since only that
tells whether costs are true.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scannery.indexer import MemorySegment, Segment
from scannery.indexer.planning.planner import Planner
from scannery.runtime.tasks import PeriodicTask
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.metrics import ServerMetrics

__all__ = ["IdleMachine", "PlanKeeper"]

EVERY_S = 0.5
MOST_SHARE = 0.05
"""Share of a processor that audits take."""
WAITED_S = 20.0
"""Seconds without an idle moment after which a query is audited nevertheless."""
AGAIN_S, LATEST_S = 30.0, 3600.0
"""Seconds before a segment's plans are timed again: at first, and at most. Doubled each time: costs that drift for what
is asked are not mended by timing."""
IDLE = 0.8
"""Share of all processors' time that is idle on an idle machine."""
LOW_PRIORITY = 19
_STAT = Path("/proc/stat")


class IdleMachine:
    """Tells whether all processors of the machine together were idle since the last question."""

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._before = self._times()

    def __call__(self) -> bool:
        """Return whether they were; if the system does not tell, whether its load is below a fifth."""
        before, self._before = self._before, self._times()
        if before is None or self._before is None:
            return os.getloadavg()[0] < (1 - IDLE) * (os.cpu_count() or 1)
        total, idle = (now - then for now, then in zip(self._before, before, strict=True))
        return total > 0 and idle >= IDLE * total

    def _times(self) -> tuple[int, int] | None:
        """Return the time of all processors, and their idle time, in ticks."""
        try:
            values = [int(value) for value in self._stat.read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        return sum(values), sum(values[3:5])


class PlanKeeper(PeriodicTask):
    """Times plans, and asks queries by every plan, in a thread of the lowest priority."""

    def __init__(
        self,
        snapshots: Callable[[], Sequence[Snapshot]],
        metrics: ServerMetrics,
        *,
        busy: Callable[[], bool],
        idle: Callable[[], bool] | None = None,
        every_s: float = EVERY_S,
        waited_s: float = WAITED_S,
        again_s: float = AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            snapshots: returns those of all open indexes.
            metrics: receive predicted and measured times.
            busy: returns whether requests are in flight.
            idle: returns whether the machine was idle since the last call; None: `IdleMachine`.
            every_s: seconds between two looks.
            waited_s: seconds without an idle moment after which a query is audited nevertheless.
            again_s: seconds before a segment's plans are timed for the second time.
            clock: returns seconds.

        """
        super().__init__("plan-keeper", self._work, every_s=every_s)
        self._snapshots, self._metrics, self._busy = snapshots, metrics, busy
        self._idle = idle or IdleMachine()
        self._every_s, self._waited_s, self._again_s, self._clock = every_s, waited_s, again_s, clock
        self._idle_at_s = clock()
        self._next_s: dict[str, tuple[float, float]] = {}
        """When a segment may be timed again, and the wait after that, by its hash."""
        metrics.plan_correction.asks(self._corrections)

    def _work(self) -> float | None:
        # On Linux a priority belongs to a thread.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        idle = self._idle() and not self._busy()
        late = self._clock() - self._idle_at_s > self._waited_s
        if idle or late:
            self._idle_at_s = self._clock()
        worked_s = 0.0
        for index, segment, planner in _planned(self._snapshots()):
            planner.book.refresh()
            self._count(index, planner)
            if worked_s > MOST_SHARE * self._every_s:
                continue
            if idle and not self._busy():
                self._time(index, segment, planner)
            if (idle and not self._busy()) or late:
                asked = planner.book.next_asked()
                worked_s += planner.audit(asked) if asked else 0.0
        return max(self._every_s, worked_s / MOST_SHARE)

    def _count(self, index: str, planner: Planner) -> None:
        """Add what plans took since the last look to the metrics."""
        for plan, (predicted_us, measured_us) in planner.book.taken().items():
            self._metrics.plan_predicted.inc((index, plan), predicted_us / 1e6)
            self._metrics.plan_measured.inc((index, plan), measured_us / 1e6)

    def _corrections(self) -> dict[tuple[str, ...], float]:
        """Return the factor on the costs of each plan that is farthest from 1 among the segments of an index."""
        found: dict[tuple[str, ...], float] = {}
        for index, _, planner in _planned(self._snapshots()):
            for plan, factor in planner.book.factors.items():
                if abs(math.log(factor)) >= abs(math.log(found.get((index, plan), 1.0))):
                    found[index, plan] = factor
        return found

    def _time(self, index: str, segment: Segment, planner: Planner) -> None:
        """Time the plans of a segment again if that is due."""
        key = segment.entry.sha256
        if planner.book.file is None or not planner.book.due:
            return
        at_s, wait_s = self._next_s.get(key, (0.0, self._again_s))
        if self._clock() < at_s:
            return
        with planner.book.file.claimed() as alone:
            if not alone:  # another worker does it, and its costs are read at the next look
                return
            replaced = segment.time_plans_again(stopped=self._busy)
        if replaced:
            self._metrics.plans_timed.inc((index,))
        self._next_s[key] = self._clock() + wait_s, min(2 * wait_s, LATEST_S)


def _planned(snapshots: Sequence[Snapshot]) -> Iterator[tuple[str, Segment, Planner]]:
    """Yield the name of the index, segment and planner where filtered searches are planned; named vectors included."""
    for snapshot in snapshots:
        for segment in snapshot.segments:
            if isinstance(segment, MemorySegment):
                continue
            for each in (segment, *(named.segment for named in segment.named.values())):
                if each.planner is not None:
                    yield snapshot.manifest.index, each, each.planner
