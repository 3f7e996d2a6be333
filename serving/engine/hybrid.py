"""Hybrid search: a dense ranking (by vector) and a lexical ranking (by words) are fused into one.

- By **reciprocal rank**: a row scores alpha / (60 + dense rank) + (1 - alpha) / (60 + lexical rank), ranks from 1
  (Cormack, Clarke and Büttcher, SIGIR 2009, with weights).
- By **weighted score**: alpha · dense + (1 - alpha) · lexical, the scores of each ranking scaled so that its first row
  has 1 and its last row 0.

A ranking without the row adds nothing.

Shapes: H rows of both rankings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from scannery.indexer import Segment
from scannery.serving.engine.top_k import Ranking, by_score_and_id
from scannery.serving.request.options import Fusion

__all__ = ["fuse", "fusion_depth"]

RANK_CONSTANT = 60
LEAST_DEPTH = 200
DEEPER = 4


def fusion_depth(wanted: int) -> int:
    """Return how many rows of each ranking to fuse for `wanted` hits: 200, 800, 3,200 and so on.

    In steps, because the rows fused decide on the scores: the pages of one answer should mostly agree.
    """
    depth = LEAST_DEPTH
    while depth < wanted:
        depth *= DEEPER
    return depth


def fuse(dense: Ranking, lexical: Ranking, fusion: Fusion, segments: Sequence[Segment]) -> Ranking:
    """Return all rows of both rankings by fused score, then by id, with their scores in both."""
    keys_H, places = np.unique(np.concatenate([_keys(dense), _keys(lexical)]), return_inverse=True)
    dense_at, lexical_at = places[: len(dense)], places[len(dense) :]
    gain = _GAINS[fusion.method]
    scores_H = np.zeros(len(keys_H), np.float64)
    scores_H[dense_at] += fusion.alpha * gain(dense.scores)
    scores_H[lexical_at] += (1 - fusion.alpha) * gain(lexical.scores)
    fused = Ranking(
        keys_H >> _ROW_BITS,
        keys_H & ((1 << _ROW_BITS) - 1),
        scores_H.astype(np.float32),
        dense=_spread(dense.scores, dense_at, len(keys_H)),
        lexical=_spread(lexical.scores, lexical_at, len(keys_H)),
    )
    return by_score_and_id(fused, segments)


_ROW_BITS = 40


def _keys(ranking: Ranking) -> np.ndarray:
    keys: np.ndarray = (ranking.segments.astype(np.int64) << _ROW_BITS) | ranking.rows
    return keys


def _spread(scores: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """Return the scores at the given places, and NaN elsewhere: float32 (H,)."""
    spread_H = np.full(size, np.nan, np.float32)
    spread_H[places] = scores
    return spread_H


def _reciprocal_ranks(scores: np.ndarray) -> np.ndarray:
    ranks: np.ndarray = 1 / (RANK_CONSTANT + 1 + np.arange(len(scores), dtype=np.float64))
    return ranks


def _scaled(scores: np.ndarray) -> np.ndarray:
    if not len(scores):
        return np.zeros(0)
    scores = scores.astype(np.float64)
    best, last = scores[0], scores[-1]
    scaled: np.ndarray = (scores - last) / (best - last) if best > last else np.ones(len(scores))
    return scaled


_GAINS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "reciprocal_rank": _reciprocal_ranks,
    "weighted_score": _scaled,
}
