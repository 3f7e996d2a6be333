"""A table in memory that the processes of a server share: one word for each name, and some numbers of each process.

The word of a name is read and written whole by all processes. The numbers of a process belong to one state of the word,
its tag, and only that process writes them. So there is no lock that a killed process could hold; that of the places is
released by the kernel.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

__all__ = ["SharedTable"]

NAMES = 1024
"""Most names in a table; further ones have no place."""
NUMBERS = 20
"""Most numbers of one process for one name."""
_WORD_BYTES = 8
_CHECKSUM = struct.Struct("<Q")
"""Of a row: it stays aligned to words."""


class SharedTable:
    """Words and numbers by name. Created before the fork; safe to use from several threads and processes."""

    def __init__(self, processes: int = 1) -> None:
        """Reserve shared memory, whose pages are used when they are first written.

        Args:
            processes: number of processes that write numbers.

        """
        self.processes = processes
        self.words = memoryview(mmap.mmap(-1, NAMES * _WORD_BYTES)).cast("Q")
        """The word of each place; 0 at the beginning."""
        self._names = memoryview(mmap.mmap(-1, NAMES * _WORD_BYTES)).cast("Q")
        self._lock, self._file = threading.Lock(), os.memfd_create("scannery-places")
        weakref.finalize(self, os.close, self._file)
        self._row = struct.Struct(f"<Q{NUMBERS}d")
        self._rows = mmap.mmap(-1, processes * NAMES * self._row_bytes)

    def place(self, name: str) -> int | None:
        """Return the place of a name, which it keeps; None: all places are taken."""
        mark = _mark(name)
        with self._locked():
            names = self._names.tolist()
            wanted = mark if mark in names else 0
            if wanted not in names:
                return None
            place = names.index(wanted)
            self._names[place] = mark
            return place

    def release(self, name: str) -> None:
        """Free the place of a name, whose word becomes 0; without effect if it has none."""
        mark = _mark(name)
        with self._locked():
            names = self._names.tolist()
            if mark in names:
                self.words[names.index(mark)] = 0
                self._names[names.index(mark)] = 0

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

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)  # of the process, also where the file is inherited
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _start(self, process: int, place: int) -> int:
        return (process * NAMES + place) * self._row_bytes


def _mark(name: str) -> int:
    """Return 64 bits that stand for a name, not 0."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") or 1
