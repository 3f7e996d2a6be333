"""Calls that ask about all datapoints that a filter allows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeGuard

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.calls import Call, Method
from scannery.client.request.filters import Where, build_filter
from scannery.client.request.values import refuses_surrogates
from scannery.client.response.aggregations import AttributeStats, Facets, parse_attribute_stats, parse_facets
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import Filter

__all__ = ["attribute_stats", "count", "facets", "is_int32"]

COUNT = Method("/scannery.v1.SearchService/Count", pb.CountRequest, pb.CountResponse)
FACETS = Method("/scannery.v1.SearchService/Facets", pb.FacetsRequest, pb.FacetsResponse)
ATTRIBUTE_STATS = Method(
    "/scannery.v1.SearchService/AttributeStats", pb.AttributeStatsRequest, pb.AttributeStatsResponse
)


@refuses_surrogates
def count(
    index: str, where: Where | None, *, min_sequence: int, timeout_s: float | None = None
) -> Call[pb.CountRequest, pb.CountResponse, int]:
    """Return the call for the number of datapoints."""
    request = pb.CountRequest(index=index, where=_filter(where), min_sequence=min_sequence)
    return Call(COUNT, request, lambda response: response.count, timeout_s)


@refuses_surrogates
def facets(
    index: str,
    attribute: str,
    where: Where | None,
    limit: int,
    *,
    min_sequence: int,
    timeout_s: float | None = None,
) -> Call[pb.FacetsRequest, pb.FacetsResponse, Facets]:
    """Return the call for the most frequent values of an attribute."""
    if not is_int32(limit):
        raise InvalidArgumentError(f"limit: must be an integer, got {limit!r:.80}", field="limit")
    request = pb.FacetsRequest(
        index=index, attribute=_name(attribute), where=_filter(where), limit=limit, min_sequence=min_sequence
    )
    return Call(FACETS, request, parse_facets, timeout_s)


@refuses_surrogates
def attribute_stats(
    index: str,
    attribute: str,
    where: Where | None,
    quantiles: Sequence[float],
    *,
    min_sequence: int,
    timeout_s: float | None = None,
) -> Call[pb.AttributeStatsRequest, pb.AttributeStatsResponse, AttributeStats]:
    """Return the call for the description of an attribute."""
    try:
        shares = [float(share) for share in quantiles]
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"quantiles: must be a list of numbers, got {quantiles!r:.80}", field="quantiles"
        ) from error
    request = pb.AttributeStatsRequest(
        index=index,
        attribute=_name(attribute),
        where=_filter(where),
        quantiles=shares,
        min_sequence=min_sequence,
    )
    return Call(ATTRIBUTE_STATS, request, partial(parse_attribute_stats, shares), timeout_s)


def _filter(where: Where | None) -> Filter | None:
    return None if where is None else build_filter(where)


def is_int32(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer that the wire can carry; the server checks its range."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31


def _name(attribute: object) -> str:
    if not isinstance(attribute, str) or not attribute:
        raise InvalidArgumentError(
            f"attribute: must be the name of an attribute, got {attribute!r:.80}", field="attribute"
        )
    return attribute
