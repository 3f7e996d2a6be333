"""The core that the sync and the async client share: each method as a call, a request and what its answer means.

Reads ask for the sequences of a client's writes, so that it reads its own writes on any worker. A name can come to
stand for another index: an alias that is moved, an index that is dropped and created again. The new index may not have
the sequence that was remembered, and refuses it. Then the client asks for its latest write, which was to the new index
if it wrote since; if that is refused as well, it forgets the name.

Programs search again and again with the same options, and to make the messages of a search takes as long as to send it.
What is the same in each is kept as bytes: those up to the vector, and those after it; of a search by text, those of all
fields but the text.
"""

from __future__ import annotations

import marshal
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from google.protobuf.message import Message

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.batches import MAX_BATCH
from scannery.client.request.named_vectors import checked_return
from scannery.client.request.queries import (
    Queries,
    QueryLike,
    build_fields,
    build_options,
    build_query,
    checked_model,
    checked_text,
    put_queries,
)
from scannery.client.request.values import Identifier, as_identifier, refuses_surrogates
from scannery.client.request.writes import build_updates, build_upserts, checked_revision
from scannery.client.response.decoding import (
    parse_embed,
    parse_encoders,
    parse_get,
    parse_hits,
    parse_index,
    parse_many,
    parse_page,
)
from scannery.client.response.index_info import EncoderInfo, IndexInfo
from scannery.client.response.rank_explanation import RankExplanation, parse_explain
from scannery.client.response.results import Datapoint, Deleted, Hits, ScanPage, Written
from scannery.v1 import embedding_pb2, index_pb2, search_pb2
from scannery.v1.search_pb2 import Query, SearchOptions, SearchRequest
from scannery.v1.types_pb2 import Vector

__all__ = [
    "Call",
    "Method",
    "Sequences",
    "TextKind",
    "checked_timeout",
    "delete",
    "embed",
    "explain",
    "get",
    "get_index",
    "identifiers",
    "list_encoders",
    "list_indexes",
    "scan_page",
    "search",
    "search_many",
    "search_request",
    "update",
    "upsert",
]


MAX_KEPT = 256
MAX_KEY_BYTES = 4096
"""Longer options, such as filters with thousands of values, are built for each search."""
_PLAIN = 2
"""A format of `marshal` in which equal values have equal bytes, and values of different types never have, if all are of
these types: NumPy's are written as their bytes, without type and unit."""
_TYPES = frozenset((str, int, float, bool, type(None)))

_NO_VECTOR = 0
"""Number in place of the size of a vector, of a search by text."""

_kept: dict[tuple[str, int, bytes], tuple[bytes, bytes]] = {}


def search_request(index: str, query: Any, k: int, options: dict[str, Any]) -> SearchRequest:
    """Return the request for one query; raises what `build_query` and `build_options` do."""
    if type(query) is np.ndarray and query.ndim == 1 and query.size and query.dtype.kind in "fiu":
        vector = query.astype("<f4", copy=False).tobytes()
        before, after = _around(index, len(vector), k, options)
        return SearchRequest.FromString(before + vector + after)
    if type(query) is str:
        text = checked_text(query, "query")
        request = SearchRequest.FromString(_around(index, _NO_VECTOR, k, options)[0])
        request.query.text = text
        return request
    return SearchRequest(index=index, query=build_query(query), options=build_options(k, **options))


def _around(index: str, size: int, k: int, options: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the bytes of a request before and after a vector of some bytes; of none: without a query, and none."""
    try:
        key = (index, size, marshal.dumps((k, options), _PLAIN))
    except ValueError:  # objects of classes, or a list that contains itself
        return _split(index, size, build_options(k, **options))
    if not _is_plain((k, options)):
        return _split(index, size, build_options(k, **options))
    head = _kept.get(key)
    if head is None:
        head = _split(index, size, build_options(k, **options))
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        if len(key[2]) <= MAX_KEY_BYTES:
            _kept[key] = head
    return head


def _is_plain(value: Any) -> bool:
    """Return whether a value that does not contain itself has only values as JSON has them."""
    waiting = [value]
    for each in waiting:  # which grows
        kind = type(each)
        if kind is dict:
            waiting += each
            waiting += each.values()
        elif kind is list or kind is tuple:
            waiting += each
        elif kind not in _TYPES:
            return False
    return True


def _split(index: str, size: int, options: SearchOptions) -> tuple[bytes, bytes]:
    if size == _NO_VECTOR:
        return SearchRequest(index=index, options=options).SerializeToString(), b""
    # No name has a byte 255, and the length in front of the vector does not end with one.
    vector = b"\xff" * size
    whole = SearchRequest(
        index=index, query=Query(vector=Vector(packed=vector)), options=options
    ).SerializeToString()
    start = whole.index(vector)
    return whole[:start], whole[start + size :]


RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Method(Generic[RequestT, ResponseT]):
    """A method of the wire contract."""

    path: str
    """Path, for example `/scannery.v1.SearchService/Search`."""
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

    def timeout_or(self, default_s: float) -> float:
        """Return its timeout, or the client's."""
        return default_s if self.timeout_s is None else self.timeout_s


SEARCH = Method("/scannery.v1.SearchService/Search", search_pb2.SearchRequest, search_pb2.SearchResponse)
SEARCH_MANY = Method(
    "/scannery.v1.SearchService/SearchMany", search_pb2.SearchManyRequest, search_pb2.SearchManyResponse
)
EXPLAIN = Method("/scannery.v1.SearchService/Explain", search_pb2.ExplainRequest, search_pb2.ExplainResponse)
GET = Method("/scannery.v1.SearchService/Get", search_pb2.GetRequest, search_pb2.GetResponse)
SCAN = Method("/scannery.v1.SearchService/Scan", search_pb2.ScanRequest, search_pb2.ScanResponse)
LIST_INDEXES = Method(
    "/scannery.v1.IndexService/ListIndexes", index_pb2.ListIndexesRequest, index_pb2.ListIndexesResponse
)
UPSERT = Method("/scannery.v1.IndexService/Upsert", index_pb2.UpsertRequest, index_pb2.UpsertResponse)
DELETE = Method("/scannery.v1.IndexService/Delete", index_pb2.DeleteRequest, index_pb2.DeleteResponse)
GET_INDEX = Method(
    "/scannery.v1.IndexService/GetIndex", index_pb2.GetIndexRequest, index_pb2.GetIndexResponse
)

EMBED = Method("/scannery.v1.EmbeddingService/Embed", embedding_pb2.EmbedRequest, embedding_pb2.EmbedResponse)
LIST_ENCODERS = Method(
    "/scannery.v1.EmbeddingService/ListEncoders",
    embedding_pb2.ListEncodersRequest,
    embedding_pb2.ListEncodersResponse,
)

TextKind: TypeAlias = Literal["query", "document"]
"""What a text is: models may encode the two differently."""

_KINDS: dict[str, embedding_pb2.TextKind.ValueType] = {
    "query": embedding_pb2.TEXT_KIND_QUERY,
    "document": embedding_pb2.TEXT_KIND_DOCUMENT,
}


@refuses_surrogates
def search(
    index: str,
    query: QueryLike,
    k: int,
    *,
    client_id: str | None = None,
    timeout_s: float | None = None,
    **options: Any,
) -> Call[search_pb2.SearchRequest, search_pb2.SearchResponse, Hits]:
    """Return the call for one query; `options` are the others of `SearchOptions`."""
    request = search_request(index, query, k, options)
    _put_client(request, client_id)
    return Call(SEARCH, request, parse_hits, timeout_s)


@refuses_surrogates
def search_many(
    index: str,
    queries: Queries,
    k: int,
    *,
    client_id: str | None = None,
    timeout_s: float | None = None,
    **options: Any,
) -> Call[search_pb2.SearchManyRequest, search_pb2.SearchManyResponse, list[Hits]]:
    """Return the call for many queries; `options` are the others of `SearchOptions`."""
    request = search_pb2.SearchManyRequest(index=index, options=build_options(k, **options))
    put_queries(request, queries)
    _put_client(request, client_id)
    return Call(SEARCH_MANY, request, parse_many, timeout_s)


@refuses_surrogates
def explain(
    index: str,
    query: QueryLike,
    identifier: Identifier,
    k: int,
    *,
    client_id: str | None = None,
    timeout_s: float | None = None,
    **options: Any,
) -> Call[search_pb2.ExplainRequest, search_pb2.ExplainResponse, RankExplanation]:
    """Return the call for the rank of a datapoint; `options` are the others of `SearchOptions`."""
    text = as_identifier(identifier, "id")
    search = search_request(index, query, k, options)
    request = search_pb2.ExplainRequest(index=index, query=search.query, options=search.options, id=text)
    _put_client(request, client_id)
    return Call(EXPLAIN, request, partial(parse_explain, text), timeout_s)


def _put_client(
    request: search_pb2.SearchRequest | search_pb2.SearchManyRequest | search_pb2.ExplainRequest,
    client_id: str | None,
) -> None:
    if client_id is None:
        return
    if not isinstance(client_id, str):
        raise InvalidArgumentError(
            f"client_id: must be a string, got {type(client_id).__name__}", field="client_id"
        )
    request.client_id = client_id


@refuses_surrogates
def get(
    index: str,
    ids: Sequence[Identifier],
    *,
    fields: Sequence[str] | None = None,
    vectors: bool = False,
    min_sequence: int = 0,
    timeout_s: float | None = None,
) -> Call[search_pb2.GetRequest, search_pb2.GetResponse, list[Datapoint | None]]:
    """Return the call for datapoints by id."""
    texts = identifiers(ids, "ids")
    request = search_pb2.GetRequest(
        index=index,
        ids=texts,
        return_fields=build_fields(fields),
        return_vector=checked_return(vectors),
        min_sequence=min_sequence,
    )
    return Call(GET, request, lambda response: parse_get(texts, response), timeout_s)


@refuses_surrogates
def scan_page(
    request: search_pb2.ScanRequest, token: str | None, *, min_sequence: int, timeout_s: float | None = None
) -> Call[search_pb2.ScanRequest, search_pb2.ScanResponse, ScanPage]:
    """Return the call for the page of a scan at a token, None: its first; `request` is what `build_scan` returns."""
    page = search_pb2.ScanRequest()
    page.CopyFrom(request)
    page.page_token, page.min_sequence = token or "", min_sequence
    return Call(SCAN, page, parse_page, timeout_s)


@refuses_surrogates
def upsert(
    index: str,
    points: Iterable[Mapping[str, Any]],
    *,
    vector_model: str | None = None,
    request_id: str | None = None,
    timeout_s: float | None = None,
) -> Call[index_pb2.UpsertRequest, index_pb2.UpsertResponse, Written]:
    """Return the call that inserts or replaces datapoints."""
    upserts = build_upserts(points)
    if len(upserts) > MAX_BATCH:
        what = f"must have 1 to {MAX_BATCH} items, got {len(upserts)}; upsert_many writes any number"
        raise InvalidArgumentError(f"upserts: {what}", field="upserts")
    return _upsert(index, upserts, vector_model, request_id, timeout_s)


@refuses_surrogates
def update(
    index: str,
    points: Iterable[Mapping[str, Any]],
    *,
    vector_model: str | None = None,
    request_id: str | None = None,
    timeout_s: float | None = None,
) -> Call[index_pb2.UpsertRequest, index_pb2.UpsertResponse, Written]:
    """Return the call that changes fields of datapoints."""
    return _upsert(index, build_updates(points), vector_model, request_id, timeout_s)


def _upsert(
    index: str,
    upserts: Sequence[index_pb2.Upsert],
    vector_model: str | None,
    request_id: str | None,
    timeout_s: float | None,
) -> Call[index_pb2.UpsertRequest, index_pb2.UpsertResponse, Written]:
    request = index_pb2.UpsertRequest(
        index=index,
        upserts=upserts,
        request_id=request_id or "",
        vector_model=checked_model(vector_model),
    )
    return Call(UPSERT, request, _parse_written, timeout_s)


def _parse_written(answer: index_pb2.UpsertResponse) -> Written:
    return Written(answer.sequence, answer.written, tuple(answer.warnings))


@refuses_surrogates
def delete(
    index: str,
    ids: Sequence[Identifier],
    *,
    document_ids: Sequence[Identifier] = (),
    if_revision: int | None = None,
    request_id: str | None = None,
    timeout_s: float | None = None,
) -> Call[index_pb2.DeleteRequest, index_pb2.DeleteResponse, Deleted]:
    """Return the call that deletes datapoints and documents."""
    request = index_pb2.DeleteRequest(
        index=index,
        ids=identifiers(ids, "ids"),
        document_ids=identifiers(document_ids, "document_ids"),
        request_id=request_id or "",
    )
    if if_revision is not None:
        request.condition.if_revision = checked_revision(if_revision, "condition")
    return Call(DELETE, request, lambda answer: Deleted(answer.sequence, answer.deleted), timeout_s)


def identifiers(ids: Sequence[Identifier], field: str) -> list[str]:
    """Return ids as texts; raises InvalidArgumentError, which names the field."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InvalidArgumentError(
            f"{field}: must be a list of strings or integers, got {ids!r:.80}", field=field
        )
    if isinstance(ids, Mapping):
        raise InvalidArgumentError(
            f"{field}: must be a list of ids, got {ids!r:.80}; a filter is `where=`, of count, scan, update and delete",
            field=field,
        )
    return [as_identifier(identifier, f"{field}[{i}]") for i, identifier in enumerate(ids)]


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, (str, bytes)) or not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"texts: must be a list of strings, got {texts!r:.80}", field="texts")


@refuses_surrogates
def embed(
    texts: Sequence[str],
    kind: TextKind,
    *,
    index: str = "",
    model: str = "",
    fingerprint: str = "",
    timeout_s: float | None = None,
) -> Call[embedding_pb2.EmbedRequest, embedding_pb2.EmbedResponse, np.ndarray]:
    """Return the call for the vectors of texts."""
    _check_texts(texts)
    if kind not in _KINDS:
        raise InvalidArgumentError(f"kind: must be 'query' or 'document', got {kind!r:.80}", field="kind")
    try:
        request = embedding_pb2.EmbedRequest(
            index=index, model=model, fingerprint=fingerprint, kind=_KINDS[kind], texts=texts
        )
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise InvalidArgumentError(f"texts: {error}", field="texts") from error
    return Call(EMBED, request, parse_embed, timeout_s)


@refuses_surrogates
def list_encoders(
    *, timeout_s: float | None = None
) -> Call[embedding_pb2.ListEncodersRequest, embedding_pb2.ListEncodersResponse, list[EncoderInfo]]:
    """Return the call for the encoders that there are."""
    return Call(LIST_ENCODERS, embedding_pb2.ListEncodersRequest(), parse_encoders, timeout_s)


@refuses_surrogates
def get_index(
    index: str, *, timeout_s: float | None = None
) -> Call[index_pb2.GetIndexRequest, index_pb2.GetIndexResponse, IndexInfo]:
    """Return the call for the description of an index."""
    request = index_pb2.GetIndexRequest(index=index)
    return Call(GET_INDEX, request, lambda response: parse_index(response.index), timeout_s)


@refuses_surrogates
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


@refuses_surrogates
def checked_timeout(timeout_s: object) -> float:
    """Return the timeout if it is one."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < math.inf:
        raise InvalidArgumentError(
            f"timeout_s: must be a number of seconds above 0, got {timeout_s!r}", field="timeout_s"
        )
    return float(timeout_s)


class Sequences:
    """Sequences by the name that the client writes to."""

    def __init__(self) -> None:
        self._greatest: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        """The last sequence that was refused: other threads may have asked for it at the same time."""

    def get(self, name: str, default: int = 0) -> int:
        """Return the sequence that reads of an index ask for."""
        return self._greatest.get(name, default)

    def wrote(self, name: str, sequence: int) -> None:
        """Remember the sequence of a write that was acknowledged."""
        # Not only the latest: answers of concurrent writes may come in another order.
        self._greatest[name] = max(self._greatest.get(name, 0), sequence)
        self._latest[name] = sequence

    def forget(self, name: str) -> None:
        """Forget an index."""
        self._greatest.pop(name, None)
        self._latest.pop(name, None)

    def lowered(self, request: RequestT) -> RequestT | None:
        """Return a request whose sequence was refused with the next lower one; None if it had none from here."""
        name: str = getattr(request, "index", "")
        holder = _holder(request)
        refused = 0 if holder is None else holder.min_sequence
        if refused and refused == self._greatest.get(name):
            self._lower(name, refused)
        elif not refused or refused != self._refused.get(name):
            return None  # the caller's own
        lower = type(request)()
        lower.CopyFrom(request)
        _holder(lower).min_sequence = self.get(name)
        return lower

    def _lower(self, name: str, refused: int) -> None:
        latest = self._latest.get(name, 0)
        if latest < refused:
            self._greatest[name] = latest
        else:
            self.forget(name)
        self._refused[name] = refused


def _holder(request: Message) -> Any:
    """Return the message with `min_sequence`; None if the request has none."""
    names = request.DESCRIPTOR.fields_by_name
    if "min_sequence" in names:
        return request
    return getattr(request, "options", None) if "options" in names else None
