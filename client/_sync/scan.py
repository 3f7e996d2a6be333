# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""A scan: the datapoints of an index, read page by page as they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import Self

from scannery.client.response.outcomes import ReadPage
from scannery.client.response.results import Datapoint

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Scan"]


class Scan:
    """An iterator over datapoints of one snapshot: what is written while it runs changes nothing of it.

    Pages are read as datapoints are taken. A page that fails can be tried again by taking the next datapoint.

    Args:
        read: reads the page at a token; None: the first page.
        token: where to begin.

    """

    def __init__(self, read: ReadPage, token: str | None) -> None:
        self._read = read
        self._snapshot: str | None = None
        self._given = token
        self._rest: Iterator[Datapoint] = iter(())
        self._position = 0
        self._last = False
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
        return self._given if self._snapshot is None else f"{self._snapshot}.{self._position}"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Datapoint:
        while (point := next(self._rest, None)) is None:
            self._turn()
        self._position += 1
        return point

    def batches(self) -> Iterator[list[Datapoint]]:
        """Yield the datapoints of each page that is left, as a list."""
        while True:
            batch = list(self._rest)
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
        """Read the next page; StopIteration after the last one."""
        if self._last:
            raise StopIteration
        page = self._read(self.token)
        self._snapshot, self._position, self._last = page.snapshot, page.position, page.last
        self._rest = page.points
        self.total, self.version, self.sequence = page.total, page.version, page.sequence
        self.index = page.index_name or None
