"""The rows of a segment that a search may return: those that match a filter, or are not deleted.

Shapes: N rows, L leaves, R allowed rows.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from scannery.indexer.planning.leaves import Leaves, RowsOfLeaves

__all__ = ["FEW_ROWS", "AllowedRows"]

FEW_ROWS = 1 / 1024
"""Up to this share of the rows, only row numbers are kept, and no operation visits every row."""
NUMBERED = 1 / 8
"""Up to this share, row numbers are kept besides the mask: they take no more memory."""


_NO_ROWS, _NO_MASK = np.zeros(0, np.int64), np.zeros(0, bool)
for _empty in (_NO_ROWS, _NO_MASK):  # read-only like all others: writable arrays would be compiled separately
    _empty.setflags(write=False)


class AllowedRows:
    """A set of rows of one segment. Immutable, but for what its searches tell."""

    def __init__(self, allowed: np.ndarray, leaves: Leaves | None, total: int) -> None:
        """Keep the rows.

        Args:
            allowed: a mask, bool (N,), read-only; or row numbers, int64, ascending.
            leaves: of the segment; None if it has none.
            total: N, the rows of the segment.

        """
        self._allowed = allowed
        self._leaves = leaves
        self._total = total
        self._by_number = allowed.dtype != bool
        self.insufficient = 0.0
        """Share of the latest searches for which ScaNN proposed too few allowed rows (planner.py), 0 to 1."""

    @property
    def mask_N(self) -> np.ndarray:  # noqa: N802  an array with a shape suffix
        """Whether each row is allowed, bool, read-only; made for each call if only row numbers are kept."""
        if not self._by_number:
            return self._allowed
        mask_N = np.zeros(self._total, bool)
        mask_N[self._allowed] = True
        mask_N.setflags(write=False)
        return mask_N

    @cached_property
    def count(self) -> int:
        """Number of allowed rows."""
        return len(self._allowed) if self._by_number else int(np.count_nonzero(self._allowed))

    @cached_property
    def share(self) -> float:
        """Share of allowed rows, 0 to 1."""
        return self.count / max(self._total, 1)

    @cached_property
    def rows(self) -> np.ndarray:
        """Numbers of the allowed rows, int64, ascending, read-only."""
        rows = self._allowed if self._by_number else np.flatnonzero(self._allowed)
        if rows.flags.writeable:
            rows = rows.view()
            rows.setflags(write=False)
        return rows

    @cached_property
    def per_leaf(self) -> np.ndarray:
        """Number of allowed rows in each leaf, int64 (L,); empty without leaves."""
        return self._leaves.counts(self.mask_N) if self._leaves else np.zeros(0, np.int64)

    @cached_property
    def by_leaf(self) -> RowsOfLeaves:
        """The rows as kernels take them; only with leaves."""
        allowed_L = self.per_leaf
        before_L = np.cumsum(allowed_L) - allowed_L
        chosen = self.numbers_or_mask()
        mask_N, rows = (chosen, _NO_ROWS) if chosen.dtype == bool else (_NO_MASK, chosen)
        return RowsOfLeaves(mask_N, rows, before_L, allowed_L)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory, cached properties included, whether they are computed yet or not."""
        leaves = 2 * 8 * len(self._leaves.sizes_L) if self._leaves else 0
        if self._by_number:
            return self._allowed.nbytes + leaves
        return self._total + 8 * min(self.count, int(NUMBERED * self._total)) + leaves

    def numbers_or_mask(self) -> np.ndarray:
        """Return the row numbers if they are at most NUMBERED of all rows, else the mask."""
        return self.rows if self._by_number or self.share <= NUMBERED else self._allowed
