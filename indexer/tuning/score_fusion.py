"""Scores of two rankings on one scale, for their weighted sum in hybrid search.

**Scales of an index.** A build measures what scores the best rows of typical questions have (`FusionScales`,
pipelines/tuning/fusion_weight.py). A dense score has 1 if it is that of these rows, and 0 if it is that of the rows at
place 200. A lexical score has 1 if it is as large a share of the highest score that the query's words allow as theirs
is. So the scales are the same for all queries: a question whose words few rows have is answered by its meaning, though
some row always is the first by words. A filter changes no score.

**Scales of a query**, where nothing was measured. The first row of each ranking has 1. In the dense ranking the row at
place 200 (or the last one, if there are fewer) has 0, because cosines and distances have no score that means "not
alike". In the lexical ranking a score of 0 has 0: it means that no word is shared (Bruch, Gai and Ingber, "An Analysis
of Fusion Functions for Hybrid Retrieval", TOIS 2023). So the second of two lexical hits counts nearly as much as the
first one if their scores are close. A filter can leave a few rows, of which the best may be a poor answer and the worst
a good one. Their scales are therefore those of the whole index: lexical scores are divided by the best one without the
filter, and 0 of the dense ranking is no nearer to its first row than place 200 is without the filter.

Scores by vector that differ in their last bits only are the same.

No scale depends on how many more rows are fused, so the order of the first hits hardly changes with that: rows that the
dense ranking lacks have the value of its last row.

Shapes: H rows of a ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

__all__ = ["FUSED_ROWS", "SAME_SHARE", "Scale", "ScaleOf", "dense_scale", "lexical_scale"]

SAME_SHARE = 1e-5
"""Share of the best score within which scores by vector are the same: texts that an encoder cannot tell apart have
scores that differ in their last bits (1e-7 to 1e-6), which would order them."""
FUSED_ROWS = 200
"""Rows of each ranking that are fused, unless more hits are wanted."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where 0 and 1 lie among the scores of a ranking."""

    at_zero: float
    """Score whose value is 0."""
    at_one: float
    """Score whose value is 1; not above `at_zero`: scores from `at_zero` on have 1, and others 0."""

    def values(self, scores_H: np.ndarray) -> np.ndarray:
        """Return scores on the common scale, float64 (H,)."""
        if self.at_one <= self.at_zero:
            return (scores_H >= self.at_zero).astype(np.float64)
        scaled_H: np.ndarray = (scores_H.astype(np.float64) - self.at_zero) / (self.at_one - self.at_zero)
        return scaled_H


ScaleOf: TypeAlias = Callable[[np.ndarray], Scale]
"""Returns the scale of some scores, descending, of which there is at least one."""


def dense_scale(scores_H: np.ndarray, least_range: float = 0.0) -> Scale:
    """Return the scale of a query's scores by vector, descending; if the first ones are the same, they have 1.

    Args:
        scores_H: at least one.
        least_range: least difference of the scores that have 1 and 0.

    """
    first, last = float(scores_H[0]), float(scores_H[min(len(scores_H), FUSED_ROWS) - 1])
    zero = min(last, first - least_range)
    return Scale(zero, zero if first - zero <= SAME_SHARE * abs(first) else first)


def lexical_scale(scores_H: np.ndarray, least_one: float = -math.inf) -> Scale:
    """Return the scale of a query's scores by words, descending.

    Inner products of sparse vectors may be negative; the last one then is 0.

    Args:
        scores_H: at least one.
        least_one: least score that has 1.

    """
    return Scale(min(0.0, float(scores_H[-1])), max(float(scores_H[0]), least_one))
