"""Which requests are sampled, and the searches that a sample of one is repeated with."""

from __future__ import annotations

from scannery.serving import limits
from scannery.v1 import search_pb2

__all__ = ["exact_options", "is_exact", "is_samplable", "one_query"]

MAX_K = 100
"""Hits of sampled queries."""
_EXACT_PLANS = frozenset({"exact", "exact_allowed", "none"})


def is_samplable(request: search_pb2.SearchRequest | search_pb2.SearchManyRequest) -> bool:
    """Return whether the recall of a request can be measured: that of the unnamed vector, for few hits."""
    options = request.options
    if options.exact or options.vectors or options.mode == search_pb2.MODE_LEXICAL:
        return False
    if options.k + options.offset > MAX_K or options.HasField("crowding"):
        return False
    if isinstance(request, search_pb2.SearchManyRequest):
        return not request.where_each and all(each.WhichOneof("kind") for each in request.queries[:1])
    return request.query.WhichOneof("kind") is not None


def one_query(
    request: search_pb2.SearchRequest | search_pb2.SearchManyRequest, number: int
) -> search_pb2.SearchRequest:
    """Return one query of a request, by vector, without what does not change its hits.

    Reranking is left out: it only reorders candidates, with other scores. Of a hybrid search, the dense part counts.
    """
    copy = search_pb2.SearchRequest(index=request.index, options=request.options)
    if isinstance(request, search_pb2.SearchRequest):
        copy.query.CopyFrom(request.query)
    elif request.queries:
        copy.query.CopyFrom(request.queries[number])
    else:
        size = 4 * request.vectors.dimensions
        copy.query.vector.packed = request.vectors.packed[number * size : (number + 1) * size]
    copy.query.ClearField("sparse_vector")
    copy.query.ClearField("words")
    options = copy.options
    wanted = options.k if options.HasField("k") else limits.DEFAULT_K
    deepest = max(wanted + options.offset, _reranked(options))
    options.k, options.offset, options.explain = min(deepest, MAX_K), 0, True
    for name in ("rerank", "fusion", "return_fields", "return_vector", "highlight", "min_sequence"):
        options.ClearField(name)
    options.return_fields.append("id")
    options.mode = search_pb2.MODE_DENSE
    return copy


def exact_options(options: search_pb2.SearchOptions) -> search_pb2.SearchOptions:
    """Return the options of a search for the true hits, with their vectors."""
    exact = search_pb2.SearchOptions()
    exact.CopyFrom(options)
    for name in ("knobs", "target_recall", "explain"):
        exact.ClearField(name)
    exact.exact, exact.return_vector = True, True
    return exact


def is_exact(found: search_pb2.SearchResponse) -> bool:
    """Return whether no segment was searched approximately."""
    return all(segment.plan in _EXACT_PLANS for segment in found.explanation.segments)


def _reranked(options: search_pb2.SearchOptions) -> int:
    """Return the number of candidates that are reranked."""
    if not options.HasField("rerank"):
        return 0
    given = options.rerank.HasField("candidates")
    return options.rerank.candidates if given else limits.DEFAULT_RERANK_CANDIDATES
