"""The index of the ids of a segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from scannery.indexer import Segment, id_hashes
from scannery.serving.request.match_conditions import MatchOperator
from scannery.serving.snapshot.attribute_index import Field, Operator, ValueRuns
from scannery.serving.snapshot.nothing_matches import NothingMatches

__all__ = ["IdField"]


class IdField(NothingMatches):
    """The ids of a segment, which has a hash index of them; postings are made for order and beginnings only."""

    def __init__(self, segment: Segment, postings: Callable[[], Field]) -> None:
        super().__init__(segment.rows)
        self._segment = segment
        self._postings = postings

    def among(self, values: Iterable[Any]) -> np.ndarray:
        """Return which rows have one of the ids."""
        mask_N = np.zeros(self._segment.rows, bool)
        mask_N[self._rows_of(values)] = True
        return mask_N

    def few_among(self, values: Iterable[Any], most: int) -> np.ndarray | None:
        """Return the numbers of these rows, if they are few."""
        rows = self._rows_of(values)
        return None if len(rows) > most else np.unique(rows)

    def compare(self, operator: Operator, value: Any) -> np.ndarray:
        """Return which ids compare so with a value."""
        if operator == "eq":
            return self.among([value])
        return self._postings().compare(operator, value)

    def few(self, operator: Operator, value: Any, most: int) -> np.ndarray | None:
        """Return the numbers of these rows, if they are few."""
        if operator == "eq":
            return self.few_among([value], most)
        return self._postings().few(operator, value, most)

    def matches(self, operator: MatchOperator, value: str) -> np.ndarray:
        """Return which ids match."""
        return self._postings().matches(operator, value)

    def few_matches(self, operator: MatchOperator, value: str, most: int) -> np.ndarray | None:
        """Return the numbers of these rows, if they are few."""
        return self._postings().few_matches(operator, value, most)

    def _rows_of(self, values: Iterable[Any]) -> np.ndarray:
        names = list(values)
        rows = self._segment.rows_of(names, id_hashes(names))
        found: np.ndarray = rows[rows >= 0]
        return found

    def exists(self) -> np.ndarray:
        """Return all rows: each has an id."""
        return np.ones(self._segment.rows, bool)

    def runs(self) -> Sequence[ValueRuns]:
        """Return each id with its row."""
        return self._postings().runs()
