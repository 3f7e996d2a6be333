"""The signals of a ranking expression for the rows of a snapshot of this process, and the rows by these.

Shapes: C signals, H rows of a ranking, R rows of a segment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from scannery.serving.engine.dense import Candidates
from scannery.serving.engine.segment_search import AllowedSegment, PreparedSearch, QueryBatch
from scannery.serving.engine.top_k import EMPTY, Ranking
from scannery.serving.request.ranking import RankingOption
from scannery.serving.snapshot.signal_table import Signals

__all__ = ["LocalSignalRows", "search_time_s"]

TYPICAL_SCORES = (0.0, 1.0)


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
        self._signals = Signals(option.program, now_s, snapshot.manifest.spec, snapshot.masks, TYPICAL_SCORES)
        self._allowed: Sequence[AllowedSegment] = prepared.allowed(snapshot, batch.deadline)

    def signals(self, ranking: Ranking) -> np.ndarray:
        """As `SignalRows.signals`."""
        signals_CH = np.empty((len(self._signals.program.signals), len(ranking)), np.float32)
        for number in np.unique(ranking.segments).tolist():
            is_here_H = ranking.segments == number
            table = self._signals.table(self._snapshot.segments[number], self._batch.deadline)
            signals_CH[:, is_here_H] = table.signals_CN[:, ranking.rows[is_here_H]]
        return signals_CH

    def above(
        self, query: int, scores: tuple[float, float], least: float, limit: int, below: float
    ) -> tuple[Ranking, float]:
        """As `SignalRows.above`."""
        program = self._signals.program
        numbers, rows, bounds = [EMPTY.segments], [EMPTY.rows], [np.empty(0)]
        for each in self._allowed:
            self._batch.deadline.check()
            table = self._signals.table(self._snapshot.segments[each.number], self._batch.deadline)
            rows_R, bounds_R = table.rows_above(program, scores, least)
            if each.allowed is not None:
                is_allowed_R = each.allowed.holds(rows_R)
                rows_R, bounds_R = rows_R[is_allowed_R], bounds_R[is_allowed_R]
            numbers.append(np.full(len(rows_R), each.number, np.int64))
            rows.append(rows_R)
            bounds.append(bounds_R)
        numbers_R, rows_R, bounds_R = map(np.concatenate, (numbers, rows, bounds))
        if not self._candidates.scores_rows:
            return EMPTY, float(bounds_R.max(initial=-np.inf))
        highest = -np.inf
        if len(rows_R) > limit:
            order_R = np.argpartition(-bounds_R, limit)
            first_R, rest_R = order_R[:limit], order_R[limit:]
            highest = float(bounds_R[rest_R].max())
            numbers_R, rows_R = numbers_R[first_R], rows_R[first_R]
        return self._candidates.scored(query, numbers_R, rows_R, below), highest
