"""The signals of a ranking expression for the rows of a snapshot of this process, and the rows by these.

Shapes: C signals, H rows of a ranking, R rows of a segment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scannery.indexer import WeightedTerms
from scannery.indexer.tuning.score_fusion import Scale
from scannery.serving.engine.dense import Candidates
from scannery.serving.engine.segment_search import AllowedSegment, PreparedSearch, QueryBatch
from scannery.serving.engine.top_k import EMPTY, Ranking, concatenated
from scannery.serving.request.options import Options
from scannery.serving.request.ranking import RankingOption
from scannery.serving.snapshot.signal_table import Signals

if TYPE_CHECKING:
    from scannery.serving.engine.row_source import RankedCandidates

__all__ = ["LocalSignalRows", "SignalBounds", "scores_rows", "search_time_s"]

TYPICAL_SCORES = (0.0, 1.0)
FEW_ROWS = 1 << 12
"""Most rows that are read after the first ones: beyond, it takes less time to read the order of scores deeper."""


@dataclass(frozen=True, slots=True)
class SignalBounds:
    """Which rows are read by their signals."""

    scores: tuple[float, float]
    """Lowest and highest score that they may have, on the scale of the expression."""
    least: float
    """Value that rows must be able to have."""
    hits: int | None
    """Number of hits: the value of the last of as many of these rows is a least one, too; None: it is not."""
    limit: int
    """Rows that are read first, those with the highest bounds; others only if they are few."""
    below: float
    """Score, as the search returns it, that none of the rows has in mode hybrid."""
    scale: Scale
    """Scale of the expression."""


def scores_rows(options: Options, candidates: RankedCandidates, query: int) -> bool:
    """Return whether any row has a score by itself for a query, which in a fused order must not depend on others."""
    if options.mode == "lexical":
        return True
    if len(options.vectors) != 1 or options.inner_product:
        return False
    if options.mode == "dense":
        return True
    is_scaled = options.fusion.scales is not None and 0 < options.fusion.alpha < 1
    # Sparse vectors have no scale of the index.
    return is_scaled and isinstance(candidates.words_of(query), WeightedTerms)


def search_time_s(option: RankingOption) -> float:
    """Return the time of a search, seconds since 1970: the same for a while, so that signals are computed once."""
    step_s = max(1.0, option.program.step_s)
    return 0.0 if np.isinf(step_s) else time.time() // step_s * step_s


class LocalSignalRows:
    """The signals of the rows of a snapshot of this process, and the rows by these."""

    def __init__(
        self, prepared: PreparedSearch, batch: QueryBatch, candidates: Candidates, now_s: float
    ) -> None:
        """Prepare; DeadlineError if the filter takes too long. `now_s`: the time of the search."""
        snapshot, option = batch.snapshot, prepared.options.ranking
        assert option is not None
        self._snapshot = snapshot
        self._batch, self._candidates = batch, candidates
        self._options = prepared.options
        self._signals = Signals(option.program, now_s, snapshot.manifest.spec, snapshot.masks, TYPICAL_SCORES)
        self._allowed: Sequence[AllowedSegment] = prepared.allowed(snapshot, batch.deadline)

    def signals(self, ranking: Ranking) -> np.ndarray:
        """As `SignalRows.signals`."""
        if len(self._snapshot.segments) == 1:
            table = self._signals.table(self._snapshot.segments[0], self._batch.deadline)
            return table.signals_CN[:, ranking.rows]
        signals_CH = np.empty((len(self._signals.program.signals), len(ranking)), np.float32)
        for number in np.unique(ranking.segments).tolist():
            is_here_H = ranking.segments == number
            table = self._signals.table(self._snapshot.segments[number], self._batch.deadline)
            signals_CH[:, is_here_H] = table.signals_CN[:, ranking.rows[is_here_H]]
        return signals_CH

    def above(self, query: int, bounds: SignalBounds) -> tuple[Ranking, float]:
        """As `SignalRows.above`."""
        numbers_R, rows_R, bounds_R = self._rows_above(bounds)
        if not scores_rows(self._options, self._candidates, query):
            return EMPTY, float(bounds_R.max(initial=-np.inf))
        if len(rows_R) <= bounds.limit:
            return self._candidates.scored(query, numbers_R, rows_R, bounds.below), -np.inf
        order_R = np.argpartition(-bounds_R, bounds.limit)
        first_R, rest_R = order_R[: bounds.limit], order_R[bounds.limit :]
        read = self._candidates.scored(query, numbers_R[first_R], rows_R[first_R], bounds.below)
        rest_R = rest_R[bounds_R[rest_R] >= self._least(read, bounds)]
        if len(rest_R) > FEW_ROWS:
            return read, float(bounds_R[rest_R].max())
        if len(rest_R):
            more = self._candidates.scored(query, numbers_R[rest_R], rows_R[rest_R], bounds.below)
            read = concatenated([read, more])
        return read, -np.inf

    def _rows_above(self, bounds: SignalBounds) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return segments and rows whose values can be the least one, both int64 (R,), and their bounds, float32."""
        numbers, rows, upper = [EMPTY.segments], [EMPTY.rows], [EMPTY.scores]
        for each in self._allowed:
            self._batch.deadline.check()
            table = self._signals.table(self._snapshot.segments[each.number], self._batch.deadline)
            rows_R, bounds_R = table.rows_above(self._signals.program, bounds.scores, bounds.least)
            if each.allowed is not None:
                is_allowed_R = each.allowed.holds(rows_R)
                rows_R, bounds_R = rows_R[is_allowed_R], bounds_R[is_allowed_R]
            numbers.append(np.full(len(rows_R), each.number, np.int64))
            rows.append(rows_R)
            upper.append(bounds_R)
        return np.concatenate(numbers), np.concatenate(rows), np.concatenate(upper)

    def _least(self, read: Ranking, bounds: SignalBounds) -> float:
        """Return the least value of a hit, given rows that were read."""
        if bounds.hits is None or len(read) < bounds.hits:
            return bounds.least
        values_H = self._signals.program.values(bounds.scale.values(read.scores), self.signals(read))
        last = float(np.partition(values_H, len(read) - bounds.hits)[len(read) - bounds.hits])
        return max(bounds.least, last)
