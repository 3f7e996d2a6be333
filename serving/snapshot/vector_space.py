"""The vectors of one name in a snapshot: where they are searched, and which datapoints they belong to.

The unnamed vector is one of these: its segments are those of the datapoints.

Shapes: R rows, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scannery.indexer import NO_ROW, NamedVectors, OpenIndex, Segment

__all__ = ["VectorSpace", "space_of"]


@dataclass(frozen=True, slots=True, eq=False)
class SearchedSegment:
    """One segment with vectors."""

    number: int
    """Of the segment with the datapoints, in the snapshot."""
    segment: Segment
    """With the vectors."""
    vectors: NamedVectors | None
    """Translates between its rows and those of the datapoints; None: they are the same."""

    def numbers(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the row of the vector of each datapoint, int64 (R,); NO_ROW where it has none."""
        return rows_R if self.vectors is None else self.vectors.numbers(rows_R)


@dataclass(frozen=True, eq=False)
class VectorSpace:
    """The vectors of one name, in the segments of a snapshot."""

    name: str
    """Empty: the unnamed vector."""
    index: OpenIndex
    """The index of these vectors alone."""
    parts: tuple[SearchedSegment, ...]
    """The segments of `index`, without those whose rows have no vectors."""
    places: tuple[int, ...]
    """The number of each of them in `index`."""

    @cached_property
    def _by_number(self) -> dict[int, SearchedSegment]:
        return {part.number: part for part in self.parts}

    def vector_of(self, number: int, row: int) -> np.ndarray | None:
        """Return the vector of a datapoint as it is searched, float32 (D,); None if it has none."""
        part = self._by_number.get(number)
        if part is None:
            return None
        found = int(part.numbers(np.array([row]))[0])
        if found == NO_ROW:
            return None
        vector_D: np.ndarray = part.segment.searched(np.array([found]))[0]
        return vector_D

    def scores(self, number: int, rows_R: np.ndarray, query_D: np.ndarray) -> np.ndarray:
        """Return the exact scores of datapoints, float32 (R,); NaN where one has no vector.

        Args:
            number: of their segment.
            rows_R: their rows, int64.
            query_D: as `search_ready` returns it.

        """
        scores_R = np.full(len(rows_R), np.nan, np.float32)
        part = self._by_number.get(number)
        if part is not None:
            numbers_R = part.numbers(rows_R)
            known_R = numbers_R != NO_ROW
            scores_R[known_R] = part.segment.scores_of(numbers_R[known_R], query_D)
        return scores_R


def space_of(index: OpenIndex, name: str) -> VectorSpace:
    """Return the vectors of a name in an open index; KeyError if there is no such name."""
    if name:
        named = index.named[name]
        parts = list(zip(named.numbers, named.index.segments, named.vectors, strict=True))
        searched, index = [SearchedSegment(*part) for part in parts], named.index
        return VectorSpace(name, index, tuple(searched), tuple(range(len(searched))))
    kept = [number for number, segment in enumerate(index.segments) if segment.has_vectors]
    unnamed = tuple(SearchedSegment(number, index.segments[number], None) for number in kept)
    return VectorSpace(name, index, unnamed, tuple(kept))
