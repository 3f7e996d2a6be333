"""Candidates in the order of a ranking expression: what signals lift is found wherever it is in the order of scores.

Rescoring a fixed number of candidates loses rows that are not among them, however large their signals are. Here two
orders are read, the one of scores (`RankedCandidates.best`) and the one of the signals' upper bounds (`SignalRows`), as
in the threshold algorithm (Fagin, Lotem and Naor, "Optimal aggregation algorithms for middleware", PODS 2001): rows not
read have at most the score of the last row of the first, so interval arithmetic bounds their values. Both are read
deeper until no row that was not read can be among the hits. The order is exact for the scores that the search finds.

Shapes: Q queries, C signals, H rows of a ranking, R rows of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scannery.indexer import WeightedTerms
from scannery.indexer.tuning.score_fusion import Scale
from scannery.serving.engine.hybrid import keys_of
from scannery.serving.engine.lexical import Words
from scannery.serving.engine.relevance import HitRelevance
from scannery.serving.engine.row_source import RankedCandidates, SignalRows
from scannery.serving.engine.segment_search import QueryBatch
from scannery.serving.engine.top_k import Ranking, Rows, by_score_and_id, concatenated
from scannery.serving.request.options import Options

__all__ = ["SignalRankedCandidates"]

FIRST_ROWS = 64
"""Least rows of the order of scores that are read first."""
FIRST_SIGNAL_ROWS = 128
"""Rows of the order of signals that are read first."""
DEEPER = 4
MAX_ROWS = 1 << 15
"""Rows of either order after which a search stops, and says what it has not read."""
LOWEST_SCORE = -1e9


class SignalRankedCandidates:
    """The candidates of some queries with equal options, in the order of a ranking expression."""

    def __init__(
        self,
        candidates: RankedCandidates,
        rows: SignalRows,
        segments: Sequence[Rows],
        options: Options,
        relevance: HitRelevance,
        batch: QueryBatch,
    ) -> None:
        """Prepare.

        Args:
            candidates: the candidates in the order of scores.
            rows: the signals.
            segments: where the rows lie, for the ids.
            options: with a ranking.
            relevance: of the hits.
            batch: the queries.

        """
        assert options.ranking is not None
        self._candidates, self._rows, self._segments = candidates, rows, segments
        self._option, self._options = options.ranking, options
        self._relevance, self._batch = relevance, batch

    @property
    def total(self) -> int:
        """As `RankedCandidates.total`."""
        return self._candidates.total

    def words_of(self, query: int) -> Words:
        """As `RankedCandidates.words_of`."""
        return self._candidates.words_of(query)

    def best(self, queries: np.ndarray, depth: int) -> list[Ranking]:
        """As `RankedCandidates.best`, by the value of the expression."""
        return [self._best(query, depth) for query in queries.tolist()]

    def _best(self, query: int, hits: int) -> Ranking:
        depth, limit = max(FIRST_ROWS, 2 * hits), FIRST_SIGNAL_ROWS
        while True:
            self._batch.deadline.check()
            [by_score] = self._candidates.best(np.array([query]), depth)
            by_score, complete = self._relevant(query, by_score)
            complete |= len(by_score) < depth or depth >= self._candidates.total
            scale = self._scale(query)
            ranked = self._ranked(by_score, self._rows.signals(by_score), scale)
            bound = -np.inf
            if not complete:
                last = float(by_score.scores[-1])
                scores = (LOWEST_SCORE, float(scale.values(np.array([last]))[0]))
                by_signal, bound = self._rows.above(query, scores, _value_at(ranked, hits), limit, last)
                is_new_H = ~np.isin(keys_of(by_signal), keys_of(by_score))
                by_signal, _ = self._relevant(query, by_signal.at(is_new_H))
                if len(by_signal):
                    more = self._ranked(by_signal, self._rows.signals(by_signal), scale)
                    ranked = by_score_and_id(concatenated([ranked, more]), self._segments)
                bound = float(np.float32(bound))
            least = _value_at(ranked, hits)
            stops = max(depth, limit) >= MAX_ROWS
            if bound < least or complete or stops:
                best = ranked.within(0, hits)
                if bound >= least and not complete:
                    best = replace(best, unseen_bound=bound)
                self._explain(query, len(ranked), best.unseen_bound)
                return best
            depth, limit = depth * DEEPER, limit * DEEPER

    def _relevant(self, query: int, ranking: Ranking) -> tuple[Ranking, bool]:
        """Return the rows with the least relevance, and whether no row behind them has it."""
        least = self._options.min_relevance
        ranking = self._relevance.added(query, ranking, self._candidates)
        if least is None or ranking.relevance is None or not len(ranking):
            return ranking, False
        passes_H = ranking.relevance >= least
        return ranking.at(passes_H), not passes_H[-1]

    def _ranked(self, ranking: Ranking, signals_CH: np.ndarray, scale: Scale) -> Ranking:
        """Return rows by their value, with the score as `base`."""
        values_H = self._option.program.values(scale.values(ranking.scores), signals_CH)
        valued = replace(ranking, scores=values_H.astype(np.float32), base=ranking.scores)
        return by_score_and_id(valued, self._segments)

    def _scale(self, query: int) -> Scale:
        """Return the scale of the scores of a query: that of the index, so that weights outlive another model."""
        fusion = self._batch.snapshot.manifest.fusion
        scales = None if fusion is None else fusion.scales
        options = self._options
        if scales is None or options.inner_product or any(each.name for each in options.vectors):
            return AS_THEY_ARE
        if options.mode == "dense":
            return Scale(scales.dense_zero, scales.dense_one)
        words = self.words_of(query) if options.mode == "lexical" else None
        if isinstance(words, WeightedTerms) and words.highest_score > 0:
            return Scale(0.0, scales.lexical_one * words.highest_score)
        return AS_THEY_ARE

    def _explain(self, query: int, rows: int, bound: float | None) -> None:
        stats = self._batch.stats
        if stats.explained:
            stats.rankings[self._batch.paths[query]] = (self._option.expression, rows, bound)


AS_THEY_ARE = Scale(0.0, 1.0)


def _value_at(ranked: Ranking, hits: int) -> float:
    """Return the value of the last of some hits; minus infinity if there are fewer."""
    return float(ranked.scores[hits - 1]) if len(ranked) >= hits else -np.inf
