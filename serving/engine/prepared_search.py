"""What is searched: a batch of queries, and what all requests with the same options have in common, computed once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from scannery.runtime.deadline import Deadline
from scannery.serving.engine.hydrator import Hydrator
from scannery.serving.engine.segment_search import (
    ChosenSearch,
    SearchedSegments,
    searched_segments,
    settings_of,
)
from scannery.serving.request.options import WIRE_MODES, CostClass, Options
from scannery.serving.request.query import Query
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1.search_pb2 import SearchResponse

__all__ = ["PreparedSearch", "QueryBatch", "QueryPaths"]

QUICK_S = 0.002
"""A search that takes no longer may run on the event loop: other requests wait for it there."""


@dataclass(slots=True)
class QueryBatch:
    """Queries over one snapshot that are searched together."""

    snapshot: Snapshot
    queries: Sequence[Query]
    paths: Sequence[str]
    """Name of each query in errors and in `stats`."""
    deadline: Deadline
    """Checked between the steps."""
    stats: QueryStats
    """Where it is recorded how the queries are answered."""


class QueryPaths(Sequence[str]):
    """The names of the queries of a batch, made when they are read: most searches read none."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> QueryPaths: ...

    def __getitem__(self, place: int | slice) -> str | QueryPaths:
        """Return the name of a query, or the names of some."""
        if isinstance(place, slice):
            return QueryPaths(self._numbers[place])
        return f"queries[{self._numbers[place]}]"


class PreparedSearch:
    """Options over one snapshot, for any number of requests. Safe to use from several threads.

    A snapshot keeps these, so they must not refer to it: its memory is freed with the last query on it.
    """

    def __init__(self, snapshot: Snapshot, options: Options) -> None:
        self.options = options
        group_by = options.group_by if options.max_per_group is not None else None
        spec = snapshot.manifest.spec
        names = options.vectors.names if options.mode != "lexical" else ()
        self.hydrator = Hydrator(snapshot.segments, spec, options.fields, group_by=group_by, scored=names)
        """Writes the hits."""
        mode = WIRE_MODES[options.mode]
        rest = SearchResponse(version=snapshot.manifest.version, sequence=snapshot.sequence, mode=mode)
        self.trailer = rest.SerializeToString()
        """The fields of a SearchResponse besides its hits, serialised."""
        self._spaces = [snapshot.space(choice.name) for choice in options.vectors]
        self._settings = [settings_of(space, options) for space in self._spaces]
        # The rows that a filter allows have a cache of their own, with a bound of memory.
        self._unfiltered = (
            searched_segments(snapshot, options, self._spaces, self._settings)
            if options.where is None
            else None
        )
        if self._unfiltered is None:
            searches = sum(len(space.parts) for space in self._spaces)
        else:
            searches = len(self._unfiltered.searches)
        self.cost_class = options.cost_class
        one_stage = self.cost_class is not CostClass.STAGED
        self.reads_one_segment = searches == 1 and options.drops_nothing and one_stage
        """Whether the best rows by vector of one segment are the answer."""
        self.chosen: ChosenSearch | None = None
        """The search that finds these; None: it is chosen for each query."""
        if self.reads_one_segment and self._unfiltered is not None:
            [only] = self._unfiltered.searches
            if only.vectors is None:
                self.chosen = only.chosen(options.offset + options.k)
        self.answers_at_once = self.reads_one_segment and options.highlight is None and not options.explain
        """Whether these are also all that the answer to a query by vector has."""
        self._latest_s: deque[float] = deque(maxlen=8)
        self._waits = any(segment.is_cold for space in self._spaces for segment in space.index.segments)
        """Whether a search may wait for the store, for which the event loop must not."""
        self.is_quick = self.cost_class is CostClass.INDEXED and not self._waits
        """Whether a search is expected to take at most QUICK_S, by the fastest of the latest ones.

        A single slow search says more about the machine. Without a measurement, those are quick that use the tuned
        plan: a filter may need a scan.
        """
        self.first_stage: PreparedSearch | None = None
        """The search for the candidates of a reranking."""
        if options.rerank is not None:
            first = replace(options, k=options.deepest, offset=0, rerank=None)
            self.first_stage = PreparedSearch(snapshot, first)

    def segments(self, snapshot: Snapshot, deadline: Deadline) -> SearchedSegments:
        """Return the segments that have allowed rows; DeadlineError if that takes too long."""
        if self._unfiltered is not None:
            return self._unfiltered
        return searched_segments(snapshot, self.options, self._spaces, self._settings, deadline)

    def took(self, seconds: float) -> None:
        """Record how long a search took."""
        self._latest_s.append(seconds)
        quick = self.cost_class is not CostClass.STAGED and not self._waits
        self.is_quick = quick and min(self._latest_s) <= QUICK_S
