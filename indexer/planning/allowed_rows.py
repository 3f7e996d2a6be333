"""The rows of a segment that a search may return: those that match a filter, or are not deleted.

They are kept as what tells them at the least cost: numbers of few rows, a range of values, or a mask. Of a range,
nothing is computed for rows that a search does not come to.

Shapes: N rows, L leaves, R rows given by number.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from scannery.indexer.planning.leaves import Leaves, RowsOfLeaves
from scannery.indexer.planning.value_order import RowsBetween
from scannery.indexer.vectors.row_test import ALL_ROWS, NO_NUMBERS, RowTest

__all__ = ["AllowedRows", "are_few"]

FEW_ROWS, FEW_SHARE = 1024, 1 / 64
"""Up to this number, or this share of all rows, sorted row numbers are made faster than a mask."""
NUMBERED = 1 / 8
"""Up to this share, row numbers are kept besides the mask: they take no more memory."""


_NONE_BEFORE = np.zeros(0, np.int64)
"""Not read-only: kernels would be compiled for that, too."""


LOOKUP_COST = 16
"""Rows of a mask that are written in the time in which one is looked up among row numbers."""


def are_few(rows: int, total: int) -> bool:
    """Return whether so many of all rows of a segment are best kept by number: no operation then visits every row."""
    return rows <= max(FEW_ROWS, FEW_SHARE * total)


class AllowedRows:
    """A set of rows of one segment. Immutable, but for what its searches tell."""

    def __init__(
        self,
        allowed: np.ndarray | RowsBetween,
        leaves: Leaves | None,
        total: int,
        alive: AllowedRows | None = None,
    ) -> None:
        """Keep the rows.

        Args:
            allowed: a mask, bool (N,), read-only; or row numbers, int64, ascending; or a range.
            leaves: of the segment; None if it has none.
            total: N, the rows of the segment.
            alive: the live rows, by a mask, of which those of a range are allowed; None: all rows.

        """
        self._leaves, self._total = leaves, total
        self._between = allowed if isinstance(allowed, RowsBetween) else None
        self._numbers_R = self._mask_N = None
        self._alive = alive
        if isinstance(allowed, np.ndarray):
            if allowed.dtype == bool:
                self._mask_N = allowed
            else:
                self._numbers_R = allowed
        self.insufficient = 0.0
        """Share of the latest searches for which ScaNN proposed too few allowed rows (planner.py), 0 to 1."""

    def within(self, alive: AllowedRows) -> AllowedRows:
        """Return those of these rows that are alive; these rows are all that match a filter."""
        if self._numbers_R is not None:
            return AllowedRows(self._numbers_R[alive.holds(self._numbers_R)], self._leaves, self._total)
        if self._between is not None:
            return AllowedRows(self._between, self._leaves, self._total, alive)
        both_N = self.mask_N & alive.mask_N
        both_N.setflags(write=False)
        return AllowedRows(both_N, self._leaves, self._total)

    @property
    def refers_to_others(self) -> bool:
        """Whether this keeps a set of live rows in memory."""
        return self._alive is not None

    @property
    def mask_N(self) -> np.ndarray:  # noqa: N802  an array with a shape suffix
        """Whether each row is allowed, bool, read-only; made for each call unless a mask is kept."""
        if self._mask_N is not None:
            return self._mask_N
        if self._between is not None:
            mask_N = self._between.mask()
            if self._alive is not None:
                mask_N &= self._alive.mask_N
        else:
            mask_N = np.zeros(self._total, bool)
            mask_N[self._numbers_R] = True
        mask_N.setflags(write=False)
        return mask_N

    @cached_property
    def count(self) -> int:
        """Number of allowed rows."""
        if self._numbers_R is not None:
            return len(self._numbers_R)
        if self._mask_N is not None:
            return int(np.count_nonzero(self._mask_N))
        assert self._between is not None
        dead = 0 if self._alive is None else np.count_nonzero(self._between.holds(self._alive.excluded))
        return len(self._between) - int(dead)

    @cached_property
    def share(self) -> float:
        """Share of allowed rows, 0 to 1."""
        return self.count / max(self._total, 1)

    @property
    def are_few(self) -> bool:
        """Whether most rows are not allowed."""
        return 2 * self.count < self._total

    @cached_property
    def rows(self) -> np.ndarray:
        """Numbers of the allowed rows, int64, ascending, read-only."""
        if self._numbers_R is not None:
            rows = self._numbers_R
        elif self._between is not None and are_few(len(self._between), self._total):
            rows = np.sort(self._between.rows).astype(np.int64)
            rows = rows if self._alive is None else rows[self._alive.holds(rows)]
        else:
            rows = np.flatnonzero(self.mask_N)
        if rows.flags.writeable:
            rows = rows.view()
            rows.setflags(write=False)
        return rows

    @cached_property
    def excluded(self) -> np.ndarray:
        """Numbers of the rows that are not allowed, int64, ascending."""
        return np.flatnonzero(~self.mask_N)

    def holds(self, rows: np.ndarray) -> np.ndarray:
        """Return whether each of some rows is allowed, bool, of their shape; of NO_ROW either answer."""
        if self._between is not None:
            holds: np.ndarray = self._between.holds(rows)
            return holds if self._alive is None else holds & self._alive.holds(rows)
        numbers_R = self._numbers_R
        if numbers_R is None or rows.size * LOOKUP_COST > self._total:
            return self.mask_N[rows]  # type: ignore[no-any-return]
        # Without a mask, which would be made for each call and takes as long as the segment is large.
        positions = np.searchsorted(numbers_R, rows)
        holds = positions < len(numbers_R)
        holds[holds] = numbers_R[positions[holds]] == rows[holds]
        return holds

    @property
    def test(self) -> RowTest:
        """The test of a row that kernels make."""
        if self._between is None:
            return RowTest(mask_N=self.mask_N)
        positions_N, start, stop = self._between.order.positions_N, self._between.start, self._between.stop
        if self._alive is None:
            return RowTest(positions_N=positions_N, start=start, stop=stop)
        return RowTest(self._alive.mask_N, positions_N, start, stop)

    @cached_property
    def per_leaf(self) -> np.ndarray:
        """Number of allowed rows in each leaf, int64 (L,): of a range an estimate; empty without leaves."""
        if self._leaves is None:
            return np.zeros(0, np.int64)
        if self._between is not None:
            return self._between.order.per_leaf(self._between.start, self._between.stop, self._leaves)
        if self._numbers_R is not None:
            return self._leaves.counts_of(self._numbers_R)
        return self._leaves.counts(self.mask_N)

    @cached_property
    def by_leaf(self) -> RowsOfLeaves:
        """The rows as a scan of leaves takes them; only with leaves."""
        allowed_L = self.per_leaf
        if self._numbers_R is None:
            return RowsOfLeaves(self.test, NO_NUMBERS, _NONE_BEFORE, allowed_L)
        return RowsOfLeaves(ALL_ROWS, self.rows, np.cumsum(allowed_L) - allowed_L, allowed_L)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory, cached properties included, whether they are computed yet or not."""
        leaves = 2 * 8 * len(self._leaves.sizes_L) if self._leaves else 0
        if self._numbers_R is not None:
            return self._numbers_R.nbytes + leaves
        numbers = 8 * min(self.count, int(NUMBERED * self._total))
        return numbers + leaves + (0 if self._mask_N is None else self._total)

    def in_any_order(self) -> np.ndarray:
        """Return what `numbers_or_mask` does, with the numbers in any order.

        Those of a range are in the order of its values, where they stand already. To sort 4,000 of them, or to look for
        them among ten times as many, takes a third of the time to score them.
        """
        if self._between is None or self.share > NUMBERED or "rows" in self.__dict__:
            return self.numbers_or_mask()
        rows: np.ndarray = self._between.rows.astype(np.int64)
        if self._alive is not None:
            rows = rows[self._alive.holds(rows)]
        rows.setflags(write=False)
        return rows

    def numbers_or_mask(self) -> np.ndarray:
        """Return the row numbers if they are at most NUMBERED of all rows, else the mask."""
        return self.rows if self._numbers_R is not None or self.share <= NUMBERED else self.mask_N
