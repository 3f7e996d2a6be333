"""The query engine: the best rows of a snapshot for some queries.

The life of a batch of queries with equal options:

1. Texts and ids become vectors, or terms, or both (lexical and hybrid search: candidates.py).
2. The filter, and what the version has deleted, become a mask of allowed rows per segment (cached).
3. Each segment is asked for its best m rows; it takes the cheapest plan for the rows allowed (indexer/planning).
4. The segments' answers are merged, by score and then by id.
5. The datapoint itself (query by id), hits below `min_score`, and hits beyond `max_per_group` are dropped.
6. Queries that have too few hits left, though there are more rows, go back to 3 with a larger m.
7. If wanted, a cross-encoder orders the first hits again (rerank.py).

Shapes: Q queries, D dimensions, M candidates asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from scannery.indexer import search_ready
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.engine.blending import blended_vector, members_of
from scannery.serving.engine.candidates import Source, hybrid_source, lexical_source
from scannery.serving.engine.crowding import Groups, crowd
from scannery.serving.engine.explain import Note, Trace
from scannery.serving.engine.lexical import LexicalSearch
from scannery.serving.engine.rerank import reranked, texts_of
from scannery.serving.engine.segment_search import SegmentSearch, scopes_of
from scannery.serving.engine.top_k import Ranking, merge
from scannery.serving.request.options import Options, Rerank
from scannery.serving.request.query import Blend, ById, ByText, ByVector, Query, Single, Vectors, WithSparse
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import note_plan
from scannery.serving.telemetry.tracing import span

__all__ = ["search"]

# Asked for so many times what is missing, the next round is mostly the last one.
WIDENING = 4


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
        EncoderUnavailableError, LexicalUnavailableError, RerankerUnavailableError, UnknownDatapointError,
        InvalidRequestError, DeadlineError

    """
    trace = trace or Trace(len(queries), wanted=False)
    if options.rerank is not None:
        return _reranked(snapshot, queries, options, options.rerank, deadline, paths, trace)
    scopes, source = _prepare(snapshot, queries, options, deadline, paths, trace)
    own = _own_rows(snapshot, queries, paths)
    if options.drops_nothing and not any(own):
        # Every candidate is a hit, so there are enough of them.
        with trace.stage("search"):
            rankings = source(np.arange(len(queries)), options.offset + options.k)
        with trace.stage("crowd"):
            return [ranking.within(options.offset, options.k) for ranking in rankings]
    finish = _Finish(snapshot, options, own)
    total = sum([scope.rows for scope in scopes])
    wanted = options.offset + options.k + finish.most_own
    results: list[Ranking | None] = [None] * len(queries)
    open_queries = np.arange(len(queries))
    while len(open_queries):
        with trace.stage("search"):
            rankings = source(open_queries, wanted)
        with trace.stage("crowd"):
            for number, ranking in zip(open_queries.tolist(), rankings, strict=True):
                complete = wanted >= total or len(ranking) < wanted
                results[number] = finish(number, ranking, complete=complete)
        if None not in results:
            break
        open_queries = np.array([n for n in open_queries.tolist() if results[n] is None], np.int64)
        wanted *= WIDENING
    return [ranking for ranking in results if ranking is not None]


def _reranked(
    snapshot: Snapshot,
    queries: Sequence[Query],
    options: Options,
    rerank: Rerank,
    deadline: Deadline,
    paths: Sequence[str],
    trace: Trace,
) -> list[Ranking]:
    """Search for as many hits as are looked at again, and order these; offset and k count in the new order."""
    reranker = snapshot.encoders.rerankers.reranker_of(snapshot.manifest)
    asked = [_words(query, path) for query, path in zip(queries, paths, strict=True)]
    first = replace(options, k=options.deepest, offset=0, rerank=None)
    rankings = search(snapshot, queries, first, deadline, paths=paths, trace=trace)
    with trace.stage("rerank"):
        ordered = [
            reranked(
                ranking,
                texts_of(ranking.at(slice(0, rerank.candidates)), snapshot.segments),
                partial(reranker.scores, text),
                rerank,
                deadline,
            )
            for text, ranking in zip(asked, rankings, strict=True)
        ]
    return [ranking.within(options.offset, options.k) for ranking in ordered]


def _words(query: Query, path: str) -> str:
    query = query.query if isinstance(query, WithSparse) and query.query else query
    if not isinstance(query, ByText):
        raise InvalidRequestError.at(path, "reranking needs a text query")
    return query.text


def _prepare(
    snapshot: Snapshot,
    queries: Sequence[Query],
    options: Options,
    deadline: Deadline,
    paths: Sequence[str],
    trace: Trace,
) -> tuple[list[SegmentSearch], Source]:
    """Return what is searched, and where the candidates come from in the mode that is wanted."""
    with trace.stage("encode"):
        words = (
            None if options.mode == "dense" else LexicalSearch(snapshot, queries, options.mode, paths=paths)
        )
        vectors_QD = (
            None
            if options.mode == "lexical"
            else _vectors(snapshot, _dense(queries, paths, options.mode), paths)
        )
    deadline.check()
    with trace.stage("filter"):
        scopes = scopes_of(snapshot, options)

    def dense(numbers: np.ndarray, wanted: int) -> list[Ranking]:
        assert vectors_QD is not None
        asked_QD = vectors_QD if len(numbers) == len(vectors_QD) else vectors_QD[numbers]
        return _candidates(scopes, asked_QD, wanted, snapshot, deadline, trace.of(numbers))

    if words is None:
        return scopes, dense
    allowed = [(scope.number, None if scope.allowed is None else scope.allowed.mask_N) for scope in scopes]
    lexical = lexical_source(words, allowed, deadline.check)
    if options.mode == "lexical":
        for scope in scopes:
            trace.words(scope.number, scope.rows)
            note_plan("words", scope.rows)
        return scopes, lexical
    return scopes, hybrid_source(dense, lexical, options.fusion, snapshot)


def _dense(queries: Sequence[Query], paths: Sequence[str], mode: str) -> Sequence[Single | Blend]:
    """Return what each query asks the dense side."""
    if isinstance(queries, Vectors):
        return queries
    dense: list[Single | Blend] = []
    for query, path in zip(queries, paths, strict=True):
        if not isinstance(query, WithSparse):
            dense.append(query)
        elif mode == "dense":
            raise InvalidRequestError.at(
                f"{path}.sparse_vector", "is for lexical and hybrid search, the mode is dense"
            )
        elif query.query is None:
            raise InvalidRequestError.at(path, "hybrid search needs a text, a vector or an id besides")
        else:
            dense.append(query.query)
    return dense


def _vectors(snapshot: Snapshot, queries: Sequence[Single | Blend], paths: Sequence[str]) -> np.ndarray:
    """Return the vector of each query as segments search it, float32 (Q, D)."""
    if isinstance(queries, Vectors):
        return queries.vectors_QD
    if not any(isinstance(query, Blend) for query in queries):
        return _vectors_of(snapshot, queries, paths)
    groups = [members_of(query, path) for query, path in zip(queries, paths, strict=True)]
    flat = [part for group in groups for part in group]
    vectors_MD = _vectors_of(snapshot, [member for member, _, _ in flat], [path for _, _, path in flat])
    vectors_QD = np.empty((len(queries), snapshot.manifest.dimensions), np.float32)
    first = 0
    for i, (query, group) in enumerate(zip(queries, groups, strict=True)):
        own_MD = vectors_MD[first : first + len(group)]
        first += len(group)
        if isinstance(query, Blend):
            distance = snapshot.manifest.spec.distance
            blended_D = blended_vector(own_MD, query.weights, distance, path=paths[i])
            vectors_QD[i] = search_ready(blended_D[None], distance)[0]
        else:
            vectors_QD[i] = own_MD[0]
    return vectors_QD


def _vectors_of(snapshot: Snapshot, queries: Sequence[Single | Blend], paths: Sequence[str]) -> np.ndarray:
    vectors_QD = np.empty((len(queries), snapshot.manifest.dimensions), np.float32)
    texts = [(i, query.text) for i, query in enumerate(queries) if isinstance(query, ByText)]
    if texts:
        path = paths[texts[0][0]] if len(texts) == 1 else "queries"
        encoded_TD = snapshot.encoder.encode([text for _, text in texts], path=path)
        vectors_QD[[i for i, _ in texts]] = search_ready(encoded_TD, snapshot.manifest.spec.distance)
    for i, query in enumerate(queries):
        if isinstance(query, ByVector):
            vectors_QD[i] = query.vector_D
        elif isinstance(query, ById):
            number, row = snapshot.require(query.id, path=paths[i])
            vectors_QD[i] = snapshot.segments[number].searched_ND[row]
    return vectors_QD


def _own_rows(
    snapshot: Snapshot, queries: Sequence[Query], paths: Sequence[str]
) -> list[list[tuple[int, int]]]:
    """Return for each query the rows that it names, which are no answer to it."""
    if isinstance(queries, Vectors):
        return [[]] * len(queries)
    return [
        [
            snapshot.require(member.id, path=place)
            for member, _, place in members_of(query, path)
            if isinstance(member, ById)
        ]
        for query, path in zip(queries, paths, strict=True)
    ]


def _candidates(
    scopes: Sequence[SegmentSearch],
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
        with span("scannery.segment") as traced:
            if note is None:
                rows_QM, scores_QM, plan = scope.search(vectors_QD, asked)
            else:
                one = scope.find(vectors_QD, asked)
                rows_QM, scores_QM, plan = one.rows_QK, one.scores_QK, one.plans[0]
                note(scope.number, scope.rows, one)
            if traced is not None:
                traced.set_attributes(_described(scope, plan, asked))
        note_plan(plan, scope.rows)
        found.append((scope.number, rows_QM, scores_QM))
    deadline.check()
    return merge(found, len(vectors_QD), wanted, snapshot.segments)


def _described(scope: SegmentSearch, plan: str, asked: int) -> dict[str, str | int]:
    entry = scope.segment.entry
    return {
        "scannery.plan": plan,
        "scannery.segment": entry.sha256[:12],
        "scannery.shard": entry.shard,
        "scannery.rows_allowed": scope.rows,
        "scannery.hits_wanted": asked,
    }


class _Finish:
    """From the candidates of a query to its hits, or to the finding that there are too few candidates."""

    def __init__(self, snapshot: Snapshot, options: Options, own: Sequence[list[tuple[int, int]]]) -> None:
        self._options = options
        self._own = own
        self._groups = Groups(snapshot.segments, options.group_by)
        self.most_own = max(map(len, own), default=0)

    def __call__(self, query: int, ranking: Ranking, *, complete: bool) -> Ranking | None:
        """Return the hits; None if more candidates are needed to know them. `complete`: these are all there are."""
        options = self._options
        # Further candidates would all be below min_score, and so change nothing.
        complete = complete or bool(len(ranking) and ranking.scores[-1] < options.min_score)
        kept = ranking.at(ranking.scores >= options.min_score)
        for number, row in self._own[query]:
            kept = kept.at((kept.segments != number) | (kept.rows != row))
        if options.max_per_group is not None:
            kept = crowd(kept, self._groups, options.max_per_group, most=options.offset + options.k)
        if len(kept) < options.offset + options.k and not complete:
            return None
        return kept.within(options.offset, options.k)
