"""Candidates in the order of a ranking expression: what signals lift is found wherever it is in the order of scores.

Rescoring a fixed number of candidates loses rows that are not among them, however large their signals are. Here two
orders are read, the one of scores (`RankedCandidates.best`) and the one of the signals' upper bounds (`SignalRows`), as
in the threshold algorithm (Fagin, Lotem and Naor, "Optimal aggregation algorithms for middleware", PODS 2001): rows not
read have at most the score of the last row of the first, so interval arithmetic bounds their values. Both are read
deeper until no row that was not read can be among the hits. The order is exact for the scores that the search finds.

In a fused order with scales of the index, a row that is fused has the score of the search. Any other row has the fused
score of its own two scores, below that of the last fused row: it depends on no other row, and on no depth. So these are
read by their signals alone.

Shapes: Q queries, C signals, H rows of a ranking, R rows of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scannery.indexer import WeightedTerms
from scannery.indexer.ranking.expression import LIMIT
from scannery.indexer.tuning.score_fusion import FUSED_ROWS, Scale
from scannery.serving.engine.hybrid import keys_of
from scannery.serving.engine.lexical import Words
from scannery.serving.engine.local_signals import SignalBounds, scores_rows
from scannery.serving.engine.relevance import HitRelevance
from scannery.serving.engine.row_source import RankedCandidates, SignalRows
from scannery.serving.engine.segment_search import QueryBatch
from scannery.serving.engine.top_k import Ranking, Rows, concatenated, first_rows
from scannery.serving.request.options import Options

__all__ = ["SignalRankedCandidates"]

FIRST_ROWS = 32
"""Least rows of the order of scores that are read first."""
FIRST_SIGNAL_ROWS = 512
"""Rows of the order of signals that are read first: to score one costs a tenth of a row of the order of scores."""
DEEPER = 4
MAX_ROWS = 1 << 15
"""Rows of an order after which a search stops, and says what it has not read."""


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
        # Deeper rows of a fused order have scores that were moved below the first ones, by as much as depends on these.
        is_fused = self._options.mode == "hybrid" and scores_rows(self._options, self._candidates, query)
        depth, limit = FUSED_ROWS if is_fused else max(FIRST_ROWS, 2 * hits), FIRST_SIGNAL_ROWS
        scale = self._scale(query)
        while True:
            [by_score] = self._candidates.best(np.array([query]), depth)
            by_score, complete = self._relevant(query, by_score)
            complete |= len(by_score) < depth or depth >= self._candidates.total
            read, bound = self._valued(by_score, scale), -np.inf
            best = self._first(read, hits)
            if not complete:
                bounds = self._bounds(by_score, scale, _value_at(best, hits), hits, limit)
                by_signal, bound = self._rows.above(query, bounds)
                by_signal, _ = self._relevant(query, _without(by_signal, by_score))
                if len(by_signal):
                    read = concatenated([read, self._valued(by_signal, scale)])
                    best = self._first(read, hits)
                complete = bound < _value_at(best, hits)
            if complete or (limit if is_fused else depth) >= MAX_ROWS:
                best = replace(best, unseen_bound=None if complete else bound)
                self._explain(query, len(read), best.unseen_bound)
                return best
            depth, limit = depth if is_fused else depth * DEEPER, limit * DEEPER

    def _bounds(self, by_score: Ranking, scale: Scale, least: float, hits: int, limit: int) -> SignalBounds:
        """Return what rows behind those that were read by score must have to be among the hits."""
        last = float(by_score.scores[-1])
        highest = float(scale.values(np.array([last]))[0])
        # Rows without the least relevance are no hits, whose values would raise `least`.
        sure_hits = hits if self._options.min_relevance is None else None
        return SignalBounds((-LIMIT, highest), least, sure_hits, limit, last, scale)

    def _first(self, read: Ranking, hits: int) -> Ranking:
        """Return the best of some rows, by value and then by id."""
        return first_rows(read, hits, self._segments)

    def _relevant(self, query: int, ranking: Ranking) -> tuple[Ranking, bool]:
        """Return the rows with the least relevance, and whether no row behind them has it."""
        least = self._options.min_relevance
        ranking = self._relevance.added(query, ranking, self._candidates)
        if least is None or ranking.relevance is None or not len(ranking):
            return ranking, False
        passes_H = ranking.relevance >= least
        return ranking.at(passes_H), not passes_H[-1]

    def _valued(self, ranking: Ranking, scale: Scale) -> Ranking:
        """Return rows in their order with their values as `scores`, and the scores before these as `base`."""
        signals_CH = self._rows.signals(ranking)
        values_H = self._option.program.values(scale.values(ranking.scores), signals_CH)
        return replace(ranking, scores=values_H, base=ranking.scores)

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


def _without(ranking: Ranking, by_score: Ranking) -> Ranking:
    """Return the rows that were not read by score, of which there are some."""
    keys_H, read_H = keys_of(ranking), np.sort(keys_of(by_score))
    places_H = np.minimum(np.searchsorted(read_H, keys_H), len(read_H) - 1)
    return ranking.at(read_H[places_H] != keys_H)


def _value_at(ranked: Ranking, hits: int) -> float:
    """Return the value of the last of some hits; minus infinity if there are fewer."""
    return float(ranked.scores[hits - 1]) if len(ranked) >= hits else -np.inf
