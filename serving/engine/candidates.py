"""Candidates of queries: rows ranked by vector, by words, or by both fused.

Shapes: Q queries, M candidates asked for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scannery.indexer.tuning.score_fusion import FUSED_ROWS, UNFILTERED, Scale
from scannery.serving.engine.hybrid import fuse, fusion_depth
from scannery.serving.engine.lexical import LexicalSearch
from scannery.serving.engine.prepared_search import PreparedSearch, QueryBatch
from scannery.serving.engine.query_vectors import query_vectors
from scannery.serving.engine.segment_search import segment_searches, settings_of
from scannery.serving.engine.top_k import Ranking, merge

__all__ = ["Candidates"]


class Candidates:
    """The candidates of some queries with equal options, in the mode of these."""

    def __init__(self, prepared: PreparedSearch, batch: QueryBatch) -> None:
        """Encode the queries and apply the filter; raises what `search` does."""
        self._options, self._batch = prepared.options, batch
        snapshot, stats, mode = batch.snapshot, batch.stats, prepared.options.mode
        with stats.stage("encode"):
            if mode != "dense":
                self._words = LexicalSearch(snapshot, batch.queries, mode, paths=batch.paths)
            if mode != "lexical":
                self._vectors_QD = query_vectors(
                    snapshot, batch.queries, mode, batch.deadline, paths=batch.paths
                )
        batch.deadline.check()
        with stats.stage("filter"):
            self._searches = prepared.segments(snapshot, batch.deadline)
        self.total = sum(each.rows for each in self._searches)
        """Rows that the filter allows; in mode `dense` those of them with a vector."""
        self._by_vectors = [each for each in self._searches if each.segment.has_vectors]
        self._scales: dict[int, Scale] = {}
        if mode == "lexical":
            for each in self._searches:
                stats.add_words(each.number, each.rows, batch.paths)

    def best(self, queries: np.ndarray, wanted: int) -> list[Ranking]:
        """Return the best `wanted` rows of queries, by score and then by id; fewer only if there are no more.

        Args:
            queries: their numbers, int64.
            wanted: rows for each.

        """
        if self._options.mode == "dense":
            return self._by_vector(queries, wanted)
        if self._options.mode == "lexical":
            return self._by_words(queries, wanted)
        depth = fusion_depth(wanted)
        rankings = (self._by_vector(queries, depth), self._by_words(queries, depth), self._scales_of(queries))
        fusion, segments = self._options.fusion, self._batch.snapshot.segments
        return [
            fuse(dense, lexical, fusion, segments, scale)
            for dense, lexical, scale in zip(*rankings, strict=True)
        ]

    def _scales_of(self, queries: np.ndarray) -> list[Scale]:
        """Return the scales of queries for the fusion; those with a filter are measured without it, once."""
        if self._options.where is None or self._options.fusion.method != "weighted_score":
            return [UNFILTERED] * len(queries)
        new = [number for number in queries.tolist() if number not in self._scales]
        for number, dense_range in zip(new, self._dense_ranges(new), strict=True):
            self._batch.deadline.check()
            self._scales[number] = Scale(dense_range, self._words.best_score(number))
        return [self._scales[number] for number in queries.tolist()]

    def _dense_ranges(self, queries: list[int]) -> list[float]:
        """Return how far the score at place 200 is below the first one in the whole index, if few rows are allowed."""
        if not queries or sum(each.rows for each in self._by_vectors) >= FUSED_ROWS:
            return [0.0] * len(queries)
        options = replace(self._options, where=None, mode="dense")
        snapshot = self._batch.snapshot
        searches = segment_searches(snapshot, options, settings_of(snapshot, options))
        found = [each.find(self._vectors_QD[queries], FUSED_ROWS).scores_QK for each in searches]
        if not found:
            return [0.0] * len(queries)
        scores_QK = -np.sort(-np.concatenate(found, axis=1), axis=1)[:, :FUSED_ROWS]
        finite_QK = np.where(np.isfinite(scores_QK), scores_QK, np.inf)
        ranges: list[float] = (scores_QK[:, 0] - finite_QK.min(axis=1)).tolist()
        return ranges

    def _by_vector(self, queries: np.ndarray, wanted: int) -> list[Ranking]:
        vectors_QD, paths = self._vectors_QD, self._batch.paths
        if len(queries) < len(vectors_QD):
            vectors_QD, paths = vectors_QD[queries], [paths[number] for number in queries.tolist()]
        found = []
        for each in self._by_vectors:
            self._batch.deadline.check()
            found.append((each.number, *each.search(vectors_QD, wanted, self._batch.stats, paths)))
        self._batch.deadline.check()
        return merge(found, len(vectors_QD), wanted, self._batch.snapshot.segments)

    def _by_words(self, queries: np.ndarray, wanted: int) -> list[Ranking]:
        allowed = [
            (each.number, None if each.allowed is None else each.allowed.mask_N) for each in self._searches
        ]
        rankings = []
        for query in queries.tolist():
            self._batch.deadline.check()
            rankings.append(self._words.best(query, allowed, wanted))
        return rankings
