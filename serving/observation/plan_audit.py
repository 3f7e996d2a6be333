"""Keeps the costs of filtered searches true while a server runs (plan_book.py).

Sampled queries are repeated by every plan, on a busy server too: only that tells whether costs are true. Where the
machine is idle, the plans of a segment are timed again if other processes disturbed the first timing, or if searches
disagree with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

from scannery.indexer import MemorySegment, Segment
from scannery.indexer.planning.planner import Planner
from scannery.runtime.retry import Backoff
from scannery.serving.observation.query_sample import IndexSample
from scannery.serving.scheduling.spare_time import SpareTime, machine_is_idle
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.metrics import ServerMetrics

__all__ = ["PlanAudit"]

EVERY_S = 0.5
FIRST_WAIT_S, MAX_WAIT_S = 30.0, 3600.0
"""Seconds before a segment's plans are timed again: at first, and at most. Doubled each time: costs that drift for what
is asked are not mended by timing."""


class PlanAudit:
    """Repeats queries by every plan, and times plans. A task of the observer."""

    name = "plan-audit"

    def __init__(
        self,
        snapshots: Callable[[], Sequence[Snapshot]],
        metrics: ServerMetrics,
        *,
        is_idle: Callable[[], bool] = machine_is_idle,
        every_s: float = EVERY_S,
        first_wait_s: float = FIRST_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Audit nothing yet.

        Args:
            snapshots: returns those of all open indexes.
            metrics: receive predicted and measured times.
            is_idle: returns whether the machine is idle.
            every_s: seconds between two looks.
            first_wait_s: seconds before a segment's plans are timed for the second time.
            clock: returns seconds.

        """
        self._snapshots, self._metrics, self._is_idle = snapshots, metrics, is_idle
        self._every_s, self._first_wait_s, self._clock = every_s, first_wait_s, clock
        self._waits: WeakKeyDictionary[Planner, Backoff] = WeakKeyDictionary()
        self._audited_at_s: WeakKeyDictionary[Planner, float] = WeakKeyDictionary()
        metrics.plan_correction.asks(self._corrections)

    def run(self, samples: Mapping[str, IndexSample], spare: SpareTime) -> float:
        """As `ObserverTask.run`; the queries are those that planners have sampled."""
        idle = self._is_idle() and not spare.is_busy
        planned = list(_planned(self._snapshots()))
        for index, segment, planner in planned:
            planner.book.refresh()
            for plan, (predicted_us, measured_us) in planner.book.taken().items():
                self._metrics.plan_predicted.inc((index, plan), predicted_us / 1e6)
                self._metrics.plan_measured.inc((index, plan), measured_us / 1e6)
            if idle and spare.is_available and not spare.requests_run:
                with spare.spend():
                    self._time(index, segment, planner, stopped=lambda: spare.requests_run)
        # There may be time for one only: that of the segment that has waited longest.
        for planner in sorted(
            (each for *_, each in planned), key=lambda each: self._audited_at_s.get(each, 0.0)
        ):
            if not spare.is_available:
                break
            if (query := planner.book.next_asked()) is not None:
                self._audited_at_s[planner] = self._clock()
                with spare.spend():
                    planner.audit(query)
        return self._every_s

    def _corrections(self) -> dict[tuple[str, ...], float]:
        """Return the factor on the costs of each plan that is farthest from 1 among the segments of an index."""
        farthest: dict[tuple[str, ...], float] = {}
        for index, _, planner in _planned(self._snapshots()):
            for plan, factor in planner.book.factors.items():
                if abs(math.log(factor)) >= abs(math.log(farthest.get((index, plan), 1.0))):
                    farthest[index, plan] = factor
        return farthest

    def _time(self, index: str, segment: Segment, planner: Planner, *, stopped: Callable[[], bool]) -> None:
        """Time the plans of a segment again if that is due."""
        if planner.book.file is None or not planner.book.due:
            return
        wait = self._waits.setdefault(
            planner, Backoff(first_s=self._first_wait_s, max_s=MAX_WAIT_S, clock=self._clock)
        )
        if not wait.due:
            return
        with planner.book.file.claimed() as alone:
            if not alone:  # another worker does it, and its costs are read at the next look
                return
            replaced = segment.time_plans_again(stopped=stopped)
        if replaced:
            self._metrics.plans_timed.inc((index,))
        wait.back_off()


def _planned(snapshots: Sequence[Snapshot]) -> Iterator[tuple[str, Segment, Planner]]:
    """Yield the name of the index, segment and planner where filtered searches are planned; named vectors included."""
    for snapshot in snapshots:
        for segment in snapshot.segments:
            if isinstance(segment, MemorySegment):
                continue
            for each in (segment, *(named.segment for named in segment.named.values())):
                if each.planner is not None:
                    yield snapshot.manifest.index, each, each.planner
