"""Crowding: a limit on the hits of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from scannery.serving.engine.top_k import Ranking

__all__ = ["crowd"]


def crowd(ranking: Ranking, groups: Sequence[Hashable], max_per_group: int, *, most: int) -> Ranking:
    """Return the first `most` hits of which no group has more than `max_per_group`; `groups` has the group of each."""
    seen: Counter[Hashable] = Counter()
    kept: list[int] = []
    for position, group in enumerate(groups):
        if len(kept) == most:
            break
        if seen[group] < max_per_group:
            seen[group] += 1
            kept.append(position)
    return ranking.at(np.array(kept, np.int64))
