"""The queries of a SearchMany, searched in parts that several cores work on.

ScaNN and our kernels release the interpreter, and two dozen queries together take as long for each as a hundred. The
hits of consecutive queries are consecutive on the wire: what the parts write is joined.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from scannery.serving.engine.query_vectors import query_vectors
from scannery.serving.engine.row_source import RowSource
from scannery.serving.engine.search import search
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.request.filter import Node
from scannery.serving.request.options import CostClass
from scannery.serving.request.query import ByText, Vectors
from scannery.serving.scheduling.affinity import on_all_cores
from scannery.serving.scheduling.idle_cores import IdleCores
from scannery.serving.scheduling.permits import CallerGoneError, still_wanted
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1.search_pb2 import SearchManyResponse

__all__ = ["Batches"]

PART_QUERIES = 25
"""Queries of a part with the tuned plan if there are helpers, two or three milliseconds: a core is taken from other
requests for no longer. Each part costs a tenth of a millisecond besides its queries."""
LARGER_PARTS = 50
"""Most queries of a part if each part reads the vectors anew, as an exact search does."""
ALONE = 100
"""Queries of a part if the thread of the caller searches alone; between two parts, the deadline is checked."""
_RESULTS = SearchManyResponse.RESULTS_FIELD_NUMBER

Filters: TypeAlias = Sequence[Node | None]
_Part: TypeAlias = tuple[QueryBatch, Filters | None]


class Batches:
    """Searches batches on all cores that are idle. Safe to use from several threads."""

    def __init__(self, cores: int | None = None) -> None:
        """Start no thread yet.

        Args:
            cores: used at once by a batch, and by all batches besides the threads of their callers; None: all.

        """
        self._cores = cores or len(os.sched_getaffinity(0))
        self._idle = IdleCores(self._cores - 1)

    def close(self) -> None:
        """End the threads."""
        self._idle.close()

    def framed(
        self,
        prepared: PreparedSearch,
        batch: QueryBatch,
        filters: Filters | None = None,
        rows: RowSource | None = None,
    ) -> list[memoryview]:
        """Return the hits of the queries as fields `results` of a SearchManyResponse, in pieces to be joined.

        Args:
            prepared: the options, prepared for the snapshot of the batch.
            batch: the queries.
            filters: of each query; None: all have that of the options.
            rows: where the rows are; None: in the segments of the snapshot. Others are searched at once.

        Raises what `search` does, DeadlineError between two parts, and CallerGoneError if the caller hung up.
        """
        if rows is not None:
            return [search(prepared, batch, filters, rows).framed(_RESULTS)]
        is_wanted = still_wanted()

        def work(part: _Part) -> memoryview:
            queries, part_filters = part
            queries.deadline.check()
            if not is_wanted():
                raise CallerGoneError
            return search(prepared, queries, part_filters).framed(_RESULTS)

        with on_all_cores():
            parts = self._parts(prepared, _encoded(prepared, batch), filters)
            pieces = self._idle.run(work, parts)
        batch.stats.plan = parts[0][0].stats.plan
        batch.stats.counts = [count for part, _ in parts for count in part.stats.counts]
        return pieces

    def _parts(self, prepared: PreparedSearch, batch: QueryBatch, filters: Filters | None) -> Sequence[_Part]:
        count, queries = len(batch.queries), batch.queries
        # Texts are encoded together, and further stages report to the request as a whole.
        if (
            batch.stats.detailed
            or prepared.cost_class is CostClass.STAGED
            or not isinstance(queries, Vectors)
        ):
            return [(batch, filters)]
        size = PART_QUERIES if self._idle.helps else ALONE
        # Queries with one filter are searched together, and may be compared with all rows that it allows.
        if filters is not None or prepared.cost_class is CostClass.SCANNED:
            size = min(LARGER_PARTS, max(size, math.ceil(count / self._cores)))
        parts = max(1, round(count / size))
        bounds = [count * part // parts for part in range(parts + 1)]
        return [
            (
                QueryBatch(
                    batch.snapshot, queries[start:end], batch.paths[start:end], batch.deadline, QueryStats()
                ),
                None if filters is None else filters[start:end],
            )
            for start, end in pairwise(bounds)
        ]


def _encoded(prepared: PreparedSearch, batch: QueryBatch) -> QueryBatch:
    """Return a batch of texts that is searched by vector alone as one of vectors: all of them are encoded together."""
    if isinstance(batch.queries, Vectors):
        return batch
    options = prepared.options
    texts = [query for query in batch.queries if isinstance(query, ByText)]
    if len(texts) < len(batch.queries) or options.by_mode or len(options.vectors) != 1:
        return batch
    if batch.stats.detailed or prepared.cost_class is CostClass.STAGED:
        return batch
    [choice] = options.vectors
    vectors_QD = query_vectors(batch.snapshot, choice, texts, batch.deadline, paths=batch.paths)
    return replace(batch, queries=Vectors(vectors_QD))
