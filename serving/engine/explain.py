"""How queries were answered: noted along the way if somebody asked, and told as a message.

Shapes: Q queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np

from scannery.indexer import Found, Segment
from scannery.serving.telemetry.tracing import span
from scannery.v1.search_pb2 import Explanation, SegmentPlan, StageTime

__all__ = ["Note", "Trace"]

Note = Callable[[int, int, Found], None]
"""(segment number, rows allowed, what was found) → nothing; notes a search of one segment."""


@dataclass(slots=True)
class _Step:
    plan: str
    rows_allowed: int
    leaves: int
    candidates: int
    recall: float


class Trace:
    """The notes on some queries that are answered together; nothing is noted if nobody wants it."""

    def __init__(self, queries: int, *, wanted: bool) -> None:
        self._wanted = wanted
        self._stages_s: dict[str, float] = {}
        self._steps: list[dict[int, _Step]] = [{} for _ in range(queries if wanted else 0)]

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Time what is done inside."""
        return self._timed(name) if self._wanted else span(f"scannery.{name}")

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        with span(f"scannery.{name}"):
            yield
        self._stages_s[name] = self._stages_s.get(name, 0.0) + time.perf_counter() - started

    def of(self, queries: np.ndarray) -> Note | None:
        """Return what notes the searches of these queries; None if nobody wants to know."""
        if not self._wanted:
            return None
        numbers = queries.tolist()

        def note(segment: int, rows_allowed: int, found: Found) -> None:
            for i, query in enumerate(numbers):
                before = self._steps[query].get(segment)
                self._steps[query][segment] = _Step(
                    found.plans[i],
                    rows_allowed,
                    int(found.leaves_Q[i]),
                    # A query that went back for more has done all of it.
                    int(found.candidates_Q[i]) + (before.candidates if before else 0),
                    float(found.recall_Q[i]),
                )

        return note

    def words(self, segment: int, rows_allowed: int) -> None:
        """Note that all queries search the words of a segment, which is exact."""
        for steps in self._steps:
            steps[segment] = _Step("words", rows_allowed, 0, rows_allowed, 1.0)

    def message(self, query: int, segments: Sequence[Segment]) -> Explanation:
        """Return what was noted on one query; the times are those of all queries together."""
        steps = self._steps[query]
        return Explanation(
            segments=[_plan(segment, steps.get(number)) for number, segment in enumerate(segments)],
            stages=[
                StageTime(stage=name, duration_us=round(seconds * 1e6))
                for name, seconds in self._stages_s.items()
            ],
            expected_recall=_recall(list(steps.values())),
        )


def _plan(segment: Segment, step: _Step | None) -> SegmentPlan:
    entry = segment.entry
    plan = SegmentPlan(segment=entry.sha256[:12], shard=entry.shard, rows=entry.rows, plan="none")
    if step is not None:
        plan.plan = step.plan
        plan.rows_allowed = step.rows_allowed
        plan.leaves_searched = step.leaves
        plan.candidates = step.candidates
    return plan


def _recall(steps: Sequence[_Step]) -> float:
    """Return the mean, by allowed rows: a true neighbour lies in a segment in proportion to these."""
    rows = sum(step.rows_allowed for step in steps)
    return sum(step.recall * step.rows_allowed for step in steps) / rows if rows else 1.0
