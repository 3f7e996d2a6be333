"""Crowding: a limit on the hits of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from scannery.indexer import Segment
from scannery.serving.engine.top_k import Ranking

__all__ = ["Groups", "crowd"]


class Groups:
    """The group of each row: the value of a column. Rows without a value are groups of their own."""

    def __init__(self, segments: Sequence[Segment], column: str) -> None:
        self._segments = segments
        self._column = column

    def of(self, ranking: Ranking) -> list[Hashable]:
        """Return the group of each hit."""
        groups: list[Hashable] = [None] * len(ranking)
        for number in np.unique(ranking.segments).tolist():
            positions = np.flatnonzero(ranking.segments == number)
            rows = ranking.rows[positions]
            values = self._segments[number].take(rows, [self._column]).column(0).to_pylist()
            for position, row, value in zip(positions.tolist(), rows.tolist(), values, strict=True):
                # A tuple equals no value of a column, so such a row is alone in its group.
                groups[position] = (number, row) if value is None else value
        return groups


def crowd(ranking: Ranking, groups: Groups, max_per_group: int, *, most: int) -> Ranking:
    """Return the first `most` hits of which no group has more than `max_per_group`."""
    seen: Counter[Hashable] = Counter()
    kept: list[int] = []
    for position, group in enumerate(groups.of(ranking)):
        if len(kept) == most:
            break
        if seen[group] < max_per_group:
            seen[group] += 1
            kept.append(position)
    return ranking.at(np.array(kept, np.int64))
