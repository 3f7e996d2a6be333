"""Sets of rows of a segment: what conditions match, and what filters make of these.

A set tells how many rows it has at most before any of them is computed. So the rows that match all of several
conditions are those of the smallest set, each of which is looked up in the others: a filter costs as much as its most
selective condition matches, or one pass over the rows where that would be dearer.

Shapes: N rows of the segment, R rows given by number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from scannery.indexer import AllowedRows, RowsBetween, Segment, are_few

__all__ = [
    "ListedRows",
    "MaskedRows",
    "OtherRows",
    "RangeOfRows",
    "RowSet",
    "allowed_rows",
    "rows_in_all",
    "rows_in_any",
]

PASS_SHARE = 1 / 16
"""Share of the rows from which on a pass over all rows makes a mask faster than as many single ones are marked."""


class RowSet(ABC):
    """Rows of one segment. Immutable."""

    def __init__(self, limit: int, total: int) -> None:
        self.limit = limit
        """Upper bound of the number of rows."""
        self.total = total
        """N, the rows of the segment."""

    @property
    @abstractmethod
    def numbers(self) -> np.ndarray:
        """The rows, int64 (R,), ascending, each once; not to be changed."""

    @abstractmethod
    def holds(self, rows_R: np.ndarray) -> np.ndarray:
        """Return whether each of some rows is in the set, bool (R,)."""

    @abstractmethod
    def mask(self) -> np.ndarray:
        """Return whether each row of the segment is in the set, bool (N,), the caller's to change."""


class ListedRows(RowSet):
    """Rows in a list.

    Args:
        rows_R: int32 or int64, in any order, perhaps several times, and perhaps a view that must not be changed.
        total: N.

    """

    def __init__(self, rows_R: np.ndarray, total: int) -> None:
        super().__init__(len(rows_R), total)
        self._rows_R = rows_R

    @cached_property
    def numbers(self) -> np.ndarray:  # a property of the base
        """As `RowSet.numbers`."""
        rows_R = np.sort(self._rows_R)
        if len(rows_R) > 1 and (again_R := rows_R[1:] == rows_R[:-1]).any():
            rows_R = rows_R[np.append(True, ~again_R)]
        return rows_R.astype(np.int64)

    def holds(self, rows_R: np.ndarray) -> np.ndarray:
        """As `RowSet.holds`."""
        if not len(self._rows_R):
            return np.zeros(len(rows_R), bool)
        if not are_few(self.limit, self.total):
            return self.mask()[rows_R]  # type: ignore[no-any-return]
        numbers = self.numbers
        holds: np.ndarray = numbers[np.minimum(np.searchsorted(numbers, rows_R), len(numbers) - 1)] == rows_R
        return holds

    def mask(self) -> np.ndarray:
        """As `RowSet.mask`."""
        mask_N = np.zeros(self.total, bool)
        mask_N[self._rows_R] = True
        return mask_N


class RangeOfRows(RowSet):
    """Rows with a value between two others. Nothing is computed for rows that nobody asks about."""

    def __init__(self, between: RowsBetween, total: int) -> None:
        super().__init__(len(between), total)
        self.between = between

    @cached_property
    def numbers(self) -> np.ndarray:  # a property of the base
        """As `RowSet.numbers`."""
        return np.sort(self.between.rows).astype(np.int64)

    def holds(self, rows_R: np.ndarray) -> np.ndarray:
        """As `RowSet.holds`."""
        return self.between.holds(rows_R)

    def mask(self) -> np.ndarray:
        """As `RowSet.mask`."""
        if self.limit > PASS_SHARE * self.total:
            return self.between.mask()
        return ListedRows(self.between.rows, self.total).mask()


class MaskedRows(RowSet):
    """Rows by a mask, bool (N,)."""

    def __init__(self, mask_N: np.ndarray) -> None:
        super().__init__(len(mask_N), len(mask_N))
        self._mask_N = mask_N

    @property
    def numbers(self) -> np.ndarray:
        """As `RowSet.numbers`."""
        return np.flatnonzero(self._mask_N)

    def holds(self, rows_R: np.ndarray) -> np.ndarray:
        """As `RowSet.holds`."""
        return self._mask_N[rows_R]  # type: ignore[no-any-return]

    def mask(self) -> np.ndarray:
        """As `RowSet.mask`."""
        return self._mask_N.copy()


class OtherRows(RowSet):
    """The rows that are not in a set."""

    def __init__(self, part: RowSet) -> None:
        super().__init__(part.total, part.total)
        self._part = part

    @property
    def numbers(self) -> np.ndarray:
        """As `RowSet.numbers`."""
        return np.flatnonzero(self.mask())

    def holds(self, rows_R: np.ndarray) -> np.ndarray:
        """As `RowSet.holds`."""
        return ~self._part.holds(rows_R)

    def mask(self) -> np.ndarray:
        """As `RowSet.mask`."""
        return ~self._part.mask()


def rows_in_all(parts: Iterable[RowSet], total: int) -> RowSet:
    """Return the rows that are in every set; all rows if there is none."""
    smallest, *larger = sorted(_joined_ranges(parts), key=lambda part: part.limit) or [
        OtherRows(ListedRows(_NONE, total))
    ]
    if not larger:
        return smallest
    if are_few(smallest.limit, total):
        rows_R = smallest.numbers
        for part in larger:
            rows_R = rows_R[part.holds(rows_R)]
        return ListedRows(rows_R, total)
    mask_N = smallest.mask()
    for part in larger:
        mask_N &= part.mask()
    return MaskedRows(mask_N)


_NONE = np.zeros(0, np.int64)


def rows_in_any(parts: Sequence[RowSet], total: int) -> RowSet:
    """Return the rows that are in any of some sets, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    if are_few(sum(part.limit for part in parts), total):
        return ListedRows(np.concatenate([part.numbers for part in parts]), total)
    mask_N = parts[0].mask()
    for part in parts[1:]:
        mask_N |= part.mask()
    return MaskedRows(mask_N)


def _joined_ranges(parts: Iterable[RowSet]) -> list[RowSet]:
    """Return the sets with one range in place of several of the same order: "from" and "to" are two conditions."""
    ranges, lists = dict[int, RangeOfRows](), list[RowSet]()
    for part in parts:
        if not isinstance(part, RangeOfRows):
            lists.append(part)
        elif (first := ranges.setdefault(id(part.between.order), part)) is not part:
            start, stop = (
                max(first.between.start, part.between.start),
                min(first.between.stop, part.between.stop),
            )
            joined = RowsBetween(part.between.order, start, max(start, stop))
            ranges[id(part.between.order)] = RangeOfRows(joined, part.total)
    return [*ranges.values(), *lists]


def allowed_rows(matching: RowSet, segment: Segment) -> AllowedRows:
    """Return the rows of a segment that are in a set, as searches take them."""
    if are_few(matching.limit, matching.total):
        return segment.allow(matching.numbers)
    if isinstance(matching, RangeOfRows):
        return segment.allow(matching.between)
    mask_N = matching.mask()
    mask_N.setflags(write=False)
    return segment.allow(mask_N)
