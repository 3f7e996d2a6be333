"""The query engine: the best rows of a snapshot for some queries, as an answer has them.

The life of a batch of queries with equal options:

1. Queries by vector of which the best rows of one segment are the answer take steps 3 and 8, and no other.
2. Texts and ids become vectors, or terms, or both (lexical and hybrid search: candidates.py), and the filter, with what
   the version has deleted, a mask of allowed rows per segment (cached).
3. Each segment is searched for its best m rows, by the cheapest plan for the rows allowed (indexer/planning).
4. The segments' rankings are merged, by score and then by id.
5. The datapoint itself (query by id), hits below `min_score`, and hits beyond `max_per_group` are dropped.
6. Queries that have too few hits left, though there are more rows, go back to 3 with a larger m.
7. If wanted, a cross-encoder reorders the first hits (rerank.py).
8. The hits are written in the wire format (hydrator.py).
9. If wanted, each gets its best sentence and the words that match (highlighting/).

Shapes: Q queries, D dimensions, K hits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.engine.crowding import crowd
from scannery.serving.engine.explain import explanation
from scannery.serving.engine.highlighting.highlighter import Highlighter
from scannery.serving.engine.highlighting.wire import with_snippets
from scannery.serving.engine.hydrator import Written
from scannery.serving.engine.prepared_search import PreparedSearch, QueryBatch
from scannery.serving.engine.query_vectors import named_rows
from scannery.serving.engine.rerank import reranked
from scannery.serving.engine.rows.local_rows import LocalRows
from scannery.serving.engine.rows.row_source import RowSource
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.filter import Node
from scannery.serving.request.options import Mode, Options, Rerank
from scannery.serving.request.query import ByText, ByVector, Query, Vectors, WithSparse, WithWords
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1.search_pb2 import SearchResponse

__all__ = ["PreparedQuery", "answers_of", "search"]

WIDENING = 4
"""Factor between the candidates of two rounds: with four times as many, most queries are complete."""


@dataclass(slots=True)
class PreparedQuery:
    """A query with all that its answer needs."""

    snapshot: Snapshot
    prepared: PreparedSearch
    query: Query
    stats: QueryStats


def answers_of(queries: Sequence[PreparedQuery], deadline: Deadline) -> list[bytes]:
    """Return a serialised SearchResponse to each of some queries, of one snapshot and with the same options.

    They are searched together. Only a single query is explained. Raises what `search` does.
    """
    started_s = time.perf_counter()
    first = queries[0]
    if len(queries) == 1 and (answer := _answer_at_once(first, deadline)) is not None:
        first.prepared.took(time.perf_counter() - started_s)
        return [answer]
    snapshot, prepared, stats = first.snapshot, first.prepared, first.stats
    vectors = [each.query.vector_D for each in queries if isinstance(each.query, ByVector)]
    asked: Sequence[Query]
    if len(vectors) == len(queries):
        asked = Vectors(vectors[0][None] if len(vectors) == 1 else np.array(vectors))
    else:
        asked = [each.query for each in queries]
    batch = QueryBatch(snapshot, asked, ["query"] * len(queries), deadline, stats)
    written = search(prepared, batch)
    trailer = prepared.trailer
    if stats.explained:
        how = explanation(stats, "query", snapshot, prepared.options)
        explained = SearchResponse(explanation=how)
        trailer = explained.SerializeToString() + trailer
    for other in queries[1:]:
        other.stats.plan = stats.plan
    # Serialised messages are merged by concatenation.
    answers = written.lists(trailer)
    prepared.took((time.perf_counter() - started_s) / len(queries))
    return answers


def _answer_at_once(query: PreparedQuery, deadline: Deadline) -> bytes | None:
    """Return the answer to a query by vector if it is the best rows of the only segment; None for others.

    It is what `search` finds, with fewer function calls.
    """
    prepared, asked = query.prepared, query.query
    if not prepared.answers_at_once or not isinstance(asked, ByVector) or query.stats.detailed:
        return None
    written = _search_one_segment(prepared, query.snapshot, deadline, query.stats, asked.vector_D[None])
    return None if written is None else written.whole(prepared.trailer)


def search(
    prepared: PreparedSearch,
    batch: QueryBatch,
    filters: Sequence[Node | None] | None = None,
    rows: RowSource | None = None,
) -> Written:
    """Return the hits of each query, best first, equal scores by id: `options.k` of them, if that many exist.

    Args:
        prepared: the options, prepared for the snapshot of the batch. Each query has those of its kind (`Options.of`).
        batch: the queries.
        filters: the filter of each query; None: that of the options.
        rows: where the rows are; None: in the segments of the snapshot.

    Raises:
        EncoderUnavailableError, LexicalUnavailableError, RerankerUnavailableError, UnknownDatapointError,
        InvalidRequestError, DeadlineError

    """
    if prepared.options.explain:
        batch.stats.explain()
    highlight = prepared.options.highlight
    given, rows = rows, rows or LocalRows(batch.snapshot)
    highlighter = None if highlight is None else Highlighter(batch, rows, highlight, prepared.options.vectors)
    if filters is not None:
        rankings = _rank_apart(prepared, batch, rows, filters)
    elif isinstance(batch.queries, Vectors):
        # A search leaves the processor's cache without the interpreter: each function on the way costs several times
        # what it does in a loop of its own.
        if given is None and prepared.reads_one_segment and not batch.stats.detailed:
            asked_QD = batch.queries.vectors_QD
            written = _search_one_segment(prepared, batch.snapshot, batch.deadline, batch.stats, asked_QD)
            if written is not None:
                return written
        rankings = _rank(prepared, batch, rows)
    elif prepared.options.by_mode:
        rankings = _rank_apart(prepared, batch, rows, [prepared.options.where] * len(batch.queries))
    else:
        rankings = _rank(prepared, batch, rows)
    with batch.stats.stage("hydrate"):
        written = rows.hits(prepared, rankings)
    if highlighter is None:
        return written
    with batch.stats.stage("highlight"):
        return with_snippets(written, highlighter.snippets(rankings))


def _search_one_segment(
    prepared: PreparedSearch,
    snapshot: Snapshot,
    deadline: Deadline,
    stats: QueryStats,
    vectors_QD: np.ndarray,
) -> Written | None:
    """Return the hits of queries by vector in the only segment; None if it has no allowed rows."""
    offset = prepared.options.offset
    deadline.check()
    chosen = None if tracing.recording() else prepared.chosen  # a trace has each segment
    if chosen is not None:
        number, (rows_QK, scores_QK) = chosen.number, chosen.find(vectors_QD)
        stats.add_plan(chosen.plan, chosen.rows)
    else:
        [searches] = prepared.segments(snapshot, deadline).by_vector
        if not searches:
            return None
        [segment] = searches
        number = segment.number
        rows_QK, scores_QK = segment.search(vectors_QD, offset + prepared.options.k, stats, ())
    deadline.check()
    if offset:
        rows_QK, scores_QK = rows_QK[:, offset:], scores_QK[:, offset:]
    return prepared.hydrator.block(number, rows_QK, scores_QK)


def _rank_apart(
    prepared: PreparedSearch, batch: QueryBatch, rows: RowSource, filters: Sequence[Node | None]
) -> list[Ranking]:
    """Return the hits of each query; those that share a filter and a mode are searched together."""
    groups: dict[tuple[Node | None, Mode], tuple[Options, list[int]]] = {}
    for number, (node, query) in enumerate(zip(filters, batch.queries, strict=True)):
        options = prepared.options.of(query)
        groups.setdefault((node, options.mode), (options, []))[1].append(number)
    rankings: dict[int, Ranking] = {}
    for (node, _), (options, group) in groups.items():
        part = _prepared_as(prepared, batch.snapshot, options, node)
        queries, paths = zip(*((batch.queries[n], batch.paths[n]) for n in group), strict=True)
        found = _rank(part, replace(batch, queries=queries, paths=paths), rows)
        rankings.update(zip(group, found, strict=True))
    return [rankings[number] for number in range(len(filters))]


def _prepared_as(
    prepared: PreparedSearch, snapshot: Snapshot, options: Options, where: Node | None
) -> PreparedSearch:
    if where != options.where:
        return PreparedSearch(snapshot, replace(options, where=where))
    return prepared if options is prepared.options else snapshot.derived(options, PreparedSearch)


def _rank(prepared: PreparedSearch, batch: QueryBatch, rows: RowSource) -> list[Ranking]:
    """Return the hits of each query, in any mode."""
    options = prepared.options
    if options.rerank is not None:
        return _reranked(prepared, options.rerank, batch, rows)
    candidates = rows.candidates(prepared, batch)
    named = named_rows(rows.lookup, batch.queries, batch.paths)
    finish = _Finish(rows, options, named)
    wanted = options.offset + options.k + max(map(len, named), default=0)
    results: list[Ranking | None] = [None] * len(named)
    while None in results:
        incomplete = np.array([number for number, result in enumerate(results) if result is None], np.int64)
        with batch.stats.stage("search"):
            rankings = candidates.best(incomplete, wanted)
        with batch.stats.stage("crowd"):
            for number, ranking in zip(incomplete.tolist(), rankings, strict=True):
                complete = wanted >= candidates.total or len(ranking) < wanted
                results[number] = finish(number, ranking, complete=complete)
        wanted *= WIDENING
    return [ranking for ranking in results if ranking is not None]


def _reranked(prepared: PreparedSearch, rerank: Rerank, batch: QueryBatch, rows: RowSource) -> list[Ranking]:
    """Return the hits of each query in the order of the cross-encoder, in which offset and k count."""
    assert prepared.first_stage is not None
    snapshot = batch.snapshot
    reranker = snapshot.encoders.rerankers.reranker_of(snapshot.manifest)
    texts = [_text(query, path) for query, path in zip(batch.queries, batch.paths, strict=True)]
    rankings = _rank(prepared.first_stage, batch, rows)
    with batch.stats.stage("rerank"):
        ordered = [
            reranked(
                ranking,
                rows.searched_texts(ranking.at(slice(0, rerank.candidates))),
                partial(reranker.scores, text),
                rerank,
                batch.deadline,
            )
            for text, ranking in zip(texts, rankings, strict=True)
        ]
    return [ranking.within(prepared.options.offset, prepared.options.k) for ranking in ordered]


def _text(query: Query, path: str) -> str:
    query = query.query if isinstance(query, WithSparse) and query.query else query
    if not isinstance(query, (ByText, WithWords)):
        raise InvalidRequestError.at(path, "reranking needs a text query")
    return query.text


class _Finish:
    """From the candidates of a query to its hits, or to the finding that there are too few candidates."""

    def __init__(self, rows: RowSource, options: Options, named: Sequence[Sequence[tuple[int, int]]]) -> None:
        self._rows, self._options, self._named = rows, options, named

    def __call__(self, query: int, ranking: Ranking, *, complete: bool) -> Ranking | None:
        """Return the hits; None if more candidates are needed. `complete`: there are no more."""
        options, named = self._options, self._named[query]
        if options.drops_nothing and not named:
            return ranking.within(options.offset, options.k)
        # Further candidates would all be below min_score, and change nothing.
        complete = complete or bool(len(ranking) and ranking.scores[-1] < options.min_score)
        kept = ranking.at(ranking.scores >= options.min_score)
        for number, row in named:
            kept = kept.at((kept.segments != number) | (kept.rows != row))
        if options.max_per_group is not None:
            groups = self._rows.groups(kept, options.group_by)
            kept = crowd(kept, groups, options.max_per_group, most=options.offset + options.k)
        if len(kept) < options.offset + options.k and not complete:
            return None
        return kept.within(options.offset, options.k)
