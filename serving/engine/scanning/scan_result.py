"""The result of a scan on one snapshot, of which any page can be written.

The order of a result is the same wherever it is computed: a version has its segments in the order of its manifest; the
rows in memory follow, in the order in which they were written, however they are divided into runs. So a position means
the same datapoint to every process that has the version and the mutations up to the sequence.

Shapes: R rows of the result, P rows of a page or part, S segments.

The rows of a segment that a scan returns, in one bit each, of which any range can be read.

Shapes: N rows of a segment, B blocks of rows, R selected rows.

What rows are ordered by, as messages: leaves write it, and a root orders the rows of all groups by it.

The values are exactly those of the segments, so that the order is that of one server: an Arrow IPC stream with the
column `id`, and `value` or, of a dynamic attribute, `present` and a column for each type.

Shapes: R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer import AllowedRows, Segment
from scannery.runtime.errors import InvalidRequestError, ServingError
from scannery.runtime.retry import Deadline
from scannery.runtime.times import WALL_SECONDS
from scannery.serving import limits
from scannery.serving.engine.hydrator import Hydrator
from scannery.serving.engine.scanning.row_order import (
    DYNAMIC_TYPES,
    DynamicScalars,
    KeyColumns,
    Scalars,
    key_columns,
    sorted_positions,
)
from scannery.serving.engine.top_k import Ranking
from scannery.serving.engine.wire_fields import read_table, table_bytes
from scannery.serving.request.scan import RowOrder, ScanQuery
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["PackedRows", "Page", "ScanPages", "ScanResult", "check_sortable", "decoded_keys", "encoded_keys"]


BLOCK_ROWS = 4096
"""Rows whose number of selected ones is kept, so that a range is found without counting all before it."""


class PackedRows:
    """Some rows of one segment, ascending. Immutable."""

    def __init__(self, rows: int, allowed: AllowedRows | None) -> None:
        """Copy the selection.

        Args:
            rows: N, the rows of the segment.
            allowed: the selected ones; None: all.

        """
        self._numbers: np.ndarray | None = None
        self._bits: np.ndarray | None = None
        self.count = rows if allowed is None else allowed.count
        """Number of selected rows."""
        if self.count == rows:
            return
        assert allowed is not None
        selected = allowed.numbers_or_mask()
        if selected.dtype != bool and selected.nbytes < rows // 8:
            self._numbers = selected
            return
        mask_N = allowed.mask_N
        self._bits = np.packbits(mask_N)
        counts_B = np.add.reduceat(mask_N, np.arange(0, rows, BLOCK_ROWS), dtype=np.int64)
        self._before_B = np.concatenate([[0], np.cumsum(counts_B)])

    @property
    def size_bytes(self) -> int:
        """Memory that this takes."""
        numbers = 0 if self._numbers is None else self._numbers.nbytes
        return numbers + (0 if self._bits is None else self._bits.nbytes + self._before_B.nbytes)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the selected rows number `start` to `stop` (exclusive, at most `count`), int64."""
        if self._numbers is not None:
            return self._numbers[start:stop]
        if self._bits is None or start >= stop:
            return np.arange(start, stop)
        first = int(np.searchsorted(self._before_B, start, "right")) - 1
        last = int(np.searchsorted(self._before_B, stop, "left"))
        block_bytes = BLOCK_ROWS // 8
        bits = np.unpackbits(self._bits[first * block_bytes : last * block_bytes])
        before = int(self._before_B[first])
        return np.flatnonzero(bits)[start - before : stop - before] + first * BLOCK_ROWS

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the selected rows at some positions, int64, in any order, each below `count`; int64."""
        if self._numbers is not None:
            numbers: np.ndarray = self._numbers[positions].astype(np.int64)
            return numbers
        if self._bits is None:
            return positions
        blocks = np.searchsorted(self._before_B, positions, "right") - 1
        result = np.empty(len(positions), np.int64)
        for block in np.unique(blocks).tolist():
            in_block = blocks == block
            start, stop = self._before_B[block : block + 2].tolist()
            result[in_block] = self.rows(start, stop)[positions[in_block] - start]
        return result


FIRST_ROWS = 64
"""Datapoints that are written before their size is known; each may have several MiB."""
SAMPLE_BLOCK = 1 << 20
"""Positions of which a sample is drawn at once: it needs memory for each of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Datapoints in their order."""

    data: bytes
    """Fields, as fields of a ScanResponse."""
    sizes_P: np.ndarray
    """Bytes of the datapoint at each position, int64; 0: it has expired since the scan began."""

    def __len__(self) -> int:
        """Return the number of positions."""
        return len(self.sizes_P)

    @property
    def span(self) -> tuple[int, int]:
        """Where the first datapoints that nothing expired is between begin and end, among the positions.

        Clients count the datapoints of a page from its token on, to continue anywhere in it.
        """
        there = np.flatnonzero(self.sizes_P)
        if not len(there):
            return len(self), len(self)
        start = int(there[0])
        gaps = np.flatnonzero(self.sizes_P[start:] == 0)
        return start, start + int(gaps[0]) if len(gaps) else len(self)


class ScanPages(Protocol):
    """The datapoints of a scan, in their order."""

    @property
    def total(self) -> int:
        """Datapoints of all pages."""

    @property
    def size_bytes(self) -> int:
        """Memory that this takes, besides that of the snapshot."""

    def page(self, position: int, limit: int, deadline: Deadline) -> Page:
        """Return a page.

        Args:
            position: of its first datapoint.
            limit: datapoints; there are fewer at the end, and if they would have more than MAX_SCAN_PAGE_BYTES.
            deadline: checked between parts of it.

        """


class ScanResult:
    """The datapoints of a scan, in their order. Safe to use from several threads."""

    def __init__(
        self,
        snapshot: Snapshot,
        query: ScanQuery,
        deadline: Deadline,
        *,
        seconds: Callable[[], int] = WALL_SECONDS,
    ) -> None:
        """Select the rows, and sort or sample them if the query says so.

        Args:
            snapshot: what is read; kept.
            query: the request.
            deadline: checked between segments.
            seconds: returns the second since 1970: pages are without what has expired by then.

        Raises:
            InvalidRequestError: more datapoints than MAX_SORTED_ROWS would have to be sorted or sampled.
            DeadlineError: the deadline passed.

        """
        self._snapshot, self._seconds = snapshot, seconds
        self._segments = snapshot.segments
        self._parts = list(_selected(snapshot, query, deadline))
        rows_S = np.array([segment.rows for segment in snapshot.segments], np.int64)
        self._first_S = np.cumsum(rows_S) - rows_S
        """Number of the first row of each segment among the rows of all."""
        self._all_rows = int(rows_S.sum())
        counts_S = np.array([part.count for part in self._parts], np.int64)
        self._before_S = np.cumsum(counts_S) - counts_S
        self._all = int(counts_S.sum())
        self._order_R = self._ordered(query, deadline)
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

    def page(self, position: int, limit: int, deadline: Deadline, *, second: int = 0) -> Page:
        """As `ScanPages.page`; `second` is the one since 1970 that has begun, 0: that of `seconds`."""
        end = min(position + limit, self.total)
        return self._page(self._rows_between, position, end, deadline, second)

    def page_at(self, positions_P: np.ndarray, deadline: Deadline, *, second: int = 0) -> Page:
        """Return the datapoints at some positions, int64, in their order, or the first of them, as `page` does."""
        rows_P = self._rows_at(positions_P) if self._order_R is None else self._order_R[positions_P]
        rows_P = rows_P.astype(np.int64)
        return self._page(lambda start, stop: rows_P[start:stop], 0, len(rows_P), deadline, second)

    def keys(self, position: int, limit: int, order: RowOrder, deadline: Deadline) -> KeyColumns:
        """Return what the datapoints of a part are ordered by; not of a result that is ordered."""
        rows_P = self._rows_between(position, min(position + limit, self.total))
        return key_columns(self._by_segment(rows_P), order, deadline)

    def _page(
        self, rows: Callable[[int, int], np.ndarray], start: int, end: int, deadline: Deadline, second: int
    ) -> Page:
        remaining, at, now = limits.MAX_SCAN_PAGE_BYTES, start, self._snapshot.at(second or self._seconds())
        chunks: list[bytes] = []
        sizes = [np.zeros(0, np.int64)]
        while at < end and remaining > 0:
            deadline.check()
            count = min(end - at, max(1, remaining // max(self._row_bytes, 1)))
            data, sizes_P = self._serialized(rows(at, at + count), now, remaining, keep_one=at == start)
            chunks.append(data)
            sizes.append(sizes_P)
            at, remaining = at + len(sizes_P), remaining - len(data) if len(sizes_P) == count else 0
        return Page(b"".join(chunks), np.concatenate(sizes))

    def _serialized(
        self, rows_P: np.ndarray, now: Snapshot, remaining: int, *, keep_one: bool
    ) -> tuple[bytes, np.ndarray]:
        """Return the first datapoints that fit into `remaining` bytes, and the size at each position."""
        while True:
            locations, alive_P = self._locations(rows_P), self._unexpired(rows_P, now)
            if alive_P is not None and not alive_P.any():
                return b"", np.zeros(len(rows_P), np.int64)
            if alive_P is not None:
                locations = Ranking(locations.segments[alive_P], locations.rows[alive_P], locations.scores)
            try:
                data_B, bounds_H = self._hydrator.datapoint_fields(locations)
                break
            except InvalidRequestError:  # these datapoints are far larger than those before
                if len(rows_P) == 1:
                    raise
                rows_P = rows_P[: max(1, len(rows_P) // FIRST_ROWS)]
        self._row_bytes = max(1, len(data_B) // len(rows_P))
        # At the position of an expired row, nothing is added.
        bounds_P = bounds_H if alive_P is None else bounds_H[np.concatenate([[0], np.cumsum(alive_P)])]
        fitting = int(np.searchsorted(bounds_P, remaining, "right")) - 1
        fitting = max(fitting, 1) if keep_one else fitting
        return data_B[: bounds_P[fitting]].tobytes(), np.diff(bounds_P[: fitting + 1])

    def _locations(self, rows_P: np.ndarray) -> Ranking:
        numbers_P = np.searchsorted(self._first_S, rows_P, "right") - 1
        return Ranking(numbers_P, rows_P - self._first_S[numbers_P], np.zeros(0, np.float32))

    def _unexpired(self, rows_P: np.ndarray, now: Snapshot) -> np.ndarray | None:
        """Return which rows have not expired since the scan began, bool (P,); None: all of them."""
        if now is self._snapshot:
            return None
        locations, alive_P = self._locations(rows_P), np.ones(len(rows_P), bool)
        for number in np.unique(locations.segments).tolist():
            if (alive := now.alive[number]) is not None:
                in_segment = locations.segments == number
                alive_P[in_segment] = alive.holds(locations.rows[in_segment])
        return alive_P

    def _rows_between(self, start: int, stop: int) -> np.ndarray:
        """Return the numbers of the rows at some positions of the result, int64."""
        order_R = self._order_R
        return self._rows(start, stop) if order_R is None else order_R[start:stop].astype(np.int64)

    def _rows(self, start: int, stop: int) -> np.ndarray:
        """Return the numbers of selected rows among the rows of all segments, in the order of segments, int64."""
        rows = [np.zeros(0, np.int64)]
        for part, first, before in zip(self._parts, self._first_S, self._before_S, strict=True):
            low, high = max(start - int(before), 0), min(stop - int(before), part.count)
            if low < high:
                rows.append(part.rows(low, high) + first)
        return np.concatenate(rows)

    def _rows_at(self, positions_P: np.ndarray) -> np.ndarray:
        """Return the numbers of the selected rows at some positions in the order of segments, int64."""
        # A segment without selected rows begins where the next one does; the last of them has the row.
        numbers_P = np.searchsorted(self._before_S, positions_P, "right") - 1
        rows_P = np.empty(len(positions_P), np.int64)
        for number in np.unique(numbers_P).tolist():
            in_part = numbers_P == number
            rows = self._parts[number].rows_at(positions_P[in_part] - self._before_S[number])
            rows_P[in_part] = rows + self._first_S[number]
        return rows_P

    def _ordered(self, query: ScanQuery, deadline: Deadline) -> np.ndarray | None:
        """Return the rows in the order of the query; None: it is that of the segments."""
        chosen = query.sample if 0 < query.sample < self._all else self._all
        if not self._all or (chosen == self._all and query.order is None):
            return None
        check_sortable(chosen, self._all)
        rows_R = (
            self._rows(0, self._all) if chosen == self._all else self._sampled(chosen, query.seed, deadline)
        )
        if query.order is not None:
            rows_R = rows_R[sorted_positions(self._by_segment(rows_R), query.order, deadline)]
        return rows_R.astype(np.uint32) if self._all_rows < 1 << 32 else rows_R

    def _sampled(self, count: int, seed: int, deadline: Deadline) -> np.ndarray:
        """Return rows that are chosen at random without replacement, in the order of segments."""
        random = np.random.Generator(np.random.PCG64(seed))
        starts = np.arange(0, self._all, SAMPLE_BLOCK)
        sizes = np.minimum(SAMPLE_BLOCK, self._all - starts)
        counts = random.multivariate_hypergeometric(sizes, count, method="marginals")
        samples = []
        for start, size, size_of_sample in zip(starts.tolist(), sizes.tolist(), counts.tolist(), strict=True):
            deadline.check()
            chosen = np.sort(random.choice(size, size_of_sample, replace=False, shuffle=False))
            samples.append(self._rows(start, start + size)[chosen])
        return np.concatenate(samples)

    def _by_segment(self, rows_R: np.ndarray) -> list[tuple[Segment, np.ndarray]]:
        """Return the rows of each segment; the numbers ascend."""
        bounds = np.searchsorted(rows_R, np.append(self._first_S, np.iinfo(np.int64).max)).tolist()
        return [
            (segment, rows_R[start:stop] - first)
            for segment, first, (start, stop) in zip(
                self._segments, self._first_S, pairwise(bounds), strict=True
            )
        ]


def check_sortable(chosen: int, total: int) -> None:
    """Raise InvalidRequestError if more datapoints than MAX_SORTED_ROWS are to be sorted, or chosen among `total`."""
    if chosen > limits.MAX_SORTED_ROWS:
        field, what = ("sample", "chosen") if chosen < total else ("order_by", "sorted")
        raise InvalidRequestError.at(
            field, f"at most {limits.MAX_SORTED_ROWS} datapoints can be {what}, not {chosen}"
        )


def _selected(snapshot: Snapshot, query: ScanQuery, deadline: Deadline) -> Iterator[PackedRows]:
    for segment, alive in zip(snapshot.segments, snapshot.alive, strict=True):
        deadline.check()
        allowed = (
            alive
            if query.where is None
            else snapshot.masks.allowed(segment, query.where, alive, deadline=deadline)
        )
        yield PackedRows(segment.rows, allowed)


_ID, _VALUE, _PRESENT = "id", "value", "present"


def encoded_keys(columns: KeyColumns) -> bytes:
    """Return what rows are ordered by as a message; `decoded_keys` reads it."""
    if not columns.ids:
        return b""
    table = {_ID: _joined(columns.ids)}
    if columns.values:
        table[_VALUE] = _joined(columns.values)
    if columns.dynamic is not None:
        table[_PRESENT] = pa.chunked_array([pa.array(columns.dynamic.present_R)])
        rows = len(columns.dynamic.present_R)
        table.update((kind, _spread(scalars, rows)) for kind, scalars in columns.dynamic.by_kind.items())
    return table_bytes(pa.table(table))


def decoded_keys(messages: Sequence[bytes]) -> KeyColumns:
    """Return what the rows of several messages are ordered by; raises ServingError if one is not of this form."""
    try:
        tables = [read_table(data) for data in messages if data]
        ids = [table.column(_ID) for table in tables]
        if tables and _PRESENT in tables[0].column_names:
            return KeyColumns(ids, dynamic=_dynamic(tables))
        values = [table.column(_VALUE) for table in tables if _VALUE in table.column_names]
        return KeyColumns(ids, values)
    except (pa.ArrowInvalid, KeyError) as error:
        raise ServingError("a leaf returned no keys of rows") from error


def _dynamic(tables: Sequence[pa.Table]) -> DynamicScalars:
    present_R = np.concatenate([table.column(_PRESENT).to_numpy() for table in tables])
    by_kind: dict[str, Scalars] = {}
    for kind in DYNAMIC_TYPES:
        column = pa.chunked_array([chunk for table in tables for chunk in table.column(kind).chunks])
        places_P = np.flatnonzero(pc.is_valid(column).to_numpy())
        by_kind[kind] = places_P, column.drop_null()
    return DynamicScalars(present_R, by_kind)  # type: ignore[arg-type]  # mypy widens the keys to str


def _joined(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    tables = [pa.table({"values": column}) for column in columns]
    return pa.concat_tables(tables, promote_options="permissive").column("values")


def _spread(scalars: Scalars, rows: int) -> pa.ChunkedArray:
    """Return the value of each row, null where it has none of the type."""
    places_P, values = scalars
    numbers_R = np.full(rows, -1, np.int64)
    numbers_R[places_P] = np.arange(len(places_P))
    return values.take(pa.array(numbers_R, mask=numbers_R < 0))
