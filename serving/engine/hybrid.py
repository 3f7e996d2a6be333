"""Fusion: rankings by several vectors, or a dense ranking (by vectors) and a lexical one (by words), become one.

- By **weighted score**, the default: alpha · dense + (1 - alpha) · lexical, with scores scaled to 0 to 1
  (indexer/tuning/score_fusion.py).
- By **reciprocal rank**: a row scores alpha / (60 + dense rank) + (1 - alpha) / (60 + lexical rank), ranks from 1
  (Cormack, Clarke and Büttcher, SIGIR 2009, with weights).

A lexical ranking without the row adds nothing, and a dense ranking without it the value of its last row; at most 0 if
that ranking has all rows with a vector.

Where several vectors are searched, the dense part is the sum of the same values of each of them, by weights that add up
to 1. A row of one ranking is scored by all vectors that it has, and so is in the rankings of these too.

The best 200 rows of all rankings are fused. Where more hits are wanted, rows that only the best 800 have follow them,
then those of the best 3,200, and so on. So an answer is the beginning of every longer one, and pages fit together.

If the dense or the lexical ranking has the weight 0, all rows of the other one come first: the blocks of 200, 800 and
so on would put rows that only the ranking without weight has in front of the other one's rows after place 200.

Shapes: H rows of the fused ranking, U rows of all dense rankings, S vectors of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np

from scannery.indexer import WeightedTerms
from scannery.indexer.tuning.score_fusion import FUSED_ROWS, Scale, ScaleOf, dense_scale, lexical_scale
from scannery.serving.engine.lexical import Words
from scannery.serving.engine.top_k import EMPTY, Ranking, Rows, by_score_and_id
from scannery.serving.request.modes import Fusion

__all__ = [
    "RANK_CONSTANT",
    "DenseRankings",
    "followed",
    "fuse",
    "fused_scores",
    "fusion_depth",
    "keys_in",
    "keys_of",
    "places_of",
    "vector_scale",
    "word_scale",
]

RANK_CONSTANT = 60
DEEPER = 4
LEAST_WEIGHT = 5e-8
"""The weight of a ranking whose weight is 0: it orders rows that the other one leaves equal, as those without any word
of the query where `alpha` is 0. Half a step of float32 below 1, so it changes nothing else."""


def fusion_depth(hits: int) -> int:
    """Return how many rows of each ranking to fuse for `hits` hits: 200, 800, 3,200 and so on."""
    depth = FUSED_ROWS
    while depth < hits:
        depth *= DEEPER
    return depth


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DenseRankings:
    """What one query finds by each of its vectors."""

    rankings: Sequence[Ranking]
    """Rankings by each of the vectors."""
    weights: Sequence[float]
    """Weights of the vectors; they add up to 1."""
    scales: Sequence[ScaleOf]
    """Scales of the vectors' scores."""
    keys_U: np.ndarray
    """All rows of several rankings, as `keys_in` returns them; of one ranking: empty."""
    scores_US: np.ndarray
    """Their exact scores by each of the vectors, float32; NaN where a row does not have it."""
    columns: Sequence[int]
    """Columns of the vectors: the column of its scores in `Ranking.by_vector`; empty: these are left out."""
    width: int
    """Columns of `Ranking.by_vector`."""

    @property
    def longest(self) -> int:
        """Rows of the longest ranking."""
        return max(map(len, self.rankings))

    def within(self, depth: int, segments: Sequence[Rows]) -> list[Ranking]:
        """Return the rankings by each vector of the rows that are among the best `depth` of any."""
        best = [ranking.within(0, depth) for ranking in self.rankings]
        if len(best) == 1:
            return best
        keys_H = keys_in(best)
        scores_HS = self.scores_US[np.searchsorted(self.keys_U, keys_H)]
        numbers_H, rows_H = places_of(keys_H)
        known_HS = ~np.isnan(scores_HS)
        return [
            by_score_and_id(Ranking(numbers_H[is_present], rows_H[is_present], scores[is_present]), segments)
            for is_present, scores in zip(known_HS.T, scores_HS.T, strict=True)
        ]


def fuse(
    dense: DenseRankings,
    lexical: Ranking | None,
    fusion: Fusion,
    segments: Sequence[Rows],
    *,
    words_scale: ScaleOf = lexical_scale,
) -> Ranking:
    """Return all rows of some rankings by fused score, then by id, with their scores in each.

    Rows after the first 200 of each follow the fused ones of these, with lower scores.

    Args:
        dense: the rankings by vector.
        lexical: the ranking by words; None: several dense rankings are fused.
        fusion: method and weight.
        segments: all segments of the snapshot, for the ids.
        words_scale: scale of the scores by words.

    """
    depth, longest = FUSED_ROWS, max(dense.longest, 0 if lexical is None else len(lexical))
    blocks = [_fused(dense, lexical, depth, fusion, segments, words_scale)]
    while depth < longest:
        depth *= DEEPER
        blocks.append(_fused(dense, lexical, depth, fusion, segments, words_scale))
    if lexical is not None and fusion.alpha in (0, 1):
        blocks = [*(_of_one(block, fusion.alpha) for block in blocks), *blocks]
    return reduce(partial(followed, segments=segments), blocks)


def _of_one(fused: Ranking, alpha: float) -> Ranking:
    """Return the rows that the ranking with all the weight has."""
    scores = fused.dense if alpha else fused.lexical
    return fused if scores is None else fused.at(~np.isnan(scores))


def followed(first: Ranking, deeper: Ranking, segments: Sequence[Rows]) -> Ranking:
    """Return a ranking, and after it the other rows of a deeper one, whose scores are moved below the last one."""
    following = deeper.at(~np.isin(keys_of(deeper), keys_of(first)))
    if not len(following) or not len(first):
        return first if len(first) else following
    below = float(np.nextafter(first.scores[-1], np.float32(-np.inf)))
    moved_H = following.scores - max(0.0, float(following.scores[0]) - below)
    following = replace(following, scores=np.minimum(moved_H, below).astype(np.float32))
    both = [(getattr(first, part), getattr(following, part)) for part in Ranking.PARTS]
    parts = [None if a is None or b is None else np.concatenate([a, b]) for a, b in both]
    return by_score_and_id(Ranking(*parts), segments)  # type: ignore[arg-type]  # only those that may be are None


def _fused(
    dense: DenseRankings,
    lexical: Ranking | None,
    depth: int,
    fusion: Fusion,
    segments: Sequence[Rows],
    words_scale: ScaleOf,
) -> Ranking:
    by_vector = dense.within(depth, segments)
    words = EMPTY if lexical is None else lexical.within(0, depth)
    keys_H, positions = np.unique(
        np.concatenate([keys_of(each) for each in (*by_vector, words)]), return_inverse=True
    )
    ends = np.cumsum([len(each) for each in by_vector])
    *at, lexical_at = np.split(positions, ends)
    gain = _GAINS[fusion.method]
    scores_H = np.zeros(len(keys_H))
    for ranking, positions_of, weight, scale_of in zip(
        by_vector, at, dense.weights, dense.scales, strict=True
    ):
        gains, least_gain = gain(ranking.scores, scale_of)
        gains_H = np.full(len(keys_H), least_gain)
        gains_H[positions_of] = gains
        scores_H += weight * gains_H
    by_vector_HS = _by_vector(dense, by_vector, at, len(keys_H))
    dense_H = None
    if lexical is not None:
        alone = len(by_vector) == 1
        dense_H = _spread(
            by_vector[0].scores if alone else scores_H[np.concatenate(at)], np.concatenate(at), len(keys_H)
        )
        alpha = min(max(fusion.alpha, LEAST_WEIGHT), 1 - LEAST_WEIGHT)
        scores_H *= alpha
        scores_H[lexical_at] += (1 - alpha) * gain(words.scores, words_scale)[0]
    numbers_H, rows_H = places_of(keys_H)
    fused = Ranking(
        numbers_H,
        rows_H,
        scores_H.astype(np.float32),
        dense=dense_H,
        lexical=None if lexical is None else _spread(words.scores, lexical_at, len(keys_H)),
        by_vector=by_vector_HS,
    )
    return by_score_and_id(fused, segments)


def _by_vector(
    dense: DenseRankings, rankings: Sequence[Ranking], at: Sequence[np.ndarray], size: int
) -> np.ndarray | None:
    """Return `Ranking.by_vector` of fused rows, whose places among these are `at`; None if it is left out."""
    if not dense.columns:
        return None
    scores_HS = np.full((size, dense.width), np.nan, np.float32)
    for column, ranking, positions in zip(dense.columns, rankings, at, strict=True):
        scores_HS[positions, column] = ranking.scores
    return scores_HS


def fused_scores(
    by_vector_R: np.ndarray, by_words_R: np.ndarray, fusion: Fusion, words_scale: ScaleOf
) -> np.ndarray:
    """Return the fused scores of rows with the scales of an index, float32 (R,), by all scores that they have.

    Args:
        by_vector_R: their scores by vector, float32; NaN where a row has no vector.
        by_words_R: their scores by words, float32; NaN where a row has no word of the query.
        fusion: by weighted score, with scales of the index.
        words_scale: scale of the scores by words.

    """
    dense_R = vector_scale(fusion, 0.0)(by_vector_R).values(by_vector_R)
    lexical_R = words_scale(by_words_R).values(by_words_R)
    # A row without a vector counts as one at place 200, whose value is 0: its score must not depend on other rows.
    dense_R, lexical_R = np.nan_to_num(dense_R, nan=0.0), np.nan_to_num(lexical_R, nan=0.0)
    scores_R: np.ndarray = fusion.alpha * dense_R + (1 - fusion.alpha) * lexical_R
    return scores_R.astype(np.float32)


_ROW_BITS = 40


def keys_of(ranking: Ranking) -> np.ndarray:
    """Return the rows of a ranking as numbers, int64, in their order."""
    keys: np.ndarray = (ranking.segments.astype(np.int64) << _ROW_BITS) | ranking.rows
    return keys


def keys_in(rankings: Sequence[Ranking]) -> np.ndarray:
    """Return the rows of any of the rankings as numbers, int64, ascending; each once."""
    keys: np.ndarray = np.unique(np.concatenate([keys_of(ranking) for ranking in rankings]))
    return keys


def places_of(keys_U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the segment and the row of each of `keys_in`, both int64."""
    return keys_U >> _ROW_BITS, keys_U & ((1 << _ROW_BITS) - 1)


def _spread(scores: np.ndarray, positions: np.ndarray, size: int) -> np.ndarray:
    """Return the scores at the given places, and NaN elsewhere: float32 (H,)."""
    spread_H = np.full(size, np.nan, np.float32)
    spread_H[positions] = scores
    return spread_H


def _weighted_scores(scores: np.ndarray, scale_of: ScaleOf) -> tuple[np.ndarray, float]:
    if not len(scores):
        return np.empty(0), 0.0
    gains = scale_of(scores).values(scores)
    # Rows that the ranking lacks are behind its last row, or have no vector.
    return gains, float(gains[-1]) if len(gains) >= FUSED_ROWS else min(0.0, float(gains[-1]))


def _reciprocal_ranks(scores: np.ndarray, _: ScaleOf) -> tuple[np.ndarray, float]:
    return 1 / (RANK_CONSTANT + 1 + np.arange(len(scores), dtype=np.float64)), 0.0


_GAINS: dict[str, Callable[[np.ndarray, ScaleOf], tuple[np.ndarray, float]]] = {
    "weighted_score": _weighted_scores,
    "reciprocal_rank": _reciprocal_ranks,
}
"""Functions by method: what rows gain by their scores in a ranking, and what rows gain that a dense one lacks."""


def vector_scale(fusion: Fusion, least_range: float) -> ScaleOf:
    """Return the scale of scores by vector: that of the index, or of each query with its least range."""
    if fusion.scales is None:
        return partial(dense_scale, least_range=least_range)
    scale = Scale(fusion.scales.dense_zero, fusion.scales.dense_one)
    return lambda _: scale


def word_scale(fusion: Fusion, words: Words, least_one: float) -> ScaleOf:
    """Return the scale of scores by words: that of the index, or of each query with its least score that has 1."""
    if fusion.scales is None or not isinstance(words, WeightedTerms):
        return partial(lexical_scale, least_one=least_one)
    scale = Scale(0.0, fusion.scales.lexical_one * words.highest_score)
    return lambda _: scale
