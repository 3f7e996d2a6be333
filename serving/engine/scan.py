"""The result of a scan on one snapshot, of which any page can be written.

The order of a result is the same wherever it is computed: a version has its segments in the order of its manifest; the
rows in memory follow, in the order in which they were written, however they are divided into runs. So a position means
the same datapoint to every process that has the version and the mutations up to the sequence.

Shapes: R rows of the result, P rows of a page, S segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.engine.hydrator import Hydrator
from scannery.serving.engine.packed_rows import PackedRows
from scannery.serving.engine.row_order import sorted_positions
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.scan import RowOrder, ScanQuery
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["ScanResult"]

FIRST_ROWS = 64
"""Datapoints that are written before their size is known; each may have several MiB."""
SAMPLE_BLOCK = 1 << 20
"""Positions of which a sample is drawn at once: it needs memory for each of them."""


class ScanResult:
    """The datapoints of a scan, in their order. Safe to use from several threads."""

    def __init__(self, snapshot: Snapshot, query: ScanQuery, deadline: Deadline) -> None:
        """Select the rows, and sort or sample them if the query says so.

        Args:
            snapshot: what is read; kept.
            query: the request.
            deadline: checked between segments.

        Raises:
            InvalidRequestError: more datapoints than MAX_SORTED_ROWS would have to be sorted or sampled.
            DeadlineError: the deadline passed.

        """
        self._parts = list(_selected(snapshot, query, deadline))
        rows_S = np.array([segment.rows for segment in snapshot.segments], np.int64)
        self._first_S = np.cumsum(rows_S) - rows_S
        """Number of the first row of each segment among the rows of all."""
        counts_S = np.array([part.count for part in self._parts], np.int64)
        self._before_S = np.cumsum(counts_S) - counts_S
        self._all = int(counts_S.sum())
        self._order_R = self._ordered(snapshot, query, deadline)
        self.total = self._all if self._order_R is None else len(self._order_R)
        """Datapoints of all pages."""
        self._hydrator = Hydrator(snapshot.segments, snapshot.manifest.spec, query.fields, group_by=None)
        self._row_bytes = limits.MAX_SCAN_PAGE_BYTES // FIRST_ROWS
        """Mean size of the datapoints of the latest page."""

    @property
    def size_bytes(self) -> int:
        """Memory that this takes, besides that of the snapshot."""
        order = 0 if self._order_R is None else self._order_R.nbytes
        return order + sum(part.size_bytes for part in self._parts)

    def page(self, position: int, most: int, deadline: Deadline) -> tuple[bytes, int]:
        """Return a page as fields of a ScanResponse, and its number of datapoints.

        Args:
            position: of its first datapoint.
            most: datapoints; there are fewer at the end, and if they would have more than MAX_SCAN_PAGE_BYTES.
            deadline: checked between parts of it.

        """
        left, end = limits.MAX_SCAN_PAGE_BYTES, min(position + most, self.total)
        written: list[bytes] = []
        at = position
        while at < end and left > 0:
            deadline.check()
            count = min(end - at, max(1, left // max(self._row_bytes, 1)))
            data, fitting = self._written(at, count, left, keep_one=at == position)
            written.append(data)
            at, left = at + fitting, left - len(data) if fitting == count else 0
        return b"".join(written), at - position

    def _written(self, at: int, count: int, left: int, *, keep_one: bool) -> tuple[bytes, int]:
        """Return the datapoints from a position on that fit into `left` bytes, and how many they are."""
        while True:
            try:
                data_B, bounds_R = self._hydrator.datapoint_fields(self._places(at, at + count))
                break
            except InvalidRequestError:  # these datapoints are far larger than those before
                if count == 1:
                    raise
                count = max(1, count // FIRST_ROWS)
        self._row_bytes = max(1, len(data_B) // count)
        fitting = int(np.searchsorted(bounds_R, left, "right")) - 1
        fitting = max(fitting, 1) if keep_one else fitting
        return data_B[: bounds_R[fitting]].tobytes(), fitting

    def _places(self, start: int, stop: int) -> Ranking:
        order_R = self._order_R
        rows_P = self._rows(start, stop) if order_R is None else order_R[start:stop].astype(np.int64)
        numbers_P = np.searchsorted(self._first_S, rows_P, "right") - 1
        return Ranking(numbers_P, rows_P - self._first_S[numbers_P], np.zeros(0, np.float32))

    def _rows(self, start: int, stop: int) -> np.ndarray:
        """Return the numbers of selected rows among the rows of all segments, in the order of segments, int64."""
        found = [np.zeros(0, np.int64)]
        for part, first, before in zip(self._parts, self._first_S, self._before_S, strict=True):
            low, high = max(start - int(before), 0), min(stop - int(before), part.count)
            if low < high:
                found.append(part.rows(low, high) + first)
        return np.concatenate(found)

    def _ordered(self, snapshot: Snapshot, query: ScanQuery, deadline: Deadline) -> np.ndarray | None:
        """Return the rows in the order of the query; None: it is that of the segments."""
        chosen = query.sample if 0 < query.sample < self._all else self._all
        if not self._all or (chosen == self._all and query.order is None):
            return None
        if chosen > limits.MAX_SORTED_ROWS:
            field, what = ("sample", "chosen") if chosen < self._all else ("order_by", "sorted")
            raise InvalidRequestError.at(
                field, f"at most {limits.MAX_SORTED_ROWS} datapoints can be {what}, not {chosen}"
            )
        rows_R = (
            self._rows(0, self._all) if chosen == self._all else self._sampled(chosen, query.seed, deadline)
        )
        if query.order is not None:
            rows_R = rows_R[self._sorted(snapshot, query.order, rows_R, deadline)]
        rows = sum(segment.rows for segment in snapshot.segments)
        return rows_R.astype(np.uint32) if rows < 1 << 32 else rows_R

    def _sampled(self, count: int, seed: int, deadline: Deadline) -> np.ndarray:
        """Return rows that are chosen at random without replacement, in the order of segments."""
        random = np.random.Generator(np.random.PCG64(seed))
        starts = np.arange(0, self._all, SAMPLE_BLOCK)
        sizes = np.minimum(SAMPLE_BLOCK, self._all - starts)
        counts = random.multivariate_hypergeometric(sizes, count, method="marginals")
        found = []
        for start, size, wanted in zip(starts.tolist(), sizes.tolist(), counts.tolist(), strict=True):
            deadline.check()
            chosen = np.sort(random.choice(size, wanted, replace=False, shuffle=False))
            found.append(self._rows(start, start + size)[chosen])
        return np.concatenate(found)

    def _sorted(
        self, snapshot: Snapshot, order: RowOrder, rows_R: np.ndarray, deadline: Deadline
    ) -> np.ndarray:
        """Return the positions of rows in their order, int64; the rows ascend."""
        bounds = np.searchsorted(rows_R, np.append(self._first_S, np.iinfo(np.int64).max)).tolist()
        parts = [
            (segment, rows_R[start:stop] - first)
            for segment, first, (start, stop) in zip(
                snapshot.segments, self._first_S, pairwise(bounds), strict=True
            )
        ]
        return sorted_positions(parts, order, deadline)


def _selected(snapshot: Snapshot, query: ScanQuery, deadline: Deadline) -> Iterator[PackedRows]:
    for segment, alive in zip(snapshot.segments, snapshot.alive, strict=True):
        deadline.check()
        allowed = (
            alive
            if query.where is None
            else snapshot.masks.allowed(segment, query.where, alive, deadline=deadline)
        )
        yield PackedRows(segment.rows, allowed)
