"""The segments that a query looks at, as its options leave them.

Shapes: Q queries, D dimensions, K hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scannery.indexer import AllowedRows, Found, SearchSettings, Segment
from scannery.serving.request.options import Options
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["SegmentSearch", "scopes_of"]

# ScaNN is no faster than a scan when so large a share of a segment is wanted.
EXACT_ABOVE_SHARE = 0.125


@dataclass(frozen=True, slots=True)
class SegmentSearch:
    """One segment as the options leave it."""

    number: int
    segment: Segment
    allowed: AllowedRows | None
    """The rows that may be returned; None: all."""
    rows: int
    """How many those are."""
    settings: SearchSettings | None
    """ScaNN's knobs; None searches exactly."""
    target_recall: float

    def settings_for(self, hits: int) -> SearchSettings | None:
        """Return ScaNN's knobs for `k` hits; None where an exact search is as fast, or has to be."""
        settings = self.settings
        if settings is None or hits > EXACT_ABOVE_SHARE * self.segment.rows or not settings.reaches(hits):
            return None
        return settings

    def search(self, vectors_QD: np.ndarray, hits: int) -> tuple[np.ndarray, np.ndarray, str]:
        """Return the best rows, int64, their scores, float32, and the plan; for vectors that are ready."""
        settings = self.settings_for(hits)
        if self.allowed is None:
            rows_QK, scores_QK = self.segment.search(vectors_QD, hits, settings=settings, ready=True)
            return rows_QK, scores_QK, "exact" if settings is None else "scann"
        found = self.find(vectors_QD, hits)
        return found.rows_QK, found.scores_QK, found.plans[0]

    def find(self, vectors_QD: np.ndarray, hits: int) -> Found:
        """Return the same, and what else there is to know of how it was found."""
        return self.segment.find(
            vectors_QD,
            hits,
            settings=self.settings_for(hits),
            allowed=self.allowed,
            target_recall=self.target_recall,
            ready=True,
        )


def scopes_of(snapshot: Snapshot, options: Options) -> list[SegmentSearch]:
    """Return the segments that have rows for an answer; those without a filter are remembered."""
    # Masks have a cache of their own, with a bound of memory.
    return snapshot.derived(options, _scopes) if options.where is None else _scopes(snapshot, options)


def _scopes(snapshot: Snapshot, options: Options) -> list[SegmentSearch]:
    knobs = snapshot.derived(options, _knobs)
    target = options.target_recall or snapshot.manifest.spec.target_recall
    scopes = []
    for number, (segment, alive) in enumerate(zip(snapshot.segments, snapshot.alive, strict=True)):
        allowed = alive if options.where is None else snapshot.masks.allowed(segment, options.where, alive)
        rows = segment.rows if allowed is None else allowed.count
        if rows == segment.rows:
            allowed = None
        if rows:
            scopes.append(SegmentSearch(number, segment, allowed, rows, knobs[number], target))
    return scopes


def _knobs(snapshot: Snapshot, options: Options) -> Sequence[SearchSettings | None]:
    """Return ScaNN's knobs for each segment."""
    if options.exact:
        return [None] * len(snapshot.segments)
    tuned = snapshot.index.settings_for(options.target_recall)
    if not options.knobs.given:
        return tuned
    # A caller who sets ScaNN wants it, also where no setting meets the target.
    target = options.target_recall or snapshot.manifest.spec.target_recall
    closest = [segment.closest_settings(target) for segment in snapshot.segments]
    return [options.knobs.over(settings, options.k + options.offset) for settings in closest]
