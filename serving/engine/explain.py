"""The message that tells how a query was answered, from the record of its request."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.indexer import Segment
from scannery.serving.request.options import WIRE_METHODS, WIRE_MODES, Options
from scannery.serving.telemetry.query_stats import QueryStats, SegmentStats
from scannery.v1.search_pb2 import Explanation, Fusion, SegmentPlan, StageTime

__all__ = ["explanation"]


def explanation(stats: QueryStats, path: str, segments: Sequence[Segment], options: Options) -> Explanation:
    """Return how the query at `path` was answered; times are those of all queries of the request together."""
    fusion = None
    if options.mode == "hybrid":
        fusion = Fusion(method=WIRE_METHODS[options.fusion.method], alpha=options.fusion.alpha)
    searched = [stats.segments.get((path, number)) for number in range(len(segments))]
    return Explanation(
        segments=[_plan(segment, step) for segment, step in zip(segments, searched, strict=True)],
        stages=[
            StageTime(stage=name, duration_us=round(seconds * 1e6))
            for name, seconds in stats.stages_s.items()
        ],
        expected_recall=_recall([step for step in searched if step is not None]),
        mode=WIRE_MODES[options.mode],
        fusion=fusion,
    )


def _plan(segment: Segment, step: SegmentStats | None) -> SegmentPlan:
    entry = segment.entry
    plan = SegmentPlan(segment=entry.sha256[:12], shard=entry.shard, rows=entry.rows, plan="none")
    if step is not None:
        plan.plan = step.plan
        plan.rows_allowed = step.rows_allowed
        plan.leaves_searched = step.leaves
        plan.candidates = step.candidates
    return plan


def _recall(steps: Sequence[SegmentStats]) -> float:
    """Return the mean, by allowed rows: a true neighbour lies in a segment in proportion to these."""
    rows = sum(step.rows_allowed for step in steps)
    return sum(step.recall * step.rows_allowed for step in steps) / rows if rows else 1.0
