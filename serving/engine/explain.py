"""The message that tells how a query was answered, from the record of its request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scannery.indexer import SegmentEntry
from scannery.serving.request.options import WIRE_METHODS, WIRE_MODES, Options
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats, SegmentStats
from scannery.v1.search_pb2 import Explanation, Fusion, SegmentPlan, StageTime

__all__ = ["explanation"]


def explanation(
    stats: QueryStats, path: str, snapshot: Snapshot, options: Options, *, by_leaves: bool = False
) -> Explanation:
    """Return how the query at `path` was answered; times are those of all queries of the request together.

    Where named vectors are searched, the segments are the files with these. `by_leaves`: the segments are on the leaves
    of a cluster, so their plans are not known, and the expected recall (0: not known) only of a search that is exact.
    """
    fusion = None
    if options.mode == "hybrid":
        fusion = Fusion(method=WIRE_METHODS[options.fusion.method], alpha=options.fusion.alpha)
    elif len(options.vectors) > 1 and options.mode == "dense":
        fusion = Fusion(method=WIRE_METHODS[options.fusion.method])
    files = _files(snapshot, options)
    searched = [stats.segments.get((path, name, number)) for name, number, _ in files]
    exact = options.exact or options.mode == "lexical"
    return Explanation(
        segments=[_plan(entry, step) for (_, _, entry), step in zip(files, searched, strict=True)],
        stages=[
            StageTime(stage=name, duration_us=round(seconds * 1e6))
            for name, seconds in stats.stages_s.items()
        ],
        expected_recall=0.0 if by_leaves and not exact else _recall([s for s in searched if s is not None]),
        mode=WIRE_MODES[options.mode],
        fusion=fusion,
        **_targets(snapshot, options),
    )


def _targets(snapshot: Snapshot, options: Options) -> dict[str, Any]:
    """Return the target recall, the one that chose the settings, and the steps between them."""
    effective = options.target_recall or snapshot.manifest.spec.target_recall
    if options.recall_step:
        return {
            "target_recall": options.asked_recall,
            "effective_target_recall": effective,
            "recall_steps": options.recall_step,
        }
    if options.mode == "lexical" or options.exact or options.knobs.given:
        return {}
    return {"target_recall": effective, "effective_target_recall": effective}


def _files(snapshot: Snapshot, options: Options) -> list[tuple[str, int, SegmentEntry]]:
    """Return the files that may be searched: name of the vectors, number of the datapoints' segment, and entry."""
    names = options.vectors.names if options.mode != "lexical" else ()
    files = []
    for name in names or ("",):
        if name:
            files += [(name, part.number, part.segment.entry) for part in snapshot.space(name).parts]
        else:
            files += [(name, number, segment.entry) for number, segment in enumerate(snapshot.segments)]
    return files


def _plan(entry: SegmentEntry, step: SegmentStats | None) -> SegmentPlan:
    plan = SegmentPlan(segment=entry.sha256[:12], shard=entry.shard, rows=entry.rows, plan="none")
    if step is not None:
        plan.plan = step.plan
        plan.rows_allowed = step.rows_allowed
        plan.leaves_searched = step.leaves
        plan.candidates = step.candidates
        plan.predicted_us = step.predicted_us
        plan.measured_us = step.measured_us
    return plan


def _recall(steps: Sequence[SegmentStats]) -> float:
    """Return the mean, by allowed rows: a true neighbour lies in a segment in proportion to these."""
    rows = sum(step.rows_allowed for step in steps)
    return sum(step.recall * step.rows_allowed for step in steps) / rows if rows else 1.0
