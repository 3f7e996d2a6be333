"""The signals of a ranking expression for rows on the leaves of a cluster, and the rows by these.

Shapes: C signals, H rows of a ranking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scannery.serving import limits
from scannery.serving.engine.local_signals import SignalBounds
from scannery.serving.engine.remote.leaf_candidates import LeafCandidates
from scannery.serving.engine.segment_search import PreparedSearch
from scannery.serving.engine.top_k import Ranking, concatenated
from scannery.v1.leaf_pb2 import LeafSignalBounds

if TYPE_CHECKING:
    from scannery.serving.engine.remote.leaf_rows import LeafRows

__all__ = ["LeafSignalRows"]


class LeafSignalRows:
    """The signals that leaves return with the rows that they find."""

    def __init__(self, rows: LeafRows, prepared: PreparedSearch, candidates: LeafCandidates) -> None:
        assert prepared.options.ranking is not None
        self._rows, self._candidates = rows, candidates
        self._count = len(prepared.options.ranking.program.signals)

    def signals(self, ranking: Ranking) -> np.ndarray:
        """As `SignalRows.signals`."""
        tables = self._rows.segments
        pairs = zip(ranking.segments.tolist(), ranking.rows.tolist(), strict=True)
        signals_HC = np.array([tables[number].signals[row] for number, row in pairs], np.float32)
        return signals_HC.reshape(len(ranking), self._count).T

    def above(self, query: int, bounds: SignalBounds) -> tuple[Ranking, float]:
        """As `SignalRows.above`; each group of leaves returns as many rows as are wanted."""
        message = LeafSignalBounds(
            lowest_score=bounds.scores[0],
            highest_score=bounds.scores[1],
            least=bounds.least,
            hits=bounds.hits or 0,
            limit=min(bounds.limit, limits.MAX_LEAF_ROWS),
            below=bounds.below,
            score_zero=bounds.scale.at_zero,
            score_one=bounds.scale.at_one,
        )
        by_group = self._candidates.by_signal(query, message)
        return concatenated([ranking for ranking, _ in by_group]), max(bound for _, bound in by_group)
