"""Scores of two rankings on one scale, for their weighted sum in hybrid search.

The first row of each ranking has 1. In the dense ranking the row at place 200 (or the last one, if there are fewer) has
0, because cosines and distances have no score that means "not alike". In the lexical ranking a score of 0 has 0: it
means that no word is shared (Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS 2023).
So the second of two lexical hits counts nearly as much as the first one if their scores are close.

A filter can leave a few rows, of which the best may be a poor answer and the worst a good one. Their scales are
therefore those of the whole index (`Scale`): lexical scores are divided by the best one without the filter, and 0 of
the dense ranking is no nearer to its first row than place 200 is without the filter.

Scores by vector that differ in their last bits only are the same.

Neither scale depends on how many more rows are fused, so the order of the first hits hardly changes with that: dense
rows after place 200 have values below 0, and rows that the dense ranking lacks have that of its last row.

Shapes: H rows of a ranking.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["FUSED_ROWS", "SAME_SHARE", "UNFILTERED", "Scale", "dense_values", "lexical_values"]

SAME_SHARE = 1e-5
"""Share of the best score within which scores by vector are the same: texts that an encoder cannot tell apart have
scores that differ in their last bits (1e-7 to 1e-6), which would order them."""
FUSED_ROWS = 200
"""Rows of each ranking that are fused, unless more hits are wanted."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What the scales of a filtered query take from the same query without the filter."""

    dense_range: float = 0.0
    """Least difference of the dense scores that have 1 and 0."""
    lexical_best: float = -math.inf
    """Least lexical score that has 1."""


UNFILTERED = Scale()
"""The scale of a query without a filter: it takes all from its own rankings."""


def dense_values(scores_H: np.ndarray, scale: Scale = UNFILTERED) -> np.ndarray:
    """Return descending scores by vector on the common scale, float64; if the first ones are the same, all are 1."""
    if not len(scores_H):
        return np.empty(0)
    first, last = float(scores_H[0]), float(scores_H[min(len(scores_H), FUSED_ROWS) - 1])
    zero = min(last, first - scale.dense_range)
    if first - zero <= SAME_SHARE * abs(first):
        return (scores_H >= zero).astype(np.float64)
    return _scaled(scores_H, zero, first)


def lexical_values(scores_H: np.ndarray, scale: Scale = UNFILTERED) -> np.ndarray:
    """Return descending scores by words on the common scale, float64.

    Inner products of sparse vectors may be negative; the last one then is 0.
    """
    if not len(scores_H):
        return np.empty(0)
    return _scaled(scores_H, min(0.0, float(scores_H[-1])), max(float(scores_H[0]), scale.lexical_best))


def _scaled(scores_H: np.ndarray, zero: float, top: float) -> np.ndarray:
    if top <= zero:
        return (scores_H >= zero).astype(np.float64)
    scaled_H: np.ndarray = (scores_H.astype(np.float64) - zero) / (top - zero)
    return scaled_H
