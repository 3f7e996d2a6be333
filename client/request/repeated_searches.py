"""Searches by vector or text as bytes: programs search again and again with the same options.

To make the messages of a search takes as long as to send it. What is the same in each is kept as bytes: those up to the
vector, and those after it; of a search by text, those of all fields but the text.
"""

from __future__ import annotations

import marshal
from typing import Any

import numpy as np

from scannery.client.request.queries import build_options, build_query, checked_text
from scannery.v1.search_pb2 import Query, SearchOptions, SearchRequest
from scannery.v1.types_pb2 import Vector

__all__ = ["search_request"]

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
