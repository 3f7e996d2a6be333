"""The default weight of dense search in hybrid search and the scales of its scores, measured before a commit.

Questions made from passages are searched by vector and by words over the version (passage_searches.py). The scores of
their best rows are the scales of the index (indexer/tuning/score_fusion.py). The better one search is beside the other
on these questions, the more weight it has: its odds are a power of the ratio of both. A weight that is the best one for
the questions themselves has more chance in it, and suits them: they have more of the passages' words than people's.

Questions whose whole sentence is left out of their passage count three times as much as those of which half of the
words stay: people use few words of their answers. A search with less than a quarter of the other one's nDCG@10, as with
an encoder that does not know the language, gets no weight (figures: docs/benchmarks/fusion.md).

Shapes: Q questions, A weights, H rows of a ranking.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.indexer.manifest import FusionScales, FusionWeight
from scannery.indexer.tuning.score_fusion import SAME_SHARE
from scannery.pipelines.tuning.passage_searches import PASSAGE, PassageScores, QuestionSearch, fused

__all__ = ["chosen_weight", "fusion_weight"]

KIND_WEIGHTS = (0.75, 0.25)
"""Weights of the two kinds of a question, in the order of `QuestionSearch.remainders`."""
EQUAL_ODDS = 1.35
"""Odds of dense search where both are as good: the passages' own words flatter search by words."""
EXPONENT = 4
"""Power of the ratio."""
USELESS_SHARE = 0.25
"""A search with less than this share of the other one's nDCG@10 gets no weight."""
CUTOFF = 10
_LEAST_SHARE = 0.01
_LEAST_RANGE = 2 * SAME_SHARE
"""Least range of the scores of a question, as a share of the best one: scores that are the same may be rounded to
neighbours."""


def fusion_weight(searches: Sequence[QuestionSearch]) -> FusionWeight | None:
    """Return the weight for questions about passages, and the scales, of an index with both searches.

    `rows` and what follows it in the record are left for the caller. None: all rows have the same scores by vector, so
    these have no scale.
    """
    scales = _scales(searches)
    if scales is None:
        return None
    lexical, dense = _means(searches, scales, [0.0, 1.0])
    alpha = chosen_weight(dense, lexical)
    [hybrid] = _means(searches, scales, [alpha])
    return FusionWeight(
        alpha=alpha,
        questions=len(searches),
        rows=0,
        dense=round(dense, 4),
        lexical=round(lexical, 4),
        hybrid=round(hybrid, 4),
        scales=scales,
    )


def chosen_weight(dense: float, lexical: float) -> float:
    """Return the weight of dense search, 0 to 1 in hundredths, given nDCG@10 of both searches."""
    if max(dense, lexical) <= 0:
        return 0.5
    if min(dense, lexical) < USELESS_SHARE * max(dense, lexical):
        return float(dense > lexical)
    odds = EQUAL_ODDS * (dense / lexical) ** EXPONENT
    return round(odds / (1 + odds), 2)


def _means(searches: Sequence[QuestionSearch], scales: FusionScales, weights: Sequence[float]) -> list[float]:
    """Return the mean nDCG@10 of the questions with each weight."""
    weights_A = np.array(weights)
    means: list[float] = np.mean([_gains(each, scales, weights_A) for each in searches], axis=0).tolist()
    return means


def _scales(searches: Sequence[QuestionSearch]) -> FusionScales | None:
    """Return the scales of an index: the mean scores of the best rows, and of those at place 200.

    Questions whose rows have the same scores by vector have no part in its scale. None: there are no others.
    """
    rankings = [each.dense.scores_H for each in searches if each.dense is not None and len(each.dense.keys_H)]
    dense = [scores_H for scores_H in rankings if np.ptp(scores_H) > _LEAST_RANGE * abs(scores_H[0])]
    if rankings and not dense:
        return None
    shares = [
        float(each.lexical.scores_H[0])
        for each in searches
        if each.lexical is not None and len(each.lexical.keys_H)
    ]
    return FusionScales(
        dense_zero=_mean([scores_H[-1] for scores_H in dense] or [0.0]),
        dense_one=_mean([scores_H[0] for scores_H in dense] or [1.0]),
        lexical_one=round(max(float(np.mean(shares or [1.0])), _LEAST_SHARE), 6),
    )


def _mean(scores: Sequence[float]) -> float:
    """Return the mean in six digits: products of vectors that are not of length 1 may be tiny, or huge."""
    return float(f"{np.mean(scores):.6g}")


def _gains(search: QuestionSearch, scales: FusionScales, weights_A: np.ndarray) -> np.ndarray:
    """Return nDCG@10 of a question with each weight, the mean of its two kinds: float64 (A,)."""
    gains_KA = [_ndcg(_ranks(search, remainder, scales, weights_A)) for remainder in search.remainders]
    gains_A: np.ndarray = np.average(gains_KA, axis=0, weights=KIND_WEIGHTS)
    return gains_A


def _ranks(
    search: QuestionSearch, remainder: PassageScores, scales: FusionScales, weights_A: np.ndarray
) -> np.ndarray:
    """Return the rank, from 1, that what is left of the passage has with each weight: float64 (A,)."""
    keys_H, scores_AH = fused(search, remainder, scales, weights_A)
    if PASSAGE not in keys_H[:1]:  # the least key
        return np.full(len(weights_A), np.inf)
    ranks_A: np.ndarray = (scores_AH >= scores_AH[:, :1]).sum(axis=1).astype(np.float64)
    if not remainder.lexical:
        ranks_A[weights_A == 0] = np.inf  # by words alone, it is not there
    return ranks_A


def _ndcg(ranks_A: np.ndarray) -> np.ndarray:
    """Return nDCG@10 where the only right row has these ranks."""
    gains: np.ndarray = np.where(ranks_A <= CUTOFF, 1 / np.log2(ranks_A + 1), 0.0)
    return gains
