"""Candidates of hybrid search in the order of a learned ranker.

The best rows of the fused order are ordered anew by a weighted sum of features: their scores, and what is known of
their documents (indexer/models/features.py). Others follow them, so an answer is still the beginning of every longer
one. The ranker is a few numbers in the version of the index, fitted to judged queries (training/ranking).

Shapes: Q queries, H candidates of a query, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scannery.indexer import WeightedTerms
from scannery.indexer.manifest import Ranker
from scannery.indexer.models.features import CANDIDATES, FEATURES, feature_values, weight_vector
from scannery.serving.engine.hybrid import followed, keys_of
from scannery.serving.engine.lexical import Words
from scannery.serving.engine.row_source import FusedCandidates
from scannery.serving.engine.top_k import Ranking, Rows, by_score_and_id

__all__ = ["LearnedCandidates"]


class LearnedCandidates:
    """The candidates of some queries with equal options, in the order of a learned ranker."""

    def __init__(self, candidates: FusedCandidates, ranker: Ranker, segments: Sequence[Rows]) -> None:
        """Prepare.

        Args:
            candidates: those of hybrid search by one vector and by words.
            ranker: learned on this index.
            segments: where the rows lie, for the ids.

        """
        self._candidates, self._segments = candidates, segments
        self._scales = ranker.scales
        self._weights_F = weight_vector(ranker) if ranker.weights else None

    @property
    def total(self) -> int:
        """As `RankedCandidates.total`."""
        return self._candidates.total

    def words_of(self, query: int) -> Words:
        """As `RankedCandidates.words_of`."""
        return self._candidates.words_of(query)

    def best(self, queries: np.ndarray, depth: int) -> list[Ranking]:
        """As `RankedCandidates.best`, by the ranker; queries by sparse vectors are in the fused order."""
        rankings = self._candidates.best(queries, max(depth, CANDIDATES))
        return [
            self._ordered(query, ranking, depth)
            for query, ranking in zip(queries.tolist(), rankings, strict=True)
        ]

    def _ordered(self, query: int, fused: Ranking, depth: int) -> Ranking:
        words = self.words_of(query)
        if not isinstance(words, WeightedTerms) or not len(fused):
            return fused
        first = fused.within(0, CANDIDATES)
        first = first.at(np.argsort(keys_of(first)))
        rows = self._candidates.row_features(query, keys_of(first))
        if rows is None:
            return fused
        # No row has a score by words where the query has none.
        values_FH = feature_values(rows, self._scales, words.highest_score or 1.0)
        first = replace(first, features=values_FH.T)
        if self._weights_F is not None:
            # Feature by feature: a matrix product adds in an order that depends on where a row stands.
            scores_H = (self._weights_F[:, None] * values_FH).sum(axis=0)
            first = replace(first, scores=scores_H.astype(np.float32))
        first = by_score_and_id(first, self._segments)
        if depth <= CANDIDATES:
            return first
        behind = fused.at(slice(CANDIDATES, None))
        behind = replace(behind, features=np.full((len(behind), len(FEATURES)), np.nan))
        return followed(first, behind, self._segments)
