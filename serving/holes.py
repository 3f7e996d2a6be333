"""Free places among the objects of a process, filled before it forks.

CPython puts a new small object into a free place for its size, wherever that is. After a start such places lie on
thousands of pages, and a worker that puts an object into one copies the page. Where they are filled, the objects of a
worker lie together on pages of their own.
"""

from __future__ import annotations

from sys import getsizeof

__all__ = ["fill_holes"]

# Of CPython's allocator: objects of up to so many bytes lie in pools, and all places of a pool have one size.
STEP_BYTES, MOST_BYTES, POOL_BYTES, POOL_HEADER_BYTES = 16, 512, 1 << 14, 48
# The smaller ones are numbers that come and go, such as those in this loop.
LEAST_BYTES = 48
# Another allocator has no pools: this must end there, and do no harm.
MOST_POOLS = 1024


def fill_holes() -> list[bytes]:
    """Return objects that lie in all free places between others; these stay taken for as long as the objects live."""
    sizes = range(LEAST_BYTES, MOST_BYTES + 1, STEP_BYTES)
    return [each for size in sizes for each in _filling(size)]


def _filling(size: int) -> list[bytes]:
    """Return objects in all places of a size, up to the first pool that was empty: its places come one by one."""
    places, length = (POOL_BYTES - POOL_HEADER_BYTES) // size, size - getsizeof(b"")
    made: list[bytes] = []
    run = last = 0
    while run < places:
        if len(made) == MOST_POOLS * places:
            return []
        made.append(bytes(length))
        run = run + 1 if id(made[-1]) == last + size else 1
        last = id(made[-1])
    return made[:-places]
