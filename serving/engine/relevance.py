"""The relevance of the hits of queries: the probability that a hit answers the question, by its score.

Shapes: H hits of one query.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scannery.indexer import WeightedTerms
from scannery.indexer.manifest import RelevanceCurve
from scannery.serving.engine.query_vectors import members_of
from scannery.serving.engine.row_source import RankedCandidates
from scannery.serving.engine.segment_search import QueryBatch
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.options import Options
from scannery.serving.request.query import ById, Query, Vectors, WithSparse, WithWords
from scannery.serving.request.relevance import without_relevance

__all__ = ["HitRelevance", "with_rerank_relevance"]


class HitRelevance:
    """The relevance of the hits of some queries with equal options."""

    def __init__(self, options: Options, batch: QueryBatch) -> None:
        """Find the curve of each query.

        Raises:
            InvalidRequestError: the request has `min_relevance`, and the hits of a query have no relevance.

        """
        self._by_words = options.mode == "lexical"
        self._curves: list[RelevanceCurve | None] = [options.curve] * len(batch.queries)
        if options.curve is None:
            if options.min_relevance is not None:
                raise without_relevance(options.no_curve)
        elif not isinstance(batch.queries, Vectors):
            for number, (query, path) in enumerate(zip(batch.queries, batch.paths, strict=True)):
                by_words_alone = self._by_words and isinstance(query, WithWords)
                reason = "" if by_words_alone else _other_question(query, path)
                if reason and options.min_relevance is not None:
                    raise without_relevance(reason)
                if reason:
                    self._curves[number] = None

    def added(self, query: int, ranking: Ranking, candidates: RankedCandidates) -> Ranking:
        """Return the hits of a query, by its number, with their relevance if it has a curve."""
        curve = self._curves[query]
        if curve is None:
            return ranking
        scores_H = ranking.scores if ranking.base is None else ranking.base
        if self._by_words and len(ranking):
            words = candidates.words_of(query)
            assert isinstance(words, WeightedTerms)  # queries by sparse vector have no curve
            scores_H = scores_H / words.highest_score
        return replace(ranking, relevance=curve.probabilities(scores_H))


def with_rerank_relevance(ranking: Ranking, curve: RelevanceCurve, least: float | None) -> Ranking:
    """Return reranked hits with the relevance of their scores by the cross-encoder, without those below the least one.

    Hits that it did not score keep the relevance of the search, if they have any; else only a least one of 0 keeps
    them.
    """
    assert ranking.rerank is not None
    unscored_H = np.isnan(ranking.rerank)
    first_H = np.float32(np.nan) if ranking.relevance is None else ranking.relevance
    relevance_H = np.where(unscored_H, first_H, curve.probabilities(ranking.rerank))
    ranking = replace(ranking, relevance=relevance_H)
    return ranking.at(relevance_H >= least) if least else ranking


def _other_question(query: Query, path: str) -> str:
    """Return why a query is of another kind than the measured questions; empty: it is not."""
    if isinstance(query, WithSparse):
        return (
            f"hits of sparse vectors have no relevance: it is measured of words; {path} has a sparse vector"
        )
    if any(isinstance(member, ById) for member, _, _ in members_of(query, path)):
        return f"hits like a datapoint have no relevance: it is measured of questions; {path} names one by id"
    return ""
