"""The queries and filters of a SearchMany, checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.indexer import Manifest
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.request.filter import AllOf, Node, parse_filter
from scannery.serving.request.options import Options
from scannery.serving.request.query import (
    ByVector,
    Query,
    Vectors,
    check_count,
    count_queries,
    parse_matrix,
    parse_query,
)
from scannery.v1 import search_pb2 as pb

__all__ = ["parse_filters", "parse_queries"]


def parse_queries(request: pb.SearchManyRequest, manifest: Manifest, options: Options) -> Sequence[Query]:
    """Return the queries, as `Vectors` if all are vectors; InvalidRequestError names the field that is wrong."""
    if request.HasField("vectors") and request.queries:
        raise InvalidRequestError.at("vectors", "cannot be set together with `queries`")
    packed = request.vectors.packed  # a copy, each time that it is read
    count = count_queries(request, packed)
    check_count("queries", count, limits.MAX_QUERIES)
    if count * options.deepest > limits.MAX_BATCH_HITS:
        raise InvalidRequestError.at(
            "queries",
            f"{count} with {options.deepest} hits each exceed {limits.MAX_BATCH_HITS} hits in one call",
        )
    if options.highlight is not None and count * options.deepest > limits.MAX_HIGHLIGHTED_BATCH:
        raise InvalidRequestError.at(
            "highlight",
            f"{count} queries with {options.deepest} hits each exceed {limits.MAX_HIGHLIGHTED_BATCH} hits to highlight "
            "in one call",
        )
    if request.HasField("vectors"):
        return parse_matrix(packed, request.vectors.dimensions, manifest, options.vectors)
    parsed = [
        parse_query(query, manifest, options.vectors, path=f"queries[{i}]")
        for i, query in enumerate(request.queries)
    ]
    vectors = [query.vector_D for query in parsed if isinstance(query, ByVector)]
    return Vectors(np.array(vectors)) if len(vectors) == len(parsed) else parsed


def parse_filters(
    request: pb.SearchManyRequest, manifest: Manifest, options: Options, queries: int
) -> list[Node | None] | None:
    """Return the filter of each query, together with that of the options; None: all have that of the options.

    Raises:
        InvalidRequestError: names the field.

    """
    if not request.where_each:
        return None
    if len(request.where_each) != queries:
        raise InvalidRequestError.at(
            "where_each", f"must have one filter for each of {queries} queries, got {len(request.where_each)}"
        )
    spec = manifest.spec
    each = (
        parse_filter(message, spec, path=f"where_each[{i}]") for i, message in enumerate(request.where_each)
    )
    return [_both(options.where, node) for node in each]


def _both(one: Node | None, other: Node | None) -> Node | None:
    if one is None or other is None:
        return one or other
    return AllOf((one, other))
