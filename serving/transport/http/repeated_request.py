"""Requests that repeat an earlier one of their connection byte by byte, except for the vector that they ask with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.transport.http.head import Head

__all__ = ["RepeatedRequest", "repeated_request"]

_END = b"\r\n\r\n"
MAX_BYTES = 1 << 16
"""Longest request that a connection remembers."""
MAX_KEPT_BYTES = 1 << 13
"""Most bytes of it besides the vector, which are kept: a server has many connections."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedRequest:
    """A request that was answered, to compare others with."""

    head: Head
    template: SearchTemplate
    before: bytes
    """All bytes before the vector: the HTTP head and the first part of the body."""
    after: bytes
    """All bytes after the vector."""
    size: int
    """Of the whole request."""
    body: int
    """Offset of its body."""

    def fits(self, data: bytes) -> bool:
        """Return whether some bytes are the same request, with any vector."""
        return len(data) == self.size and data.startswith(self.before) and data.endswith(self.after)

    def body_of(self, data: bytes) -> int:
        """Return the offset of the body of a request that fits."""
        return self.body

    def asked_of(self, data: bytes) -> np.ndarray:
        """Return the vector of a request that fits, float32 (1, D), read-only."""
        return self.template.vector_of(data, self.body)


def repeated_request(
    head: Head, template: SearchTemplate, data: bytes, body: bytes
) -> RepeatedRequest | None:
    """Return what requests like this one are compared with; None if they have to be parsed.

    Args:
        head: of the request.
        template: of its body.
        data: bytes that were read at once, and begin with a request; empty: it was read in parts.
        body: the last one that was parsed from them.

    """
    start = len(data) - len(body)
    # One whole request and nothing else: the only end of a head is the one in front of the body.
    whole = len(data) <= MAX_BYTES and data.endswith(body) and data.find(_END, 0, start) == start - len(_END)
    if not whole or head.expects_continue:
        return None
    first, last = start + template.start, start + template.stop
    if len(data) - (last - first) > MAX_KEPT_BYTES:
        return None
    return RepeatedRequest(head, template, data[:first], data[last:], len(data), start)
