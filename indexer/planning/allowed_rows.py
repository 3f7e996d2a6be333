"""The rows of a segment that may be returned: what a filter allows, or what is not deleted.

Shapes: N rows, L leaves, R allowed rows.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from scannery.indexer.planning.leaves import Leaves

__all__ = ["FEW_ROWS", "AllowedRows"]

FEW_ROWS = 1 / 1024
"""Of so small a share of the rows, only the numbers are kept, and nothing is done that takes a look at every row."""
NUMBERED = 1 / 8
"""Of so small a share, the numbers are kept besides the mask: they take no more memory."""


class AllowedRows:
    """Some rows of one segment. Immutable."""

    def __init__(self, allowed: np.ndarray, leaves: Leaves | None, total: int) -> None:
        """Take a mask, bool (N,) and read-only, or the numbers of a few rows, int64, ascending.

        `total` is N, and `leaves` are those of the segment.
        """
        self._allowed = allowed
        self._leaves = leaves
        self._total = total
        self._by_number = allowed.dtype != bool

    @property
    def mask_N(self) -> np.ndarray:  # noqa: N802  an array, as its shape says
        """Which rows are allowed, bool, read-only; made anew for every caller where there are few."""
        if not self._by_number:
            return self._allowed
        mask_N = np.zeros(self._total, bool)
        mask_N[self._allowed] = True
        mask_N.setflags(write=False)
        return mask_N

    @cached_property
    def count(self) -> int:
        """How many rows are allowed."""
        return len(self._allowed) if self._by_number else int(np.count_nonzero(self._allowed))

    @property
    def share(self) -> float:
        """Which share of all rows that is."""
        return self.count / max(self._total, 1)

    @cached_property
    def rows(self) -> np.ndarray:
        """Their numbers, int64, ascending."""
        return self._allowed if self._by_number else np.flatnonzero(self._allowed)

    @cached_property
    def per_leaf(self) -> np.ndarray:
        """How many rows of each leaf are allowed, int64; empty without leaves."""
        return self._leaves.counts(self.mask_N) if self._leaves else np.zeros(0, np.int64)

    @property
    def size_bytes(self) -> int:
        """Memory that this takes, or may come to take."""
        leaves = 8 * len(self._leaves.sizes_L) if self._leaves else 0
        if self._by_number:
            return self._allowed.nbytes + leaves
        return self._total + 8 * min(self.count, int(NUMBERED * self._total)) + leaves

    def numbers_or_mask(self) -> np.ndarray:
        """Return the row numbers if they are few, else the mask."""
        return self.rows if self._by_number or self.share <= NUMBERED else self._allowed
