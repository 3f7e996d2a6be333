"""Large buffers, copied in pieces.

One call that copies 57 MB holds the interpreter lock for 60 milliseconds, and all requests of the process wait. Between
two pieces another thread may take the lock.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

__all__ = ["PIECE_BYTES", "joined"]

PIECE_BYTES = 1 << 18
"""Copied at once: about a millisecond."""


def joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the bytes of some parts, one after the other."""
    size_bytes = sum(map(len, parts))
    if size_bytes <= PIECE_BYTES:
        return b"".join(parts)
    # Pages of zeros that are not in memory yet. Nothing else refers to them, so they are written in place.
    whole = io.BytesIO(bytes(size_bytes))
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), PIECE_BYTES):
            whole.write(view[start : start + PIECE_BYTES])
    return whole.getvalue()
