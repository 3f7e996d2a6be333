"""The rows of a segment in the order of a field's values, in which a range of values is a range of positions.

Shapes: N rows of the segment, P rows that have a value, L leaves, B buckets of positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scannery.indexer.planning.leaves import Leaves

__all__ = ["RowsBetween", "ValueOrder"]

BUCKETS = 128
"""Buckets of positions for which the rows of each leaf are counted: 512 bytes a leaf. The number of rows of a leaf in a
range is then known but for the two buckets at its ends, where values and leaves are taken as independent."""


class ValueOrder:
    """The order of the rows of one segment by a field of which no row has two values. Immutable."""

    def __init__(
        self,
        rows_P: np.ndarray,
        total: int,
        positions_N: np.ndarray | None = None,
        counts_BL: np.ndarray | None = None,
    ) -> None:
        """Keep the order.

        Args:
            rows_P: the rows with a value, by this value, int32.
            total: N, the rows of the segment.
            positions_N: as the property; None: computed when it is first read.
            counts_BL: as `counted` returns them; None: computed when they are first read.

        """
        self.rows_P = rows_P
        """The rows with a value, by this value, int32."""
        self._total = total
        self._positions_N, self._counts_BL = positions_N, counts_BL

    @staticmethod
    def counts_bytes(leaves: int) -> int:
        """Return the bytes of what `counted` returns for some leaves."""
        return 4 * (BUCKETS + 1) * leaves

    @property
    def size_bytes(self) -> int:
        """Memory that this takes besides `rows_P`; more after the first call of `per_leaf`."""
        return 4 * self._total + (0 if self._counts_BL is None else self._counts_BL.nbytes)

    @property
    def positions_N(self) -> np.ndarray:  # noqa: N802  an array with a shape suffix
        """Position of each row in `rows_P`, int32, read-only; -1: the row has no value."""
        if self._positions_N is None:
            self._positions_N = self._ranked()
        return self._positions_N

    def _ranked(self) -> np.ndarray:
        positions_N = np.full(self._total, -1, np.int32)
        positions_N[self.rows_P] = np.arange(len(self.rows_P), dtype=np.int32)
        positions_N.setflags(write=False)
        return positions_N

    def per_leaf(self, start: int, stop: int, leaves: Leaves) -> np.ndarray:
        """Return an estimate of the rows of each leaf at the positions of a range, int64 (L,); 0 only without any.

        Args:
            start: first position of the range.
            stop: position after the last.
            leaves: of the segment.

        """
        if self._counts_BL is None:
            self._counts_BL = self.counted(leaves)
        from scannery.indexer.kernels import leaf_kernels  # compiles on import: only where it is needed

        values, allowed_L = max(len(self.rows_P), 1), np.empty(len(leaves.sizes_L), np.int64)
        (first, before), (last, behind) = (divmod(position * BUCKETS, values) for position in (start, stop))
        leaf_kernels.estimate_allowed(
            self._counts_BL, first, before / values, last, behind / values, allowed_L
        )
        return allowed_L

    def counted(self, leaves: Leaves) -> np.ndarray:
        """Return the number of rows of each leaf before each bucket, and behind the last, int32 (B + 1, L)."""
        count = len(leaves.sizes_L)
        buckets_P = np.arange(len(self.rows_P)) * BUCKETS // max(len(self.rows_P), 1)
        cells_P = buckets_P * count + leaves.leaf_of(self.rows_P)
        counts_BL = np.zeros((BUCKETS + 1, count), np.int32)
        counts_BL[1:] = np.bincount(cells_P, minlength=BUCKETS * count).reshape(BUCKETS, count)
        np.cumsum(counts_BL, axis=0, out=counts_BL)
        counts_BL.setflags(write=False)
        return counts_BL


@dataclass(frozen=True, slots=True, eq=False)
class RowsBetween:
    """The rows at the positions of a range of an order: those with a value between two others."""

    order: ValueOrder
    start: int
    stop: int
    """Position after the last; at least `start`."""

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> np.ndarray:
        """The rows by their values, int32; a view."""
        return self.order.rows_P[self.start : self.stop]

    def holds(self, rows_R: np.ndarray) -> np.ndarray:
        """Return whether each of some rows is one of these, bool (R,)."""
        return self._are_between(self.order.positions_N[rows_R])

    def mask(self) -> np.ndarray:
        """Return whether each row of the segment is one of these, bool (N,)."""
        return self._are_between(self.order.positions_N)

    def _are_between(self, positions: np.ndarray) -> np.ndarray:
        between: np.ndarray = (positions >= self.start) & (positions < self.stop)
        return between
