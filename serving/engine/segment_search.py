"""The segments that a search reads, each with the rows that may be returned and ScaNN's settings for it.

Shapes: Q queries, D dimensions, K hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scannery.indexer import AllowedRows, Found, SearchSettings, Segment
from scannery.indexer.planning.planner import EXACT_ABOVE_SHARE
from scannery.runtime.deadline import Deadline
from scannery.serving.request.options import Options
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.serving.telemetry.tracing import span

__all__ = ["SegmentSearch", "segment_searches", "settings_of"]


@dataclass(frozen=True, slots=True)
class SegmentSearch:
    """The search of one segment."""

    number: int
    """Of the segment, in its snapshot."""
    segment: Segment
    allowed: AllowedRows | None
    """The rows that may be returned; None: all."""
    rows: int
    """How many rows may be returned."""
    settings: SearchSettings | None
    """ScaNN's settings; None searches exactly."""
    target_recall: float

    def settings_for(self, hits: int) -> SearchSettings | None:
        """Return ScaNN's settings for `hits` hits; None where an exact search is as fast, or is needed."""
        settings = self.settings
        if settings is None or hits > EXACT_ABOVE_SHARE * self.segment.rows or not settings.reaches(hits):
            return None
        return settings

    def search(
        self, vectors_QD: np.ndarray, hits: int, stats: QueryStats, paths: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best rows, int64 (Q, K), and their scores, float32 (Q, K), best first.

        Args:
            vectors_QD: the queries, as `search_ready` returns vectors.
            hits: rows wanted for each query.
            stats: where the plan is recorded.
            paths: names of the queries there.

        """
        hits = min(hits, self.rows)
        with span("scannery.segment") as traced:
            if self.allowed is None and not stats.explained:
                settings = self.settings_for(hits)
                rows_QK, scores_QK = self.segment.search(vectors_QD, hits, settings=settings, ready=True)
                plan = "exact" if settings is None else "scann"
            else:
                found = self.find(vectors_QD, hits)
                rows_QK, scores_QK, plan = found.rows_QK, found.scores_QK, found.plans[0]
                if stats.explained:
                    stats.add_segment(self.number, self.rows, found, paths)
            if traced is not None:
                traced.set_attributes(self._attributes(plan, hits))
        stats.add_plan(plan, self.rows)
        return rows_QK, scores_QK

    def find(self, vectors_QD: np.ndarray, hits: int) -> Found:
        """Return the best rows with the plan, the leaves and candidates searched, and the expected recall."""
        return self.segment.find(
            vectors_QD,
            hits,
            settings=self.settings_for(hits),
            allowed=self.allowed,
            target_recall=self.target_recall,
            ready=True,
        )

    def _attributes(self, plan: str, hits: int) -> dict[str, str | int]:
        """Return the attributes of the segment's span."""
        entry = self.segment.entry
        return {
            "scannery.plan": plan,
            "scannery.segment": entry.sha256[:12],
            "scannery.shard": entry.shard,
            "scannery.rows_allowed": self.rows,
            "scannery.hits_wanted": hits,
        }


def segment_searches(
    snapshot: Snapshot,
    options: Options,
    settings: Sequence[SearchSettings | None],
    deadline: Deadline | None = None,
) -> list[SegmentSearch]:
    """Return the searches of all segments that have allowed rows; `settings` as `settings_of` returns them.

    In mode `dense` without the segments whose rows have no vectors.
    """
    target = options.target_recall or snapshot.manifest.spec.target_recall
    searches = []
    for number, (segment, alive) in enumerate(zip(snapshot.segments, snapshot.alive, strict=True)):
        if options.mode == "dense" and not segment.has_vectors:
            continue
        allowed = alive
        if options.where is not None:
            allowed = snapshot.masks.allowed(segment, options.where, alive, deadline=deadline)
        rows = segment.rows if allowed is None else allowed.count
        if rows == segment.rows:
            allowed = None
        if rows:
            searches.append(SegmentSearch(number, segment, allowed, rows, settings[number], target))
    return searches


def settings_of(snapshot: Snapshot, options: Options) -> Sequence[SearchSettings | None]:
    """Return ScaNN's settings for each segment; None searches it exactly."""
    if options.exact:
        return [None] * len(snapshot.segments)
    tuned = snapshot.index.settings_for(options.target_recall)
    if not options.knobs.given:
        return tuned
    # Knobs are for ScaNN, also where none of the tuned settings meets the target.
    target = options.target_recall or snapshot.manifest.spec.target_recall
    closest = [segment.closest_settings(target) for segment in snapshot.segments]
    return [options.knobs.over(settings, options.k + options.offset) for settings in closest]
