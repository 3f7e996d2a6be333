"""The true hits of sampled queries, and the recall of a search by them.

The true hits are found by exact search, for many queries together: one pass over the vectors of a segment serves all.
What is kept of them is the least score of a true hit, so that any of several tied hits counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np

from scannery.indexer import Distance
from scannery.indexer.tuning.settings_choice import magnitude_of, score_to_reach
from scannery.runtime.deadline import Deadline
from scannery.serving.recall.sampled_query import exact_options
from scannery.serving.request.query import vector_components
from scannery.serving.security.principal import CURRENT, Principal
from scannery.v1 import search_pb2

__all__ = ["LabelledQuery", "SampledQuery", "Search", "SearchMany", "TrueHits", "as_caller"]

TIMEOUT_S = 30.0

Search: TypeAlias = Callable[[search_pb2.SearchRequest, Deadline], search_pb2.SearchResponse]
SearchMany: TypeAlias = Callable[[search_pb2.SearchManyRequest, Deadline], search_pb2.SearchManyResponse]
_Hits: TypeAlias = tuple[Sequence[search_pb2.Hit], int, int]
"""Hits, with version and sequence."""


@dataclass(frozen=True, slots=True)
class SampledQuery:
    """A query to repeat."""

    request: search_pb2.SearchRequest
    """In mode dense, without what does not change its hits."""
    mode: search_pb2.Mode.ValueType
    """Of the request."""
    principal: Principal | None
    """Its caller: only for the same one, its text is in the cache of the encoder."""


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query with what its hits must reach."""

    sampled: SampledQuery
    reach: float
    """Least score of a true hit."""
    wanted: int
    """Number of true hits."""
    version: int
    sequence: int

    def recall_of(self, found: search_pb2.SearchResponse) -> float:
        """Return the recall of hits of the query."""
        hits = sum(hit.score >= self.reach for hit in found.hits)
        return min(hits, self.wanted) / self.wanted


class TrueHits:
    """Finds the true hits of sampled queries. For one thread."""

    def __init__(
        self,
        search: Search,
        *,
        distance_of: Callable[[str], Distance],
        search_many: SearchMany | None = None,
        texts_are_dense: Callable[[str], bool] = lambda index: True,
    ) -> None:
        """Find nothing yet.

        Args:
            search: answers a request.
            distance_of: returns the distance of an index by its name.
            search_many: answers a request of many queries; None: each is asked alone.
            texts_are_dense: returns whether an index is searched by vector for a text without a mode, alone or in a
                hybrid search.

        """
        self._search, self._search_many = search, search_many
        self._distance_of, self._texts_are_dense = distance_of, texts_are_dense
        self.spent_s = 0.0
        """Seconds that all exact searches took, of processors or of time, whichever is less."""

    def labelled(self, group: Sequence[SampledQuery]) -> list[LabelledQuery]:
        """Return queries of one index and equal options with what their hits must reach.

        Queries that are not searched by vector, and those without hits, are left out.
        """
        group = [each for each in group if self._is_dense(each)]
        if not group:
            return []
        started_s, worked_s = time.monotonic(), time.process_time()
        if self._search_many is None or len(group) == 1:
            lists = [self._hits(each) for each in group]
        else:
            lists = self._many_hits(self._search_many, group)
        # Exact search may use several threads, other threads may work meanwhile, and other processes.
        self.spent_s += min(time.monotonic() - started_s, time.process_time() - worked_s)
        labelled = []
        for each, (hits, version, sequence) in zip(group, lists, strict=True):
            if hits and not any(hit.vector_scores for hit in hits):  # an index with named vectors alone
                reach = self._reach(each.request, hits[-1])
                labelled.append(LabelledQuery(each, reach, len(hits), version, sequence))
        return labelled

    def as_of_now(self, group: Sequence[LabelledQuery]) -> list[LabelledQuery]:
        """Return queries of one index with what their hits must reach among the present rows."""
        with as_caller(group[0].sampled):
            now = self._search(group[0].sampled.request, Deadline.after(TIMEOUT_S))
        state = now.version, now.sequence
        current = [each for each in group if (each.version, each.sequence) == state]
        changed = [each.sampled for each in group if (each.version, each.sequence) != state]
        for _, alike in groupby(changed, lambda each: each.request.options.SerializeToString()):
            current += self.labelled(list(alike))
        return current

    def repeated(self, query: LabelledQuery) -> search_pb2.SearchResponse | None:
        """Return the hits of a query with the settings in force; None if the index has changed since.

        For the caller that `as_caller` has set.
        """
        found = self._search(query.sampled.request, Deadline.after(TIMEOUT_S))
        same = (found.version, found.sequence) == (query.version, query.sequence)
        return found if same else None

    def _is_dense(self, sampled: SampledQuery) -> bool:
        by_text = sampled.request.query.WhichOneof("kind") == "text"
        if not by_text or sampled.mode != search_pb2.MODE_UNSPECIFIED:
            return True
        return self._texts_are_dense(sampled.request.index)

    def _hits(self, sampled: SampledQuery) -> _Hits:
        request = sampled.request
        exact = search_pb2.SearchRequest(
            index=request.index, query=request.query, options=exact_options(request.options)
        )
        with as_caller(sampled):
            found = self._search(exact, Deadline.after(TIMEOUT_S))
        return found.hits, found.version, found.sequence

    def _many_hits(self, search_many: SearchMany, group: Sequence[SampledQuery]) -> list[_Hits]:
        first = group[0].request
        many = search_pb2.SearchManyRequest(index=first.index, options=exact_options(first.options))
        many.queries.extend(each.request.query for each in group)
        with as_caller(group[0]):
            found = search_many(many, Deadline.after(TIMEOUT_S))
        return [(each.hits, found.version, found.sequence) for each in found.results]

    def _reach(self, request: search_pb2.SearchRequest, worst: search_pb2.Hit) -> float:
        """Return the score from which a hit counts as a true neighbour; `worst` is the last of these."""
        row_D = vector_components(worst.datapoint.vector, "vector")
        by_vector = request.query.HasField("vector")
        query_D = vector_components(request.query.vector, "vector") if by_vector else None
        magnitude = magnitude_of(self._distance_of(request.index), row_D, query_D)
        return float(score_to_reach(np.array([[worst.score]]), magnitude)[0, 0])


@contextmanager
def as_caller(sampled: SampledQuery) -> Iterator[None]:
    """Give a context in which searches are those of the caller of a query."""
    token = CURRENT.set(sampled.principal)
    try:
        yield
    finally:
        CURRENT.reset(token)
