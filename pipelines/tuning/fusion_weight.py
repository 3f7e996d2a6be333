"""The default weight of dense search in hybrid search and the scales of its scores, measured before a commit.

Questions made from passages are searched by vector and by words over the version (passage_searches.py). The scores of
their best rows are the scales of the index (indexer/tuning/score_fusion.py), on which the rankings are fused with
weights from 0 to 1. The weight with the highest mean nDCG@10 becomes the default. The better ranking alone, weight 0 or
1, is among the choices, so the default is never below it on these questions.

Questions whose whole sentence is left out of their passage count three times as much as those of which half of the
words stay: people use few words of their answers. If one ranking alone has less than two fifths of the nDCG@10 of the
other one, as with an encoder that does not know the language, it gets a weight of at most 0.05, and with less than a
quarter none: questions made of the passages' own words make it look better than it is (docs/benchmarks/fusion.md).

Shapes: Q questions, A weights, H rows of a ranking.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.indexer.manifest import FusionScales, FusionWeight
from scannery.pipelines.tuning.passage_searches import PASSAGE, PassageScores, QuestionSearch, fused

__all__ = ["WEIGHTS", "best_weight", "fusion_weight"]

WEIGHTS = np.array([0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1])
_LEAST_SHARE = 0.01
KIND_WEIGHTS = (0.75, 0.25)
"""Weights of the two kinds of a question, in the order of `PassageQuestion.rests`."""
BALANCE = 5e-4
"""nDCG@10 that a weight must gain to be preferred to one nearer to 0.5, times the square of its logarithmic odds: 0.05
must be better than 0.5 by 0.004. With 128 questions, the standard error of such a difference is about 0.01."""
WEAK_SHARE = 0.4
WEAK_WEIGHT = 0.05
"""Most weight of a ranking with less than this share of the other one's nDCG@10."""
USELESS_SHARE = 0.25
"""A ranking with less than this share gets no weight."""
CUTOFF = 10


def fusion_weight(searches: Sequence[QuestionSearch]) -> FusionWeight:
    """Return the best weight for questions about passages, and the scales, of an index with both searches.

    `rows` and what follows it in the record are left for the caller.
    """
    scales = _scales(searches)
    gains_QA = np.array([_gains(search, scales) for search in searches])
    means_A = gains_QA.mean(axis=0)
    chosen = best_weight(means_A)
    return FusionWeight(
        alpha=float(WEIGHTS[chosen]),
        questions=len(searches),
        rows=0,
        dense=round(float(means_A[-1]), 4),
        lexical=round(float(means_A[0]), 4),
        hybrid=round(float(means_A[chosen]), 4),
        scales=scales,
    )


def best_weight(means_A: np.ndarray) -> int:
    """Return the number of the weight to use, given nDCG@10 with each of WEIGHTS.

    It is not below the better side. Of weights that are about as good, it is the one nearer to 0.5.
    """
    lexical, dense = means_A[0], means_A[-1]
    largest, least = _most_weight(dense, lexical), 1 - _most_weight(lexical, dense)
    allowed_A = (least <= WEIGHTS) & (largest >= WEIGHTS) & (means_A >= max(lexical, dense))
    odds_A = np.log(np.clip(WEIGHTS, 0.02, 0.98) / np.clip(1 - WEIGHTS, 0.02, 0.98))
    return int(np.argmax(np.where(allowed_A, means_A - BALANCE * odds_A**2, -np.inf)))


def _most_weight(score: float, other_score: float) -> float:
    """Return the most weight of a ranking, given nDCG@10 of it and of the other one."""
    if score < USELESS_SHARE * other_score:
        return 0.0
    return WEAK_WEIGHT if score < WEAK_SHARE * other_score else 1.0


def _scales(searches: Sequence[QuestionSearch]) -> FusionScales:
    """Return the scales of an index: the mean scores of the best rows, and of those at place 200."""
    dense = [each.dense.scores_H for each in searches if each.dense is not None and len(each.dense.keys_H)]
    shares = [
        float(each.lexical.scores_H[0])
        for each in searches
        if each.lexical is not None and len(each.lexical.keys_H)
    ]
    return FusionScales(
        dense_zero=round(float(np.mean([scores_H[-1] for scores_H in dense] or [0.0])), 6),
        dense_one=round(float(np.mean([scores_H[0] for scores_H in dense] or [1.0])), 6),
        lexical_one=round(max(float(np.mean(shares or [1.0])), _LEAST_SHARE), 6),
    )


def _gains(search: QuestionSearch, scales: FusionScales) -> np.ndarray:
    """Return nDCG@10 of a question with each weight, the mean of its two kinds: float64 (A,)."""
    gains_KA = [_ndcg(_ranks(search, remainder, scales)) for remainder in search.remainders]
    gains_A: np.ndarray = np.average(gains_KA, axis=0, weights=KIND_WEIGHTS)
    return gains_A


def _ranks(search: QuestionSearch, remainder: PassageScores, scales: FusionScales) -> np.ndarray:
    """Return the rank, from 1, that what is left of the passage has with each weight: float64 (A,)."""
    keys_H, scores_AH = fused(search, remainder, scales, WEIGHTS)
    if PASSAGE not in keys_H[:1]:  # the least key
        return np.full(len(WEIGHTS), np.inf)
    ranks_A: np.ndarray = (scores_AH >= scores_AH[:, :1]).sum(axis=1).astype(np.float64)
    if not remainder.lexical:
        ranks_A[0] = np.inf  # by words alone, it is not there
    return ranks_A


def _ndcg(ranks_A: np.ndarray) -> np.ndarray:
    """Return nDCG@10 where the only right row has these ranks."""
    gains: np.ndarray = np.where(ranks_A <= CUTOFF, 1 / np.log2(ranks_A + 1), 0.0)
    return gains
