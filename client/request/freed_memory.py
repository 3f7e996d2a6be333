"""Memory that the C library keeps between the calls of batches.

The messages of a batch of 100 queries take most of a megabyte, which is freed after the call. glibc returns free memory
at the end of its heap to the system beyond a threshold, and the next call gets it back page by page: for 100 vectors of
384 dimensions that took 350 µs, and making the messages 30. The threshold is twice the size of the largest block that
was ever mapped apart and freed (mallopt(3)), so programs that free a large array pay nothing. This does it for others.
"""

from __future__ import annotations

from functools import cache

__all__ = ["keep_freed_memory"]

MAPPED_BYTES = 4 << 20
"""Up to twice as much stays with the process."""


@cache
def keep_freed_memory() -> None:
    """Have glibc keep the memory of a call for the next one; no effect with other libraries."""
    bytes(MAPPED_BYTES)
