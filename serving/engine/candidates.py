"""Where the candidates of a search come from: from vectors, from words, or from both.

A source is asked for the best `wanted` rows of some of the queries. What comes back is ordered by score and then by
id, and is shorter than `wanted` only if there are no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from scannery.serving.engine.fusion import fuse, fusion_depth
from scannery.serving.engine.lexical import LexicalSearch
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.options import Fusion
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["Source", "hybrid_source", "lexical_source"]

Source: TypeAlias = Callable[[np.ndarray, int], list[Ranking]]
"""From numbers of queries (int64) and the rows wanted to a ranking for each of them."""


def lexical_source(
    words: LexicalSearch, allowed: Sequence[tuple[int, np.ndarray | None]], check: Callable[[], None]
) -> Source:
    """Return the source of rows by their words; `check` is called before each query and raises when time is up."""

    def source(queries: np.ndarray, wanted: int) -> list[Ranking]:
        rankings = []
        for query in queries.tolist():
            check()
            rankings.append(words.best(query, allowed, wanted))
        return rankings

    return source


def hybrid_source(dense: Source, lexical: Source, fusion: Fusion, snapshot: Snapshot) -> Source:
    """Return the source of rows that either side found, fused."""

    def source(queries: np.ndarray, wanted: int) -> list[Ranking]:
        depth = fusion_depth(wanted)
        return [
            fuse(one, other, fusion, snapshot.segments)
            for one, other in zip(dense(queries, depth), lexical(queries, depth), strict=True)
        ]

    return source
