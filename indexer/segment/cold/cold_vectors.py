"""The vectors of a segment file in a store, read by pages.

Shapes: P pages, R rows, D dimensions.

Pages of vectors on their way from the store, and those that are kept, of all cold segments of a process.

A page that several searches need at once is fetched once. Neighbouring pages are one request. Kept pages take a bounded
memory, the least recently used go first; and what a search holds while it reads is bounded by its caller, which asks
for parts of it. Threads and what is on its way do not survive a fork: a child begins with the pages that were kept.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from scannery.indexer.errors import CorruptError, StoreError
from scannery.indexer.segment.pages import Pages, decoded_page
from scannery.indexer.store.object_store import Store
from scannery.indexer.vectors.exact_search import unit_length

__all__ = ["ColdReads", "ColdVectors"]


KEPT_BYTES = 256 << 20
"""Default size of the pages that a process keeps; the environment variable SCANNERY_COLD_BYTES replaces it."""
PARALLEL_READS = 32
"""Most requests of a process at once: two rounds for the 40 leaves of a search."""
SPAN_BYTES = 4 << 20
"""Most bytes of a request: larger ranges are several, side by side."""
PATIENCE_S = 60.0
"""Most seconds that a wait takes where no request has a deadline."""

Patience: TypeAlias = Callable[[], AbstractContextManager[float]]
"""Gives a context to wait in, and the most seconds to wait. TimeoutError is raised in it after these."""


class PageSource(Protocol):
    """The pages of one segment."""

    key: str
    """Names the segment: pages are kept by it and their number."""

    def spans(self, pages: Sequence[int], most_bytes: int) -> Iterator[Sequence[int]]:
        """Yield the pages, ascending, in groups that lie side by side in the file."""

    def read(self, pages: Sequence[int]) -> list[np.ndarray]:
        """Return the vectors of each of the pages of a group."""


@dataclass(eq=False)
class _Flight:
    """A page on its way."""

    future: Future[np.ndarray] = field(default_factory=Future)
    waiters: int = 1


@contextmanager
def _default_patience() -> Iterator[float]:
    try:
        yield PATIENCE_S
    except FutureTimeoutError as error:
        raise StoreError(f"parts of a segment did not arrive within {PATIENCE_S:.0f} s") from error


def kept_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes of pages to keep; StoreError if the variable is not a number of bytes."""
    text = environment.get("SCANNERY_COLD_BYTES", "")
    if text and not re.fullmatch("[0-9]{1,15}", text):
        raise StoreError(f"SCANNERY_COLD_BYTES must be a number of bytes, got {text!r:.80}")
    return int(text) if text else KEPT_BYTES


class ColdReads:
    """Reads pages, and keeps some. Safe to use from several threads."""

    def __init__(
        self, *, max_bytes: int | None = None, patience: Patience = _default_patience, compact: bool = False
    ) -> None:
        """Read nothing yet.

        Args:
            max_bytes: of the pages that are kept; None: `kept_bytes()`.
            patience: called for each wait.
            compact: whether searches use vectors in 8 bits a number, which are in the local cache, so that only full
                vectors that are asked for are read.

        """
        self.compact = compact
        self.max_bytes = kept_bytes() if max_bytes is None else max_bytes
        self._patience = patience
        self._kept: OrderedDict[tuple[str, int], np.ndarray] = OrderedDict()
        self._kept_bytes = 0
        self._renew()
        renew = weakref.WeakMethod(self._renew)
        os.register_at_fork(after_in_child=lambda: (replacement := renew()) and replacement())

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[tuple[str, int], _Flight] = {}
        self._pool: ThreadPoolExecutor | None = None

    def started(
        self, source: PageSource, pages: Sequence[int], *, keep: bool
    ) -> list[np.ndarray | Future[np.ndarray]]:
        """Return each of some pages, ascending, or its future; `finished` or `abandoned` must be called with them.

        Args:
            source: of the pages.
            pages: their numbers.
            keep: whether they may displace others from those that are kept.

        """
        reads: list[np.ndarray | Future[np.ndarray]] = []
        new: list[int] = []
        with self._lock:
            for page in pages:
                name = (source.key, page)
                if (array := self._kept.get(name)) is not None:
                    self._kept.move_to_end(name)
                    reads.append(array)
                    continue
                flight = self._flights.get(name)
                if flight is None:
                    flight = self._flights[name] = _Flight()
                    new.append(page)
                else:
                    flight.waiters += 1
                reads.append(flight.future)
            if new and self._pool is None:
                self._pool = ThreadPoolExecutor(PARALLEL_READS, "scannery-cold")
            pool = self._pool
        for span in source.spans(new, SPAN_BYTES):
            assert pool is not None
            pool.submit(self._fetch, source, tuple(span), keep=keep)
        return reads

    def finished(
        self, source: PageSource, pages: Sequence[int], started: Sequence[np.ndarray | Future[np.ndarray]]
    ) -> list[np.ndarray]:
        """Return pages that `started` returned.

        Raises:
            NotFoundError, StoreError, CorruptError: one cannot be read.

        """
        try:
            if all(isinstance(each, np.ndarray) for each in started):
                return [each for each in started if isinstance(each, np.ndarray)]
            with self._patience() as seconds:
                end_s = time.monotonic() + min(seconds, threading.TIMEOUT_MAX)
                return [_arrived(each, end_s) for each in started]
        finally:
            self.abandoned(source, pages, started)

    def abandoned(
        self, source: PageSource, pages: Sequence[int], started: Sequence[np.ndarray | Future[np.ndarray]]
    ) -> None:
        """Wait no longer for pages: requests for them that have not begun are not made if no other search waits."""
        with self._lock:
            for page, each in zip(pages, started, strict=True):
                flight = self._flights.get((source.key, page))
                if flight is not None and flight.future is each:
                    flight.waiters -= 1

    def _fetch(self, source: PageSource, span: Sequence[int], *, keep: bool) -> None:
        """Read neighbouring pages, for all that wait for them."""
        names = [(source.key, page) for page in span]
        with self._lock:
            flights = [self._flights[name] for name in names]
            if not any(flight.waiters for flight in flights):
                for name in names:
                    del self._flights[name]
                return
        try:
            arrays = source.read(span)
        except BaseException as error:  # noqa: BLE001  raised by each that waits
            with self._lock:
                for name in names:
                    del self._flights[name]
            for flight in flights:
                flight.future.set_exception(error)
            return
        with self._lock:
            for name, array in zip(names, arrays, strict=True):
                del self._flights[name]
                if keep:
                    self._keep(name, array)
        for flight, array in zip(flights, arrays, strict=True):
            flight.future.set_result(array)

    def _keep(self, name: tuple[str, int], array: np.ndarray) -> None:
        if array.nbytes > self.max_bytes:
            return
        self._kept[name] = array
        self._kept_bytes += array.nbytes
        while self._kept_bytes > self.max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.nbytes


def _arrived(page: np.ndarray | Future[np.ndarray], end_s: float) -> np.ndarray:
    return page if isinstance(page, np.ndarray) else page.result(max(0.0, end_s - time.monotonic()))


_LOG = logging.getLogger(__name__)
PART_BYTES = 8 << 20
"""Vectors that are scored at once."""
PARTS_AHEAD = 4
"""Parts of a search that are in memory or on their way: 32 MiB, as much as the 40 leaves of a search."""


class ColdVectors:
    """The vectors of one segment, as they are searched or as they were given. A `PageSource`."""

    def __init__(
        self, store: Store, key: str, pages: Pages, dimensions: int, reads: ColdReads, *, scaled: bool
    ) -> None:
        """Read nothing yet.

        Args:
            store: with the file.
            key: of the file.
            pages: of the file.
            dimensions: components of a vector.
            reads: of the process.
            scaled: whether they are scaled to length 1.

        """
        self.pages, self.dimensions = pages, dimensions
        self.key = f"{key} scaled" if scaled else key
        self._store, self._object, self._reads, self._scaled = store, key, reads, scaled

    @property
    def page_bytes(self) -> int:
        """Bytes of the rows of an average page."""
        return max(1, int(self.pages.rows_P1[-1]) * self.dimensions * 4 // max(1, len(self.pages)))

    def spans(self, pages: Sequence[int], most_bytes: int) -> Iterator[Sequence[int]]:
        """As `PageSource.spans`."""
        offsets_P, sizes_P = self.pages.offsets_P, self.pages.sizes_P
        span: list[int] = []
        size = 0
        for page in pages:
            page_bytes = int(sizes_P[page])
            beside = span and int(offsets_P[span[-1]] + sizes_P[span[-1]]) == int(offsets_P[page])
            if span and (not beside or size + page_bytes > most_bytes):
                yield span
                span, size = [], 0
            span.append(page)
            size += page_bytes
        if span:
            yield span

    def read(self, pages: Sequence[int]) -> list[np.ndarray]:
        """As `PageSource.read`. Pages that arrive damaged are read once more."""
        try:
            return self._read(pages)
        except CorruptError as error:
            _LOG.warning("%s; reading it again", error)
            return self._read(pages)

    def _read(self, pages: Sequence[int]) -> list[np.ndarray]:
        offsets_P, sizes_P = self.pages.offsets_P, self.pages.sizes_P
        start = int(offsets_P[pages[0]])
        length = int(offsets_P[pages[-1]] + sizes_P[pages[-1]]) - start
        data = self._store.map_range(self._object, start, length)
        return [
            self._decoded(data[int(offsets_P[page]) - start :][: int(sizes_P[page])], page) for page in pages
        ]

    def _decoded(self, data: memoryview, page: int) -> np.ndarray:
        vectors_RD = decoded_page(data, self.pages.row_count(page), self.dimensions, self._object)
        return _read_only(unit_length(vectors_RD)) if self._scaled else vectors_RD

    def blocks(self, pages_P: np.ndarray, *, keep: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the rows of some pages in parts: their numbers, int64 (R,), and vectors, float32 (R, D), read-only.

        The next parts are on their way while the caller uses one.

        Args:
            pages_P: their numbers, ascending.
            keep: whether pages may be kept for later searches.

        Raises:
            NotFoundError, StoreError, CorruptError: one cannot be read.

        """
        per_part = max(1, PART_BYTES // self.page_bytes)
        parts = iter([pages_P[at : at + per_part].tolist() for at in range(0, len(pages_P), per_part)])
        ahead: deque[tuple[list[int], list[np.ndarray | Future[np.ndarray]]]] = deque()
        try:
            while True:
                while len(ahead) < PARTS_AHEAD and (part := next(parts, None)) is not None:
                    ahead.append((part, self._reads.started(self, part, keep=keep)))
                if not ahead:
                    return
                part, started = ahead.popleft()
                arrays = self._reads.finished(self, part, started)
                del started
                yield self._rows(part), arrays[0] if len(arrays) == 1 else _read_only(np.concatenate(arrays))
                del arrays
        finally:
            for part, started in ahead:
                self._reads.abandoned(self, part, started)

    def _rows(self, pages: Sequence[int]) -> np.ndarray:
        """Return the numbers of the rows of pages."""
        rows_P1 = self.pages.rows_P1
        return np.concatenate([np.arange(rows_P1[page], rows_P1[page + 1]) for page in pages])

    def at(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the vectors of some rows, float32 (R, D), in the order given; errors as `blocks`."""
        found_RD = np.empty((len(rows_R), self.dimensions), np.float32)
        order_R = np.argsort(rows_R, kind="stable")
        ordered_R = rows_R[order_R]
        few = len(rows_R) * self.dimensions * 4 <= PART_BYTES
        for numbers_B, vectors_BD in self.blocks(np.unique(self.pages.of_rows(ordered_R)), keep=few):
            # The pages of a part need not be side by side, but their rows ascend.
            first, last = (
                np.searchsorted(ordered_R, numbers_B[0]),
                np.searchsorted(ordered_R, numbers_B[-1], "right"),
            )
            positions = np.searchsorted(numbers_B, ordered_R[first:last])
            found_RD[order_R[first:last]] = vectors_BD[positions]
        return found_RD


def _read_only(vectors_RD: np.ndarray) -> np.ndarray:
    vectors_RD.setflags(write=False)
    return vectors_RD
