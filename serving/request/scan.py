"""Parse and validate scans: the request, and the tokens by which a scan continues.

A token is `<snapshot>.<position>`. The first part names the version, the sequence and the second of the snapshot,
authenticated with the id of the index, which callers do not know: a caller cannot make a token of a snapshot that no
scan began with. It also has a digest of the request, since a position means something in the result of one request
only. The position is the caller's to change: any position of the result may be read.

The queries and filters of a SearchMany, checked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scannery.indexer import IndexSpec, Manifest
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.request.context import check_context_passages
from scannery.serving.request.filter import FIXED_FIELDS, AllOf, Node, field_name, parse_filter, unknown_name
from scannery.serving.request.options import Fields, Options, parse_fields
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

__all__ = [
    "PageToken",
    "RowOrder",
    "ScanQuery",
    "page_size_of",
    "parse_filters",
    "parse_page_token",
    "parse_queries",
    "parse_scan",
    "request_digest",
]


DIGEST_BYTES = 8
MAC_BYTES = 16
_SNAPSHOT = struct.Struct(f">BQQQ{DIGEST_BYTES}s")
_FORMAT = 2
_POSITION = re.compile(r"0|[1-9][0-9]{0,18}")
MAX_TOKEN_CHARS = 128
_UNSORTED: frozenset[str] = frozenset({"string_list", "geo"})
"""Types of attributes whose values have no order, or several in a datapoint."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The order of the datapoints of a scan; equal ones are ordered by id."""

    field: str
    """Field as `field_name` returns it: `id`, `document_id`, an attribute that is declared, or a dynamic one."""
    descending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanQuery:
    """Validated request of a scan, without what differs between its pages."""

    where: Node | None
    fields: Fields
    order: RowOrder | None
    """None: that of segments and rows."""
    sample: int
    """Datapoints chosen at random; 0: all."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PageToken:
    """Where a page begins: a position in the result of one request on one snapshot."""

    version: int
    sequence: int
    second: int
    """Second since 1970 at which the snapshot is seen; 0: datapoints of the index do not expire."""
    position: int
    """Number of datapoints before the page."""

    def snapshot_text(self, manifest: Manifest, digest: bytes) -> str:
        """Return the part of the token before the position."""
        content = _SNAPSHOT.pack(_FORMAT, self.version, self.sequence, self.second, digest)
        data = content + _mac(manifest, content)
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def request_digest(request: pb.ScanRequest, *, seen: bytes = b"") -> bytes:
    """Return a hash of what all pages of a scan have in common, `DIGEST_BYTES` long; `seen`: what the caller sees."""
    common = pb.ScanRequest(
        return_fields=sorted(set(request.return_fields)),  # their order changes nothing
        return_vector=request.return_vector,
        sample=request.sample,
        seed=request.seed,
    )
    if request.HasField("where"):
        common.where.CopyFrom(request.where)
    if request.HasField("order_by"):
        common.order_by.CopyFrom(request.order_by)
    data = common.SerializeToString(deterministic=True)
    key = hashlib.blake2b(seen).digest() if seen else b""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=key).digest()


def parse_page_token(text: str, manifest: Manifest, digest: bytes) -> PageToken:
    """Return what a token names.

    Args:
        text: the token.
        manifest: of the index, in any version.
        digest: `request_digest` of the request.

    Raises:
        InvalidRequestError: it is no token, or of another index or another request.

    """
    head, dot, position = text.rpartition(".")
    data = _decoded(head) if dot and len(text) <= MAX_TOKEN_CHARS else None
    if data is None or _POSITION.fullmatch(position) is None:
        raise InvalidRequestError.at("page_token", f"is not a token of a scan: {text!r:.80}")
    content, mac = data[: _SNAPSHOT.size], data[_SNAPSHOT.size :]
    _, version, sequence, second, sent_digest = _SNAPSHOT.unpack(content)
    if not hmac.compare_digest(mac, _mac(manifest, content)):
        raise InvalidRequestError.at("page_token", f"is not a token of index {manifest.index!r}")
    if sent_digest != digest:
        raise InvalidRequestError.at(
            "page_token",
            "is of another request: filter, fields, vectors, order, sample and seed must be those of the first page",
        )
    return PageToken(version=version, sequence=sequence, second=second, position=int(position))


def parse_scan(request: pb.ScanRequest, spec: IndexSpec) -> ScanQuery:
    """Return a scan, checked against the spec of its index.

    Raises:
        InvalidRequestError: names the field.

    """
    return ScanQuery(
        where=parse_filter(request.where, spec),
        fields=parse_fields(request.return_fields, spec, vector=request.return_vector),
        order=_order(request.order_by, spec) if request.HasField("order_by") else None,
        sample=request.sample,
        seed=request.seed,
    )


def page_size_of(request: pb.ScanRequest) -> int:
    """Return the largest number of datapoints of a page; InvalidRequestError if it is out of range."""
    if not request.HasField("page_size"):
        return limits.DEFAULT_SCAN_PAGE
    if not 1 <= request.page_size <= limits.MAX_SCAN_PAGE:
        raise InvalidRequestError.at(
            "page_size", f"must be 1 to {limits.MAX_SCAN_PAGE}, got {request.page_size}"
        )
    return request.page_size


def _order(message: pb.OrderBy, spec: IndexSpec) -> RowOrder:
    name = message.field
    kinds = {**FIXED_FIELDS, **spec.attributes}
    field = field_name(name, spec) if name else None
    if field is None:
        raise InvalidRequestError.at("order_by", f"{name!r:.80}: {unknown_name(name, kinds, 'attribute')}")
    if (kind := kinds.get(name)) in _UNSORTED:
        raise InvalidRequestError.at("order_by", f"{name!r} is a {kind}, which has no order")
    return RowOrder(field, message.descending)


def _decoded(text: str) -> bytes | None:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if len(data) == _SNAPSHOT.size + MAC_BYTES and data[0] == _FORMAT else None


def _mac(manifest: Manifest, content: bytes) -> bytes:
    # Random and in no answer. Indexes of the first releases have no id, and their tokens can be made by hand.
    key = (manifest.index_id or manifest.index).encode()[:64]
    return hashlib.blake2b(content, key=key, digest_size=MAC_BYTES).digest()


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
    if options.context is not None:
        check_context_passages(options.context, count * options.k)
    if request.HasField("vectors"):
        return parse_matrix(packed, request.vectors.dimensions, manifest, options.vectors)
    parsed = [
        parse_query(query, manifest, options.vectors, path=f"queries[{i}]")
        for i, query in enumerate(request.queries)
    ]
    vectors = [query.vector_D for query in parsed if isinstance(query, ByVector)]
    return Vectors(np.array(vectors)) if len(vectors) == len(parsed) else parsed


def parse_filters(
    request: pb.SearchManyRequest, manifest: Manifest, where: Node | None, queries: int
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
    return [_both(where, node) for node in each]


def _both(first: Node | None, second: Node | None) -> Node | None:
    if first is None or second is None:
        return first or second
    return AllOf((first, second))
