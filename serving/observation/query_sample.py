"""Sampled queries of an index, as they are repeated in the background, and which requests they are drawn from.

They stay in the memory of the process until the index is dropped or replaced, and no call returns them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from scannery.serving import limits
from scannery.serving.security.principal import Principal
from scannery.v1 import search_pb2
from scannery.v1.types_pb2 import Vector

__all__ = [
    "WAITING",
    "IndexSample",
    "LabelledQuery",
    "SampledQuery",
    "SearchMessage",
    "is_samplable",
    "is_small",
    "queries_of",
    "sampled",
]

SearchMessage: TypeAlias = search_pb2.SearchRequest | search_pb2.SearchManyRequest

MAX_K = 100
"""Hits of sampled queries."""
WAITING = 64
"""Limit of sampled queries of an index that were not repeated yet; at the limit, none is added."""
MAX_BYTES = 1 << 16
"""Limit of the size of a query, and of its options, each: every sampled query of a batch has a copy of the filter."""
LABELLED = 256
"""Queries of an index whose true hits are remembered."""


@dataclass(frozen=True, slots=True)
class SampledQuery:
    """A query to repeat."""

    request: search_pb2.SearchRequest
    """Request in mode dense, without what does not change its hits."""
    mode: search_pb2.Mode.ValueType
    """Mode of the request."""
    principal: Principal | None
    """Its caller: only for the same one, its text is in the cache of the encoder."""


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query with what its hits must reach."""

    sampled: SampledQuery
    least_score: float
    """Least score of a true hit."""
    true_hits: int
    """Number of true hits."""
    state: tuple[int, int]
    """Version and sequence in which these are the true hits."""

    def recall_of(self, response: search_pb2.SearchResponse) -> float:
        """Return the recall of hits of the query; any of several tied hits counts."""
        hits = sum(hit.score >= self.least_score for hit in response.hits)
        return min(hits, self.true_hits) / self.true_hits


@dataclass(slots=True)
class IndexSample:
    """The latest sampled queries of one index. Any thread adds to those that wait; one thread does all else."""

    waiting: deque[SampledQuery] = field(default_factory=deque)
    """Queries that were not repeated yet."""
    labelled: deque[LabelledQuery] = field(default_factory=lambda: deque(maxlen=LABELLED))
    """The latest ones that were."""
    repeats: deque[LabelledQuery] = field(default_factory=deque)
    """Those of them that are to be repeated with other settings."""
    control_word: int = 0
    """State of the settings with which they were repeated last."""
    repeated_at_s: float = 0.0
    """When queries of the index were repeated last."""


def is_samplable(request: SearchMessage) -> bool:
    """Return whether the recall of a request can be measured: that of the unnamed vector, for few hits."""
    options = request.options
    if options.exact or options.vectors or options.mode == search_pb2.MODE_LEXICAL:
        return False
    if options.k + options.offset > MAX_K or options.HasField("crowding") or not is_small(options):
        return False
    if isinstance(request, search_pb2.SearchManyRequest):
        return not request.where_each and all(each.WhichOneof("kind") for each in request.queries[:1])
    return request.query.WhichOneof("kind") is not None


def is_small(part: search_pb2.Query | search_pb2.SearchOptions) -> bool:
    """Return whether a part of a request is small enough to be remembered, hundreds of times for each index."""
    return part.ByteSize() <= MAX_BYTES


def queries_of(request: SearchMessage) -> Callable[[int], search_pb2.Query]:
    """Return a function that returns the query of a number; it may be part of the request."""
    if isinstance(request, search_pb2.SearchRequest):
        return lambda number: request.query
    if request.queries:
        return lambda number: request.queries[number]
    packed, size = request.vectors.packed, 4 * request.vectors.dimensions  # each access copies all of them

    def row(number: int) -> search_pb2.Query:
        return search_pb2.Query(vector=Vector(packed=packed[number * size : (number + 1) * size]))

    return row


def sampled(request: SearchMessage, query: search_pb2.Query, principal: Principal | None) -> SampledQuery:
    """Return one query of a request, by vector, without what does not change its hits.

    Reranking is left out: it only reorders candidates, with other scores. Of a hybrid search, the dense part counts,
    whose relevance is another.
    """
    copy = search_pb2.SearchRequest(index=request.index, options=request.options, query=query)
    copy.query.ClearField("sparse_vector")
    copy.query.ClearField("words")
    options = copy.options
    hits = options.k if options.HasField("k") else limits.DEFAULT_K
    deepest = max(hits + options.offset, _reranked(options))
    options.k, options.offset, options.explain = min(deepest, MAX_K), 0, True
    for name in (
        "rerank",
        "fusion",
        "min_relevance",
        "ranking",
        "return_fields",
        "return_vector",
        "highlight",
        "min_sequence",
    ):
        options.ClearField(name)
    options.return_fields.append("id")
    options.mode = search_pb2.MODE_DENSE
    return SampledQuery(copy, request.options.mode, principal)


def _reranked(options: search_pb2.SearchOptions) -> int:
    """Return the number of candidates that are reranked."""
    if not options.HasField("rerank"):
        return 0
    rerank = options.rerank
    return rerank.candidates if rerank.HasField("candidates") else limits.DEFAULT_RERANK_CANDIDATES
