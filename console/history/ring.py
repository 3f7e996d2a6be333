"""The last points of a history, by series, in a bounded memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

from scannery.console.history.points import Point

__all__ = ["Ring"]

MAX_SERIES = 600
"""Series of a ring; further ones wait for those of indexes that are gone. With 1,440 points, 7 MB."""


class Ring:
    """A point each so many seconds, of which the last ones are kept.

    Args:
        length: number of points that are kept.

    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._count = 0
        self._times_s = array("d", bytes(8 * length))
        self._series: dict[tuple[str, str], array[float]] = {}

    def add(self, time_s: float, point: Point) -> None:
        """Keep a point, in place of the oldest; `time_s`: since 1970."""
        slot = self._count % self._length
        if slot == 0:
            self._forget_empty()
        self._count += 1
        self._times_s[slot] = time_s
        for values in self._series.values():
            values[slot] = math.nan
        for key, value in point.items():
            series = self._series.get(key)
            if series is None:
                if len(self._series) >= MAX_SERIES:
                    continue
                series = self._series[key] = array("d", [math.nan]) * self._length
            series[slot] = value

    def after(
        self, time_s: float, is_shown: Callable[[str], bool]
    ) -> tuple[list[float], dict[str, dict[str, list[float | None]]]]:
        """Return the times of the points after `time_s`, and by owner and name their values; None: there is none.

        Args:
            time_s: since 1970.
            is_shown: says of an owner whether its series are returned.

        """
        slots = [each % self._length for each in range(max(0, self._count - self._length), self._count)]
        slots = [slot for slot in slots if self._times_s[slot] > time_s]
        series: dict[str, dict[str, list[float | None]]] = {}
        for (owner, name), values in self._series.items():
            if is_shown(owner):
                series.setdefault(owner, {})[name] = [_short(values[slot]) for slot in slots]
        return [self._times_s[slot] for slot in slots], series

    def _forget_empty(self) -> None:
        """Forget the series without a value."""
        for key, values in list(self._series.items()):
            if all(map(math.isnan, values)):
                del self._series[key]


def _short(value: float) -> float | None:
    """Return a value with the digits that a chart can show; whole numbers stay."""
    if math.isnan(value):
        return None
    return value if value.is_integer() else float(f"{value:.5g}")
