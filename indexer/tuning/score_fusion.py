"""Scores of two rankings on one scale, for their weighted sum in hybrid search.

The first row of each ranking has 1. In the dense ranking the row at place 200 (or the last one, if there are fewer) has
0, because cosines and distances have no score that means "not alike". In the lexical ranking a score of 0 has 0: it
means that no word is shared (Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS 2023).
So the second of two lexical hits counts nearly as much as the first one if their scores are close.

Neither scale depends on how many more rows are fused, so the order of the first hits hardly changes with that: dense
rows after place 200 have values below 0, and rows that the dense ranking lacks have that of its last row.

Shapes: H rows of a ranking.
"""

from __future__ import annotations

import numpy as np

__all__ = ["FUSED_ROWS", "dense_values", "lexical_values"]

FUSED_ROWS = 200
"""Rows of each ranking that are fused, unless more hits are wanted."""


def dense_values(scores_H: np.ndarray) -> np.ndarray:
    """Return descending scores by vector on the common scale, float64; equal scores are all 1."""
    return _scaled(scores_H, float(scores_H[min(len(scores_H), FUSED_ROWS) - 1]) if len(scores_H) else 0.0)


def lexical_values(scores_H: np.ndarray) -> np.ndarray:
    """Return descending scores by words on the common scale, float64.

    Inner products of sparse vectors may be negative; the last one then is 0.
    """
    return _scaled(scores_H, min(0.0, float(scores_H[-1])) if len(scores_H) else 0.0)


def _scaled(scores_H: np.ndarray, zero: float) -> np.ndarray:
    if not len(scores_H) or scores_H[0] <= zero:
        return (scores_H >= zero).astype(np.float64)
    scaled_H: np.ndarray = (scores_H.astype(np.float64) - zero) / (float(scores_H[0]) - zero)
    return scaled_H
