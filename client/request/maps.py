"""The call for a map of datapoints in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.aggregations import is_int32
from scannery.client.request.calls import Call, Method
from scannery.client.request.filters import Where, build_filter
from scannery.client.request.values import refuses_surrogates
from scannery.client.response.maps import MapPage, parse_map
from scannery.v1 import search_pb2 as pb

__all__ = ["build_map", "map_page"]

PROJECT = Method("/scannery.v1.SearchService/Project", pb.ProjectRequest, pb.ProjectResponse)


@refuses_surrogates
def build_map(
    index: str,
    *,
    where: Where | None,
    limit: int | None,
    seed: int,
    attributes: Sequence[str],
    vector: str | None,
) -> pb.ProjectRequest:
    """Return the request for the first page of a map; the arguments are those of `Index.project`.

    Raises:
        InvalidArgumentError: names the argument.

    """
    for field, number in (("limit", 1 if limit is None else limit), ("seed", seed)):
        if not is_int32(number) or number < 0:
            raise InvalidArgumentError(f"{field}: must be an integer from 0, got {number!r:.80}", field=field)
    if isinstance(attributes, str):
        raise InvalidArgumentError(
            f"attributes: must be a list of names, got {attributes!r:.80}", field="attributes"
        )
    return pb.ProjectRequest(
        index=index,
        where=None if where is None else build_filter(where),
        limit=limit,
        seed=seed,
        attributes=attributes,
        vector=vector or "",
        page_size=PAGE,
    )


def map_page(
    request: pb.ProjectRequest, token: str, *, min_sequence: int, timeout_s: float | None = None
) -> Call[pb.ProjectRequest, pb.ProjectResponse, MapPage]:
    """Return the call for the page of a map at a token, empty: its first; `request` is what `build_map` returns."""
    page = pb.ProjectRequest()
    page.CopyFrom(request)
    page.page_token, page.min_sequence = token, min_sequence
    return Call(PROJECT, page, parse_map, timeout_s)


PAGE = 10_000
"""Datapoints of one call."""
