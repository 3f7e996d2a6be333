"""Parts of large objects, several on their way at once.

A request ends some time after its start, and obstore resumes one that was cut at most ten times within three minutes: a
segment of some gigabytes that many machines read at once would take longer than that as one request, and no part does.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["MOST_PARTS", "PARALLEL", "PART_BYTES", "ordered_parts"]

PART_BYTES = 2**23
"""Most bytes of a part. In the 120 s of a request, a connection must carry 70 kB/s."""

PARALLEL = 8
"""Most parts of one object at once. Eight streams of S3 carry 640 MB/s; a core unpacks 60 MB/s."""

MOST_PARTS = 32
"""Most parts of all objects in this process at once: 256 MiB of memory, and as many connections."""


class _Room:
    """Counts the parts of this process."""

    def __init__(self) -> None:
        self.renew()
        # A thread that is in the midst of a download does not survive a fork, and would never give back its room.
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.free = threading.BoundedSemaphore(MOST_PARTS)


_ROOM = _Room()


def ordered_parts(
    fetch: Callable[[int, int], memoryview], start: int, end: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield the parts of a range of bytes in order, each with its offset.

    Args:
        fetch: returns the bytes from an offset up to another; called in several threads.
        start: of the range.
        end: of the range, exclusive.

    """
    free, pending = _ROOM.free, deque[tuple[int, Future[memoryview]]]()
    with ThreadPoolExecutor(PARALLEL, "scannery-parts") as pool:
        try:
            while pending or start < end:
                # An object waits for room for its first part only: so it never waits while it holds some.
                while start < end and len(pending) < PARALLEL and free.acquire(blocking=not pending):
                    pending.append((start, pool.submit(fetch, start, min(start + PART_BYTES, end))))
                    start += PART_BYTES
                offset, part = pending.popleft()
                try:
                    data = part.result()
                    del part  # the future would keep the bytes
                    yield offset, data
                    del data
                finally:
                    free.release()
        finally:
            for _, part in pending:
                part.cancel()
                free.release()
