"""The ranks of one datapoint in the searches of one query.

Each is the position of the datapoint among the candidates that the engine returns, which are read deeper until it is
among them: no other code ranks, so that an explanation is that of the search. In a search of the datapoint alone, which
a filter of its id makes, it has the scores that it has in any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from scannery.indexer import WeightedTerms
from scannery.runtime.retry import Deadline
from scannery.serving.engine.hybrid import keys_of
from scannery.serving.engine.query_vectors import query_for
from scannery.serving.engine.row_source import FusedCandidates, RankedCandidates, RowSource
from scannery.serving.engine.search import rank
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.filter import Node
from scannery.serving.request.options import Options
from scannery.serving.request.query import ByVectors, Query, WithSparse, WithWords
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats

__all__ = ["MAX_RANK", "Ranks", "Standing", "by_words", "place_of", "standing_of"]

MAX_RANK = 100_000
"""Deepest rank that is looked for."""
DEEPER = 4
_PATH = "query"


class Standing(NamedTuple):
    """Where a datapoint is among candidates."""

    ranking: Ranking
    """The candidates, best first."""
    at: int | None
    """Place of the datapoint among them, from 0; None: it is not among the best MAX_RANK."""

    @property
    def rank(self) -> int | None:
        """The rank, from 1."""
        return None if self.at is None else self.at + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """One datapoint, and a query of one snapshot."""

    snapshot: Snapshot
    query: Query
    rows: RowSource
    where: Node | None
    """The filter of the search; None: all datapoints are allowed."""
    alone: Node
    """The same filter, of the datapoint alone."""
    deadline: Deadline

    def batch(self, query: Query | None = None, queries: int = 1) -> QueryBatch:
        """Return the query, or another one, as a batch, which may have it several times."""
        of_batch = [query or self.query] * queries
        return QueryBatch(self.snapshot, of_batch, [_PATH] * queries, self.deadline, QueryStats())

    def prepared(self, options: Options) -> PreparedSearch:
        """Return options prepared for the filter of the search."""
        return PreparedSearch.of(self.snapshot, options, self.where)

    def hits(self, options: Options) -> Ranking:
        """Return the hits of a search with some options."""
        [ranking] = rank(self.prepared(options), self.batch(), self.rows)
        return ranking

    def candidates(self, options: Options, query: Query | None = None) -> FusedCandidates:
        """Return the candidates of the query, or of another one, in the order of scores."""
        return self.rows.candidates(self.prepared(options), self.batch(query))

    def by_itself(self, options: Options, query: Query | None = None) -> Ranking:
        """Return the datapoint as the only candidate of the query, or of another one; empty if it is none."""
        prepared = PreparedSearch.of(self.snapshot, options, self.alone)
        [ranking] = self.rows.candidates(prepared, self.batch(query)).best(np.zeros(1, np.int64), 1)
        return ranking.within(0, 1)

    def contributions(self, options: Options, words: WeightedTerms) -> dict[str, float]:
        """Return what each term adds to the score by words of the datapoint, in the order of the terms.

        Args:
            options: in mode lexical.
            words: of the query.

        """
        scores = dict(
            zip(
                words.weights,
                self._scores_by(options, words, [(term,) for term in words.weights]),
                strict=True,
            )
        )
        anchor = next((term for term, score in scores.items() if score), None)
        if anchor is None or not words.average_document_length:
            return scores
        # A term that only other passages of the document have counts beside one that the datapoint has.
        absent = [term for term, score in scores.items() if not score]
        pairs = self._scores_by(options, words, [(anchor, term) for term in absent])
        return scores | {term: pair - scores[anchor] for term, pair in zip(absent, pairs, strict=True)}

    def _scores_by(
        self, options: Options, words: WeightedTerms, choices: Sequence[tuple[str, ...]]
    ) -> list[float]:
        """Return the score by words of the datapoint by each choice of terms."""
        each = [replace(words, weights={term: words.weights[term] for term in terms}) for terms in choices]
        if not each:
            return []
        prepared = PreparedSearch.of(self.snapshot, options, self.alone)
        candidates = self.rows.candidates(prepared, self.batch(queries=len(each)), words=each)
        rankings = candidates.best(np.arange(len(each)), 1)
        return [float(ranking.scores[0]) if len(ranking) else 0.0 for ranking in rankings]

    def by_vector(self, options: Options, column: int) -> tuple[Options, Query] | None:
        """Return options and query of a search by one of several vectors; None: the query does not have it."""
        query: Query | None = self.query
        if isinstance(query, WithWords | WithSparse):
            query = query.query
        choice = options.vectors.choices[column]
        if len(options.vectors) > 1 or isinstance(query, ByVectors):
            assert query is not None
            query = query_for(self.rows.lookup, query, options.vectors, column, path=_PATH)
        vectors = replace(options.vectors, choices=(choice,))
        return None if query is None else (_as_mode(replace(options, vectors=vectors), "dense"), query)


def by_words(options: Options) -> Options:
    """Return the options of a search by words alone."""
    return _as_mode(options, "lexical")


def _as_mode(options: Options, mode: str) -> Options:
    return replace(options, mode=mode, ranker=None, fused=None, ranking=None, by_mode={}, text_mode=None)  # type: ignore[arg-type]


def standing_of(row: Ranking, candidates: RankedCandidates, depth: int) -> Standing:
    """Return where a datapoint is among the candidates of the only query, of which `depth` are read first."""
    while True:
        # Behind the rows that were wanted, a fused order is that of this depth alone.
        ranking = candidates.best(np.zeros(1, np.int64), depth)[0].within(0, depth)
        at = place_of(row, ranking)
        is_last = len(ranking) < depth or depth >= min(candidates.total, MAX_RANK)
        if at is not None or is_last:
            return Standing(ranking, at)
        depth = min(depth * DEEPER, MAX_RANK)


def place_of(row: Ranking, ranking: Ranking) -> int | None:
    """Return the place of a datapoint in a ranking, from 0; None: it is not there."""
    if not len(row):
        return None
    positions = np.flatnonzero(keys_of(ranking) == keys_of(row))
    return int(positions[0]) if len(positions) else None
