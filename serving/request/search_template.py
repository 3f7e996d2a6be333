"""Searches by vector as bytes: those of a caller mostly differ in nothing but the vector, and are not decoded again.

To decode a search and to find its options takes a tenth of the time of a search over HTTP: not in a loop of its own,
but where a search before it has left nothing of the interpreter in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scannery.v1.search_pb2 import SearchRequest

__all__ = ["SearchTemplate", "template_of"]

_FLOAT32 = np.dtype("<f4")
MAX_TEMPLATE_BYTES = 1 << 12
"""Most bytes of a search besides its vector: each connection keeps some."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchTemplate:
    """What a search by vector alone has besides its vector. It refers to no snapshot."""

    index: str
    """Name as the request names it: an index or an alias."""
    options: bytes
    """A serialised SearchOptions, as `Snapshot.cached` takes it."""
    min_sequence: int
    before: bytes
    """All bytes before the vector."""
    after: bytes
    """All bytes behind it."""

    def vector_of(self, data: bytes) -> np.ndarray | None:
        """Return the vector of the same search with any vector of that length, float32 (1, D), read-only; else None."""
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return None
        start = len(self.before)
        count = (len(data) - start - len(self.after)) // _FLOAT32.itemsize
        return np.frombuffer(data, _FLOAT32, count, start).reshape(1, count)


def template_of(request: SearchRequest, body: bytes) -> SearchTemplate | None:
    """Return the template of a valid search by vector alone; None if it has none. It is for bodies of the same size.

    Args:
        request: a search, with the name of the index as it was sent.
        body: the same as it was sent. Whatever bytes are in the place of its vector, the rest of it means the same.

    """
    if [field.name for field, _ in request.query.ListFields()] != ["vector"]:
        # With words or a sparse vector beside it, the query is another one.
        return None
    packed = request.query.vector.packed
    if len(packed) < _FLOAT32.itemsize or len(packed) % _FLOAT32.itemsize:
        return None
    # In one place only: bytes that occur twice could also be those of another field. The places may overlap: the length
    # in front of a vector of equal bytes can be such a byte, too.
    start = body.find(packed)
    if start < 0 or body.rfind(packed) != start or len(body) - len(packed) > MAX_TEMPLATE_BYTES:
        return None
    options = request.options
    return SearchTemplate(
        request.index,
        options.SerializeToString(),
        options.min_sequence,
        body[:start],
        body[start + len(packed) :],
    )
