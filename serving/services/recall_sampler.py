"""A running estimate of recall: a sample of live queries is repeated with exact search when the server is idle.

(The tuner measures recall once, on synthetic queries; those of users may differ, and change.)
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from scannery.indexer import Distance
from scannery.indexer.tuning.settings_choice import magnitude_of, score_to_reach
from scannery.runtime.deadline import Deadline
from scannery.runtime.periodic_task import PeriodicTask
from scannery.serving import limits
from scannery.serving.request.query import count_queries
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import search_pb2, types_pb2

__all__ = ["RecallSampler"]

_LOG = logging.getLogger(__name__)

WAITING = 8
"""Limit of queued sampled queries; further ones are dropped."""
MOST_PER_S = 2.0
BUSY_S = 0.05
"""Seconds between checks whether the server is idle."""
TIMEOUT_S = 30.0
MAX_K = 100
LOW_PRIORITY = 19

Search = Callable[[search_pb2.SearchRequest, Deadline], search_pb2.SearchResponse]


class RecallSampler(PeriodicTask):
    """Repeats sampled queries in a thread of the lowest priority."""

    def __init__(
        self,
        search: Search,
        metrics: ServerMetrics,
        *,
        share: float,
        busy: Callable[[], bool],
        distance_of: Callable[[str], Distance],
        random: Callable[[], float] = random.random,
        pause_s: float = 1 / MOST_PER_S,
    ) -> None:
        """Start the thread, unless `share` is 0.

        Args:
            search: answers a request.
            metrics: receive the estimate.
            share: probability with which a query is sampled.
            busy: returns whether requests are in flight.
            distance_of: returns the distance of an index by its name.
            random: returns a number from 0 to 1.
            pause_s: seconds between two sampled queries.

        """
        super().__init__("recall-sampler", self._work, every_s=pause_s)
        self._search, self._metrics, self._distance_of = search, metrics, distance_of
        self._share, self._busy, self._random = share, busy, random
        self._waiting: deque[search_pb2.SearchRequest] = deque()
        if share:
            self.start()

    def offer(self, request: search_pb2.SearchRequest | search_pb2.SearchManyRequest) -> None:
        """Sample an answered query, or one query of a batch, with probability `share` per query."""
        queries = count_queries(request) if isinstance(request, search_pb2.SearchManyRequest) else 1
        if not self._share or self._random() >= self._share * queries:
            return
        options = request.options
        # The estimate is of the unnamed vector.
        if (
            options.exact
            or options.vectors
            or options.mode not in (search_pb2.MODE_UNSPECIFIED, search_pb2.MODE_DENSE)
        ):
            return
        if (
            options.k + options.offset > MAX_K
            or options.HasField("crowding")
            or len(self._waiting) >= WAITING
        ):
            return
        if isinstance(request, search_pb2.SearchManyRequest) and request.where_each:
            return
        self._waiting.append(self._one_of(request, queries))

    def _one_of(
        self, request: search_pb2.SearchRequest | search_pb2.SearchManyRequest, queries: int
    ) -> search_pb2.SearchRequest:
        copy = search_pb2.SearchRequest(index=request.index, options=request.options)
        if isinstance(request, search_pb2.SearchRequest):
            copy.query.CopyFrom(request.query)
            return copy
        number = int(self._random() * queries)
        if request.queries:
            copy.query.CopyFrom(request.queries[number])
        else:
            size = 4 * request.vectors.dimensions
            copy.query.vector.packed = request.vectors.packed[number * size : (number + 1) * size]
        return copy

    def _work(self) -> float | None:
        if not self._waiting:
            return None
        if self._busy():
            return BUSY_S
        # On Linux a priority belongs to a thread.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        try:
            self._measure(self._waiting.popleft())
        except Exception as error:  # noqa: BLE001  only a sample is lost; the query itself was answered
            _LOG.debug("a sampled query could not be repeated: %s", error)
        return None

    def _measure(self, request: search_pb2.SearchRequest) -> None:
        options = request.options
        # Reranking is left out: it only reorders candidates, with other scores.
        wanted = options.k if options.HasField("k") else limits.DEFAULT_K
        deepest = max(wanted + options.offset, _reranked(options))
        options.k, options.offset, options.explain = min(deepest, MAX_K), 0, True
        for field in ("rerank", "return_fields", "return_vector"):
            options.ClearField(field)
        options.return_fields.append("id")
        found = self._search(request, Deadline.after(TIMEOUT_S))
        if found.mode in _OTHER_MODES:  # the request named none; only dense searches have a recall
            return
        if any(hit.vector_scores for hit in found.hits):  # an index with named vectors alone
            return
        options.ClearField("knobs")
        options.ClearField("target_recall")
        options.exact, options.return_vector = True, True
        true = self._search(request, Deadline.after(TIMEOUT_S))
        if found.version != true.version or not true.hits:
            return
        index = (request.index,)
        # By score, so that any of several tied hits counts.
        reach = self._reach(request, true.hits[-1])
        hits = sum(hit.score >= reach for hit in found.hits)
        self._metrics.recall_hits.inc(index, min(hits, len(true.hits)))
        self._metrics.recall_wanted.inc(index, len(true.hits))
        for segment in found.explanation.segments:
            self._metrics.plans.inc((request.index, segment.plan))

    def _reach(self, request: search_pb2.SearchRequest, worst: search_pb2.Hit) -> float:
        """Return the score from which a hit counts as a true neighbour; `worst` is the last of these."""
        row_D = _vector_of(worst.datapoint.vector)
        query_D = _vector_of(request.query.vector) if request.query.HasField("vector") else None
        magnitude = magnitude_of(self._distance_of(request.index), row_D, query_D)
        return float(score_to_reach(np.array([[worst.score]]), magnitude)[0, 0])


_OTHER_MODES = (search_pb2.MODE_LEXICAL, search_pb2.MODE_HYBRID)


def _reranked(options: search_pb2.SearchOptions) -> int:
    """Return the number of candidates that are reranked."""
    if not options.HasField("rerank"):
        return 0
    given = options.rerank.HasField("candidates")
    return options.rerank.candidates if given else limits.DEFAULT_RERANK_CANDIDATES


def _vector_of(message: types_pb2.Vector) -> np.ndarray:
    return (
        np.frombuffer(message.packed, np.float32) if message.packed else np.array(message.values, np.float32)
    )
