"""Memory that the processes of a server share: slots of bytes, marks of changes, a table of numbers, and of buckets.

The word of a name is read and written whole by all processes. The numbers of a process belong to one state of the word,
its tag, and only that process writes them. So there is no lock that a killed process could hold; that of the places is
released by the kernel.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import secrets
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b

__all__ = [
    "SharedBlobs",
    "SharedBuckets",
    "SharedMarks",
    "SharedReservation",
    "SharedTable",
    "SharedTime",
    "blob_bytes",
    "blobs_for",
]


_HEADER = struct.Struct("<QQ")
_ATTEMPTS = 100


BYTES_PER_VECTOR = 16_384
"""Memory for a vector: four indexes of 1,024 dimensions; with more, fewer vectors are shared."""
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 64 << 20


def blob_bytes(vectors: int) -> int:
    """Return the memory that a process has for `vectors` vectors per index."""
    return min(max(vectors * BYTES_PER_VECTOR, _LEAST_BYTES), _MOST_BYTES)


def blobs_for(processes: int, vectors: int) -> SharedBlobs:
    """Return a slot for each of some processes, each of which shares up to `vectors` vectors per index."""
    return SharedBlobs(processes, blob_bytes(vectors))


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


SLOTS = 512
_WORD_BYTES = 8


class SharedReservation:
    """An amount that one of several processes has reserved at a time; the kernel releases it if that process ends."""

    def __init__(self) -> None:
        """Create it before the fork, without a reservation."""
        self._file = os.memfd_create("reservation")
        weakref.finalize(self, os.close, self._file)
        self._amount = mmap.mmap(-1, 8)

    def take(self, amount: int) -> Callable[[], None] | None:
        """Reserve an amount, and return what releases it; None if a process has reserved one already."""
        lock = self._lock(fcntl.LOCK_EX)
        if lock is None:
            return None
        self._amount[:] = amount.to_bytes(8, "little")
        return partial(os.close, lock)

    @property
    def amount(self) -> int:
        """What is reserved now; 0: nothing is."""
        lock = self._lock(fcntl.LOCK_SH)
        if lock is None:
            return int.from_bytes(self._amount[:], "little")
        os.close(lock)
        return 0

    def _lock(self, operation: int) -> int | None:
        # Opened again: processes that were forked share the lock of a descriptor that they inherit.
        lock = os.open(f"/proc/self/fd/{self._file}", os.O_RDWR)
        try:
            fcntl.flock(lock, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock


class SharedTime:
    """When something happened last, by the monotonic clock, which all processes share. Created before the fork."""

    def __init__(self) -> None:
        """Reserve shared memory: it never happened."""
        self._word = memoryview(mmap.mmap(-1, _WORD_BYTES)).cast("d")
        self._word[0] = -math.inf

    @property
    def age_s(self) -> float:
        """Seconds since then; infinite: never."""
        return time.monotonic() - self._word[0]

    def renew(self) -> float:
        """Record that it happens now, and return the seconds since the time before."""
        age_s, self._word[0] = self.age_s, time.monotonic()
        return age_s


class SharedMarks:
    """A mark for each name. Created before the fork; safe to use from several threads and processes.

    Names share slots, so a mark may also change for another name.
    """

    def __init__(self) -> None:
        """Reserve a page of shared memory."""
        self.words = memoryview(mmap.mmap(-1, SLOTS * _WORD_BYTES)).cast("Q")
        """The marks, by `slot_of` a name."""

    @staticmethod
    def slot_of(name: str) -> int:
        """Return the place of the mark of a name."""
        return zlib.crc32(name.encode()) % SLOTS

    def of(self, name: str) -> int:
        """Return the mark of a name, which differs after each `change`."""
        return self.words[self.slot_of(name)]

    def change(self, name: str) -> None:
        """Change the mark of a name."""
        # Random and not the next number: two processes that count at once would write the same one. An aligned word is
        # written whole.
        self.words[self.slot_of(name)] = secrets.randbits(8 * _WORD_BYTES)


class _SharedLock:
    """A lock of threads and processes, created before the fork; the kernel releases that of a process that ends."""

    def __init__(self, name: str) -> None:
        self._lock, self._file = threading.Lock(), os.memfd_create(name)
        weakref.finalize(self, os.close, self._file)

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)  # of the process, also where the file is inherited
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)


NAMES = 1024
"""Most names in a table; further ones have no place."""
NUMBERS = 20
"""Most numbers of one process for one name."""
_CHECKSUM = struct.Struct("<Q")
"""Bytes of the checksum of a row: it stays aligned to words."""


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
        self._lock = _SharedLock("scannery-places")
        self._row = struct.Struct(f"<Q{NUMBERS}d")
        self._rows = mmap.mmap(-1, processes * NAMES * self._row_bytes)

    def place(self, name: str) -> int | None:
        """Return the place of a name, which it keeps; None: all places are taken."""
        mark = _mark(name)
        with self._lock.held():
            names = self._names.tolist()
            label = mark if mark in names else 0
            if label not in names:
                return None
            slot = names.index(label)
            self._names[slot] = mark
            return slot

    def release(self, name: str) -> None:
        """Free the place of a name, whose word becomes 0; without effect if it has none."""
        mark = _mark(name)
        with self._lock.held():
            names = self._names.tolist()
            if mark in names:
                self.words[names.index(mark)] = 0
                self._names[names.index(mark)] = 0

    def write(self, process: int, slot: int, tag: int, numbers: Sequence[float]) -> None:
        """Replace the numbers of a process, which belong to a state of the word.

        Args:
            process: its number, below `processes`.
            slot: of the name.
            tag: the word, not 0.
            numbers: at most NUMBERS.

        """
        row = self._row.pack(tag, *numbers, *([0.0] * (NUMBERS - len(numbers))))
        start = self._start(process, slot)
        self._rows[start : start + self._row_bytes] = row + _CHECKSUM.pack(zlib.crc32(row))

    def read(self, slot: int, tag: int) -> list[tuple[float, ...]]:
        """Return the numbers of all processes that belong to a state of the word."""
        rows = []
        for each in range(self.processes):
            start = self._start(each, slot)
            data = self._rows[start : start + self._row_bytes]
            row = data[: self._row.size]
            # A row that is just being written, or that a killed process wrote in part, has another checksum.
            if _CHECKSUM.pack(zlib.crc32(row)) == data[self._row.size :]:
                row_tag, *numbers = self._row.unpack(row)
                if row_tag == tag:
                    rows.append(tuple(numbers))
        return rows

    @property
    def _row_bytes(self) -> int:
        return self._row.size + _CHECKSUM.size

    def _start(self, process: int, slot: int) -> int:
        return (process * NAMES + slot) * self._row_bytes


BUCKETS = 8
"""Words of a row of buckets."""


class SharedBuckets:
    """Rows of buckets by name. Created before the fork; safe to use from several threads and processes.

    The word of a bucket is the time when it will be full again, in nanoseconds of the monotonic clock, which all
    processes share; it is changed by atomic operations (serving/scheduling/token_buckets.py). A row whose buckets are
    all full is as good as a new one, so another name may have it.
    """

    def __init__(self) -> None:
        """Reserve shared memory: all buckets are full."""
        self.words = memoryview(mmap.mmap(-1, NAMES * BUCKETS * _WORD_BYTES)).cast("q")
        """The buckets, row after row."""
        self._names = memoryview(mmap.mmap(-1, NAMES * _WORD_BYTES)).cast("Q")
        self._lock = _SharedLock("scannery-buckets")
        self._rows: dict[str, tuple[int, int]] = {}
        """Row and mark of names that this process has used."""

    def row(self, name: str) -> int:
        """Return the first word of the row of a name. Names for which there is no row have row 0 together."""
        row, mark = self._rows.get(name, (0, 0))
        if row and self._names[row] == mark:
            return row * BUCKETS
        row, mark = self._placed(name)
        if row:
            if len(self._rows) >= NAMES:
                self._rows.clear()
            self._rows[name] = row, mark
        return row * BUCKETS

    def _placed(self, name: str) -> tuple[int, int]:
        mark = _mark(name)
        with self._lock.held():
            names = self._names.tolist()
            if mark in names:
                return names.index(mark), mark
            now_ns, words = time.monotonic_ns(), self.words.tolist()
            for row in range(1, NAMES):
                if max(words[row * BUCKETS : (row + 1) * BUCKETS]) <= now_ns:
                    self._names[row] = mark
                    return row, mark
        return 0, mark


def _mark(name: str) -> int:
    """Return 64 bits that stand for a name, not 0."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") or 1
