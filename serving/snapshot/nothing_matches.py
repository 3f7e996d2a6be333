"""The answers of a field of which no row matches: fields derive from it, since what they do not hold is never found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from scannery.serving.request.filter import Area, MatchOperator

__all__ = ["NothingMatches"]

_Order: TypeAlias = Literal["eq", "gt", "gte", "lt", "lte"]
_NO_ROWS = np.zeros(0, np.int64)
_NO_ROWS.setflags(write=False)


class NothingMatches:
    """The answers of a field of which no row matches: what a field does not hold is never found.

    Args:
        rows: N.

    """

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def _none(self) -> np.ndarray:
        return np.zeros(self._rows, bool)

    def among(self, values: Iterable[Any]) -> np.ndarray:
        """Return no rows."""
        return self._none()

    def few_among(self, values: Iterable[Any], most: int) -> np.ndarray | None:
        """Return no rows."""
        return _NO_ROWS

    def compare(self, operator: _Order, value: Any) -> np.ndarray:
        """Return no rows."""
        return self._none()

    def few(self, operator: _Order, value: Any, most: int) -> np.ndarray | None:
        """Return no rows."""
        return _NO_ROWS

    def has_all(self, values: Iterable[Any]) -> np.ndarray:
        """Return no rows."""
        return self._none()

    def few_has_all(self, values: Iterable[Any], most: int) -> np.ndarray | None:
        """Return no rows."""
        return _NO_ROWS

    def matches(self, operator: MatchOperator, value: str) -> np.ndarray:
        """Return no rows."""
        return self._none()

    def few_matches(self, operator: MatchOperator, value: str, most: int) -> np.ndarray | None:
        """Return no rows."""
        return _NO_ROWS

    def within(self, area: Area) -> np.ndarray:
        """Return no rows."""
        return self._none()

    def few_within(self, area: Area, most: int) -> np.ndarray | None:
        """Return no rows."""
        return _NO_ROWS

    def exists(self) -> np.ndarray:
        """Return no rows."""
        return self._none()

    def empty(self) -> np.ndarray:
        """Return the rows without the field: none is a list."""
        return ~self.exists()

    def runs(self) -> Sequence[Any]:
        """Return no values."""
        return ()
