"""The test by which kernels tell whether a row is allowed.

Shapes: N rows of a segment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["ALL_ROWS", "NO_MASK", "NO_NUMBERS", "NO_POSITIONS", "RowTest"]


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)  # like all others: kernels for writable arrays would be compiled separately
    return array


NO_MASK, NO_POSITIONS = _read_only(np.zeros(0, bool)), _read_only(np.zeros(0, np.int32))
NO_NUMBERS = _read_only(np.zeros(0, np.int64))


class RowTest(NamedTuple):
    """The arguments of a kernel that tell which rows are allowed: those that pass both parts.

    A range of values is tested by the position of a row in the order of the values. So it costs nothing to make, and no
    more than a mask for each row that is tested.
    """

    mask_N: np.ndarray = NO_MASK
    """Whether each row passes, bool, read-only; empty: all do."""
    positions_N: np.ndarray = NO_POSITIONS
    """Position of each row in an order, int32, read-only; empty: all rows pass."""
    start: int = 0
    """First position that passes."""
    stop: int = 0
    """Position after the last that passes."""


ALL_ROWS = RowTest()
