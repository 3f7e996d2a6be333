"""A table in memory that the processes of a server share: one word for each name, and some numbers of each process.

The word of a name is read and written whole by all processes. The numbers of a process belong to one state of the word,
its tag, and only that process writes them. So there is no lock that a killed process could hold.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Sequence

__all__ = ["SharedTable"]

NAMES = 256
"""Most names in a table, unless it says otherwise; further ones have no place."""
NUMBERS = 20
"""Most numbers of one process for one name."""
_WORD_BYTES = 8
_CHECKSUM = struct.Struct("<Q")
"""Of a row: it stays aligned to words."""


class SharedTable:
    """Words and numbers by name. Created before the fork; safe to use from several threads and processes."""

    def __init__(self, processes: int = 1, *, names: int = NAMES) -> None:
        """Reserve shared memory, whose pages are used when they are first written.

        Args:
            processes: number of processes that write numbers.
            names: most names.

        """
        self.processes, self._most = processes, names
        self.words = memoryview(mmap.mmap(-1, names * _WORD_BYTES)).cast("Q")
        """The word of each place; 0 at the beginning."""
        self._names = memoryview(mmap.mmap(-1, names * _WORD_BYTES)).cast("Q")
        self._row = struct.Struct(f"<Q{NUMBERS}d")
        self._rows = mmap.mmap(-1, processes * names * self._row_bytes)

    def place(self, name: str) -> int | None:
        """Return the place of a name, which it keeps; None: all places are taken."""
        mark = _mark(name)
        first = mark % self._most
        for step in range(self._most):
            place = (first + step) % self._most
            if self._names[place] == 0:
                self._names[place] = mark
            if self._names[place] == mark:  # another process may have taken the place meanwhile
                return place
        return None

    def write(self, process: int, place: int, tag: int, numbers: Sequence[float]) -> None:
        """Replace the numbers of a process, which belong to a state of the word.

        Args:
            process: its number, below `processes`.
            place: of the name.
            tag: the word, not 0.
            numbers: at most NUMBERS.

        """
        row = self._row.pack(tag, *numbers, *([0.0] * (NUMBERS - len(numbers))))
        start = self._start(process, place)
        self._rows[start : start + self._row_bytes] = row + _CHECKSUM.pack(zlib.crc32(row))

    def read(self, place: int, tag: int) -> list[tuple[float, ...]]:
        """Return the numbers of all processes that belong to a state of the word."""
        found = []
        for each in range(self.processes):
            start = self._start(each, place)
            data = self._rows[start : start + self._row_bytes]
            row = data[: self._row.size]
            # A row that is just being written, or that a killed process wrote in part, has another checksum.
            if _CHECKSUM.pack(zlib.crc32(row)) == data[self._row.size :]:
                written, *numbers = self._row.unpack(row)
                if written == tag:
                    found.append(tuple(numbers))
        return found

    @property
    def _row_bytes(self) -> int:
        return self._row.size + _CHECKSUM.size

    def _start(self, process: int, place: int) -> int:
        return (process * self._most + place) * self._row_bytes


def _mark(name: str) -> int:
    """Return 64 bits that stand for a name, not 0."""
    data = name.encode()
    return (zlib.crc32(data) << 32 | zlib.crc32(data[::-1] + b"\x01")) or 1
