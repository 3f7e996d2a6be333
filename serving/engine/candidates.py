"""Candidates of queries: rows ranked by vectors, by words, or by both fused.

Shapes: Q queries, M candidates asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.serving.engine.dense import DenseSearch
from scannery.serving.engine.hybrid import fuse, fusion_depth
from scannery.serving.engine.lexical import LexicalSearch, Words, query_words
from scannery.serving.engine.prepared_search import PreparedSearch, QueryBatch
from scannery.serving.engine.query_vectors import AskedVectors
from scannery.serving.engine.top_k import Ranking

__all__ = ["Candidates"]


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
        snapshot, stats, mode = batch.snapshot, batch.stats, prepared.options.mode
        with stats.stage("encode"):
            if mode != "dense":
                if words is None:
                    words = query_words(snapshot, snapshot.manifest, batch.queries, mode, paths=batch.paths)
                self.words = LexicalSearch(snapshot, words, mode)
                """Set in modes lexical and hybrid."""
            if mode != "lexical":
                self.dense = DenseSearch(batch, prepared.options, asked)
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
        if self._options.where is None or self._options.fusion.method != "weighted_score":
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
