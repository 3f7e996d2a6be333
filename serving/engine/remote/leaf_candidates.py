"""Candidates of queries from the leaves of a cluster: each group ranks the rows of its shards, and the root merges.

The rankings of the groups are merged before they are fused, so that ranks and scales are those of the whole index: the
answer is that of one server with all shards, as far as leaves and server search a segment by the same plan, which exact
searches do.

Shapes: Q queries, S vectors of the search, U rows of all rankings of a query, H hits.

The integers of BM25 weights that a root keeps, so that words which were asked before need no call to the leaves.

A state of an index never changes, and neither do its counts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from scannery.indexer import CorpusCounts
from scannery.indexer.models.features import TEXT_COLUMNS, RowFeatures
from scannery.indexer.tuning.score_fusion import FUSED_ROWS, ScaleOf, lexical_scale
from scannery.serving import limits
from scannery.serving.contract import LEAF_SEARCH
from scannery.serving.engine.dense import dense_rankings, ranges_of, with_scores
from scannery.serving.engine.hybrid import fuse, fusion_depth, keys_of, vector_scale, word_scale
from scannery.serving.engine.lexical import Words, query_words
from scannery.serving.engine.local_signals import search_time_s
from scannery.serving.engine.query_vectors import AskedVectors, asked_vectors
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.engine.top_k import EMPTY, Ranking, merge
from scannery.serving.request.modes import WIRE_METHODS, WIRE_MODES
from scannery.serving.request.query import WithSparse, check_has_vectors
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.leaf_pb2 import At
from scannery.v1.search_pb2 import SearchOptions, VectorChoice
from scannery.v1.types_pb2 import Matrix, SparseVector

if TYPE_CHECKING:
    from scannery.serving.engine.remote.leaf_rows import LeafRows

__all__ = ["KeptCounts", "LeafCandidates"]


GROUP_BITS = 40
"""Bits of a number before which that of the group stands: above those of the documents of a group."""
MAX_INLINE = 50
"""Most rows of a query whose datapoints come with the candidates: otherwise those of the hits are read afterwards."""


class LeafCandidates:
    """The candidates of some queries with equal options, in the mode of these."""

    def __init__(
        self,
        rows: LeafRows,
        prepared: PreparedSearch,
        batch: QueryBatch,
        *,
        words: Sequence[Words] | None = None,
    ) -> None:
        """Encode the queries; raises what `search` does, and takes what `RowSource.candidates` does."""
        self._rows, self._options, self._batch = rows, prepared.options, batch
        self._where = prepared.where
        mode, chosen = self._options.mode, self._options.vectors
        self.total = 0
        """Rows that the filter allows, as of the last answers."""
        self._features: dict[int, tuple[np.ndarray, RowFeatures]] = {}
        """Rows of the last answers to each query, as `keys_in` returns them, and their features."""
        self._query_vectors: AskedVectors | None = None
        self._asked_words: Sequence[Words] = ()
        self._words: Sequence[pb.LeafWords] = ()
        with batch.stats.stage("encode"):
            if mode != "dense":
                if words is None:
                    words = query_words(
                        rows.lookup,
                        batch.snapshot.manifest,
                        batch.queries,
                        self._options,
                        rows.counted,
                        batch.stats,
                        paths=batch.paths,
                    )
                self._asked_words = words
                self._words = [_leaf_words(each) for each in words]
            if mode != "lexical":
                check_has_vectors(batch.snapshot.manifest, "mode")
                self._query_vectors = asked_vectors(
                    rows.lookup, chosen, batch.queries, mode, batch.deadline, paths=batch.paths
                )
        batch.deadline.check()
        self._fused = mode == "hybrid" or (mode == "dense" and len(chosen) > 1)
        self._template = self._template_of(rows)

    def best(self, queries: np.ndarray, hits: int) -> list[Ranking]:
        """As `RankedCandidates.best`."""
        depth = fusion_depth(hits) if self._fused else hits
        candidates = self._candidates(queries, depth)
        return [self._ranked(each, hits) for each in candidates]

    def by_signal(self, query: int, bounds: pb.LeafSignalBounds) -> list[tuple[Ranking, float]]:
        """Return what each group of leaves finds for a query by signals, and the bound of rows that it left out."""
        request = self._request(np.array([query]), 1)
        request.above.append(bounds)
        responses = self._rows.reader.all(LEAF_SEARCH, request, pb.LeafSearchResponse)
        return [
            (
                self._by_signal(group, each.results[0]),
                each.results[0].bound,
            )
            for group, each in responses.items()
        ]

    def _by_signal(self, group: int, result: pb.LeafFound) -> Ranking:
        numbers = self._rows.segments[group].take_in(result)
        places_H, scores_H = _decoded(result.above)
        ranking = Ranking(np.full(len(places_H), group, np.int64), numbers[places_H], scores_H)
        if self._options.mode == "hybrid":
            by_vector, by_words = result.above_by_vector, result.above_by_words
            if len(by_vector) != 4 * len(places_H) or len(by_words) != len(by_vector):
                raise ValueError(f"a leaf answered with {len(places_H)} rows and other numbers of scores")
            dense, lexical = np.frombuffer(by_vector, "<f4"), np.frombuffer(by_words, "<f4")
            return replace(ranking, dense=dense, lexical=lexical)
        return with_scores(ranking, 0, len(self._options.vectors.names) if self._query_vectors else 0)

    def words_of(self, query: int) -> Words:
        """As `RankedCandidates.words_of`."""
        return self._asked_words[query]

    def row_features(self, query: int, keys_R: np.ndarray) -> RowFeatures | None:
        """As `FusedCandidates.row_features`; None: some leaf is of a release that does not know features."""
        if query not in self._features:
            return None
        keys_A, features = self._features[query]
        return features.at(np.searchsorted(keys_A, keys_R))

    def _ranked(self, candidates: _GroupCandidates, limit: int) -> Ranking:
        options = self._options
        if options.mode == "lexical":
            return candidates.words
        if options.mode == "dense" and len(candidates.by_vector) == 1:
            [(column, ranking)] = candidates.by_vector
            return with_scores(ranking.within(0, limit), column, len(options.vectors.names))
        lexical = candidates.words if options.mode == "hybrid" else None
        fusion, tables = options.fusion, self._rows.segments
        scales = [
            vector_scale(fusion, candidates.ranges.get(column, 0.0)) for column, _ in candidates.by_vector
        ]
        dense = dense_rankings(options.vectors, candidates.by_vector, scales, candidates.scores)
        return fuse(dense, lexical, fusion, tables, words_scale=candidates.words_scale)

    def _candidates(self, queries: np.ndarray, depth: int) -> list[_GroupCandidates]:
        """Return what the leaves find for some queries, merged."""
        if len(queries) == 1:
            return self._found_at_once(queries, depth)
        return [
            candidates
            for part in self._parts(queries, depth)
            for candidates in self._found_at_once(part, depth)
        ]

    def _parts(self, queries: np.ndarray, depth: int) -> Iterator[np.ndarray]:
        """Yield the queries of each call: leaves refuse more rows, and larger messages."""
        max_queries = max(1, limits.MAX_LEAF_ROWS // depth)
        start, size_bytes = 0, 0
        for number, query in enumerate(queries.tolist()):
            own_bytes = self._size_bytes(query)
            full = number - start == max_queries or size_bytes + own_bytes > limits.MAX_LEAF_REQUEST_BYTES
            if full and number > start:
                yield queries[start:number]
                start, size_bytes = number, 0
            size_bytes += own_bytes
        yield queries[start:]

    def _size_bytes(self, query: int) -> int:
        """Return the size of a query in a request."""
        vectors = 0
        if self._query_vectors is not None:
            columns = self._query_vectors.columns(query)
            vectors = 4 * sum(self._options.vectors.choices[column].manifest.dimensions for column in columns)
        return vectors + (self._words[query].ByteSize() if self._words else 0)

    def _found_at_once(self, queries: np.ndarray, depth: int) -> list[_GroupCandidates]:
        request = self._request(queries, depth)
        responses = self._rows.reader.all(LEAF_SEARCH, request, pb.LeafSearchResponse)
        self.total = sum(response.allowed for response in responses.values())
        self._rows.reader.rows.update((group, response.rows) for group, response in responses.items())
        few = _few(responses.values()) if request.scales else ()
        return [
            self._merged(query, {group: each.results[at] for group, each in responses.items()}, depth, few)
            for at, query in enumerate(queries.tolist())
        ]

    def _request(self, queries: np.ndarray, depth: int) -> pb.LeafSearchRequest:
        """Return a request for the best rows of some queries."""
        request = pb.LeafSearchRequest(queries=len(queries), wanted=depth, vectors=self._vectors(queries))
        request.MergeFrom(self._template)
        if self._words:
            request.words.extend(self._words[query] for query in queries.tolist())
        request.datapoints = not self._fused and depth <= MAX_INLINE and not self._template.options.ranking
        return request

    def _merged(
        self, query: int, results: Mapping[int, pb.LeafFound], depth: int, few: Sequence[int]
    ) -> _GroupCandidates:
        """Return the rankings of all groups for one query as one; `few` are the vectors whose ranges are measured."""
        tables = self._rows.segments
        numbers = {group: tables[group].take_in(result) for group, result in results.items()}

        def merged(rankings: Iterable[tuple[int, pb.LeafRanking]]) -> Ranking:
            parts = []
            for group, each in rankings:
                places_H, scores_H = _decoded(each)
                parts.append((group, numbers[group][places_H][None], scores_H[None]))
            [ranking] = merge(parts, 1, depth, tables)
            return ranking

        parts = [(group, numbers[group], result) for group, result in results.items() if result.ids]
        if self._template.features and parts and all(result.features for _, _, result in parts):
            self._features[query] = _features_of(parts)
        columns = [] if self._query_vectors is None else self._query_vectors.columns(query)
        by_vector = [
            (column, merged((group, result.by_vector[column]) for group, result in results.items()))
            for column in columns
        ]
        best_words = (result.best_by_words for result in results.values() if result.HasField("best_by_words"))
        return _GroupCandidates(
            by_vector=by_vector,
            words=merged((group, result.by_words) for group, result in results.items())
            if self._words
            else EMPTY,
            ranges={column: _range(results.values(), column) for column in columns if column in few},
            words_scale=word_scale(
                self._options.fusion, self.words_of(query), max(best_words, default=-np.inf)
            )
            if self._words
            else lexical_scale,
            width=len(self._options.vectors),
            parts=[(group, numbers[group], result.scores) for group, result in results.items()],
        )

    def _vectors(self, queries: np.ndarray) -> list[pb.LeafVectors]:
        """Return the vectors of some queries for each of the vectors that are searched."""
        if self._query_vectors is None:
            return []
        vectors = []
        for column, choice in enumerate(self._options.vectors):
            asking = self._query_vectors.asking(column, queries)
            given_QD = np.ascontiguousarray(self._query_vectors.of(column, asking), "<f4")
            matrix = Matrix(packed=given_QD.tobytes(), dimensions=choice.manifest.dimensions)
            numbers = [] if len(asking) == len(queries) else np.searchsorted(queries, asking).tolist()
            vectors.append(pb.LeafVectors(vectors=matrix, queries=numbers))
        return vectors

    def _template_of(self, rows: LeafRows) -> pb.LeafSearchRequest:
        """Return what all requests of this search have in common."""
        options, request = self._options, rows.options
        # `k` and `offset` decide on raw settings of the index, as on one server.
        message = SearchOptions(
            k=options.k,
            offset=options.offset,
            mode=WIRE_MODES[options.mode],
            exact=options.exact,
            inner_product=options.inner_product,
            return_fields=request.return_fields,
            return_vector=request.return_vector,
        )
        if options.mode != "lexical":
            message.vectors.extend(
                VectorChoice(name=each.name, weight=each.weight) for each in options.vectors
            )
        if options.knobs.is_set:
            message.knobs.CopyFrom(request.knobs)
        elif options.target_recall is not None and not options.exact:
            message.target_recall = options.target_recall
        if self._where is not None:
            message.where.CopyFrom(rows.filters.get(self._where, request.where))
        now_s = 0.0
        if options.ranking is not None:
            message.ranking, now_s = options.ranking.expression, search_time_s(options.ranking)
            if options.mode == "hybrid":
                message.fusion.method = WIRE_METHODS[options.fusion.method]
                message.fusion.alpha = options.fusion.alpha
        scales = self._fused and self._where is not None and options.fusion.scales_queries
        return pb.LeafSearchRequest(
            at=rows.reader.at,
            options=message,
            group_by=options.group_by or "",
            scales=scales,
            now_s=now_s,
            features=options.ranker is not None,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _GroupCandidates:
    """What all groups find for one query."""

    by_vector: Sequence[tuple[int, Ranking]]
    """The place of each of its vectors among those that are searched, and the ranking by it."""
    words: Ranking
    ranges: Mapping[int, float]
    """Ranges by place: how far the score at place 200 without the filter is below the first one."""
    words_scale: ScaleOf
    """Scale of the scores by words."""
    width: int
    """Vectors that are searched."""
    parts: Sequence[tuple[int, np.ndarray, bytes]]
    """Group, rows and their scores by each vector, as leaves return them."""

    def scores(self, column: int, keys_U: np.ndarray) -> np.ndarray:
        """Return the scores of rows by one of several vectors, float32 (U,)."""
        keys_A = np.concatenate(
            [keys_of(Ranking(np.full(len(rows), group), rows, EMPTY.scores)) for group, rows, _ in self.parts]
        )
        scores_AS = np.concatenate(
            [np.frombuffer(scores, "<f4").reshape(-1, self.width) for _, _, scores in self.parts]
        )
        order_A = np.argsort(keys_A)
        scores_U: np.ndarray = scores_AS[order_A[np.searchsorted(keys_A, keys_U, sorter=order_A)], column]
        return scores_U


def _features_of(parts: Sequence[tuple[int, np.ndarray, pb.LeafFound]]) -> tuple[np.ndarray, RowFeatures]:
    """Return the rows that groups found, as `keys_in` returns them, and their features.

    While some leaf is of a release that does not know titles and places in documents, no row has any.
    """
    keys, tables = [], []
    have_texts = all(result.text_features for _, numbers_R, result in parts if len(numbers_R))
    for group, numbers_R, result in parts:
        keys.append(keys_of(Ranking(np.full(len(numbers_R), group), numbers_R, EMPTY.scores)))
        table_RC = np.frombuffer(result.features, "<f8").reshape(len(numbers_R), -1)
        texts_RC = np.zeros((len(numbers_R), TEXT_COLUMNS))
        if have_texts:
            texts_RC = np.frombuffer(result.text_features, "<f8").reshape(texts_RC.shape)
        rows = RowFeatures.of(np.concatenate([table_RC, texts_RC], axis=1))
        # Numbers of documents are those of a group, whose shards have all rows of a document.
        tables.append(replace(rows, documents_H=rows.documents_H + (group << GROUP_BITS)).table())
    keys_A = np.concatenate(keys)
    order_A = np.argsort(keys_A)
    return keys_A[order_A], RowFeatures.of(np.concatenate(tables)[order_A])


def _few(responses: Iterable[pb.LeafSearchResponse]) -> list[int]:
    """Return the places of the vectors that fewer rows have, of those allowed, than are fused."""
    allowed = np.array([response.allowed_by_vector for response in responses], np.int64)
    few: list[int] = np.flatnonzero(allowed.sum(axis=0) < FUSED_ROWS).tolist() if allowed.size else []
    return few


def _decoded(ranking: pb.LeafRanking) -> tuple[np.ndarray, np.ndarray]:
    """Return places, uint32 (H,), and scores, float32 (H,); ValueError if no leaf of ours could have written them."""
    places_H, scores_H = np.frombuffer(ranking.places, "<u4"), np.frombuffer(ranking.scores, "<f4")
    if len(places_H) != len(scores_H):
        raise ValueError(f"a leaf answered with {len(places_H)} places and {len(scores_H)} scores")
    if np.isnan(scores_H).any():
        raise ValueError("a leaf answered with a score that is no number")
    return places_H, scores_H


def _range(results: Iterable[pb.LeafFound], column: int) -> float:
    scores_K = np.concatenate([np.frombuffer(result.unfiltered[column], "<f4") for result in results])
    best_1K = -np.sort(-scores_K)[None, :FUSED_ROWS]
    return ranges_of(best_1K)[0]


def _leaf_words(words: Words) -> pb.LeafWords:
    if isinstance(words, WithSparse):
        sparse = SparseVector(indices=words.indices_T.tolist(), values=words.values_T.tolist())
        return pb.LeafWords(sparse_vector=sparse)
    if not words.weights:
        return pb.LeafWords()
    return pb.LeafWords(
        terms=words.weights.keys(),
        weights=words.weights.values(),
        average_length=words.average_length,
        average_document_length=words.average_document_length,
        highest_score=words.highest_score,
    )


MAX_STATES = 8
MANY_TERMS = 256
"""Terms above which those that no row has are not kept: they are guesses for a typing error, 400 and more."""
MAX_TERMS = 1 << 16
"""Terms of one state: about 8 MB."""

_Key: TypeAlias = tuple[str, str, int, int, int, bytes]


class KeptCounts:
    """Counts over all groups of leaves, by state. Safe to use from several threads."""

    def __init__(self) -> None:
        self._states: OrderedDict[_Key, tuple[CorpusCounts, dict[str, int]]] = OrderedDict()
        """The counts without frequencies, and these; the state that was asked for last is last."""
        self._lock = threading.Lock()

    def find(self, at: At, terms: Iterable[str]) -> CorpusCounts | None:
        """Return the counts of a state with the frequencies that are known; None: nothing is known of it."""
        with self._lock:
            state = self._states.get(_key(at))
            if state is None:
                return None
            self._states.move_to_end(_key(at))
            counts, cached = state
            return replace(counts, frequencies={term: cached[term] for term in terms if term in cached})

    def keep(self, at: At, counts: CorpusCounts) -> None:
        """Keep the counts of a state; the state that was not asked for the longest time is dropped."""
        new = counts.frequencies
        if len(new) > MANY_TERMS:
            new = {term: count for term, count in new.items() if count}
        with self._lock:
            _, cached = self._states.setdefault(_key(at), (replace(counts, frequencies={}), {}))
            if len(cached) + len(new) > MAX_TERMS:
                cached.clear()
            if len(new) <= MAX_TERMS:
                cached.update(new)
            while len(self._states) > MAX_STATES:
                self._states.popitem(last=False)


def _key(at: At) -> _Key:
    seen = at.seen.SerializeToString(deterministic=True)
    return at.index, at.index_id, at.version, at.sequence, at.second, seen
