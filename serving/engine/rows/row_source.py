"""Where the rows of a search are: in the segments of a snapshot of this process, or on the leaves of a cluster.

The steps that follow the search of segments (fusion, crowding, reranking, highlighting) ask a source for what they need
of rows, so that they are the same on one server and on a root.

Shapes: H hits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from scannery.indexer import CorpusStatistics
from scannery.serving.engine.hydrator import Written
from scannery.serving.engine.prepared_search import PreparedSearch, QueryBatch
from scannery.serving.engine.query_vectors import Lookup
from scannery.serving.engine.top_k import Ranking, Rows

__all__ = ["RankedCandidates", "RowSource"]


class RankedCandidates(Protocol):
    """The candidates of some queries with equal options."""

    @property
    def total(self) -> int:
        """Rows that the filter allows; in mode `dense` those with a vector. Known after the first call of `best`."""

    def best(self, queries: np.ndarray, wanted: int) -> list[Ranking]:
        """Return the best `wanted` rows of queries, by score and then by id; fewer only if there are no more.

        Args:
            queries: their numbers, int64.
            wanted: rows for each.

        """


class RowSource(ABC):
    """The rows of one state of an index, for the queries of one batch."""

    lookup: Lookup
    """Finds datapoints by id."""
    segments: Sequence[Rows]
    """Where rows lie, by the numbers in `Ranking.segments`."""

    @abstractmethod
    def candidates(self, prepared: PreparedSearch, batch: QueryBatch) -> RankedCandidates:
        """Return the candidates of the queries of a batch; raises what `search` does."""

    @abstractmethod
    def hits(self, prepared: PreparedSearch, rankings: Sequence[Ranking]) -> Written:
        """Return the hits of each query as an answer has them."""

    @abstractmethod
    def searched_texts(self, ranking: Ranking) -> list[str | None]:
        """Return the title and text of each hit, of transcripts only the spoken text; None where there is neither."""

    @abstractmethod
    def texts(self, ranking: Ranking, most: int) -> list[str]:
        """Return the first characters of the text of each hit as it is returned; empty where there is none."""

    @abstractmethod
    def groups(self, ranking: Ranking, column: str) -> list[Hashable]:
        """Return the group of each hit: the value of a column. A row without a value is a group of its own."""

    @abstractmethod
    def corpus(self, terms: Sequence[str]) -> CorpusStatistics | None:
        """Return the statistics of all live rows for some terms; None: the index has no words."""
