"""The rows of an index that a filter allows, up to the revision at which a write by filter began.

Shapes: N rows of a segment, R chosen rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np

from scannery.indexer import REVISION_COLUMN, AllowedRows, OpenIndex, Segment

__all__ = ["MatchingRows", "RowFilter", "count_matching", "matching_rows"]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter, as this process evaluates it, and as others read it."""

    allowed: Callable[[Segment], AllowedRows]
    """Returns the rows of a segment that it allows, deleted rows included; quick for segments that it was given
    before."""
    message: bytes
    """The serialised message of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingRows:
    """The rows that one batch of a write by filter is chosen from."""

    where: RowFilter | None
    """None: all rows."""
    limit: int
    """Most rows of the batch."""
    until_sequence: int | None
    """Only rows that were written up to this sequence, 0 for those of a build; None: all rows."""
    whole: bool
    """Whether all columns are read; else ids alone."""


def matching_rows(
    index: OpenIndex,
    where: RowFilter | None,
    until_sequence: int | None,
    *,
    matched: Collection[Segment] = (),
) -> Iterator[tuple[Segment, np.ndarray]]:
    """Yield the rows of each segment that are allowed, alive and not too new, int64 (R,), ascending; no empty ones.

    Args:
        index: the rows.
        where: None: all rows.
        until_sequence: as of `MatchingRows`.
        matched: segments of which the filter is known to allow all rows.

    """
    for segment, alive in zip(index.segments, index.alive, strict=True):
        allowed = None if where is None or segment in matched else where.allowed(segment)
        rows_R = _both(allowed, alive, segment.rows)
        if until_sequence is not None and REVISION_COLUMN in segment.table.column_names:
            # Rows of a build have no revision.
            revisions_N = segment.column(REVISION_COLUMN).fill_null(0).to_numpy()
            rows_R = rows_R[revisions_N[rows_R] <= until_sequence]
        if len(rows_R):
            yield segment, rows_R


def count_matching(index: OpenIndex, wanted: MatchingRows) -> int:
    """Return the number of rows that a batch and those after it would have."""
    return sum(len(rows_R) for _, rows_R in matching_rows(index, wanted.where, wanted.until_sequence))


def _both(allowed: AllowedRows | None, alive: AllowedRows | None, total: int) -> np.ndarray:
    """Return the rows that are in both sets, int64, ascending; None: all rows."""
    if allowed is None:
        return np.arange(total) if alive is None else alive.rows
    return allowed.rows if alive is None else allowed.rows[alive.mask_N[allowed.rows]]
