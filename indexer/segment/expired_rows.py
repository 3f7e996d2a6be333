"""The rows of a segment that have expired: the first ones in the order of their times (`live.expire` of the spec).

Shapes: N rows of a segment, V distinct times, P rows with a time.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.segment.segment import Segment
from scannery.indexer.spec.spec import ExpirySpec
from scannery.indexer.vectors.row_test import NO_NUMBERS

__all__ = ["next_expiry", "unexpired", "unexpired_rows"]


class _Times:
    """The times of the rows of a segment, in microseconds since 1970, and what was computed of them last."""

    def __init__(self, segment: Segment, attribute: str) -> None:
        self.attribute = attribute
        self.times_V, self.starts, self.rows_P = NO_NUMBERS, np.zeros(1, np.int64), NO_NUMBERS
        if attribute in segment.table.column_names and pa.types.is_timestamp(segment.column(attribute).type):
            postings = segment.value_postings(attribute)
            self.times_V, self.starts, self.rows_P = postings.values, postings.starts, postings.rows_P
        self.last: tuple[int, AllowedRows | None, AllowedRows | None] = 0, None, None
        """How many rows had expired, of which live rows, and what was remaining of these."""

    def past(self, limit_us: int) -> int:
        """Return the number of the distinct times up to a limit."""
        return int(np.searchsorted(self.times_V, limit_us, "right"))


_TIMES: WeakKeyDictionary[Segment, _Times] = WeakKeyDictionary()
"""Segments are shared by versions and snapshots, each of which asks again."""


def _times_of(segment: Segment, attribute: str) -> _Times:
    times = _TIMES.get(segment)
    if times is None or times.attribute != attribute:
        times = _TIMES[segment] = _Times(segment, attribute)
    return times


def unexpired(
    segment: Segment, alive: AllowedRows | None, expiry: ExpirySpec, second: int
) -> AllowedRows | None:
    """Return the live rows of a segment that have not expired at a second; the same object if none of its rows has.

    Args:
        segment: with the rows.
        alive: its live rows; None: all.
        expiry: which attribute has the times.
        second: since 1970.

    """
    times = _times_of(segment, expiry.path)
    count = int(times.starts[times.past(expiry.limit_us(second))])
    if not count:
        return alive
    last_count, last_alive, remaining = times.last
    if (last_count, last_alive) == (count, alive):
        return remaining
    mask_N = np.ones(segment.rows, bool) if alive is None else alive.mask_N.copy()
    mask_N[times.rows_P[:count]] = False
    mask_N.setflags(write=False)
    remaining = segment.allow(mask_N)
    times.last = count, alive, remaining
    return remaining


def next_expiry(segment: Segment, expiry: ExpirySpec, second: int) -> int | None:
    """Return the second at which the next row of a segment expires, deleted or not; None: none does after `second`.

    Args:
        segment: with the rows.
        expiry: which attribute has the times.
        second: since 1970; 0: no time was looked at, so that the first row is the next one, also before 1970.

    """
    times = _times_of(segment, expiry.path)
    number = times.past(expiry.limit_us(second)) if second else 0
    return expiry.second_of(int(times.times_V[number])) if number < len(times.times_V) else None


def unexpired_rows(rows: pa.Table, expiry: ExpirySpec | None, second: int) -> pa.Table:
    """Return the rows of a table, which has the column of the times, that have not expired at a second since 1970."""
    if expiry is None:
        return rows
    expired = pc.less_equal(rows.column(expiry.path).cast(pa.int64()), expiry.limit_us(second))
    return rows.filter(pc.invert(pc.fill_null(expired, False)))
