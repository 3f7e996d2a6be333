"""Scores of two rankings on one scale, for their weighted sum in hybrid search.

The first row of each ranking has 1. The last row of the dense ranking has 0, because cosines and distances have no score
that means "not alike". In the lexical ranking a score of 0 has 0, because it means that no word is shared (Bruch, Gai
and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS 2023): so the second of two lexical hits counts
nearly as much as the first one if their scores are close.

Shapes: H rows of a ranking.
"""

from __future__ import annotations

import numpy as np

__all__ = ["FUSED_ROWS", "scaled_from_last", "scaled_from_zero"]

FUSED_ROWS = 200
"""Rows of each ranking that are fused, unless more hits are wanted."""


def scaled_from_last(scores_H: np.ndarray) -> np.ndarray:
    """Return descending scores scaled so that the first one is 1 and the last one 0, float64; equal scores are all 1."""
    return _scaled(scores_H, float(scores_H[-1]) if len(scores_H) else 0.0)


def scaled_from_zero(scores_H: np.ndarray) -> np.ndarray:
    """Return descending scores scaled so that the first one is 1 and a score of 0 is 0, float64.

    Inner products of sparse vectors may be negative; the last one then is 0.
    """
    return _scaled(scores_H, min(0.0, float(scores_H[-1])) if len(scores_H) else 0.0)


def _scaled(scores_H: np.ndarray, least: float) -> np.ndarray:
    if not len(scores_H) or scores_H[0] <= least:
        return np.ones(len(scores_H))
    scaled_H: np.ndarray = (scores_H.astype(np.float64) - least) / (float(scores_H[0]) - least)
    return scaled_H
