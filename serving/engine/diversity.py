"""Hits that differ from each other: maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998).

The hits are chosen one after another. Each is the candidate with the greatest

    (1 - diversity) * relevance - diversity * similarity

where the similarity is the greatest cosine of its vector and that of a hit before it. Scores of all modes and distances
become a relevance in one way: 1 is the best candidate, 0 the one at place LEAST_CANDIDATES.

Pages continue each other: neither the candidates of a place nor the scale depend on the number of hits of the search.

Shapes: H candidates of one query, P those of one rank, D dimensions.
"""

from __future__ import annotations

import numpy as np

from scannery.indexer import unit_length
from scannery.runtime.retry import Deadline
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.diversity import LEAST_CANDIDATES, candidates_of

__all__ = ["diversified"]


def diversified(
    ranking: Ranking, vectors_HD: np.ndarray, diversity: float, limit: int, deadline: Deadline
) -> Ranking:
    """Return the `limit` hits that are chosen, in this order; fewer only if there are fewer candidates.

    Args:
        ranking: the candidates, best first.
        vectors_HD: the vector of each, float32 (H, D); zeros where it has none, which is similar to nothing.
        diversity: weight of the similarity, 0 to 1.
        limit: number of hits.
        deadline: of the request; checked for each hit: of 1,000 hits with the widest vectors they take minutes.

    Raises:
        DeadlineError: the deadline passed.

    """
    worth_H = (1 - diversity) * _relevance(ranking)
    units_HD = unit_length(vectors_HD)
    similarity_H = np.zeros(len(ranking))
    chosen: list[int] = []
    for rank in range(1, min(limit, len(ranking)) + 1):
        deadline.check()
        candidates = candidates_of(rank)
        gains_P = worth_H[:candidates] - diversity * similarity_H[:candidates]
        gains_P[chosen] = -np.inf
        best = int(np.argmax(gains_P))
        # Row by row: a product of matrices rounds a row by where it lies, and equal rows must remain equal.
        cosines_H = np.einsum("hd,d->h", units_HD, units_HD[best], dtype=np.float64)
        similarity_H = np.maximum(similarity_H, cosines_H) if chosen else cosines_H
        chosen.append(best)
    return ranking.at(np.array(chosen, np.int64))


def _relevance(ranking: Ranking) -> np.ndarray:
    """Return the relevance of each candidate, float64 (H,): 1 of the best, 0 of the LEAST_CANDIDATES-th or last."""
    scores_H = ranking.scores.astype(np.float64)
    if ranking.rerank is not None and not np.isnan(ranking.rerank).all():
        # Candidates that were not scored follow those that were.
        scores_H = np.where(np.isnan(ranking.rerank), np.nanmin(ranking.rerank), ranking.rerank).astype(
            np.float64
        )
    if not len(scores_H):
        return scores_H
    best, worst = scores_H[0], scores_H[:LEAST_CANDIDATES][-1]
    relevance_H: np.ndarray = (scores_H - worst) / (best - worst if best > worst else 1.0)
    return relevance_H
