"""The vectors of one name in an open segment.

They are searched as a segment of their own, whose rows are not those of the datapoints: a datapoint may lack the
vector, and the order is that of another ScaNN tree. `NamedVectors` translates rows.

Shapes: N rows of the segment, V vectors of the name, D dimensions, R rows.
"""

from __future__ import annotations

import weakref
from functools import cached_property

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.named_vectors import ROW_COLUMN, named_array
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.planning.allowed_rows import AllowedRows, are_few
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

    def with_entry(self, entry: SegmentEntry) -> NamedVectors:
        """Return these vectors with the curves of another manifest (`Segment.with_entry`)."""
        segment = self.segment.with_entry(entry)
        return self if segment is self.segment else NamedVectors(segment, self.rows_V)

    def allowed(self, allowed: AllowedRows | None) -> AllowedRows | None:
        """Return the vectors of allowed datapoints; None: all. Kept while `allowed` is."""
        if allowed is None:
            return None
        named_allowed = self._allowed.get(allowed)
        if named_allowed is None:
            named_allowed = self._allowed[allowed] = self.segment.allow(self._of_allowed(allowed))
        return named_allowed

    def _of_allowed(self, allowed: AllowedRows) -> np.ndarray:
        """Return the vectors of allowed datapoints, as `AllowedRows` takes them."""
        if are_few(allowed.count, self.segment.rows):
            numbers_R = self.numbers(allowed.rows)
            return np.sort(numbers_R[numbers_R != NO_ROW])
        mask_V: np.ndarray = allowed.mask_N[self.rows_V]
        mask_V.setflags(write=False)
        return mask_V

    def datapoints(self, numbers: np.ndarray) -> np.ndarray:
        """Return the rows of datapoints for numbers of vectors, int64, of any shape; NO_ROW stays."""
        if not len(self.rows_V):
            return numbers
        rows: np.ndarray = self.rows_V[numbers]
        if numbers.size and numbers.min() == NO_ROW:
            rows[numbers == NO_ROW] = NO_ROW
        return rows

    def numbers(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the number of the vector of each datapoint, int64 (R,); NO_ROW where it has none."""
        by_row_N = self._by_row
        if not len(by_row_N):
            return np.full(len(rows_R), NO_ROW, np.int64)
        # Rows after the last one with a vector have none.
        numbers_R: np.ndarray = by_row_N[np.minimum(rows_R, len(by_row_N) - 1)].astype(np.int64)
        numbers_R[rows_R >= len(by_row_N)] = NO_ROW
        return numbers_R

    def vectors(self, rows_R: np.ndarray) -> list[np.ndarray | None]:
        """Return the vectors of datapoints as they were given, float32 (D,); None where a datapoint has none."""
        numbers_R = self.numbers(np.asarray(rows_R, np.int64))
        present = numbers_R != NO_ROW
        vectors = iter(self.segment.vectors(numbers_R[present]))
        return [next(vectors) if has else None for has in present.tolist()]

    def column(self, rows_R: np.ndarray) -> pa.Array:
        """Return the vectors of datapoints as they were given, as a column of their rows, of NAMED_TYPE."""
        numbers_R = self.numbers(np.asarray(rows_R, np.int64))
        present_R = numbers_R != NO_ROW
        vectors_VD = np.ascontiguousarray(self.segment.vectors(numbers_R[present_R]), np.float32)
        return named_array(vectors_VD.reshape(-1), present_R, present_R * vectors_VD.shape[1])

    @cached_property
    def _by_row(self) -> np.ndarray:
        """The number of the vector of each datapoint up to the last one with a vector, int32 (N,); NO_ROW: none."""
        by_row_N = np.full(self.rows_V.max(initial=-1) + 1, NO_ROW, np.int32)
        by_row_N[self.rows_V] = np.arange(len(self.rows_V), dtype=np.int32)
        return by_row_N
