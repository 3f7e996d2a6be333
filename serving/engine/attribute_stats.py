"""Least and greatest values and quantiles of a field, from the counts of its values.

Shapes: V distinct values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.instants import comparable
from scannery.serving.engine.value_counts import ORDERED, ValueCount, ValueCounts

__all__ = ["TypeStats", "type_stats"]


class TypeStats(NamedTuple):
    """The values of one type."""

    name: str
    values: int
    """Values; a list has several."""
    distinct: int
    least: ValueCount | None
    """None for types without an order."""
    greatest: ValueCount | None
    quantiles: list[ValueCount]


def type_stats(kinds: Sequence[ValueCounts], shares: Sequence[float], *, declared: bool) -> list[TypeStats]:
    """Describe the values of each type.

    Args:
        kinds: the counts of the values.
        shares: of quantiles, each 0 to 1.
        declared: whether the field has one type; else its integers and floats are described together, as numbers, and
            strings that are times are in the order of time.

    """
    groups = _groups(kinds, declared=declared)
    return [_stats(name, parts, shares, declared=declared) for name, parts in groups]


def _groups(kinds: Sequence[ValueCounts], *, declared: bool) -> Iterator[tuple[str, list[ValueCounts]]]:
    groups: dict[str, list[ValueCounts]] = {}
    for each in kinds:
        is_number = not declared and each.kind in ("int", "float")
        groups.setdefault("number" if is_number else each.kind, []).append(each)
    yield from sorted(groups.items())


def _stats(name: str, parts: Sequence[ValueCounts], shares: Sequence[float], *, declared: bool) -> TypeStats:
    total = sum(part.total for part in parts)
    if parts[0].kind not in ORDERED:
        return TypeStats(name, total, 0, None, None, [])
    ordered = _Ordered(parts, declared=declared)
    # A share as a decimal: 0.07 of 100 values are 7, and not 8, which the product of floats would be rounded up to.
    ranks = [max(1, math.ceil(Decimal(repr(share)) * total)) for share in shares]
    distinct = sum(len(part.values) for part in parts)
    return TypeStats(
        name,
        total,
        distinct,
        ordered.at(0),
        ordered.at(distinct - 1),
        [ordered.ranked(rank) for rank in ranks],
    )


class _Ordered:
    """The distinct values of some types that compare with each other, ascending."""

    def __init__(self, parts: Sequence[ValueCounts], *, declared: bool) -> None:
        self._parts = parts
        self._counts = np.concatenate([part.counts_V for part in parts])
        if len(parts) == 1:
            values = _sortable(parts[0].values, declared=declared)
            self._order_V = pc.array_sort_indices(values).to_numpy().astype(np.int64)
        else:
            self._order_V = np.lexsort(_number_keys(parts))
        self._up_to_V = np.cumsum(self._counts[self._order_V])

    def at(self, place: int) -> ValueCount:
        """Return the value at a place, from 0."""
        number = int(self._order_V[place])
        rows = int(self._counts[number])
        for part in self._parts:
            if number < len(part.values):
                break
            number -= len(part.values)
        return ValueCount(part.kind, part.values[number].as_py(), rows)

    def ranked(self, rank: int) -> ValueCount:
        """Return the least value that at least `rank` values do not exceed."""
        return self.at(int(np.searchsorted(self._up_to_V, rank)))


def _sortable(values: pa.Array, *, declared: bool) -> pa.Array:
    if pa.types.is_boolean(values.type):
        return values.cast(pa.int8())
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    return comparable(values) if is_text and not declared else values


def _number_keys(parts: Sequence[ValueCounts]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what numbers are sorted by: as floats, those that are the same float by their exact value."""
    arrays = [part.values.to_numpy() for part in parts]
    floats = [array.astype(np.float64) for array in arrays]
    is_float = [np.full(len(array), array.dtype.kind == "f") for array in arrays]
    whole = [_whole(array) if array.dtype.kind == "f" else array for array in arrays]
    # 2.0**63 has no int64, and is after the greatest one.
    return np.concatenate(is_float), np.concatenate(whole), np.concatenate(floats)


def _whole(values: np.ndarray) -> np.ndarray:
    """Return floats as int64: exact from 2**53 on, where integers may be rounded to the same float."""
    whole = np.full(len(values), np.iinfo(np.int64).max)
    fits = values < 2.0**63
    whole[fits] = np.maximum(values[fits], -(2.0**63)).astype(np.int64)
    return whole
