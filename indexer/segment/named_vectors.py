"""The vectors of one name in an open segment.

They are searched as a segment of their own, whose rows are not those of the datapoints: a datapoint may lack the
vector, and the order is that of another ScaNN tree. `NamedVectors` translates rows.

Shapes: N rows of the segment, V vectors of the name, D dimensions, R rows.
"""

from __future__ import annotations

import weakref
from functools import cached_property

import numpy as np

from scannery.indexer.datapoints.named_vectors import ROW_COLUMN
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.segment.segment import Segment
from scannery.indexer.vectors.exact_search import NO_ROW

__all__ = ["NamedVectors"]


class NamedVectors:
    """The vectors of one name. Immutable, safe to use from several threads."""

    def __init__(self, segment: Segment, rows_V: np.ndarray | None = None) -> None:
        """Wrap the open file of the vectors.

        Args:
            segment: with the vectors.
            rows_V: row of the datapoint of each vector, int64; None: its column ROW_COLUMN.

        """
        self.segment = segment
        """The segment to search. Its rows are numbers of vectors, V of them; its ids are those of the datapoints."""
        self.rows_V = segment.column(ROW_COLUMN).to_numpy() if rows_V is None else rows_V
        """Row of the datapoint of each vector, int64 (V,)."""
        self._allowed: weakref.WeakKeyDictionary[AllowedRows, AllowedRows] = weakref.WeakKeyDictionary()

    def allowed(self, allowed: AllowedRows | None) -> AllowedRows | None:
        """Return the vectors of allowed datapoints; None: all. Kept while `allowed` is."""
        if allowed is None:
            return None
        found = self._allowed.get(allowed)
        if found is None:
            mask_V = allowed.mask_N[self.rows_V]
            mask_V.setflags(write=False)
            found = self._allowed[allowed] = self.segment.allow(mask_V)
        return found

    def datapoints(self, found: np.ndarray) -> np.ndarray:
        """Return the rows of datapoints for numbers of vectors, int64, of any shape; NO_ROW stays."""
        if not len(self.rows_V):
            return found
        rows: np.ndarray = np.where(found == NO_ROW, NO_ROW, self.rows_V[found])
        return rows

    def numbers(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the number of the vector of each datapoint, int64 (R,); NO_ROW where it has none."""
        order_V, sorted_V = self._by_row
        if not len(sorted_V):
            return np.full(len(rows_R), NO_ROW, np.int64)
        places_R = np.minimum(np.searchsorted(sorted_V, rows_R), len(sorted_V) - 1)
        numbers: np.ndarray = np.where(sorted_V[places_R] == rows_R, order_V[places_R], NO_ROW)
        return numbers

    def vectors(self, rows_R: np.ndarray) -> list[np.ndarray | None]:
        """Return the vectors of datapoints as they were given, float32 (D,); None where a datapoint has none."""
        numbers_R = self.numbers(np.asarray(rows_R, np.int64))
        known = numbers_R != NO_ROW
        vectors = iter(self.segment.vectors(numbers_R[known]))
        return [next(vectors) if has else None for has in known.tolist()]

    @cached_property
    def _by_row(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the vectors in the order of their datapoints, and the rows of these, ascending."""
        order_V = np.argsort(self.rows_V)
        return order_V, self.rows_V[order_V]
