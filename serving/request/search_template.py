"""Searches by vector as bytes: those of a caller mostly differ in nothing but the vector, and need not be parsed again.

To parse a search, and to find what is known of its options, takes about as long as a fifth of the search itself: not in
a loop of its own, but where a search before it has left nothing of the interpreter in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scannery.v1.search_pb2 import SearchRequest

__all__ = ["SearchTemplate", "template_of"]

_FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True, slots=True, eq=False)
class SearchTemplate:
    """What a search by vector has besides its vector, or one by text besides its text. It refers to no snapshot."""

    index: str
    """Name as the request names it: an index or an alias."""
    options: bytes
    """A serialised SearchOptions, as `Snapshot.known` takes it."""
    min_sequence: int
    start: int = 0
    """Offset of the vector in the body."""
    stop: int = 0
    """Offset of the first byte after it."""

    def vector_of(self, data: bytes, body: int) -> np.ndarray:
        """Return the vector of a request whose body begins at an offset of `data`, float32 (1, D), read-only."""
        count = (self.stop - self.start) // _FLOAT32.itemsize
        return np.frombuffer(data, _FLOAT32, count, body + self.start).reshape(1, count)


def template_of(request: SearchRequest, body: bytes) -> SearchTemplate | None:
    """Return the template of a valid search by vector; None if it has none.

    Args:
        request: a search, with the name of the index as it was sent.
        body: the same as it was sent. Whatever bytes are in the place of its vector, the rest of it means the same.

    """
    packed = request.query.vector.packed
    if len(packed) < _FLOAT32.itemsize or len(packed) % _FLOAT32.itemsize:
        return None
    # In one place only: bytes that occur twice could also be those of another field. The places may overlap: the length
    # in front of a vector of equal bytes can be such a byte, too.
    start = body.find(packed)
    if start < 0 or body.rfind(packed) != start:
        return None
    options = request.options
    return SearchTemplate(
        request.index, options.SerializeToString(), options.min_sequence, start, start + len(packed)
    )
