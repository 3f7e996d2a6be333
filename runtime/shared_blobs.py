"""Slots of bytes in memory that the processes of a server share: one writer and any number of readers each."""

from __future__ import annotations

import mmap
import struct

__all__ = ["SharedBlobs", "blobs_for"]

_HEADER = struct.Struct("<QQ")
_ATTEMPTS = 100


BYTES_PER_VECTOR = 16_384
"""Memory for a vector: four indexes of 1,024 dimensions; with more, fewer vectors are shared."""
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 64 << 20


def blobs_for(processes: int, vectors: int) -> SharedBlobs:
    """Return a slot for each of some processes, each of which shares up to `vectors` vectors per index."""
    return SharedBlobs(processes, min(max(vectors * BYTES_PER_VECTOR, _LEAST_BYTES), _MOST_BYTES))


class SharedBlobs:
    """Slots of anonymous shared memory, created before the fork."""

    def __init__(self, count: int, slot_bytes: int) -> None:
        """Reserve memory for `count` slots of `slot_bytes`. Pages take no memory until they are written."""
        self.count = count
        self.most_bytes = slot_bytes - _HEADER.size
        """Most bytes of a slot's content."""
        self._slot_bytes = slot_bytes
        self._memory = mmap.mmap(-1, count * slot_bytes)

    def write(self, slot: int, data: bytes) -> bool:
        """Replace the content of a slot; return False without change if `data` does not fit."""
        if len(data) > self.most_bytes:
            return False
        start = slot * self._slot_bytes
        # Seqlock: odd while writing. A reader that sees an odd or a changed number reads again.
        number, size = _HEADER.unpack_from(self._memory, start)
        number |= 1
        _HEADER.pack_into(self._memory, start, number, 0)
        body = start + _HEADER.size
        self._memory[body : body + len(data)] = data
        if size > len(data):  # what was there is not kept
            self._memory[body + len(data) : body + size] = bytes(size - len(data))
        _HEADER.pack_into(self._memory, start, number + 1, len(data))
        return True

    def read(self, slot: int) -> bytes:
        """Return the content of a slot; empty: never written, or the writer died while writing."""
        start = slot * self._slot_bytes
        for _ in range(_ATTEMPTS):
            number, size = _HEADER.unpack_from(self._memory, start)
            data = bytes(self._memory[start + _HEADER.size : start + _HEADER.size + size])
            if number % 2 == 0 and _HEADER.unpack_from(self._memory, start)[0] == number:
                return data
        return b""
