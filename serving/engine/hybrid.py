"""Hybrid search: a dense ranking (by vector) and a lexical ranking (by words) are fused into one.

- By **weighted score**, the default: alpha · dense + (1 - alpha) · lexical, with scores scaled to 0 to 1
  (indexer/tuning/score_fusion.py).
- By **reciprocal rank**: a row scores alpha / (60 + dense rank) + (1 - alpha) / (60 + lexical rank), ranks from 1
  (Cormack, Clarke and Büttcher, SIGIR 2009, with weights).

A lexical ranking without the row adds nothing, a dense ranking without it the least that it has, at most 0.

The best 200 rows of both rankings are fused. Where more hits are wanted, rows that only the best 800 have follow them,
then those of the best 3,200, and so on. So an answer is the beginning of every longer one, and pages fit together.

If one ranking has the weight 0, all rows of the other one come first: the blocks of 200, 800 and so on would put rows
that only the ranking without weight has in front of the other one's rows after place 200.

Shapes: H rows of both rankings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np

from scannery.indexer import Segment
from scannery.indexer.tuning.score_fusion import FUSED_ROWS, UNFILTERED, Scale, dense_values, lexical_values
from scannery.serving.engine.top_k import Ranking, by_score_and_id
from scannery.serving.request.options import Fusion

__all__ = ["fuse", "fusion_depth"]

RANK_CONSTANT = 60
DEEPER = 4
LEAST_WEIGHT = 5e-8
"""The weight of a ranking whose weight is 0: it orders rows that the other one leaves equal, as those without any word
of the query where `alpha` is 0. Half a step of float32 below 1, so it changes nothing else."""


def fusion_depth(wanted: int) -> int:
    """Return how many rows of each ranking to fuse for `wanted` hits: 200, 800, 3,200 and so on."""
    depth = FUSED_ROWS
    while depth < wanted:
        depth *= DEEPER
    return depth


def fuse(
    dense: Ranking,
    lexical: Ranking,
    fusion: Fusion,
    segments: Sequence[Segment],
    scale: Scale = UNFILTERED,
) -> Ranking:
    """Return all rows of both rankings by fused score, then by id, with their scores in both.

    Rows after the first 200 of both follow the fused ones of these, with lower scores.

    Args:
        dense: the ranking by vector.
        lexical: the ranking by words.
        fusion: method and weight.
        segments: all segments of the snapshot, for the ids.
        scale: of a query with a filter.

    """
    depth, longest = FUSED_ROWS, max(len(dense), len(lexical))
    blocks = [_fused(dense.within(0, depth), lexical.within(0, depth), fusion, segments, scale)]
    while depth < longest:
        depth *= DEEPER
        blocks.append(_fused(dense.within(0, depth), lexical.within(0, depth), fusion, segments, scale))
    if fusion.alpha in (0, 1):
        blocks = [*(_of_one(block, fusion.alpha) for block in blocks), *blocks]
    return reduce(partial(_followed, segments=segments), blocks)


def _of_one(fused: Ranking, alpha: float) -> Ranking:
    """Return the rows that the ranking with all the weight has."""
    scores = fused.dense if alpha else fused.lexical
    return fused if scores is None else fused.at(~np.isnan(scores))


def _followed(first: Ranking, deeper: Ranking, segments: Sequence[Segment]) -> Ranking:
    """Return a ranking, and after it the other rows of a deeper one, whose scores are moved below the last one."""
    rest = deeper.at(~np.isin(_keys(deeper), _keys(first)))
    if not len(rest) or not len(first):
        return first if len(first) else rest
    below = float(np.nextafter(first.scores[-1], np.float32(-np.inf)))
    moved_H = rest.scores - max(0.0, float(rest.scores[0]) - below)
    both = [(getattr(first, part), getattr(rest, part)) for part in ("segments", "rows", "dense", "lexical")]
    numbers, rows, dense, lexical = map(np.concatenate, both)
    scores = np.concatenate([first.scores, np.minimum(moved_H, below).astype(np.float32)])
    return by_score_and_id(Ranking(numbers, rows, scores, dense=dense, lexical=lexical), segments)


def _fused(
    dense: Ranking, lexical: Ranking, fusion: Fusion, segments: Sequence[Segment], scale: Scale
) -> Ranking:
    keys_H, places = np.unique(np.concatenate([_keys(dense), _keys(lexical)]), return_inverse=True)
    dense_at, lexical_at = places[: len(dense)], places[len(dense) :]
    dense_gain, lexical_gain = _GAINS[fusion.method]
    alpha = min(max(fusion.alpha, LEAST_WEIGHT), 1 - LEAST_WEIGHT)
    gains_H = dense_gain(dense.scores, scale)
    scores_H = np.full(len(keys_H), min(0.0, gains_H[-1]) if len(gains_H) else 0.0)
    scores_H[dense_at] = gains_H
    scores_H *= alpha
    scores_H[lexical_at] += (1 - alpha) * lexical_gain(lexical.scores, scale)
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


def _reciprocal_ranks(scores: np.ndarray, _: Scale) -> np.ndarray:
    ranks: np.ndarray = 1 / (RANK_CONSTANT + 1 + np.arange(len(scores), dtype=np.float64))
    return ranks


_Gain = Callable[[np.ndarray, Scale], np.ndarray]
_GAINS: dict[str, tuple[_Gain, _Gain]] = {
    "weighted_score": (dense_values, lexical_values),
    "reciprocal_rank": (_reciprocal_ranks, _reciprocal_ranks),
}
"""By method, what a row gains by its score in the dense ranking, and in the lexical one."""
