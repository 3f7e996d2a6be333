"""Dense search: the best rows of a snapshot by one of its vectors, or by several.

Each of several vectors gives a ranking of its own. A row that one of them finds is also scored by the others, exactly,
so that it loses nothing where it is just behind the best rows of these. hybrid.py makes one ranking of them.

Shapes: Q queries, S vectors of the search, U rows in any ranking of a query, D dimensions.

Candidates of queries: rows ranked by vectors, by words, or by both fused.

Shapes: Q queries, M candidates asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from scannery.indexer import AllowedRows
from scannery.indexer.models.features import RowFeatures
from scannery.indexer.tuning.score_fusion import FUSED_ROWS, ScaleOf
from scannery.serving.engine.hybrid import (
    DenseRankings,
    fuse,
    fused_scores,
    fusion_depth,
    keys_in,
    keys_of,
    places_of,
    vector_scale,
    word_scale,
)
from scannery.serving.engine.lexical import LexicalSearch, Words, query_words, snapshot_corpus
from scannery.serving.engine.query_vectors import NOT_ASKED, AskedVectors, asked_vectors
from scannery.serving.engine.segment_search import (
    PreparedSearch,
    QueryBatch,
    SearchedSegments,
    searched_segments,
    settings_of,
)
from scannery.serving.engine.top_k import Ranking, merge
from scannery.serving.request.query import ChosenVectors, check_has_vectors

__all__ = ["Candidates", "dense_rankings", "ranges_of", "with_scores"]


class DenseSearch:
    """Some queries, as vectors, over one snapshot."""

    def __init__(
        self, batch: QueryBatch, prepared: PreparedSearch, vectors: AskedVectors | None = None
    ) -> None:
        """Encode the queries.

        Args:
            batch: the queries.
            prepared: the options, in mode dense or hybrid, and the filter.
            vectors: the queries as vectors; None: they are made from the batch.

        Raises:
            VectorsUnavailableError: the index has no vectors.
            ServingError: as `asked_vectors`.

        """
        snapshot = batch.snapshot
        check_has_vectors(snapshot.manifest, "mode")
        options = prepared.options
        self._batch, self._options, self._chosen = batch, options, options.vectors
        self._is_filtered = prepared.where is not None
        self._ranges: dict[tuple[int, int], float] = {}
        self._vectors = vectors or asked_vectors(
            snapshot, options.vectors, batch.queries, options.mode, batch.deadline, paths=batch.paths
        )

    def search(self, searched: SearchedSegments) -> None:
        """Set the segments that are searched."""
        self._searched = searched.by_vector

    def best(self, queries: np.ndarray, depth: int) -> list[Ranking]:
        """Return the best `depth` rows of queries, by score and then by id; fewer only if there are no more.

        Args:
            queries: their numbers, int64.
            depth: rows for each; of a query by several vectors there may be more.

        """
        numbers_QS, width = self._vectors.numbers_QS, len(self._chosen.names)
        if numbers_QS is None:
            return [with_scores(ranking, 0, width) for ranking in self._nearest(0, queries, depth)]
        ranking_of: dict[int, Ranking] = {}
        counts_Q = np.count_nonzero(numbers_QS[queries] != NOT_ASKED, axis=1)
        for column in range(len(self._chosen)):
            alone = queries[(counts_Q == 1) & (numbers_QS[queries, column] != NOT_ASKED)]
            rankings = self._nearest(column, alone, depth)
            ranking_of |= {
                query: with_scores(ranking, column, width)
                for query, ranking in zip(alone.tolist(), rankings, strict=True)
            }
        several = queries[counts_Q > 1]
        fusion, segments = self._options.fusion, self._batch.snapshot.segments
        for query, each in zip(several.tolist(), self.rankings(several, fusion_depth(depth)), strict=True):
            ranking_of[query] = fuse(each, None, fusion, segments)
        return [ranking_of[query] for query in queries.tolist()]

    def rankings(self, queries: np.ndarray, depth: int) -> list[DenseRankings]:
        """Return for each query its best `depth` rows by each of its vectors, to be fused."""
        rankings_of = self.by_vector(queries, depth)
        self._measure_ranges(
            [(query, column) for query, rankings in rankings_of.items() for column, _ in rankings]
        )
        return [
            dense_rankings(
                self._chosen,
                rankings,
                [
                    vector_scale(self._options.fusion, self._ranges.get((query, column), 0.0))
                    for column, _ in rankings
                ],
                partial(self.scores, query),
            )
            for query, rankings in rankings_of.items()
        ]

    def by_vector(self, queries: np.ndarray, depth: int) -> dict[int, list[tuple[int, Ranking]]]:
        """Return for each query, by its number, the place of each of its vectors, and the best `depth` rows by it."""
        rankings_of: dict[int, list[tuple[int, Ranking]]] = {query: [] for query in queries.tolist()}
        for column in range(len(self._chosen)):
            asking = self._vectors.asking(column, queries)
            for query, ranking in zip(asking.tolist(), self._nearest(column, asking, depth), strict=True):
                rankings_of[query].append((column, ranking))
        return rankings_of

    def _nearest(self, column: int, queries: np.ndarray, depth: int) -> list[Ranking]:
        """Return the best rows of queries by one of the vectors."""
        if not len(queries):
            return []
        batch = self._batch
        vectors_QD, paths = self._vectors.of(column, queries), batch.paths
        if len(queries) < len(paths):
            paths = [paths[number] for number in queries.tolist()]
        parts = []
        for each in self._searched[column]:
            batch.deadline.check()
            parts.append((each.number, *each.search(vectors_QD, depth, batch.stats, paths)))
        batch.deadline.check()
        return merge(parts, len(vectors_QD), depth, batch.snapshot.segments)

    def scores(self, query: int, column: int, keys_U: np.ndarray) -> np.ndarray:
        """Return the exact scores of rows by one of the vectors, float32 (U,); NaN where a row does not have it.

        Args:
            query: its number; it has the vector.
            column: of the vector.
            keys_U: the rows, as `keys_in` returns them.

        """
        self._batch.deadline.check()
        space = self._batch.snapshot.space(self._chosen.choices[column].name)
        [query_D] = self._vectors.of(column, np.array([query]))
        numbers_U, rows_U = places_of(keys_U)
        scores_U = np.empty(len(keys_U), np.float32)
        for number in np.unique(numbers_U).tolist():
            is_part = numbers_U == number
            scores_U[is_part] = space.scores(number, rows_U[is_part], query_D)
        return scores_U

    def _measure_ranges(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Measure what the scales of queries with a filter take from the same queries without it, once each.

        That is how far the score at place 200 is below the first one in the whole index, if few rows are allowed.
        """
        if not self._is_filtered or not self._options.fusion.scales_queries:
            return
        for column in sorted({column for _, column in pairs}):
            new = [
                query
                for query, pair_column in pairs
                if pair_column == column and (query, column) not in self._ranges
            ]
            if not new or not self.has_few(column):
                continue
            ranges = ranges_of(self.best_unfiltered(column, np.array(new)))
            self._ranges |= {
                (query, column): range_of_query for query, range_of_query in zip(new, ranges, strict=True)
            }

    @property
    def allowed_by_vector(self) -> list[int]:
        """For each of the vectors, the rows with it that are allowed."""
        return [sum(each.rows for each in searches) for searches in self._searched]

    def has_few(self, column: int) -> bool:
        """Return whether fewer rows with one of the vectors are allowed than are fused."""
        return self.allowed_by_vector[column] < FUSED_ROWS

    def best_unfiltered(self, column: int, queries: np.ndarray) -> np.ndarray:
        """Return the best scores of queries by one of the vectors without the filter, float32 (Q, K), descending.

        At most 200; fewer if there are no more. Scores of rows that were not found are minus infinity.
        """
        snapshot, choice = self._batch.snapshot, self._chosen.choices[column]
        single = replace(self._chosen, choices=(choice,))
        options = replace(self._options, mode="dense", vectors=single)
        space = snapshot.space(choice.name)
        [searches] = searched_segments(snapshot, options, [space], [settings_of(space, options)]).by_vector
        asked_QD = self._vectors.of(column, queries)
        scores = [each.find(asked_QD, FUSED_ROWS).scores_QK for each in searches]
        self._batch.deadline.check()
        scores_QK = np.concatenate([np.empty((len(queries), 0), np.float32), *scores], axis=1)
        best_QK: np.ndarray = -np.sort(-scores_QK, axis=1)[:, :FUSED_ROWS]
        return best_QK


def dense_rankings(
    chosen: ChosenVectors,
    by_vector: Sequence[tuple[int, Ranking]],
    scales: Sequence[ScaleOf],
    scores: Callable[[int, np.ndarray], np.ndarray],
) -> DenseRankings:
    """Return the rankings of one query by its vectors, to be fused.

    Args:
        chosen: the vectors of the search.
        by_vector: the place of each vector of the query among these, and the ranking by it.
        scales: of each of them, as of `DenseRankings`.
        scores: returns the exact scores by the vector at a place of rows, as `keys_in` returns them, float32 (U,).

    """
    columns = [column for column, _ in by_vector]
    rankings = [ranking for _, ranking in by_vector]
    keys_U, scores_US = np.empty(0, np.int64), np.empty((0, len(columns)), np.float32)
    if len(columns) > 1:
        keys_U = keys_in(rankings)
        scores_US = np.stack([scores(column, keys_U) for column in columns], axis=1)
    weights = np.array([chosen.choices[column].weight for column in columns])
    return DenseRankings(
        rankings=rankings,
        weights=(weights / weights.sum()).tolist() if len(columns) < len(chosen) else weights.tolist(),
        scales=scales,
        keys_U=keys_U,
        scores_US=scores_US,
        columns=columns if chosen.names else [],
        width=len(chosen.names),
    )


def with_scores(ranking: Ranking, column: int, width: int) -> Ranking:
    """Return a ranking by the vector at a place with its scores by name; `width` names are returned, or none."""
    if not width:
        return ranking
    by_vector_HS = np.full((len(ranking), width), np.nan, np.float32)
    by_vector_HS[:, column] = ranking.scores
    return replace(ranking, by_vector=by_vector_HS)


def ranges_of(best_QK: np.ndarray) -> list[float]:
    """Return how far the last of the best scores of each query is below the first; `best_unfiltered` returns these."""
    if not best_QK.shape[1]:
        return [0.0] * len(best_QK)
    finite_QK = np.where(np.isfinite(best_QK), best_QK, np.inf)
    ranges: list[float] = (best_QK[:, 0] - finite_QK.min(axis=1)).tolist()
    return ranges


class Candidates:
    """The candidates of some queries with equal options, in the mode of these."""

    def __init__(
        self,
        prepared: PreparedSearch,
        batch: QueryBatch,
        *,
        vectors: AskedVectors | None = None,
        words: Sequence[Words] | None = None,
        features: bool = False,
    ) -> None:
        """Encode the queries and apply the filter; raises what `search` does.

        Args:
            prepared: the options.
            batch: the queries.
            vectors: the queries as vectors; None: they are encoded.
            words: the words of the queries; None: these are found.
            features: whether `row_features` are wanted though the options have no ranker.

        """
        self._options, self._batch = prepared.options, batch
        self._is_filtered = prepared.where is not None
        snapshot, stats, mode = batch.snapshot, batch.stats, prepared.options.mode
        with stats.stage("encode"):
            if mode != "dense":
                if words is None:
                    corpus = partial(snapshot_corpus, snapshot, mode, batch.deadline)
                    words = query_words(
                        snapshot,
                        snapshot.manifest,
                        batch.queries,
                        prepared.options,
                        corpus,
                        stats,
                        paths=batch.paths,
                    )
                features = features or prepared.options.ranker is not None
                self.words = LexicalSearch(snapshot, words, mode, weigh=features)
                """Set in modes lexical and hybrid."""
            if mode != "lexical":
                self.dense = DenseSearch(batch, prepared, vectors)
                """Set in modes dense and hybrid."""
        batch.deadline.check()
        with stats.stage("filter"):
            searched = prepared.segments(snapshot, batch.deadline)
        self._allowed = searched.allowed
        counted = searched.searches if mode == "dense" else searched.allowed
        self.total = sum(each.rows for each in counted)
        """Rows that the filter allows; in mode `dense` those of them with a vector, counted for each vector."""
        if mode != "lexical":
            self.dense.search(searched)
        self._best_words: dict[int, float] = {}
        if mode == "lexical":
            for each in self._allowed:
                stats.add_words(each.number, each.rows, batch.paths)

    def best(self, queries: np.ndarray, hits: int) -> list[Ranking]:
        """Return the best `hits` rows of queries, by score and then by id; fewer only if there are no more.

        Args:
            queries: their numbers, int64.
            hits: rows for each.

        """
        if self._options.mode == "dense":
            return self.dense.best(queries, hits)
        if self._options.mode == "lexical":
            return self.by_words(queries, hits)
        depth = fusion_depth(hits)
        rankings = (
            self.dense.rankings(queries, depth),
            self.by_words(queries, depth),
            map(self._word_scale, queries.tolist()),
        )
        fusion, segments = self._options.fusion, self._batch.snapshot.segments
        return [
            fuse(dense, lexical, fusion, segments, words_scale=scale)
            for dense, lexical, scale in zip(*rankings, strict=True)
        ]

    def _word_scale(self, query: int) -> ScaleOf:
        return word_scale(self._options.fusion, self.words_of(query), self._best_word_score(query))

    def _best_word_score(self, query: int) -> float:
        """Return the best score by words without the filter, which is measured once; minus infinity: not needed."""
        if not self._is_filtered or not self._options.fusion.scales_queries:
            return -np.inf
        if query not in self._best_words:
            self._batch.deadline.check()
            self._best_words[query] = self.words.best_score(query)
        return self._best_words[query]

    def scored(self, query: int, numbers_R: np.ndarray, rows_R: np.ndarray, below: float) -> Ranking:
        """Return rows with their scores, in no order, without those that the search never returns.

        Args:
            query: its number.
            numbers_R: number of the segment of each row, int64.
            rows_R: the row in that segment, int64.
            below: in mode hybrid, a score that none of these rows has: they are not among the fused ones.

        """
        keys_R = np.sort(keys_of(Ranking(numbers_R, rows_R, np.zeros(len(rows_R), np.float32))))
        numbers_R, rows_R = places_of(keys_R)
        if self._options.mode == "lexical":
            return self._by_words_alone(query, numbers_R, rows_R)
        by_vector_R = self.dense.scores(query, 0, keys_R)
        if self._options.mode == "dense":
            ranking = Ranking(numbers_R, rows_R, by_vector_R).at(~np.isnan(by_vector_R))
            return with_scores(ranking, 0, len(self._options.vectors.names))
        lexical_R = self._word_scores(query, keys_R)
        scores_R = fused_scores(by_vector_R, lexical_R, self._options.fusion, self._word_scale(query))
        scores_R = np.minimum(scores_R, np.nextafter(np.float32(below), np.float32(-np.inf)))
        ranking = Ranking(numbers_R, rows_R, scores_R, dense=by_vector_R, lexical=lexical_R)
        return ranking.at(~(np.isnan(by_vector_R) & np.isnan(lexical_R)))

    def row_features(self, query: int, keys_R: np.ndarray) -> RowFeatures:
        """Return what rows have for a learned ranker, in mode hybrid by one vector and by words.

        Args:
            query: its number.
            keys_R: the rows, as `keys_in` returns them.

        """
        numbers_R, rows_R = places_of(keys_R)
        return RowFeatures(
            self.dense.scores(query, 0, keys_R),
            self._word_scores(query, keys_R),
            *self.words.matches(query, numbers_R, rows_R),
            *self.words.texts(query, numbers_R, rows_R),
        )

    def _word_scores(self, query: int, keys_R: np.ndarray) -> np.ndarray:
        """Return the scores by words of rows, as `keys_in` returns them: float32 (R,), NaN where a row has none."""
        by_words = self._by_words_alone(query, *places_of(keys_R))
        scores_R = np.full(len(keys_R), np.nan, np.float32)
        scores_R[np.searchsorted(keys_R, keys_of(by_words))] = by_words.scores
        return scores_R

    def _by_words_alone(self, query: int, numbers_R: np.ndarray, rows_R: np.ndarray) -> Ranking:
        """Return those of some rows, sorted by segment and row, that have words of a query, with their scores."""
        segments = self._batch.snapshot.segments
        chosen = [
            (number, AllowedRows(rows_R[numbers_R == number], None, segments[number].rows))
            for number in np.unique(numbers_R).tolist()
        ]
        return self.words.best(query, chosen, len(rows_R))

    def words_of(self, query: int) -> Words:
        """As `RankedCandidates.words_of`."""
        return self.words.of(query)

    def by_words(self, queries: np.ndarray, depth: int) -> list[Ranking]:
        """Return the best `depth` rows of queries by words; the arguments are those of `best`."""
        allowed = [(each.number, each.allowed) for each in self._allowed]
        rankings = []
        for query in queries.tolist():
            self._batch.deadline.check()
            rankings.append(self.words.best(query, allowed, depth))
        return rankings
