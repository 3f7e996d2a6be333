"""Count the values of a field among some rows of the segments of an index, and write the counts as messages.

Shapes: N rows of a segment, V distinct values.

Least and greatest values and quantiles of a field, from the counts of its values.

Shapes: V distinct values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.text_values import comparable
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.engine.wire_fields import read_table, table_bytes
from scannery.serving.snapshot.attribute_index import Field, ValueKind, ValueRuns
from scannery.v1.leaf_pb2 import LeafCounts

__all__ = [
    "FieldCounts",
    "TypeStats",
    "ValueCount",
    "counted",
    "decoded",
    "encoded",
    "merged",
    "most_frequent",
    "type_stats",
]


ORDERED: tuple[ValueKind, ...] = ("bool", "int", "float", "timestamp", "string")
"""The types whose values are told apart and have an order. Equally frequent values are in this order of types, with
integers and floats in one order, by value."""
_KINDS: dict[str, ValueKind] = {kind: kind for kind in get_args(ValueKind)}
_NUMBERS = frozenset({"int", "float"})


@dataclass(frozen=True, slots=True, eq=False)
class ValueCounts:
    """The distinct values of one type, and how many rows have each."""

    kind: ValueKind
    values: pa.Array
    """(V,), in no order; none of types that are not ORDERED."""
    counts_V: np.ndarray
    """Rows, int64, at least 1; of types that are not ORDERED, one number for all values."""

    @property
    def total(self) -> int:
        """Values of all rows; a list has several."""
        return int(self.counts_V.sum())


class FieldCounts(NamedTuple):
    """The values of a field among some rows."""

    kinds: list[ValueCounts]
    """One for each type that occurs."""
    rows: int
    """Rows that have the field."""
    missing: int
    """Rows that do not."""

    @property
    def distinct(self) -> int:
        """Distinct values of the ORDERED types."""
        return sum(len(each.values) for each in self.kinds)


class ValueCount(NamedTuple):
    """A value and its number of rows."""

    kind: ValueKind
    value: Any
    rows: int


def counted(
    segments: Iterable[tuple[Field, int, np.ndarray | None]], *, declared: bool = True
) -> FieldCounts:
    """Count the values of a field.

    Args:
        segments: of each segment the index of the field, N, and the rows to count, bool (N,); None: all rows.
        declared: whether the field has one type; strings of others that are the same time are one value, of which the
            least spelling is told.

    """
    parts: dict[ValueKind, list[ValueCounts]] = {}
    rows = missing = 0
    for field, total, mask_N in segments:
        has_N = field.exists().mask()
        count = int(np.count_nonzero(has_N if mask_N is None else has_N & mask_N))
        rows += count
        missing += (total if mask_N is None else int(np.count_nonzero(mask_N))) - count
        for run in field.runs():
            counted_run = _of_run(run, mask_N)
            if len(counted_run.counts_V):
                parts.setdefault(run.kind, []).append(counted_run)
    return FieldCounts([_merged(each, declared=declared) for each in parts.values()], rows, missing)


def merged(parts: Sequence[FieldCounts], *, declared: bool = True) -> FieldCounts:
    """Return the sum of the counts of a field among several sets of rows; `declared` as of `counted`."""
    kinds: dict[ValueKind, list[ValueCounts]] = {}
    for each in (each for part in parts for each in part.kinds):
        kinds.setdefault(each.kind, []).append(each)
    rows, missing = sum(part.rows for part in parts), sum(part.missing for part in parts)
    return FieldCounts([_merged(each, declared=declared) for each in kinds.values()], rows, missing)


def encoded(counts: FieldCounts) -> LeafCounts:
    """Return counts as a message; InvalidRequestError if they are too large for one."""
    message = LeafCounts(rows=counts.rows, missing=counts.missing)
    remaining = limits.MAX_LEAF_VALUES_BYTES
    for each in counts.kinds:
        values = table_bytes(pa.table({"value": each.values})) if each.kind in ORDERED else b""
        remaining -= len(values) + each.counts_V.nbytes
        if remaining < 0:
            max_mib = limits.MAX_LEAF_VALUES_BYTES >> 20
            raise InvalidRequestError.at("attribute", f"its distinct values have more than {max_mib} MiB")
        message.values.add(kind=each.kind, values=values, counts=each.counts_V.astype("<i8").tobytes())
    return message


def decoded(message: LeafCounts) -> FieldCounts:
    """Return the counts of a message that `encoded` made; ValueError or ServingError if it is no such message."""
    kinds = []
    for each in message.values:
        kind = _KINDS.get(each.kind)
        if kind is None:
            raise ValueError(f"unknown type of values {each.kind!r:.80}")
        values = pa.nulls(0) if kind not in ORDERED else _from_arrow(each.values)
        counts_V = np.frombuffer(each.counts, "<i8").astype(np.int64)
        if kind in ORDERED and len(counts_V) != len(values):
            raise ValueError(f"{len(values)} values of type {kind} have {len(counts_V)} counts")
        kinds.append(ValueCounts(kind, values, counts_V))
    return FieldCounts(kinds, message.rows, message.missing)


def _from_arrow(data: bytes) -> pa.Array:
    return read_table(data).column(0).combine_chunks()


def most_frequent(kinds: Sequence[ValueCounts], limit: int) -> list[ValueCount]:
    """Return the most frequent values of the ORDERED types; equally frequent ones by type and value."""
    kinds = [each for each in kinds if each.kind in ORDERED]
    counts = np.concatenate([np.zeros(0, np.int64), *(each.counts_V for each in kinds)])
    least = int(np.partition(counts, len(counts) - limit)[len(counts) - limit]) if len(counts) > limit else 0
    largest = [each for counts in kinds for each in _at_least(counts, least, limit)]
    return sorted(largest, key=_rank)[:limit]


def _of_run(run: ValueRuns, mask_N: np.ndarray | None) -> ValueCounts:
    if mask_N is None:
        counts_V = np.diff(run.starts)
    else:
        # One pass over the rows, without the interpreter's lock. `reduceat` needs a row for each value: there is one.
        counts_V = np.add.reduceat(mask_N[run.rows_P], run.starts[:-1], dtype=np.int64)
    has_V = counts_V > 0
    if run.kind not in ORDERED:
        total = np.array([counts_V.sum()] if has_V.any() else [], np.int64)
        return ValueCounts(run.kind, pa.nulls(0), total)
    if has_V.all():
        return ValueCounts(run.kind, run.values, counts_V)
    return ValueCounts(run.kind, run.values.filter(pa.array(has_V)), counts_V[has_V])


def _merged(parts: Sequence[ValueCounts], *, declared: bool) -> ValueCounts:
    """Return the sum of the counts of several segments."""
    joined = _joined(parts) if len(parts) > 1 else parts[0]
    return joined if declared or joined.kind != "string" else _by_instant(joined)


def _by_instant(counts: ValueCounts) -> ValueCounts:
    """Return counts of strings with one value for all spellings of a time."""
    texts = comparable(counts.values)
    if texts is counts.values:
        return counts
    columns = {"text": texts, "value": counts.values, "rows": counts.counts_V}
    grouped = pa.table(columns).group_by("text").aggregate([("value", "min"), ("rows", "sum")])
    values = grouped.column("value_min").combine_chunks()
    return ValueCounts("string", values, grouped.column("rows_sum").to_numpy())


def _joined(parts: Sequence[ValueCounts]) -> ValueCounts:
    kind = parts[0].kind
    counts = np.concatenate([part.counts_V for part in parts])
    if kind not in ORDERED:
        return ValueCounts(kind, pa.nulls(0), counts.sum(keepdims=True))
    values = pa.concat_arrays([part.values for part in parts])
    if kind == "float":
        values = pc.add(values, 0.0)  # makes -0.0 to 0.0, which it equals, but not for `dictionary_encode`
    encoded = values.dictionary_encode()
    # `bincount` adds floats, which are exact up to 2**53 rows.
    summed_V = np.bincount(encoded.indices.to_numpy(), weights=counts).astype(np.int64)
    return ValueCounts(kind, encoded.dictionary, summed_V)


def _at_least(each: ValueCounts, least: int, limit: int) -> Iterable[ValueCount]:
    """Return the values with more than `least` rows, and of those with exactly `least` the first `limit`."""
    above = np.flatnonzero(each.counts_V > least)
    equal = np.flatnonzero(each.counts_V == least)
    if len(equal) > limit:
        table = pa.table({"value": each.values.take(pa.array(equal))})
        first = pc.select_k_unstable(table, k=limit, sort_keys=[("value", "ascending")])
        equal = equal[first.to_numpy()]
    positions = np.concatenate([above, equal])
    _check_size(each.values, positions)
    values, counts = each.values.take(pa.array(positions)).to_pylist(), each.counts_V[positions].tolist()
    return (ValueCount(each.kind, *pair) for pair in zip(values, counts, strict=True))


def _check_size(values: pa.Array, positions: np.ndarray) -> None:
    """Check the size of the values at some places, before they are copied: each string may have a MiB."""
    if not pa.types.is_string(values.type) and not pa.types.is_large_string(values.type):
        return
    size, maximum = int(pc.binary_length(values).to_numpy()[positions].sum()), limits.MAX_FACETS_BYTES
    if size > maximum:
        what = f"must be less: the values have {size >> 20} MiB, and an answer has at most {maximum >> 20}"
        raise InvalidRequestError.at("limit", what)


def _rank(count: ValueCount) -> tuple[int, int, Any, int]:
    group: ValueKind = "int" if count.kind in _NUMBERS else count.kind
    return -count.rows, ORDERED.index(group), count.value, ORDERED.index(count.kind)


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
    ordered = _SortedValues(parts, declared=declared)
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


class _SortedValues:
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

    def at(self, rank: int) -> ValueCount:
        """Return the value at a place, from 0."""
        number = int(self._order_V[rank])
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
