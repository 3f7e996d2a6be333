# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""A scan: the datapoints of an index, read page by page as they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from scannery.client.concurrency import Prefetch
from scannery.client.response.outcomes import ReadPage
from scannery.client.response.results import Datapoint, ScanPage

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

__all__ = ["Scan"]

FIRST_PART = 8
"""The second page is read once this part of the first one has been taken: an eighth."""


class Scan:
    """An iterator over datapoints of one snapshot: what is written while it runs changes nothing of it.

    Pages are read as datapoints are taken; those of a server at most one ahead: the next one while the datapoints of a
    page are taken. A page that fails raises where its first datapoint would be taken, and is tried again by taking the
    next datapoint.

    Args:
        read: reads the page at a token; None: the first page.
        token: where to begin.
        ahead: whether to read a page before the one before it is used up.

    """

    def __init__(self, read: ReadPage, token: str | None, *, ahead: bool) -> None:
        self._read = read
        self._reads_ahead = ahead
        self._snapshot: str | None = None
        self._start_token = token
        self._current: Iterator[Datapoint] = iter(())
        """What is left of the page, or of its beginning."""
        self._later: Iterator[Datapoint] = iter(())
        """What follows `_current` in the page."""
        self._ahead: Prefetch[ScanPage] | None = None
        """The page at `_next`, being read."""
        self._position = 0
        self._next: str | None = None
        """Token of the next page; None before the first one, empty after the last one."""
        self.total: int | None = None
        """Datapoints of the whole scan; None before the first page is read."""
        self.index: str | None = None
        """Name of the index, also where the scan was asked of an alias; None before the first page is read."""
        self.version: int | None = None
        """Version of the index; None before the first page is read."""
        self.sequence: int | None = None
        """Mutations up to this sequence are in the snapshot; likewise."""

    @property
    def token(self) -> str | None:
        """Continues this scan after the last datapoint that was taken, in this process or another; None: at its start.

        Pass it to `scan` of the same index with the same arguments. It is valid for at least five minutes after the
        last page was read, and while the snapshot can be opened again.
        """
        return self._start_token if self._snapshot is None else f"{self._snapshot}.{self._position}"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Datapoint:
        while (point := next(self._current, None)) is None:
            self._turn()
        self._position += 1
        return point

    def batches(self) -> Iterator[list[Datapoint]]:
        """Yield the datapoints of each page that is left, as a list."""
        while True:
            self._read_ahead()
            batch = [*self._current, *self._later]
            self._position += len(batch)
            if batch:
                yield batch
            try:
                self._turn()
            except StopIteration:
                return

    def to_arrow(self) -> pa.Table:
        """Return the datapoints that are left as an Arrow table, with the columns of `Hits.to_arrow` but the scores.

        All of them are in memory at once; `batches` reads any number. Needs `pyarrow`.
        """
        from scannery.client.response.arrow import datapoints_table

        return datapoints_table([point for batch in self.batches() for point in batch])

    def _turn(self) -> None:
        """Go on to what is left of the page, or else read the next one; StopIteration after the last one."""
        if (first := next(self._later, None)) is not None:
            self._read_ahead()
            self._current, self._later = chain((first,), self._later), iter(())
            return
        if self._next == "":
            raise StopIteration
        ahead, self._ahead = self._ahead, None
        page = self._read(self.token) if ahead is None else ahead.result()
        # Many scans end within their first page. One that takes the beginning of it is likely to go on.
        early = max(1, page.size // FIRST_PART) if self._snapshot is None else 0
        self._current, self._later = islice(page.points, early), page.points
        self._snapshot, self._position, self._next = page.snapshot, page.position, page.next_token
        self.total, self.version, self.sequence = page.total, page.version, page.sequence
        self.index = page.index_name or None

    def _read_ahead(self) -> None:
        """Begin to read the next page."""
        if self._reads_ahead and self._next and self._ahead is None:
            self._ahead = Prefetch(self._read, self._next)
            self._ahead.sent()
