"""Statistics of how one request was answered, made by its lifecycle and passed to the engine.

Metrics and the request's span take the plan from them, `explain` the stages and segments. Each stage is a span.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scannery.serving.telemetry import tracing

if TYPE_CHECKING:
    from scannery.indexer import SegmentHits

__all__ = ["QueryStats", "SegmentStats"]


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """How one query was answered in one segment."""

    plan: str
    rows_allowed: int
    leaves: int
    """Leaves searched."""
    candidates: int
    """Rows scored, in all rounds of the query."""
    recall: float
    """Expected recall, 0 to 1."""
    predicted_us: float = 0.0
    """Predicted processor time, of all queries of the search together; 0: unknown."""
    measured_us: float = 0.0
    """Processor time, of all rounds and queries together."""


class QueryStats:
    """Statistics of one request. Written by one thread at a time."""

    __slots__ = (
        "_rows", "counts", "expanded", "explained", "phrases", "plan", "rankings", "segments", "stages_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.plan = ""
        """Plan of the segment with the most allowed rows, which decides on the time; empty: nothing was searched."""
        self._rows = -1
        """Allowed rows of that segment."""
        self.counts: Sequence[int] = ()
        """Number of hits of each query; or one: of the rows that were returned, written, deleted or counted."""
        self.explained = False
        """Whether stages and segments are recorded, too."""

    def explain(self) -> None:
        """Record stages and segments, too."""
        if not self.explained:
            self.explained = True
            self.stages_s: dict[str, float] = {}
            """Seconds by stage, of all queries together."""
            self.segments: dict[tuple[str, str, int], SegmentStats] = {}
            """Statistics by path of the query in the request, name of the vectors, and number of the segment."""
            self.expanded: dict[str, Mapping[str, str]] = {}
            """Patterns of the words of a query that stand for others by word, by path of the query."""
            self.phrases: dict[str, Sequence[str]] = {}
            """Phrases in quotes that hits must have, by path of the query."""
            self.rankings: dict[str, tuple[str, int, float | None]] = {}
            """Ranking expression, rows that it was computed for, and the bound of others, by path of the query."""

    @property
    def detailed(self) -> bool:
        """Whether the request is explained or traced, which needs each of its stages."""
        return self.explained or tracing.recording()

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Return a context that is a span, and is timed for `explain`."""
        return self._timed(name) if self.explained else tracing.span(f"scannery.{name}")

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started_s = time.perf_counter()
        with tracing.span(f"scannery.{name}"):
            yield
        self.stages_s[name] = self.stages_s.get(name, 0.0) + time.perf_counter() - started_s

    def add_plan(self, plan: str, rows_allowed: int) -> None:
        """Record the plan of a segment."""
        if rows_allowed > self._rows:
            self.plan, self._rows = plan, rows_allowed

    def add_segment(
        self, segment_name: tuple[str, int], rows_allowed: int, hits: SegmentHits, paths: Sequence[str]
    ) -> None:
        """Record what was found by the vectors of a name in a segment, for the queries at `paths` in their order."""
        for i, path in enumerate(paths):
            before = self.segments.get((path, *segment_name))
            self.segments[(path, *segment_name)] = SegmentStats(
                hits.plans[i],
                rows_allowed,
                int(hits.leaves_Q[i]),
                int(hits.candidates_Q[i]) + (before.candidates if before else 0),
                float(hits.recall_Q[i]),
                hits.predicted_us + (before.predicted_us if before else 0.0),
                hits.measured_us + (before.measured_us if before else 0.0),
            )

    def add_words(self, number: int, rows_allowed: int, paths: Sequence[str]) -> None:
        """Record that a segment is searched by words alone, which is exact."""
        self.add_plan("words", rows_allowed)
        if self.explained:
            step = SegmentStats("words", rows_allowed, 0, rows_allowed, 1.0)
            self.segments.update({(path, "", number): step for path in paths})
