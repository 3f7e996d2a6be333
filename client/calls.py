"""The core that the sync and the async client share: each method as a call, a request and what its answer means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from scannery.client.errors import InvalidArgumentError
from scannery.client.queries import (
    Queries,
    QueryLike,
    build_fields,
    build_options,
    build_queries,
    build_query,
)
from scannery.client.results import (
    Datapoint,
    Hits,
    IndexInfo,
    parse_get,
    parse_hits,
    parse_index,
    parse_many,
)
from scannery.v1 import index_pb2, search_pb2

__all__ = [
    "Call",
    "Method",
    "checked_timeout",
    "get",
    "get_index",
    "list_indexes",
    "search",
    "search_many",
]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Method(Generic[RequestT, ResponseT]):
    """A method of the wire contract."""

    path: str
    """For example `/scannery.v1.SearchService/Search`."""
    request: type[RequestT]
    response: type[ResponseT]


@dataclass(frozen=True)
class Call(Generic[RequestT, ResponseT, ResultT]):
    """A request, ready to be sent, and how to read its answer."""

    method: Method[RequestT, ResponseT]
    request: RequestT
    parse: Callable[[ResponseT], ResultT]
    timeout_s: float | None = None
    """None: the client's default."""

    def __post_init__(self) -> None:
        if self.timeout_s is not None:
            checked_timeout(self.timeout_s)


SEARCH = Method("/scannery.v1.SearchService/Search", search_pb2.SearchRequest, search_pb2.SearchResponse)
SEARCH_MANY = Method(
    "/scannery.v1.SearchService/SearchMany", search_pb2.SearchManyRequest, search_pb2.SearchManyResponse
)
GET = Method("/scannery.v1.SearchService/Get", search_pb2.GetRequest, search_pb2.GetResponse)
LIST_INDEXES = Method(
    "/scannery.v1.IndexService/ListIndexes", index_pb2.ListIndexesRequest, index_pb2.ListIndexesResponse
)
GET_INDEX = Method(
    "/scannery.v1.IndexService/GetIndex", index_pb2.GetIndexRequest, index_pb2.GetIndexResponse
)


def search(
    index: str, query: QueryLike, k: int, *, timeout_s: float | None = None, **options: Any
) -> Call[search_pb2.SearchRequest, search_pb2.SearchResponse, Hits]:
    """Return the call for one query; `options` are those of `SearchOptions`."""
    request = search_pb2.SearchRequest(
        index=index, query=build_query(query), options=build_options(k, **options)
    )
    return Call(SEARCH, request, parse_hits, timeout_s)


def search_many(
    index: str, queries: Queries, k: int, *, timeout_s: float | None = None, **options: Any
) -> Call[search_pb2.SearchManyRequest, search_pb2.SearchManyResponse, list[Hits]]:
    """Return the call for many queries; `options` are those of `SearchOptions`."""
    request = search_pb2.SearchManyRequest(
        index=index, options=build_options(k, **options), **build_queries(queries)
    )
    return Call(SEARCH_MANY, request, parse_many, timeout_s)


def get(
    index: str,
    ids: Sequence[str],
    *,
    fields: Sequence[str] | None = None,
    vectors: bool = False,
    timeout_s: float | None = None,
) -> Call[search_pb2.GetRequest, search_pb2.GetResponse, list[Datapoint | None]]:
    """Return the call for datapoints by id."""
    if isinstance(ids, (str, bytes)) or not all(isinstance(identifier, str) for identifier in ids):
        raise InvalidArgumentError(f"ids: must be a list of strings, got {ids!r:.80}", field="ids")
    request = search_pb2.GetRequest(
        index=index, ids=ids, return_fields=build_fields(fields), return_vector=vectors
    )
    return Call(GET, request, lambda response: parse_get(ids, response), timeout_s)


def get_index(
    index: str, *, timeout_s: float | None = None
) -> Call[index_pb2.GetIndexRequest, index_pb2.GetIndexResponse, IndexInfo]:
    """Return the call for the description of an index."""
    request = index_pb2.GetIndexRequest(index=index)
    return Call(GET_INDEX, request, lambda response: parse_index(response.index), timeout_s)


def list_indexes(
    page_token: str, *, timeout_s: float | None = None
) -> Call[index_pb2.ListIndexesRequest, index_pb2.ListIndexesResponse, tuple[list[IndexInfo], str]]:
    """Return the call for one page of indexes: the page, and the token of the next one (empty: it was the last)."""
    request = index_pb2.ListIndexesRequest(page_size=1000, page_token=page_token)
    return Call(
        LIST_INDEXES,
        request,
        lambda response: ([parse_index(item) for item in response.indexes], response.next_page_token),
        timeout_s,
    )


def checked_timeout(timeout_s: object) -> float:
    """Return the timeout if it is one."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < math.inf:
        raise InvalidArgumentError(
            f"timeout_s: must be a number of seconds above 0, got {timeout_s!r}", field="timeout_s"
        )
    return float(timeout_s)
