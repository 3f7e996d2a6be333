"""The vectors of a segment file in a store, read by pages.

Shapes: P pages, R rows, D dimensions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from scannery.indexer.errors import CorruptError
from scannery.indexer.paging.page_decoding import decoded_page
from scannery.indexer.paging.page_index import Pages
from scannery.indexer.segment.cold.page_reads import ColdReads
from scannery.indexer.store.object_store import Store
from scannery.indexer.vectors.exact_search import unit_length

__all__ = ["ColdVectors"]

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
            own = int(sizes_P[page])
            beside = span and int(offsets_P[span[-1]] + sizes_P[span[-1]]) == int(offsets_P[page])
            if span and (not beside or size + own > most_bytes):
                yield span
                span, size = [], 0
            span.append(page)
            size += own
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
            places = np.searchsorted(numbers_B, ordered_R[first:last])
            found_RD[order_R[first:last]] = vectors_BD[places]
        return found_RD


def _read_only(vectors_RD: np.ndarray) -> np.ndarray:
    vectors_RD.setflags(write=False)
    return vectors_RD
