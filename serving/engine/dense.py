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

from scannery.indexer.tuning.score_fusion import FUSED_ROWS
from scannery.serving.engine.hybrid import DenseRankings, fuse, fusion_depth, keys_in, places_of
from scannery.serving.engine.lexical import LexicalSearch, Words, query_words
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
        self, batch: QueryBatch, prepared: PreparedSearch, asked: AskedVectors | None = None
    ) -> None:
        """Encode the queries.

        Args:
            batch: the queries.
            prepared: the options, in mode dense or hybrid, and the filter.
            asked: the queries as vectors; None: they are made from the batch.

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
        self._asked = asked or asked_vectors(
            snapshot, options.vectors, batch.queries, options.mode, batch.deadline, paths=batch.paths
        )

    def search(self, searched: SearchedSegments) -> None:
        """Set the segments that are searched."""
        self._searched = searched.by_vector

    def best(self, queries: np.ndarray, wanted: int) -> list[Ranking]:
        """Return the best `wanted` rows of queries, by score and then by id; fewer only if there are no more.

        Args:
            queries: their numbers, int64.
            wanted: rows for each; of a query by several vectors there may be more.

        """
        numbers_QS, width = self._asked.numbers_QS, len(self._chosen.names)
        if numbers_QS is None:
            return [with_scores(ranking, 0, width) for ranking in self._found(0, queries, wanted)]
        found: dict[int, Ranking] = {}
        counts_Q = np.count_nonzero(numbers_QS[queries] != NOT_ASKED, axis=1)
        for place in range(len(self._chosen)):
            alone = queries[(counts_Q == 1) & (numbers_QS[queries, place] != NOT_ASKED)]
            rankings = self._found(place, alone, wanted)
            found |= {
                query: with_scores(ranking, place, width)
                for query, ranking in zip(alone.tolist(), rankings, strict=True)
            }
        several = queries[counts_Q > 1]
        fusion, segments = self._options.fusion, self._batch.snapshot.segments
        for query, each in zip(several.tolist(), self.rankings(several, fusion_depth(wanted)), strict=True):
            found[query] = fuse(each, None, fusion, segments)
        return [found[query] for query in queries.tolist()]

    def rankings(self, queries: np.ndarray, depth: int) -> list[DenseRankings]:
        """Return for each query its best `depth` rows by each of its vectors, to be fused."""
        found = self.by_vector(queries, depth)
        self._measure_ranges([(query, place) for query, own in found.items() for place, _ in own])
        return [
            dense_rankings(
                self._chosen,
                own,
                [self._ranges.get((query, place), 0.0) for place, _ in own],
                partial(self.scores, query),
            )
            for query, own in found.items()
        ]

    def by_vector(self, queries: np.ndarray, depth: int) -> dict[int, list[tuple[int, Ranking]]]:
        """Return for each query, by its number, the place of each of its vectors, and the best `depth` rows by it."""
        found: dict[int, list[tuple[int, Ranking]]] = {query: [] for query in queries.tolist()}
        for place in range(len(self._chosen)):
            asking = self._asked.asking(place, queries)
            for query, ranking in zip(asking.tolist(), self._found(place, asking, depth), strict=True):
                found[query].append((place, ranking))
        return found

    def _found(self, place: int, queries: np.ndarray, wanted: int) -> list[Ranking]:
        """Return the best rows of queries by one of the vectors."""
        if not len(queries):
            return []
        batch = self._batch
        vectors_QD, paths = self._asked.of(place, queries), batch.paths
        if len(queries) < len(paths):
            paths = [paths[number] for number in queries.tolist()]
        found = []
        for each in self._searched[place]:
            batch.deadline.check()
            found.append((each.number, *each.search(vectors_QD, wanted, batch.stats, paths)))
        batch.deadline.check()
        return merge(found, len(vectors_QD), wanted, batch.snapshot.segments)

    def scores(self, query: int, place: int, keys_U: np.ndarray) -> np.ndarray:
        """Return the exact scores of rows by one of the vectors, float32 (U,); NaN where a row does not have it.

        Args:
            query: its number; it has the vector.
            place: of the vector.
            keys_U: the rows, as `keys_in` returns them.

        """
        self._batch.deadline.check()
        space = self._batch.snapshot.space(self._chosen.choices[place].name)
        [query_D] = self._asked.of(place, np.array([query]))
        numbers_U, rows_U = places_of(keys_U)
        scores_U = np.empty(len(keys_U), np.float32)
        for number in np.unique(numbers_U).tolist():
            own = numbers_U == number
            scores_U[own] = space.scores(number, rows_U[own], query_D)
        return scores_U

    def _measure_ranges(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Measure what the scales of queries with a filter take from the same queries without it, once.

        That is how far the score at place 200 is below the first one in the whole index, if few rows are allowed.
        """
        if not self._is_filtered or self._options.fusion.method != "weighted_score":
            return
        for place in sorted({place for _, place in pairs}):
            new = [query for query, other in pairs if other == place and (query, place) not in self._ranges]
            if not new or not self.has_few(place):
                continue
            ranges = ranges_of(self.best_unfiltered(place, np.array(new)))
            self._ranges |= {(query, place): found for query, found in zip(new, ranges, strict=True)}

    @property
    def allowed_by_vector(self) -> list[int]:
        """For each of the vectors, the rows with it that are allowed."""
        return [sum(each.rows for each in searches) for searches in self._searched]

    def has_few(self, place: int) -> bool:
        """Return whether fewer rows with one of the vectors are allowed than are fused."""
        return self.allowed_by_vector[place] < FUSED_ROWS

    def best_unfiltered(self, place: int, queries: np.ndarray) -> np.ndarray:
        """Return the best scores of queries by one of the vectors without the filter, float32 (Q, K), descending.

        At most 200; fewer if there are no more. Scores of rows that were not found are minus infinity.
        """
        snapshot, choice = self._batch.snapshot, self._chosen.choices[place]
        one = replace(self._chosen, choices=(choice,))
        options = replace(self._options, mode="dense", vectors=one)
        space = snapshot.space(choice.name)
        [searches] = searched_segments(snapshot, options, [space], [settings_of(space, options)]).by_vector
        asked_QD = self._asked.of(place, queries)
        found = [each.find(asked_QD, FUSED_ROWS).scores_QK for each in searches]
        self._batch.deadline.check()
        scores_QK = np.concatenate([np.empty((len(queries), 0), np.float32), *found], axis=1)
        best_QK: np.ndarray = -np.sort(-scores_QK, axis=1)[:, :FUSED_ROWS]
        return best_QK


def dense_rankings(
    chosen: ChosenVectors,
    found: Sequence[tuple[int, Ranking]],
    ranges: Sequence[float],
    scores: Callable[[int, np.ndarray], np.ndarray],
) -> DenseRankings:
    """Return the rankings of one query by its vectors, to be fused.

    Args:
        chosen: the vectors of the search.
        found: the place of each vector of the query among these, and the ranking by it.
        ranges: of each of them, as of `DenseRankings`.
        scores: returns the exact scores by the vector at a place of rows, as `keys_in` returns them, float32 (U,).

    """
    places = [place for place, _ in found]
    rankings = [ranking for _, ranking in found]
    keys_U, scores_US = np.empty(0, np.int64), np.empty((0, len(places)), np.float32)
    if len(places) > 1:
        keys_U = keys_in(rankings)
        scores_US = np.stack([scores(place, keys_U) for place in places], axis=1)
    weights = np.array([chosen.choices[place].weight for place in places])
    return DenseRankings(
        rankings=rankings,
        weights=(weights / weights.sum()).tolist() if len(places) < len(chosen) else weights.tolist(),
        ranges=ranges,
        keys_U=keys_U,
        scores_US=scores_US,
        columns=places if chosen.names else [],
        width=len(chosen.names),
    )


def with_scores(ranking: Ranking, place: int, width: int) -> Ranking:
    """Return a ranking by the vector at a place with its scores by name; `width` names are returned, or none."""
    if not width:
        return ranking
    by_vector_HS = np.full((len(ranking), width), np.nan, np.float32)
    by_vector_HS[:, place] = ranking.scores
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
        asked: AskedVectors | None = None,
        words: Sequence[Words] | None = None,
    ) -> None:
        """Encode the queries and apply the filter; raises what `search` does.

        Args:
            prepared: the options.
            batch: the queries.
            asked: the queries as vectors; None: they are encoded.
            words: the words of the queries; None: these are found.

        """
        self._options, self._batch = prepared.options, batch
        self._is_filtered = prepared.where is not None
        snapshot, stats, mode = batch.snapshot, batch.stats, prepared.options.mode
        with stats.stage("encode"):
            if mode != "dense":
                if words is None:
                    words = query_words(snapshot, snapshot.manifest, batch.queries, mode, paths=batch.paths)
                self.words = LexicalSearch(snapshot, words, mode)
                """Set in modes lexical and hybrid."""
            if mode != "lexical":
                self.dense = DenseSearch(batch, prepared, asked)
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

    def best(self, queries: np.ndarray, wanted: int) -> list[Ranking]:
        """Return the best `wanted` rows of queries, by score and then by id; fewer only if there are no more.

        Args:
            queries: their numbers, int64.
            wanted: rows for each.

        """
        if self._options.mode == "dense":
            return self.dense.best(queries, wanted)
        if self._options.mode == "lexical":
            return self.by_words(queries, wanted)
        depth = fusion_depth(wanted)
        rankings = (
            self.dense.rankings(queries, depth),
            self.by_words(queries, depth),
            map(self._best_word_score, queries.tolist()),
        )
        fusion, segments = self._options.fusion, self._batch.snapshot.segments
        return [
            fuse(dense, lexical, fusion, segments, lexical_best=best)
            for dense, lexical, best in zip(*rankings, strict=True)
        ]

    def _best_word_score(self, query: int) -> float:
        """Return the best score by words without the filter, which is measured once; see `Scale`."""
        if not self._is_filtered or self._options.fusion.method != "weighted_score":
            return -np.inf
        if query not in self._best_words:
            self._batch.deadline.check()
            self._best_words[query] = self.words.best_score(query)
        return self._best_words[query]

    def by_words(self, queries: np.ndarray, wanted: int) -> list[Ranking]:
        """Return the best `wanted` rows of queries by words; the arguments are those of `best`."""
        allowed = [
            (each.number, None if each.allowed is None else each.allowed.mask_N) for each in self._allowed
        ]
        rankings = []
        for query in queries.tolist():
            self._batch.deadline.check()
            rankings.append(self.words.best(query, allowed, wanted))
        return rankings
