"""What all requests with the same options have in common, made once; and the shortest way from vectors to an answer.

Most searches take one look at one segment, and every candidate is a hit. A search drives the interpreter out of the
processor's cache, so that each function on the way costs several times what it does in a loop of its own: these go
straight from rows to the bytes of the answer. All others go through the engine.

Shapes: Q queries, D dimensions, K hits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scannery.runtime.deadline import Deadline
from scannery.serving.engine import search as engine
from scannery.serving.engine.hydrator import Hydrator, Written
from scannery.serving.engine.segment_search import SegmentSearch, scopes_of
from scannery.serving.request.options import Options
from scannery.serving.request.query import ByVector
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import note_plan, noted_plan
from scannery.v1.search_pb2 import SearchResponse

__all__ = ["FastQuery", "PreparedSearch", "answers_of"]

QUICK_S = 0.002
"""A search that takes no longer is answered by whoever read it; what takes longer must not keep others waiting."""


class PreparedSearch:
    """Some options over one snapshot, ready for any number of requests. Safe to use from several threads.

    A snapshot keeps these, and so they do not keep the snapshot: its memory goes with the last query on it.
    """

    def __init__(self, snapshot: Snapshot, options: Options) -> None:
        self.options = options
        group_by = options.group_by if options.max_per_group is not None else None
        spec = snapshot.manifest.spec
        self.hydrator = Hydrator(snapshot.segments, spec, options.fields, group_by=group_by)
        """Writes the hits."""
        rest = SearchResponse(version=snapshot.manifest.version, sequence=snapshot.sequence)
        self.rest = rest.SerializeToString()
        """What an answer has besides its hits, on the wire."""
        self._hits = options.k + options.offset
        self._lately: deque[float] = deque(maxlen=8)
        # What a filter leaves of many segments would be looked up here in vain, mostly.
        self._may_be_straight = options.one_look and (options.where is None or len(snapshot.segments) == 1)
        self._scope = self._only_scope(snapshot) if options.where is None else None

    def straight(self, snapshot: Snapshot, vectors_QD: np.ndarray, deadline: Deadline) -> Written | None:
        """Return the hits of some queries, ready to be searched, if that takes one look at one segment."""
        scope = self._scope if self.options.where is None else self._only_scope(snapshot)
        if scope is None:
            return None
        deadline.check()
        rows_QK, scores_QK, plan = scope.search(vectors_QD, min(self._hits, scope.rows))
        note_plan(plan, scope.rows)
        deadline.check()
        if self.options.offset:
            rows_QK, scores_QK = rows_QK[:, self.options.offset :], scores_QK[:, self.options.offset :]
        return self.hydrator.block(scope.number, rows_QK, scores_QK)

    def answers(
        self, snapshot: Snapshot, queries: Sequence[ByVector], deadline: Deadline
    ) -> list[tuple[bytes, str]]:
        """Return the hits of each query, on the wire, and the plan that found them."""
        started_s = time.perf_counter()
        vectors = [query.vector_D for query in queries]
        vectors_QD = vectors[0][None] if len(vectors) == 1 else np.array(vectors)
        written = self.straight(snapshot, vectors_QD, deadline)
        if written is None:
            paths = ["query"] * len(queries)
            rankings = engine.search(snapshot, queries, self.options, deadline, paths=paths)
            written = self.hydrator.hits(rankings)
        plan = noted_plan()
        answers = [(hits, plan) for hits in written.lists()]
        self.took((time.perf_counter() - started_s) / len(queries))
        return answers

    @property
    def is_quick(self) -> bool:
        """Whether one of the last searches was: a single slow one says more about the machine.

        Before the first one, those are that use the index's own plan; a filter may take a scan, and time to be made.
        """
        if self._lately:
            return min(self._lately) <= QUICK_S
        return self.options.plain

    def took(self, seconds: float) -> None:
        """Take note of how long a query took."""
        self._lately.append(seconds)

    def _only_scope(self, snapshot: Snapshot) -> SegmentSearch | None:
        """Return the one segment to look at; None if there is none, or if it takes more."""
        scopes = scopes_of(snapshot, self.options) if self._may_be_straight else []
        return scopes[0] if len(scopes) == 1 else None


@dataclass(slots=True)
class FastQuery:
    """A search by vector that waits for nothing and takes as little as any."""

    snapshot: Snapshot
    prepared: PreparedSearch
    query: ByVector


def answers_of(searches: Sequence[FastQuery], deadline: Deadline) -> list[bytes]:
    """Return the answers to searches of one snapshot with the same options, on the wire."""
    snapshot, prepared = searches[0].snapshot, searches[0].prepared
    found = prepared.answers(snapshot, [search.query for search in searches], deadline)
    return [hits + prepared.rest for hits, _ in found]
