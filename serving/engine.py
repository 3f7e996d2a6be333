"""The query engine: the best rows of a snapshot for some queries.

The life of a batch of queries with equal options:

1. Texts and ids become vectors, or terms, or both (lexical and hybrid search: sides.py).
2. The filter, and what the version has deleted, become a mask of allowed rows per segment (cached).
3. Each segment is asked for its best m rows; it takes the cheapest plan for the rows allowed (indexer/planner.py).
4. The segments' answers are merged, by score and then by id.
5. The datapoint itself (query by id), hits below `min_score`, and hits beyond `max_per_group` are dropped.
6. Queries that have too few hits left, though there are more rows, go back to 3 with a larger m.

Shapes: Q queries, D dimensions, M candidates asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scannery.indexer import AllowedRows, SearchSettings, Segment
from scannery.serving.crowding import Groups, crowd
from scannery.serving.deadline import Deadline
from scannery.serving.explain import Note, Trace
from scannery.serving.lexical import WordSearch
from scannery.serving.ranking import Ranking, merge
from scannery.serving.requests import ById, ByText, ByVector, Options, Query
from scannery.serving.sides import Source, hybrid_source, lexical_source
from scannery.serving.snapshot import Snapshot

__all__ = ["search"]

# Asked for so many times what is missing, the next round is mostly the last one.
WIDENING = 4
# ScaNN is no faster than a scan when so large a share of a segment is wanted.
EXACT_ABOVE_SHARE = 0.125


@dataclass(frozen=True, slots=True)
class _Scope:
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


def search(
    snapshot: Snapshot,
    queries: Sequence[Query],
    options: Options,
    deadline: Deadline,
    *,
    paths: Sequence[str],
    trace: Trace | None = None,
) -> list[Ranking]:
    """Return the hits of each query, best first, equal scores by id: `options.k` of them, if so many exist.

    Args:
        snapshot: what is searched.
        queries: the queries.
        options: the same for all of them.
        deadline: checked between the steps.
        paths: what each query is called in errors.
        trace: where to note how it was done.

    Raises:
        EncoderUnavailableError, UnknownDatapointError, InvalidRequestError, DeadlineError

    """
    trace = trace or Trace(len(queries), wanted=False)
    scopes, source = _prepare(snapshot, queries, options, deadline, paths, trace)
    own = [_own_row(snapshot, query, path) for query, path in zip(queries, paths, strict=True)]
    finish = _Finish(snapshot, options, own)
    total = sum(scope.rows for scope in scopes)
    wanted = options.offset + options.k + any(row is not None for row in own)
    results: list[Ranking | None] = [None] * len(queries)
    open_queries = np.arange(len(queries))
    while len(open_queries):
        with trace.stage("search"):
            rankings = source(open_queries, wanted)
        with trace.stage("crowd"):
            for number, ranking in zip(open_queries.tolist(), rankings, strict=True):
                results[number] = finish(number, ranking, complete=wanted >= total or len(ranking) < wanted)
        open_queries = np.array([n for n in open_queries.tolist() if results[n] is None], np.int64)
        wanted *= WIDENING
    return [ranking for ranking in results if ranking is not None]


def _prepare(
    snapshot: Snapshot,
    queries: Sequence[Query],
    options: Options,
    deadline: Deadline,
    paths: Sequence[str],
    trace: Trace,
) -> tuple[list[_Scope], Source]:
    """Return what is searched, and where the candidates come from in the mode that is wanted."""
    with trace.stage("encode"):
        words = None if options.mode == "dense" else WordSearch(snapshot, queries, options.mode, paths=paths)
        vectors_QD = None if options.mode == "lexical" else _vectors(snapshot, queries, paths)
    deadline.check()
    with trace.stage("filter"):
        scopes = _scopes(snapshot, options)

    def dense(numbers: np.ndarray, wanted: int) -> list[Ranking]:
        assert vectors_QD is not None
        return _candidates(scopes, vectors_QD[numbers], wanted, snapshot, deadline, trace.of(numbers))

    if words is None:
        return scopes, dense
    allowed = [(scope.number, None if scope.allowed is None else scope.allowed.mask_N) for scope in scopes]
    lexical = lexical_source(words, allowed, deadline.check)
    if options.mode == "lexical":
        for scope in scopes:
            trace.words(scope.number, scope.rows)
        return scopes, lexical
    return scopes, hybrid_source(dense, lexical, options.fusion, snapshot)


def _vectors(snapshot: Snapshot, queries: Sequence[Query], paths: Sequence[str]) -> np.ndarray:
    vectors_QD = np.empty((len(queries), snapshot.index.dimensions), np.float32)
    texts = [(i, query.text) for i, query in enumerate(queries) if isinstance(query, ByText)]
    if texts:
        path = paths[texts[0][0]] if len(texts) == 1 else "queries"
        vectors_QD[[i for i, _ in texts]] = snapshot.encoder.encode([text for _, text in texts], path=path)
    for i, query in enumerate(queries):
        if isinstance(query, ByVector):
            vectors_QD[i] = query.vector_D
        elif isinstance(query, ById):
            number, row = snapshot.require(query.id, path=paths[i])
            vectors_QD[i] = snapshot.segments[number].vectors([row])[0]
    return vectors_QD


def _own_row(snapshot: Snapshot, query: Query, path: str) -> tuple[int, int] | None:
    return snapshot.require(query.id, path=path) if isinstance(query, ById) else None


def _scopes(snapshot: Snapshot, options: Options) -> list[_Scope]:
    settings = snapshot.index.settings_for(options.target_recall)
    target = options.target_recall or snapshot.manifest.spec.target_recall
    scopes = []
    for number, (segment, alive) in enumerate(zip(snapshot.segments, snapshot.alive, strict=True)):
        allowed = alive if options.where is None else snapshot.masks.allowed(segment, options.where, alive)
        rows = segment.rows if allowed is None else allowed.count
        if rows == segment.rows:
            allowed = None
        if rows:
            knobs = (
                None if options.exact else options.knobs.over(settings[number], options.k + options.offset)
            )
            scopes.append(_Scope(number, segment, allowed, rows, knobs, target))
    return scopes


def _candidates(
    scopes: Sequence[_Scope],
    vectors_QD: np.ndarray,
    wanted: int,
    snapshot: Snapshot,
    deadline: Deadline,
    note: Note | None,
) -> list[Ranking]:
    found = []
    for scope in scopes:
        deadline.check()
        asked = min(wanted, scope.rows)
        settings = scope.settings if asked <= EXACT_ABOVE_SHARE * scope.segment.rows else None
        if scope.allowed is None and note is None:
            rows_QM, scores_QM = scope.segment.search(vectors_QD, asked, settings=settings)
        else:
            one = scope.segment.find(
                vectors_QD,
                asked,
                settings=settings,
                allowed=scope.allowed,
                target_recall=scope.target_recall,
            )
            rows_QM, scores_QM = one.rows_QK, one.scores_QK
            if note is not None:
                note(scope.number, scope.rows, one)
        found.append((scope.number, rows_QM, scores_QM))
    deadline.check()
    return merge(found, len(vectors_QD), wanted, snapshot.segments)


class _Finish:
    """From the candidates of a query to its hits, or to the finding that there are too few candidates."""

    def __init__(self, snapshot: Snapshot, options: Options, own: Sequence[tuple[int, int] | None]) -> None:
        self._options = options
        self._own = own
        self._groups = Groups(snapshot.segments, options.group_by)

    def __call__(self, query: int, ranking: Ranking, *, complete: bool) -> Ranking | None:
        """Return the hits; None if more candidates are needed to know them. `complete`: these are all there are."""
        options = self._options
        # Further candidates would all be below min_score, and so change nothing.
        complete = complete or bool(len(ranking) and ranking.scores[-1] < options.min_score)
        kept = ranking.at(ranking.scores >= options.min_score)
        own = self._own[query]
        if own is not None:
            kept = kept.at((kept.segments != own[0]) | (kept.rows != own[1]))
        if options.max_per_group is not None:
            kept = crowd(kept, self._groups, options.max_per_group, most=options.offset + options.k)
        if len(kept) < options.offset + options.k and not complete:
            return None
        return kept.at(slice(options.offset, options.offset + options.k))
