"""The rows of a segment that a scan returns, in one bit each, of which any range can be read.

Shapes: N rows of a segment, B blocks of rows, R selected rows.
"""

from __future__ import annotations

import numpy as np

from scannery.indexer import AllowedRows

__all__ = ["PackedRows"]

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
        found = np.empty(len(positions), np.int64)
        for block in np.unique(blocks).tolist():
            own = blocks == block
            start, stop = self._before_B[block : block + 2].tolist()
            found[own] = self.rows(start, stop)[positions[own] - start]
        return found
