"""Ranked rows of several segments, and how they are merged.

Shapes: Q queries, M rows per segment and query, H hits of one query, S vectors of the search.

Crowding: limits on the hits of each group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

__all__ = [
    "EMPTY",
    "Ranking",
    "Rows",
    "best",
    "by_score_and_id",
    "concatenated",
    "crowd",
    "first_rows",
    "merge",
]


class Rows(Protocol):
    """Where rows lie that are ranked together: a segment, or the shards of a group of leaves."""

    def ranks_of(self, rows: np.ndarray) -> np.ndarray:
        """Return a number for each of some rows, int64, which is greater where the id is."""

    def ids_of(self, rows: np.ndarray) -> list[str]:
        """Return the ids of some rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Rows of a snapshot's segments, best first."""

    segments: np.ndarray
    """Number of the segment of each hit, int64 (H,)."""
    rows: np.ndarray
    """Row in that segment, int64 (H,)."""
    scores: np.ndarray
    """float32 (H,), descending."""
    dense: np.ndarray | None = None
    """Hybrid search: the score by vector, NaN where the dense ranking has no such row."""
    lexical: np.ndarray | None = None
    """Hybrid search: the score by words, NaN where the lexical ranking has no such row."""
    rerank: np.ndarray | None = None
    """The cross-encoder's score, NaN for rows that it did not score."""
    by_vector: np.ndarray | None = None
    """Named vectors: the score by each, float32 (H, S), NaN where a row does not have it, or was not scored by it."""
    relevance: np.ndarray | None = None
    """The probability that a hit answers the question, float32 (H,); None: the hits of the query have none."""
    base: np.ndarray | None = None
    """Scores before a ranking expression, float32 (H,), while `scores` are its values."""
    features: np.ndarray | None = None
    """Features for a learned ranker, float64 (H, F), NaN of rows that it did not order; None: they are not shown."""
    unseen_bound: float | None = None
    """Value that no row which was not read is above, where a search by a ranking expression stopped early."""

    PARTS: ClassVar = (
        "segments",
        "rows",
        "scores",
        "dense",
        "lexical",
        "rerank",
        "by_vector",
        "relevance",
        "base",
        "features",
    )

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, selection: np.ndarray | slice) -> Ranking:
        """Return the hits that a mask, positions or a slice select."""
        return Ranking(
            self.segments[selection],
            self.rows[selection],
            self.scores[selection],
            None if self.dense is None else self.dense[selection],
            None if self.lexical is None else self.lexical[selection],
            None if self.rerank is None else self.rerank[selection],
            None if self.by_vector is None else self.by_vector[selection],
            None if self.relevance is None else self.relevance[selection],
            None if self.base is None else self.base[selection],
            None if self.features is None else self.features[selection],
            self.unseen_bound,
        )

    def within(self, offset: int, count: int) -> Ranking:
        """Return `count` hits from an offset on."""
        if offset == 0 and len(self.rows) <= count:
            return self
        return self.at(slice(offset, offset + count))


EMPTY = Ranking(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


def concatenated(rankings: Sequence[Ranking]) -> Ranking:
    """Return the rows of several rankings, of which some may lack parts, one ranking after the other."""
    rankings = [ranking for ranking in rankings if len(ranking)] or rankings[:1]
    if len(rankings) == 1:
        return rankings[0]
    parts: list[np.ndarray | None] = []
    for name in Ranking.PARTS:
        arrays = [getattr(ranking, name) for ranking in rankings]
        if any(array is not None for array in arrays):
            # Queries of one call may have several modes, of which only hybrid search has these scores.
            pairs = zip(arrays, rankings, strict=True)
            [shape] = {array.shape[1:] for array in arrays if array is not None}
            arrays = [
                np.full((len(each), *shape), np.nan, np.float32) if a is None else a for a, each in pairs
            ]
            parts.append(np.concatenate(arrays))
        else:
            parts.append(None)
    return Ranking(*parts)  # type: ignore[arg-type]  # only those that may be are None


def best(
    parts: Sequence[tuple[int, np.ndarray, np.ndarray]], limit: int, segments: Sequence[Rows]
) -> Ranking:
    """Return the best rows of one query over all segments, at most `limit`, by score and then by id.

    Args:
        parts: per segment its number, rows and scores, in any order.
        limit: rows to keep.
        segments: all segments of the snapshot, for the ids.

    """
    numbers = np.concatenate(
        [np.full(len(rows), number, np.int64) for number, rows, _ in parts] or [EMPTY.rows]
    )
    rows = np.concatenate([rows for _, rows, _ in parts] or [EMPTY.rows])
    scores = np.concatenate([scores for _, _, scores in parts] or [EMPTY.scores])
    return first_rows(Ranking(numbers, rows, scores), limit, segments)


def first_rows(ranking: Ranking, limit: int, segments: Sequence[Rows]) -> Ranking:
    """Return the first `limit` of some rows, which are in no order, by score and then by id."""
    if len(ranking) > limit:
        # With all scores that equal the last one: ids decide which of these rows stay.
        scores = ranking.scores
        ranking = ranking.at(scores >= np.partition(scores, len(scores) - limit)[len(scores) - limit])
    return by_score_and_id(ranking, segments).within(0, limit)


def by_score_and_id(ranking: Ranking, segments: Sequence[Rows]) -> Ranking:
    """Return the same rows by score and then by id."""
    ranks = np.empty(len(ranking), np.int64)
    numbers = np.unique(ranking.segments).tolist()
    for number in numbers:
        positions = np.flatnonzero(ranking.segments == number)
        ranks[positions] = segments[number].ranks_of(ranking.rows[positions])
    ranking = ranking.at(np.lexsort((ranks, -ranking.scores)))
    # Ranks of several segments do not compare.
    return ranking if len(numbers) < 2 else _by_id_where_equal(ranking, segments)


def merge(
    parts: Sequence[tuple[int, np.ndarray, np.ndarray]],
    queries: int,
    limit: int,
    segments: Sequence[Rows],
) -> list[Ranking]:
    """Return the best rows of each query over all segments, at most `limit`, by score and then by id.

    Args:
        parts: per segment its number, rows_QM (negative where there is none) and scores_QM, in this order too.
        queries: how many.
        limit: rows to keep per query.
        segments: all segments of the snapshot, for the ids.

    """
    if not parts:
        return [EMPTY] * queries
    if len(parts) == 1:
        return _alone(*parts[0], limit)
    numbers_S = np.concatenate([np.full(rows.shape[1], number) for number, rows, _ in parts])
    rows_QS = np.concatenate([rows for _, rows, _ in parts], axis=1)
    scores_QS = np.concatenate([scores for _, _, scores in parts], axis=1)
    order_QS = np.argsort(-scores_QS, axis=1, kind="stable")
    return [
        _ranking(numbers_S, rows_QS[q], scores_QS[q], order_QS[q], limit, segments) for q in range(queries)
    ]


def _alone(number: int, rows_QM: np.ndarray, scores_QM: np.ndarray, limit: int) -> list[Ranking]:
    """Return the rankings of the only segment, which need no merging."""
    rows_QM, scores_QM = rows_QM[:, :limit], scores_QM[:, :limit]
    numbers_M = np.full(rows_QM.shape[1], number, np.int64)  # shared, and not changed
    whole = [Ranking(numbers_M, *row_scores) for row_scores in zip(rows_QM, scores_QM, strict=True)]
    if rows_QM.shape[1] == 0 or rows_QM[:, -1].min(initial=0) >= 0:
        return whole
    return [ranking.at(slice(0, np.count_nonzero(ranking.rows >= 0))) for ranking in whole]


def _ranking(
    numbers_S: np.ndarray,
    rows_S: np.ndarray,
    scores_S: np.ndarray,
    order_S: np.ndarray,
    limit: int,
    segments: Sequence[Rows],
) -> Ranking:
    order = order_S[rows_S[order_S] >= 0]
    scores = scores_S[order]
    if len(order) > limit:
        # With all scores that equal the last one: ids decide which of these rows stay.
        order = order[: np.searchsorted(-scores, -scores[limit - 1], side="right")] if limit else order[:0]
    ranking = Ranking(numbers_S[order], rows_S[order], scores_S[order])
    return _by_id_where_equal(ranking, segments).within(0, limit)


def _by_id_where_equal(ranking: Ranking, segments: Sequence[Rows]) -> Ranking:
    """Return rows, whose scores descend, with those of equal scores by id."""
    equal = ranking.scores[1:] == ranking.scores[:-1]
    if not equal.any():
        return ranking
    # Ids are read only of rows with an equal score beside them.
    tied = np.flatnonzero(np.concatenate([equal, [False]]) | np.concatenate([[False], equal]))
    ids = _ids(ranking.at(tied), segments)
    keys = zip((-ranking.scores[tied]).tolist(), ids, tied.tolist(), strict=True)
    order = np.arange(len(ranking))
    order[tied] = [position for _, _, position in sorted(keys)]
    return ranking.at(order)


def _ids(ranking: Ranking, segments: Sequence[Rows]) -> list[str]:
    ids: list[str] = [""] * len(ranking)
    for number in np.unique(ranking.segments).tolist():
        positions = np.flatnonzero(ranking.segments == number)
        names = segments[number].ids_of(ranking.rows[positions])
        for position, name in zip(positions.tolist(), names, strict=True):
            ids[position] = name
    return ids


def crowd(ranking: Ranking, limits: Sequence[tuple[Sequence[Hashable], int]], *, limit: int) -> Ranking:
    """Return the first `limit` hits that pass all limits: the group of each hit, and the most hits of a group."""
    counts: list[Counter[Hashable]] = [Counter() for _ in limits]
    kept: list[int] = []
    for position in range(len(ranking)):
        if len(kept) == limit:
            break
        groups = [groups[position] for groups, _ in limits]
        if all(
            count[group] < maximum for count, group, (_, maximum) in zip(counts, groups, limits, strict=True)
        ):
            for count, group in zip(counts, groups, strict=True):
                count[group] += 1
            kept.append(position)
    return ranking.at(np.array(kept, np.int64))
