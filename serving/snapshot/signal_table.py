"""The signals of a ranking expression for the rows of a segment, in blocks of rows with alike upper bounds.

Shapes: C signals, N rows of the segment, B blocks, R rows of some blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer import IndexSpec, Segment
from scannery.indexer.ranking.expression import (
    Attribute,
    Condition,
    Decay,
    Leaf,
    Now,
    Program,
    limited,
    values_of,
)
from scannery.runtime.retry import Deadline
from scannery.serving.request.ranking import filter_of
from scannery.serving.snapshot.filter_cache import FilterCache

__all__ = ["SignalTable", "Signals"]

BLOCK_ROWS = 256


@dataclass(frozen=True, slots=True, eq=False)
class SignalTable:
    """The signals of the rows of one segment."""

    signals_CN: np.ndarray
    """float32."""
    order_N: np.ndarray
    """Rows by the upper bound of their values for equal scores, the greatest first, int32."""
    lowest_CB: np.ndarray
    """The lowest of each signal in each block of that order."""
    highest_CB: np.ndarray
    """The highest one."""

    @property
    def size_bytes(self) -> int:
        """Bytes of memory."""
        arrays = (self.signals_CN, self.order_N, self.lowest_CB, self.highest_CB)
        return sum(array.nbytes for array in arrays)

    @classmethod
    def of(cls, signals_CN: np.ndarray, program: Program, scores: tuple[float, float]) -> SignalTable:
        """Return the table of some signals, float32 (C, N); `scores` are typical: the lowest and the highest."""
        bounds_N = program.upper_bounds(scores, signals_CN, signals_CN)
        order_N = np.argsort(-bounds_N, kind="stable").astype(np.int32)
        ordered_CN = signals_CN[:, order_N]
        starts = np.arange(0, len(order_N), BLOCK_ROWS)
        if not len(starts):
            empty = np.empty((len(signals_CN), 0), np.float32)
            return cls(signals_CN, order_N, empty, empty)
        return cls(
            signals_CN,
            order_N,
            np.minimum.reduceat(ordered_CN, starts, axis=1),
            np.maximum.reduceat(ordered_CN, starts, axis=1),
        )

    def rows_above(
        self, program: Program, scores: tuple[float, float], least: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows whose values can be `least` or more, int64 (R,), and their upper bounds, float32 (R,).

        Args:
            program: the one that the table was made for.
            scores: the lowest and the highest score of the rows.
            least: a value.

        """
        blocks = np.flatnonzero(program.upper_bounds(scores, self.lowest_CB, self.highest_CB) >= least)
        positions = (blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).ravel()
        rows_R = self.order_N[positions[positions < len(self.order_N)]].astype(np.int64)
        signals_CR = self.signals_CN[:, rows_R]
        bounds_R = program.upper_bounds(scores, signals_CR, signals_CR)
        is_above = bounds_R >= least
        return rows_R[is_above], bounds_R[is_above]


class Signals:
    """The signals of one expression at one time, for the segments of an index."""

    def __init__(
        self, program: Program, now_s: float, spec: IndexSpec, cache: FilterCache, scores: tuple[float, float]
    ) -> None:
        """Prepare.

        Args:
            program: of the expression.
            now_s: the time of the search, in seconds since 1970; equal ones share tables.
            spec: of the index.
            cache: keeps the tables, and finds the rows that meet conditions.
            scores: the lowest and the highest score that is typical.

        """
        self.program = program
        self._now_s, self._spec, self._cache, self._scores = now_s, spec, cache, scores

    def table(self, segment: Segment, deadline: Deadline) -> SignalTable:
        """Return the table of a segment, made now if it is not kept; DeadlineError if that takes too long."""
        key = (self.program, self._now_s, self._scores)
        return self._cache.derived(segment, key, lambda: self._made(segment, deadline))

    def _made(self, segment: Segment, deadline: Deadline) -> SignalTable:
        signals_CN = np.empty((len(self.program.signals), segment.rows), np.float32)
        for number, signal in enumerate(self.program.signals):
            signals_CN[number] = values_of(signal, self._reader(segment, deadline))
        return SignalTable.of(signals_CN, self.program, self._scores)

    def _reader(self, segment: Segment, deadline: Deadline) -> Callable[[Leaf], np.ndarray]:
        def read(leaf: Leaf) -> np.ndarray:
            deadline.check()
            if isinstance(leaf, Now):
                return np.float64(self._now_s)  # type: ignore[return-value]  # as an array of no dimension
            if isinstance(leaf, Attribute):
                return _numbers(segment, leaf.name, leaf.missing)
            if isinstance(leaf, Decay):
                return self._decayed(segment, leaf)
            assert isinstance(leaf, Condition)
            node = filter_of(leaf, self._spec)
            return self._cache.allowed(segment, node, deadline=deadline).mask_N.astype(np.float64)

        return read

    def _decayed(self, segment: Segment, decay: Decay) -> np.ndarray:
        numbers_N = _numbers(segment, decay.attribute, np.nan)
        if decay.origin is None:
            distances_N = np.maximum(self._now_s - numbers_N, 0.0)
        else:
            distances_N = np.abs(numbers_N - decay.origin)
        return np.nan_to_num(np.exp2(-distances_N / decay.half_life), nan=0.0)


def _numbers(segment: Segment, name: str, missing: float) -> np.ndarray:
    """Return the values of an attribute as numbers, float64 (N,)."""
    if name not in segment.column_types:
        return np.full(segment.rows, missing)
    column = segment.column(name)
    if pa.types.is_timestamp(column.type):
        column, unit = column.cast(pa.int64()), 1e6
    else:
        unit = 1.0
    numbers_N = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy() / unit
    return limited(np.where(np.isnan(numbers_N), missing, numbers_N))
