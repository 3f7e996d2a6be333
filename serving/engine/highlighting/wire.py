"""Snippets, added to hits that are on the wire already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.runtime.pieces import joined
from scannery.serving.engine.hydrator import Written
from scannery.serving.engine.wire_fields import framed
from scannery.v1.search_pb2 import Hit, SearchResponse

__all__ = ["with_snippets"]


def with_snippets(written: Written, snippets: Sequence[Sequence[bytes]]) -> Written:
    """Return the same hits, each with its snippet.

    Args:
        written: the hits of some queries.
        snippets: for each query one per hit: a serialised Snippet; an empty one is left out.

    """
    lists = [
        joined(_hits(data, each)) if any(each) else data
        for data, each in zip(written.lists(), snippets, strict=True)
    ]
    # A copy that can be written, since the kernels for other arrays are compiled separately.
    data_B = np.frombuffer(joined(lists), np.uint8).copy()
    return Written(data_B, np.cumsum([0, *map(len, lists)], dtype=np.int64))


def _hits(data: bytes, snippets: Sequence[bytes]) -> list[bytes]:
    hits, position = [], 0
    for snippet in snippets:
        size, start = _varint(data, position + 1)
        position = start + size
        added = framed(Hit.SNIPPET_FIELD_NUMBER, snippet) if snippet else b""
        hits.append(framed(SearchResponse.HITS_FIELD_NUMBER, data[start:position] + added))
    return hits


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number that begins at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
