"""The query engine: the best rows of a snapshot for some queries, as an answer has them.

The life of a batch of queries with equal options:

1. Queries by vector of which the best rows of one segment are the answer take steps 3 and 9, and no other.
2. Texts and ids become vectors, or terms, or both (lexical and hybrid search: dense.py), and the filter, with what
   the version has deleted, the allowed rows of each segment (cached): their numbers, a range of values, or a mask.
3. Each segment is searched for its best m rows, by the cheapest plan for the rows allowed (indexer/planning).
4. The segments' rankings are merged, by score and then by id.
5. Hits get their relevance (relevance.py). The datapoint itself (query by id), hits below `min_score` or
   `min_relevance`, and hits beyond `max_per_group` are dropped.
6. Queries that have too few hits left, though there are more rows, go back to 3 with a larger m.
7. If wanted, a cross-encoder reorders the first hits (search.py), and they get the relevance of its scores.
8. If wanted, hits are chosen for their novelty, too (diversity.py): steps 2 to 7 find the candidates.
9. The hits are written in the wire format (hydrator.py).
10. If wanted, each gets its best sentence and the words that match (highlighting/), and the passages around it
    (context.py).

Shapes: Q queries, D dimensions, K hits.

Reranking: the first hits are ordered by the scores of a cross-encoder.

Shapes: H hits of one query.

The message that tells how a query was answered, from the record of its request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from scannery.indexer import SegmentEntry, search_ready
from scannery.indexer.manifest import Ranker
from scannery.indexer.models.features import FEATURES
from scannery.indexer.vectors.strangeness import FOREIGN
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.engine.context import contexts
from scannery.serving.engine.diversity import diversified
from scannery.serving.engine.highlighter import Highlighter
from scannery.serving.engine.hydrator import WrittenHits
from scannery.serving.engine.learned_ranking import LearnedCandidates
from scannery.serving.engine.query_vectors import named_rows
from scannery.serving.engine.relevance import HitRelevance, with_rerank_relevance
from scannery.serving.engine.row_source import LocalRows, RankedCandidates, RowSource
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.engine.signal_ranking import SignalRankedCandidates
from scannery.serving.engine.top_k import Ranking, crowd
from scannery.serving.request.filter import Node
from scannery.serving.request.modes import WIRE_METHODS, WIRE_MODES, Mode
from scannery.serving.request.options import Options, Rerank
from scannery.serving.request.query import ByText, ByVector, Query, Vectors, WithSparse, WithWords, has_vector
from scannery.serving.scheduling.affinity import on_all_cores
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats, SegmentStats
from scannery.v1.search_pb2 import (
    ExpandedWord,
    Explanation,
    Fusion,
    Hit,
    HitFeatures,
    RankerPlan,
    RankingPlan,
    SearchResponse,
    SegmentPlan,
    StageTime,
    VectorMapping,
)

__all__ = [
    "Finish",
    "PreparedQuery",
    "answers_of",
    "before_rerank",
    "explanation",
    "hit_features",
    "rank",
    "ranked_candidates",
    "reranked",
    "search",
]


BATCH_TEXTS = 16
"""Scored between two checks of the deadline."""


def reranked(
    ranking: Ranking,
    texts: Sequence[str | None],
    score: Callable[[Sequence[str]], np.ndarray],
    rerank: Rerank,
    deadline: Deadline,
    clock: Callable[[], float] = time.monotonic,
) -> Ranking:
    """Return the same hits: first those that were scored, by their new score, and then the others in their order.

    Args:
        ranking: the hits in their first order.
        texts: of the first hits; hits without a text (None) are not scored.
        score: returns the scores of texts.
        rerank: with the time budget.
        deadline: of the request; checked between batches.
        clock: in seconds.

    """
    scores_H = np.full(len(ranking), np.nan, np.float32)
    scorable = [position for position, text in enumerate(texts) if text]
    started, longest_s = clock(), 0.0
    budget_s = np.inf if rerank.time_budget_s is None else rerank.time_budget_s
    for start in range(0, len(scorable), BATCH_TEXTS):
        begun = clock()
        # A batch that would exceed the budget is not begun.
        if begun - started + longest_s > budget_s:
            break
        deadline.check()
        batch = scorable[start : start + BATCH_TEXTS]
        with on_all_cores():
            scores_H[batch] = score([texts[position] or "" for position in batch])
        longest_s = max(longest_s, clock() - begun)
    # NaN sorts last, and the sort is stable: hits that were not scored keep their order.
    order_H = np.argsort(-scores_H, kind="stable")
    return replace(ranking, rerank=scores_H).at(order_H)


def explanation(
    stats: QueryStats,
    path: str,
    snapshot: Snapshot,
    options: Options,
    query: Query,
    *,
    by_leaves: bool = False,
) -> Explanation:
    """Return how the query at `path` was answered; times are those of all queries of the request together.

    Where named vectors are searched, the segments are the files with these. `by_leaves`: the segments are on the leaves
    of a cluster, so their plans are not known, and the expected recall (0: not known) only of a search that is exact.
    A caller who sees a part of the index is not told of the segments: their rows are those of all.
    """
    fusion = None
    if options.mode == "hybrid":
        fusion = Fusion(method=WIRE_METHODS[options.fusion.method], alpha=options.fusion.alpha)
    elif len(options.vectors) > 1 and options.mode == "dense":
        fusion = Fusion(method=WIRE_METHODS[options.fusion.method])
    files = _files(snapshot, options) if snapshot.seen is None else []
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
        expanded_words=[
            ExpandedWord(word=word, pattern=pattern) for word, pattern in stats.expanded.get(path, {}).items()
        ],
        phrases=stats.phrases.get(path, ()),
        ranking=_ranking_plan(stats, path),
        ranker=_ranker_plan(options.ranker),
        query_models=_query_models(snapshot, options),
        maps=_mappings(options, query),
        **_likeness(snapshot, options, query),
        **_targets(snapshot, options),
    )


def _likeness(snapshot: Snapshot, options: Options, query: Query) -> dict[str, Any]:
    """Return how unlike the vectors of the index that of a query is, with a warning where it is very unlike."""
    part = query.query if isinstance(query, WithWords) else query
    if not isinstance(part, ByVector) or options.mode == "lexical" or len(options.vectors) != 1:
        return {}
    if snapshot.seen is not None:
        return {}
    [choice] = options.vectors
    strangeness_Q = snapshot.vector_checks.strangeness(snapshot.index, choice.name, part.vector_D[None])
    if strangeness_Q is None:
        return {}
    strangeness = float(strangeness_Q[0])
    if strangeness < FOREIGN or options.vector_model:
        return {"strangeness": strangeness}
    snapshot.vector_checks.strange_queries += 1
    spec = choice.manifest.spec
    model = spec.vector_model or (None if spec.encoder is None else spec.encoder.queries.model)
    of_model = f" of {model!r}" if model else ""
    warning = (
        f"the vector of the query does not look like those of the index{of_model} (strangeness {strangeness:.2f}): "
        "another model may have made it, or it is of something that the index has nothing of"
    )
    return {"strangeness": strangeness, "warnings": [warning]}


def _mappings(options: Options, query: Query) -> list[VectorMapping]:
    """Return the maps that the vectors of a query passed."""
    if options.mode == "lexical" or not has_vector(query):
        return []
    return [
        VectorMapping(
            vectors=each.entry.vectors,
            from_model=each.entry.source.name,
            to_model=each.entry.target.name,
            rows=each.entry.rows,
            overlap=each.entry.overlap,
            ndcg=each.entry.ndcg,
            source_ndcg=each.entry.source_ndcg,
        )
        for each in options.vectors.maps
    ]


def _query_models(snapshot: Snapshot, options: Options) -> list[str]:
    encoders = snapshot.manifest.spec.encoders
    names = () if options.mode == "lexical" else options.vectors.names or ("",)
    models = [encoders[name].query_model for name in names if name in encoders]
    return [model for model in models if model is not None]


def _ranking_plan(stats: QueryStats, path: str) -> RankingPlan | None:
    if path not in stats.rankings:
        return None
    expression, rows, bound = stats.rankings[path]
    return RankingPlan(expression=expression, rows=rows, unseen_bound=bound)


def _ranker_plan(ranker: Ranker | None) -> RankerPlan | None:
    return (
        RankerPlan(model=ranker.model, weights=ranker.weights)
        if ranker is not None and ranker.model
        else None
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
    if options.mode == "lexical" or options.exact or options.knobs.is_set:
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


WIDENING = 4
"""Factor between the candidates of two rounds: with four times as many, most queries are complete."""


@dataclass(slots=True)
class PreparedQuery:
    """A query with all that its answer needs."""

    snapshot: Snapshot
    prepared: PreparedSearch
    query: Query
    stats: QueryStats
    rows: RowSource | None = None
    """Where the rows are; None: in the segments of the snapshot."""

    def by_vector(self, encoded_1D: np.ndarray) -> PreparedQuery:
        """Return this query by text with its vector, float32 (1, D), as the encoder returns it."""
        [choice] = self.prepared.options.vectors
        ready_D = search_ready(encoded_1D, choice.manifest.spec.distance)[0]
        return PreparedQuery(self.snapshot, self.prepared, ByVector(ready_D), self.stats)


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
    asked_queries: Sequence[Query]
    if len(vectors) == len(queries):
        asked_queries = Vectors(vectors[0][None] if len(vectors) == 1 else np.array(vectors))
    else:
        asked_queries = [each.query for each in queries]
    batch = QueryBatch(snapshot, asked_queries, ["query"] * len(queries), deadline, stats)
    serialized = search(prepared, batch, rows=first.rows)
    trailer = prepared.trailer
    if stats.explained:
        details = explanation(
            stats, "query", snapshot, prepared.options, first.query, by_leaves=first.rows is not None
        )
        explained = SearchResponse(explanation=details)
        trailer = explained.SerializeToString() + trailer
    counts = stats.counts
    for number, query in enumerate(queries):
        query.stats.plan, query.stats.counts = stats.plan, counts[number : number + 1]
    # Serialised messages are merged by concatenation.
    answers = serialized.lists(trailer)
    prepared.took((time.perf_counter() - started_s) / len(queries))
    return answers


def _answer_at_once(query: PreparedQuery, deadline: Deadline) -> bytes | None:
    """Return the answer to a query by vector if it is the best rows of the only segment; None for others.

    It is what `search` finds, with fewer function calls.
    """
    prepared, vector = query.prepared, query.query
    if not prepared.plan.answers_at_once or not isinstance(vector, ByVector):
        return None
    if query.rows is not None or query.stats.detailed:
        return None
    serialized = _search_one_segment(prepared, query.snapshot, deadline, query.stats, vector.vector_D[None])
    return None if serialized is None else serialized.whole(prepared.trailer)


def search(
    prepared: PreparedSearch,
    batch: QueryBatch,
    filters: Sequence[Node | None] | None = None,
    rows: RowSource | None = None,
) -> WrittenHits:
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
    rows_override, rows = rows, rows or LocalRows(batch.snapshot)
    highlighter = None if highlight is None else Highlighter(batch, rows, highlight, prepared.options)
    if filters is not None:
        rankings = _rank_apart(prepared, batch, rows, filters)
    elif isinstance(batch.queries, Vectors):
        # A search leaves the processor's cache without the interpreter: each function on the way costs several times
        # what it does in a loop of its own.
        if rows_override is None and prepared.plan.reads_one_segment and not batch.stats.detailed:
            asked_QD = batch.queries.vectors_QD
            serialized = _search_one_segment(prepared, batch.snapshot, batch.deadline, batch.stats, asked_QD)
            if serialized is not None:
                return serialized
        rankings = rank(prepared, batch, rows)
    elif prepared.options.differ:
        rankings = _rank_apart(prepared, batch, rows, [prepared.where] * len(batch.queries))
    else:
        rankings = rank(prepared, batch, rows)
    with batch.stats.stage("hydrate"):
        rankings = rows.readable(rankings)
        batch.stats.counts = list(map(len, rankings))
        serialized = rows.hits(prepared, rankings)
    if highlighter is not None:
        with batch.stats.stage("highlight"):
            serialized = serialized.with_field(Hit.SNIPPET_FIELD_NUMBER, highlighter.snippets(rankings))
    if prepared.options.context is not None:
        with batch.stats.stage("context"):
            around = contexts(rows, rankings, prepared.options.context, batch.snapshot, batch.deadline)
            serialized = serialized.with_field(Hit.CONTEXT_FIELD_NUMBER, around)
    if prepared.options.explain and any(ranking.features is not None for ranking in rankings):
        serialized = serialized.with_field(
            Hit.FEATURES_FIELD_NUMBER, [hit_features(each) for each in rankings]
        )
    notes = [_note(ranking, prepared.options) for ranking in rankings]
    if not any(notes):
        return serialized
    return WrittenHits.of([data + note for data, note in zip(serialized.lists(), notes, strict=True)])


def _note(ranking: Ranking, options: Options) -> bytes:
    """Return what the answer to a query says besides its hits, serialised."""
    nothing_relevant = options.min_relevance is not None and not options.offset and not len(ranking)
    if not nothing_relevant and ranking.unseen_bound is None:
        return b""
    note = SearchResponse(nothing_relevant=nothing_relevant, unseen_bound=ranking.unseen_bound)
    return note.SerializeToString()


def hit_features(ranking: Ranking) -> list[bytes]:
    """Return the features of each hit of a query, serialised; empty: it was not ordered by a ranker."""
    if ranking.features is None:
        return [b""] * len(ranking)
    return [
        b""
        if np.isnan(values_F).any()
        else HitFeatures(values=dict(zip(FEATURES, values_F.tolist(), strict=True))).SerializeToString()
        for values_F in ranking.features
    ]


def _search_one_segment(
    prepared: PreparedSearch,
    snapshot: Snapshot,
    deadline: Deadline,
    stats: QueryStats,
    vectors_QD: np.ndarray,
) -> WrittenHits | None:
    """Return the hits of queries by vector in the only segment; None if it has no allowed rows."""
    offset = prepared.options.offset
    deadline.check()
    chosen = prepared.chosen
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
    queries, hits = rows_QK.shape
    stats.counts = (hits,) * queries
    curve = prepared.options.curve
    relevance_QK = None if curve is None else curve.probabilities(scores_QK)
    return prepared.hydrator.block(number, rows_QK, scores_QK, relevance_QK)


def _rank_apart(
    prepared: PreparedSearch, batch: QueryBatch, rows: RowSource, filters: Sequence[Node | None]
) -> list[Ranking]:
    """Return the hits of each query; those that share a filter and a mode are searched together."""
    groups: dict[tuple[Node | None, Mode, bool], tuple[Options, list[int]]] = {}
    for number, (node, query) in enumerate(zip(filters, batch.queries, strict=True)):
        options = prepared.options.of(query)
        kind = (node, options.mode, options.ranker is not None)
        groups.setdefault(kind, (options, []))[1].append(number)
    rankings: dict[int, Ranking] = {}
    for (node, *_), (options, group) in groups.items():
        part = _prepared_as(prepared, batch.snapshot, options, node)
        queries, paths = zip(*((batch.queries[n], batch.paths[n]) for n in group), strict=True)
        ranked = rank(part, replace(batch, queries=queries, paths=paths), rows)
        rankings.update(zip(group, ranked, strict=True))
    return [rankings[number] for number in range(len(filters))]


def _prepared_as(
    prepared: PreparedSearch, snapshot: Snapshot, options: Options, where: Node | None
) -> PreparedSearch:
    if options is prepared.options and where == prepared.where:
        return prepared
    return PreparedSearch.of(snapshot, options, where)


def rank(prepared: PreparedSearch, batch: QueryBatch, rows: RowSource) -> list[Ranking]:
    """Return the hits of each query, in any mode."""
    options = prepared.options
    if options.diversity:
        return _diversified(prepared, batch, rows)
    if options.rerank is not None:
        return _reranked(prepared, options.rerank, batch, rows)
    relevance = HitRelevance(options, batch)
    candidates = ranked_candidates(prepared, batch, rows, relevance)
    named = named_rows(rows.lookup, batch.queries, batch.paths)
    finish = Finish(rows, options, named, relevance, candidates)
    depth = options.offset + options.k + max(map(len, named), default=0)
    results: list[Ranking | None] = [None] * len(named)
    while None in results:
        incomplete = np.array([number for number, result in enumerate(results) if result is None], np.int64)
        with batch.stats.stage("search"):
            rankings = candidates.best(incomplete, depth)
        with batch.stats.stage("crowd"):
            for number, ranking in zip(incomplete.tolist(), rankings, strict=True):
                complete = depth >= candidates.total or len(ranking) < depth
                results[number] = finish(number, ranking, complete=complete)
        depth *= WIDENING
    return [ranking for ranking in results if ranking is not None]


def ranked_candidates(
    prepared: PreparedSearch, batch: QueryBatch, rows: RowSource, relevance: HitRelevance
) -> RankedCandidates:
    """Return the candidates of queries in the order of the options: by score, by a learned ranker, by an expression."""
    options = prepared.options
    fused = rows.candidates(prepared, batch)
    candidates: RankedCandidates = fused
    if options.ranker is not None:
        candidates = LearnedCandidates(fused, options.ranker, rows.segments)
    if options.ranking is not None:
        signals = rows.signal_rows(prepared, batch, candidates)
        candidates = SignalRankedCandidates(candidates, signals, rows.segments, options, relevance, batch)
    return candidates


def _diversified(prepared: PreparedSearch, batch: QueryBatch, rows: RowSource) -> list[Ranking]:
    """Return the hits of each query as they are chosen for diversity, in which order offset and k count."""
    options = prepared.options
    limit, name = options.offset + options.k, options.vectors.choices[0].name
    first = PreparedSearch.of(batch.snapshot, options.before_diversity, prepared.where)
    rankings = rank(first, batch, rows)
    hits = []
    with batch.stats.stage("diversify"):
        for ranking in rankings:
            vectors_HD = rows.vectors(ranking, name)
            chosen = diversified(ranking, vectors_HD, options.diversity, limit, batch.deadline)
            hits.append(chosen.within(options.offset, options.k))
    return hits


def _reranked(prepared: PreparedSearch, rerank: Rerank, batch: QueryBatch, rows: RowSource) -> list[Ranking]:
    """Return the hits of each query in the order of the cross-encoder, in which offset and k count."""
    snapshot, options = batch.snapshot, prepared.options
    reranker = snapshot.encoders.rerankers.reranker_of(snapshot.manifest)
    texts = [_text(query, path) for query, path in zip(batch.queries, batch.paths, strict=True)]
    curve, first = rerank.curve_of(reranker.digest), before_rerank(snapshot, options)
    rankings = rank(PreparedSearch.of(snapshot, first, prepared.where), batch, rows)
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
    if curve is not None:
        ordered = [with_rerank_relevance(ranking, curve, options.min_relevance) for ranking in ordered]
    return [ranking.within(options.offset, options.k) for ranking in ordered]


def before_rerank(snapshot: Snapshot, options: Options) -> Options:
    """Return the options of the search for the hits that are reranked, if any are; raises as `reranker_of`."""
    if options.rerank is None:
        return options.before_rerank
    reranker = snapshot.encoders.rerankers.reranker_of(snapshot.manifest)
    # With a curve, the least relevance is one of the new scores.
    least = options.min_relevance if options.rerank.curve_of(reranker.digest) is None else None
    return replace(options.before_rerank, min_relevance=least)


def _text(query: Query, path: str) -> str:
    query = query.query if isinstance(query, WithSparse) and query.query else query
    if not isinstance(query, (ByText, WithWords)):
        raise InvalidRequestError.at(path, "reranking needs a text query")
    return query.text


class Finish:
    """From the candidates of a query to its hits, or to the finding that there are too few candidates."""

    def __init__(
        self,
        rows: RowSource,
        options: Options,
        named: Sequence[Sequence[tuple[int, int]]],
        relevance: HitRelevance,
        candidates: RankedCandidates,
    ) -> None:
        self._rows, self._options, self._named = rows, options, named
        self._relevance, self._candidates = relevance, candidates

    def __call__(self, query: int, ranking: Ranking, *, complete: bool) -> Ranking | None:
        """Return the hits; None if more candidates are needed. `complete`: there are no more."""
        options, named = self._options, self._named[query]
        if options.drops_nothing and not named:
            hits = ranking.within(options.offset, options.k)
            return self._relevance.added(query, hits, self._candidates)
        ranking = self._relevance.added(query, ranking, self._candidates)
        passes_H = ranking.scores >= options.min_score
        if options.min_relevance is not None and ranking.relevance is not None:
            passes_H &= ranking.relevance >= options.min_relevance
        # Further candidates would all be below min_score or min_relevance, too, and change nothing.
        complete = complete or bool(len(ranking) and not passes_H[-1])
        kept = ranking.at(passes_H)
        for number, row in named:
            kept = kept.at((kept.segments != number) | (kept.rows != row))
        if options.group_limits:
            group_limits = [
                (self._rows.groups(kept, each.column), each.max_hits) for each in options.group_limits
            ]
            kept = crowd(kept, group_limits, limit=options.offset + options.k)
        if len(kept) < options.offset + options.k and not complete:
            return None
        return kept.within(options.offset, options.k)
