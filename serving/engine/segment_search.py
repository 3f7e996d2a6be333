"""The segments that a search reads, each with the rows that may be returned and ScaNN's settings for it.

Filters select datapoints. Those whose vector of some name is searched are the rows of another file, with other numbers
(`VectorSpace`): `SegmentSearch` takes the former to the latter, and hits back.

Shapes: Q queries, D dimensions, K hits.

What is searched: a batch of queries, what all requests with the same options have in common, computed once, and a
filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np

from scannery.indexer import AllowedRows, NamedVectors, SearchSettings, Segment, SegmentHits, VectorSpace
from scannery.indexer.planning.planner import EXACT_ABOVE_SHARE
from scannery.runtime.retry import Deadline
from scannery.serving.engine.hydrator import Hydrator
from scannery.serving.request.filter import Node
from scannery.serving.request.modes import WIRE_MODES
from scannery.serving.request.options import CostClass, Options
from scannery.serving.request.query import Query
from scannery.serving.snapshot.search_times import SearchTimes
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1.search_pb2 import SearchResponse

__all__ = [
    "AllowedSegment",
    "PreparedSearch",
    "QueryBatch",
    "QueryPaths",
    "SearchPlan",
    "SearchedSegments",
    "SegmentSearch",
    "searched_segments",
    "settings_of",
]


@dataclass(frozen=True, slots=True)
class AllowedSegment:
    """The rows of one segment that may be returned."""

    number: int
    """Number of the segment, in its snapshot."""
    allowed: AllowedRows | None
    """None: all."""
    rows: int
    """How many they are."""


class ChosenSearch(NamedTuple):
    """The search of one segment for a number of hits, with all that does not depend on the queries decided."""

    number: int
    """Number of the segment, in its snapshot."""
    rows: int
    """How many rows it may return."""
    plan: str
    find: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    """Function from ready queries, float32 (Q, D), to their best rows, int64 (Q, K), and scores, float32 (Q, K)."""


@dataclass(frozen=True, slots=True)
class SegmentSearch:
    """The search of the vectors of one segment."""

    number: int
    """Number of the segment with the datapoints, in its snapshot."""
    segment: Segment
    """Segment with the vectors."""
    allowed: AllowedRows | None
    """Its rows that may be returned; None: all."""
    rows: int
    """How many rows may be returned."""
    settings: SearchSettings | None
    """ScaNN's settings; None searches exactly."""
    target_recall: float
    name: str = ""
    """Name of the vectors."""
    vectors: NamedVectors | None = None
    """Rows: from rows of `segment` to those of datapoints; None: they are the same."""
    as_written: bool = False
    """Whether vectors are compared as they were written, by inner product, not scaled to length 1."""

    def settings_for(self, hits: int) -> SearchSettings | None:
        """Return ScaNN's settings for `hits` hits; None where an exact search is as fast, or is needed."""
        settings = self.settings
        if settings is None or hits > EXACT_ABOVE_SHARE * self.segment.rows or not settings.reaches(hits):
            return None
        return settings

    def chosen(self, hits: int) -> ChosenSearch | None:
        """Return the search for `hits` rows of `segment`, decided once; None if more than their number decides."""
        if self.allowed is not None or (self.as_written and self.segment.is_scaled):
            return None
        hits = min(hits, self.rows)
        settings = self.settings_for(hits)
        plan = "exact" if settings is None else "scann"
        return ChosenSearch(self.number, self.rows, plan, self.segment.searching(hits, settings))

    def search(
        self, vectors_QD: np.ndarray, hits: int, stats: QueryStats, paths: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best rows of datapoints, int64 (Q, K), and their scores, float32 (Q, K), best first.

        Args:
            vectors_QD: the queries, as `search_ready` returns vectors.
            hits: rows wanted for each query.
            stats: where the plan is recorded.
            paths: names of the queries there.

        """
        hits = min(hits, self.rows)
        if not tracing.recording():
            rows_QK, scores_QK, plan = self._searched(vectors_QD, hits, stats, paths)
        else:
            with tracing.span("scannery.segment") as traced:
                rows_QK, scores_QK, plan = self._searched(vectors_QD, hits, stats, paths)
                if traced is not None:
                    traced.set_attributes(self._attributes(plan, hits))
        stats.add_plan(plan, self.rows)
        if self.vectors is not None:
            rows_QK = self.vectors.datapoints(rows_QK)
        return rows_QK, scores_QK

    def _searched(
        self, vectors_QD: np.ndarray, hits: int, stats: QueryStats, paths: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray, str]:
        """Return the best rows of `segment`, their scores, and the plan."""
        if self.as_written and self.segment.is_scaled:
            mask_N = None if self.allowed is None else self.allowed.mask_N
            return *self.segment.search_given(vectors_QD, hits, mask_N), "exact"
        if not stats.explained and (chosen := self.chosen(hits)) is not None:
            return *chosen.find(vectors_QD), chosen.plan
        hits_of_segment = self.find(vectors_QD, hits, timed=stats.explained)
        if stats.explained:
            stats.add_segment((self.name, self.number), self.rows, hits_of_segment, paths)
        return hits_of_segment.rows_QK, hits_of_segment.scores_QK, hits_of_segment.plans[0]

    def find(self, vectors_QD: np.ndarray, hits: int, *, timed: bool = False) -> SegmentHits:
        """Return the best rows of `segment` with the plan, the leaves and candidates searched, and the recall.

        With `timed` also the predicted and the measured time.
        """
        return self.segment.find(
            vectors_QD,
            hits,
            settings=self.settings_for(hits),
            allowed=self.allowed,
            target_recall=self.target_recall,
            ready=True,
            timed=timed,
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


class SearchedSegments(NamedTuple):
    """What a search reads: segments with allowed rows."""

    allowed: Sequence[AllowedSegment]
    """Those that are searched by words; in mode `dense` none."""
    by_vector: Sequence[Sequence[SegmentSearch]]
    """Segments: for each of the vectors, in the order of the options, those that have it."""

    @property
    def searches(self) -> list[SegmentSearch]:
        """All searches by vector."""
        return [each for searches in self.by_vector for each in searches]


def searched_segments(
    snapshot: Snapshot,
    options: Options,
    spaces: Sequence[VectorSpace],
    settings: Sequence[Sequence[SearchSettings | None]],
    where: Node | None = None,
    deadline: Deadline | None = None,
) -> SearchedSegments:
    """Return what a search reads; DeadlineError if that takes too long.

    Args:
        snapshot: what is searched.
        options: of the search.
        spaces: the vectors of the options.
        settings: for each of them, as `settings_of` returns them.
        where: the filter; None allows all rows.
        deadline: of the request.

    """
    filtered = _SegmentFilters(snapshot, options, where, deadline)
    by_words = [] if options.mode == "dense" else filtered.segments()
    return SearchedSegments(
        by_words, [_of_space(space, filtered, each) for space, each in zip(spaces, settings, strict=True)]
    )


class _SegmentFilters:
    """The rows of each segment that a filter allows, each looked up once."""

    __slots__ = ("_allowed", "_deadline", "_snapshot", "_where", "as_written", "target_recall")

    def __init__(
        self, snapshot: Snapshot, options: Options, where: Node | None, deadline: Deadline | None
    ) -> None:
        self._snapshot, self._where, self._deadline = snapshot, where, deadline
        self._allowed: dict[int, AllowedRows] = {}
        self.target_recall = options.target_recall or snapshot.manifest.spec.target_recall
        self.as_written = options.inner_product

    def rows(self, number: int) -> AllowedRows | None:
        """Return the live rows of a segment that the filter allows; None: all rows."""
        snapshot, where = self._snapshot, self._where
        alive = snapshot.alive[number]
        if where is None:
            return alive
        allowed = self._allowed.get(number)
        if allowed is None:
            segment = snapshot.segments[number]
            allowed = snapshot.masks.allowed(segment, where, alive, deadline=self._deadline)
            self._allowed[number] = allowed
        return allowed

    def segments(self) -> list[AllowedSegment]:
        """Return the segments with allowed rows."""
        allowed_segments = []
        for number, segment in enumerate(self._snapshot.segments):
            allowed = self.rows(number)
            rows = segment.rows if allowed is None else allowed.count
            allowed = None if rows == segment.rows else allowed
            if rows:
                allowed_segments.append(AllowedSegment(number, allowed, rows))
        return allowed_segments


def _of_space(
    space: VectorSpace, filtered: _SegmentFilters, settings: Sequence[SearchSettings | None]
) -> list[SegmentSearch]:
    """Return the searches of the segments that have allowed rows with vectors of one name."""
    searches = []
    for part, own_settings in zip(space.parts, settings, strict=True):
        segment, allowed = part.segment, filtered.rows(part.number)
        if part.vectors is not None:
            allowed = part.vectors.allowed(allowed)
        rows = segment.rows if allowed is None else allowed.count
        if rows:
            allowed = None if rows == segment.rows else allowed
            searches.append(
                SegmentSearch(
                    part.number,
                    segment,
                    allowed,
                    rows,
                    own_settings,
                    filtered.target_recall,
                    space.name,
                    part.vectors,
                    filtered.as_written,
                )
            )
    return searches


def settings_of(space: VectorSpace, options: Options) -> Sequence[SearchSettings | None]:
    """Return ScaNN's settings for each segment of the index of a name; None searches it exactly."""
    index = space.index
    if options.exact:
        return [None] * len(index.segments)
    if not options.knobs.is_set:
        return index.settings_for(options.target_recall)
    # Knobs are for ScaNN, also where none of the tuned settings meets the target.
    target = options.target_recall or index.spec.target_recall
    closest = [segment.closest_settings(target) for segment in index.segments]
    return [options.knobs.over(settings, options.k + options.offset) for settings in closest]


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
    def __getitem__(self, key: int) -> str: ...

    @overload
    def __getitem__(self, key: slice) -> QueryPaths: ...

    def __getitem__(self, key: int | slice) -> str | QueryPaths:
        """Return the name of a query, or the names of some."""
        if isinstance(key, slice):
            return QueryPaths(self._numbers[key])
        return f"queries[{self._numbers[key]}]"


class SearchPlan:
    """Options over one snapshot, for any number of requests with any filter. Safe to use from several threads.

    A snapshot keeps these, so they must not refer to it: its memory is freed with the last query on it.
    """

    def __init__(self, snapshot: Snapshot, options: Options) -> None:
        self.options = options
        spec = snapshot.manifest.spec
        names = options.vectors.names if options.mode != "lexical" else ()
        self.hydrator = Hydrator(
            snapshot.segments, spec, options.fields, group_by=options.group_by, scored=names
        )
        """Writes the hits."""
        mode = WIRE_MODES[options.mode]
        message = SearchResponse(version=snapshot.manifest.version, sequence=snapshot.sequence, mode=mode)
        self.trailer = message.SerializeToString()
        """The fields of a SearchResponse besides its hits, serialised."""
        self._spaces = [snapshot.space(choice.name) for choice in options.vectors]
        self._settings = [settings_of(space, options) for space in self._spaces]
        self._unfiltered = searched_segments(snapshot, options, self._spaces, self._settings)
        self.cost_class = options.cost_class
        one_stage = self.cost_class is not CostClass.STAGED and options.ranking is None
        self.reads_one_segment = len(self._unfiltered.searches) == 1 and options.drops_nothing and one_stage
        """Whether the best rows by vector of one segment are the answer."""
        self.chosen: ChosenSearch | None = None
        """The search that finds these without a filter; None: it is chosen for each query."""
        if self.reads_one_segment:
            [only] = self._unfiltered.searches
            if only.vectors is None:
                self.chosen = only.chosen(options.offset + options.k)
        self.answers_at_once = self.reads_one_segment and options.highlight is None and not options.explain
        """Whether these are also all that the answer to a query by vector has."""
        self.waits = self.hydrator.waits or any(
            segment.is_cold or (segment.reads_given and options.inner_product)
            for space in self._spaces
            for segment in space.index.segments
        )
        """Whether a search may wait for the store, for which the event loop must not."""

    def segments(self, snapshot: Snapshot, where: Node | None, deadline: Deadline) -> SearchedSegments:
        """Return the segments with rows that a filter allows; DeadlineError if that takes too long."""
        if where is None:
            return self._unfiltered
        # The rows that a filter allows have a cache of their own, with a bound of memory.
        return searched_segments(snapshot, self.options, self._spaces, self._settings, where, deadline)


class PreparedSearch:
    """Options and a filter over one snapshot, for any number of requests. Safe to use from several threads.

    Cheap to make: most filters are asked once.
    """

    __slots__ = (
        "_may_be_quick",
        "_times",
        "_times_of_form",
        "chosen",
        "cost_class",
        "hydrator",
        "is_quick",
        "options",
        "plan",
        "trailer",
        "where",
    )

    def __init__(
        self, plan: SearchPlan, where: Node | None, times_of_form: SearchTimes | None = None
    ) -> None:
        """Prepare a search.

        Args:
            plan: of the options.
            where: the filter; None allows all rows.
            times_of_form: of searches with filters of the same form; None: they say nothing about this one.

        """
        self.plan, self.where = plan, where
        self.options, self.hydrator, self.trailer = plan.options, plan.hydrator, plan.trailer
        self.cost_class, self.chosen = plan.cost_class, plan.chosen
        if where is not None:
            self.chosen = None
            if self.cost_class is CostClass.INDEXED:
                self.cost_class = CostClass.SCANNED
        self._times, self._times_of_form = SearchTimes(alike=True), times_of_form
        self._may_be_quick = self.cost_class is not CostClass.STAGED and not plan.waits
        by_form = times_of_form is not None and times_of_form.are_quick
        self.is_quick = self._may_be_quick and (self.cost_class is CostClass.INDEXED or by_form)
        """Whether a search is expected to be quick, by the latest ones.

        Without a measurement, those are quick that use the tuned plan. A filter may need a scan: it is expected to take
        as long as others that differ from it in their values only.
        """

    @classmethod
    def of(cls, snapshot: Snapshot, options: Options, where: Node | None) -> PreparedSearch:
        """Prepare a search of a snapshot."""
        times = None
        if where is not None:
            # Another version may have segments whose attributes are not indexed yet.
            limit, version = options.k + options.offset, snapshot.manifest.version
            times = snapshot.masks.times(where, limit, options.exact, version)
        return cls(snapshot.plan(options, SearchPlan), where, times)

    def segments(self, snapshot: Snapshot, deadline: Deadline) -> SearchedSegments:
        """Return the segments that have allowed rows; DeadlineError if that takes too long."""
        return self.plan.segments(snapshot, self.where, deadline)

    def allowed(self, snapshot: Snapshot, deadline: Deadline) -> list[AllowedSegment]:
        """Return the datapoints that the filter allows, in any mode; DeadlineError if that takes too long."""
        return _SegmentFilters(snapshot, self.options, self.where, deadline).segments()

    def took(self, seconds: float) -> None:
        """Record how long a search took."""
        self._times.add(seconds)
        if self._times_of_form is not None:
            self._times_of_form.add(seconds)
        self.is_quick = self._may_be_quick and self._times.are_quick

    @property
    def is_repeated(self) -> bool:
        """Whether others like it are likely: it has no filter, or one that was asked before."""
        return self.where is None or self._times.are_known
