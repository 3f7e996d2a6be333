"""Marks in memory that the processes of a server share: what one of them has changed, the others see at once."""

from __future__ import annotations

import mmap
import secrets
import zlib

__all__ = ["SharedMarks"]

SLOTS = 512
_WORD_BYTES = 8


class SharedMarks:
    """A mark for each name. Created before the fork; safe to use from several threads and processes.

    Names share slots, so a mark may also change for another name.
    """

    def __init__(self) -> None:
        """Reserve a page of shared memory."""
        self._words = memoryview(mmap.mmap(-1, SLOTS * _WORD_BYTES)).cast("Q")

    def of(self, name: str) -> int:
        """Return the mark of a name, which differs after each `change`."""
        return self._words[zlib.crc32(name.encode()) % SLOTS]

    def change(self, name: str) -> None:
        """Change the mark of a name."""
        # Random and not the next number: two processes that count at once would write the same one. An aligned word is
        # written whole.
        self._words[zlib.crc32(name.encode()) % SLOTS] = secrets.randbits(8 * _WORD_BYTES)
