"""The order of rows by the values of a field: smallest or greatest first, rows without a value last, equal ones by id.

A dynamic attribute may have a value of another type in each row. Numbers come before strings, and strings before
booleans; with the greatest first this is reversed, too. Integers and floats are compared exactly: 2**53 + 1 is greater
than 2.0**53. Strings that are times are compared as instants (text_values.py). Lists and objects have no order: their
rows come after those in both directions, and before the rows that do not have the attribute, or have null.

Shapes: R rows of all segments, P values of one type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer import DYNAMIC_COLUMN, Segment
from scannery.indexer.datapoints.dynamic import DynamicValues, Kind, dynamic_values
from scannery.indexer.datapoints.text_values import comparable
from scannery.runtime.retry import Deadline
from scannery.serving.request.filter import dynamic_name
from scannery.serving.request.scan import RowOrder

__all__ = [
    "DYNAMIC_TYPES",
    "DynamicScalars",
    "KeyColumns",
    "Scalars",
    "key_columns",
    "ordered_by",
    "sorted_positions",
]

_VALUE, _NO_ORDER, _MISSING = range(3)
"""Groups of rows, in their order in both directions."""


@dataclass(frozen=True, slots=True, eq=False)
class _Keys:
    """What rows are sorted by, besides their ids."""

    values_R: np.ndarray
    """Numbers in the order of the values, int64, uint8 or float64; anything where there is no value."""
    groups_R: np.ndarray
    """`_VALUE`, `_NO_ORDER` or `_MISSING`, uint8."""


Scalars = tuple[np.ndarray, pa.ChunkedArray]
"""The position of each value, int64 (P,), and the values."""


@dataclass(frozen=True, slots=True, eq=False)
class DynamicScalars:
    """The values of a dynamic attribute that have an order."""

    present_R: np.ndarray
    """Which rows have the attribute, and not null, bool."""
    by_kind: Mapping[Kind, Scalars]
    """Values by type, without those in lists; all types."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyColumns:
    """What rows are ordered by, as segments have it. Parts are joined by the order of rows."""

    ids: Sequence[pa.ChunkedArray]
    values: Sequence[pa.ChunkedArray] = ()
    """Values of a field whose values are of one type; none where rows are ordered by id alone, or by a dynamic
    attribute.
    """
    dynamic: DynamicScalars | None = None


def sorted_positions(
    parts: Iterable[tuple[Segment, np.ndarray]], order: RowOrder, deadline: Deadline
) -> np.ndarray:
    """Return the positions of rows in their order, int64; the first is that of the first row of the first part.

    Args:
        parts: segments, and the rows wanted of each, ascending.
        order: the field, and the direction.
        deadline: checked between segments.

    Raises:
        DeadlineError: the deadline passed.

    """
    return ordered_by(key_columns(parts, order, deadline), order)


def key_columns(
    parts: Iterable[tuple[Segment, np.ndarray]], order: RowOrder, deadline: Deadline
) -> KeyColumns:
    """Return what rows are ordered by; arguments and errors as of `sorted_positions`."""
    nonempty = [(segment, rows) for segment, rows in parts if len(rows)]
    ids = [_column(segment, "id", rows) for segment, rows in nonempty]
    if order.field == "id":
        return KeyColumns(ids)
    name = dynamic_name(order.field)
    values = []
    for segment, rows in nonempty:
        deadline.check()
        values.append(_column(segment, order.field if name is None else DYNAMIC_COLUMN, rows))
    deadline.check()
    if name is None:
        return KeyColumns(ids, values=values)
    return KeyColumns(
        ids, dynamic=_dynamic_scalars([dynamic_values(each, name, check=deadline.check) for each in values])
    )


def ordered_by(columns: KeyColumns, order: RowOrder) -> np.ndarray:
    """Return the positions of rows in their order, int64."""
    if not columns.ids:
        return np.zeros(0, np.int64)
    by_id_R = _by_id(columns.ids)
    if order.field == "id":
        return by_id_R[::-1].copy() if order.descending else by_id_R
    keys = _keys(columns.values) if columns.dynamic is None else _dynamic_keys(columns.dynamic)
    return _sorted(by_id_R, keys, descending=order.descending)


def _column(segment: Segment, name: str, rows: np.ndarray) -> pa.ChunkedArray:
    """Return a column of some rows; nulls if the segment is older than the field."""
    if name not in segment.table.column_names:
        return pa.chunked_array([pa.nulls(len(rows), pa.string() if name == DYNAMIC_COLUMN else None)])
    if len(rows) == segment.rows:  # without a copy
        return segment.column(name)
    return segment.take(rows, [name]).column(name)


def _joined(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    tables = [pa.table({"values": column}) for column in columns]
    return pa.concat_tables(tables, promote_options="permissive").column("values")


def _by_id(columns: Sequence[pa.ChunkedArray]) -> np.ndarray:
    # Arrow sorts strings by bytes of UTF-8, which is the order of code points, as Python's.
    order: np.ndarray = pc.array_sort_indices(_joined(columns)).to_numpy().astype(np.int64)
    return order


def _sorted(by_id_R: np.ndarray, keys: _Keys, *, descending: bool) -> np.ndarray:
    """Return positions by group and value; sorts are stable, so that equal ones stay in the order of their ids."""
    groups_R = keys.groups_R[by_id_R]
    ordered = []
    for group in (_VALUE, _NO_ORDER, _MISSING):
        positions = by_id_R[groups_R == group]
        if group == _VALUE:
            values = keys.values_R[positions]
            positions = positions[np.argsort(_reversed(values) if descending else values, kind="stable")]
        ordered.append(positions)
    return np.concatenate(ordered)


def _reversed(values: np.ndarray) -> np.ndarray:
    """Return numbers in the opposite order. Integers have no negative of the least one; NaN stays the last."""
    reverse: Callable[[np.ndarray], np.ndarray] = np.negative if values.dtype.kind == "f" else np.invert
    return reverse(values)


def _keys(columns: Sequence[pa.ChunkedArray]) -> _Keys:
    """Return the keys of a field that has values of one type."""
    column = _joined(columns)
    if pa.types.is_null(column.type):
        return _Keys(np.zeros(len(column), np.uint8), np.full(len(column), _MISSING, np.uint8))
    groups_R = np.full(len(column), _VALUE, np.uint8)
    if column.null_count:
        groups_R[pc.is_null(column).to_numpy()] = _MISSING
    return _Keys(_numbers(column), groups_R)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Return numbers in the order of the values, anything for null."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _string_codes(column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    numbers: np.ndarray = (column.fill_null(0) if column.null_count else column).to_numpy()
    return numbers


def _string_codes(column: pa.ChunkedArray) -> np.ndarray:
    """Return the place of each string among the distinct ones, int64."""
    # Large: the strings of one array may have more than 2 GiB.
    encoded = column.cast(pa.large_string()).combine_chunks().dictionary_encode()
    order_V = pc.array_sort_indices(encoded.dictionary).to_numpy()
    code_V = np.zeros(max(len(order_V), 1), np.int64)
    code_V[order_V] = np.arange(len(order_V))
    codes: np.ndarray = code_V[encoded.indices.fill_null(0).to_numpy()]
    return codes


def _dynamic_scalars(columns: Sequence[DynamicValues]) -> DynamicScalars:
    """Return the values of a dynamic attribute in the rows of all segments."""
    starts = np.cumsum([0, *(each.rows for each in columns)])[:-1].tolist()
    present_R = np.concatenate([np.zeros(0, bool), *(each.present_N for each in columns)])
    return DynamicScalars(present_R, {kind: _scalars(columns, starts, kind) for kind in DYNAMIC_TYPES})


def _dynamic_keys(scalars: DynamicScalars) -> _Keys:
    """Return the keys of a dynamic attribute."""
    groups_R = np.where(scalars.present_R, _NO_ORDER, _MISSING).astype(np.uint8)
    keys = _Keys(np.zeros(len(groups_R), np.int64), groups_R)
    next_code = 0
    for kinds, coded in _CODED:
        places_P, codes_P = coded([scalars.by_kind[kind] for kind in kinds])
        keys.groups_R[places_P] = _VALUE
        keys.values_R[places_P] = codes_P + next_code
        next_code += int(codes_P.max(initial=-1)) + 1
    return keys


def _scalars(columns: Sequence[DynamicValues], starts: Sequence[int], kind: Kind) -> Scalars:
    """Return the values of a type in the rows of all segments, without those in lists."""
    positions, values = [np.zeros(0, np.int64)], [pa.array([], DYNAMIC_TYPES[kind])]
    for each, start in zip(columns, starts, strict=True):
        if kind in each.by_kind:
            rows_P, encoded = each.by_kind[kind]
            in_list_N = np.zeros(each.rows, bool)
            in_list_N[each.lists] = True
            single = np.flatnonzero(~in_list_N[rows_P])
            positions.append(rows_P[single].astype(np.int64) + start)
            values.append(
                encoded.dictionary.take(encoded.indices.take(pa.array(single))).cast(DYNAMIC_TYPES[kind])
            )
    return np.concatenate(positions), pa.chunked_array(values)


DYNAMIC_TYPES: dict[Kind, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.large_string(),
    "bool": pa.bool_(),
}


def _coded_numbers(parts: Sequence[Scalars]) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of integers and floats, and the place of each among the distinct numbers, int64.

    A number is the nearest float, and what it differs from that: 0 of a float, and of an integer at most 512. To round
    keeps the order, so that these two compare as the numbers do.
    """
    (places_I, ints), (places_F, floats) = parts
    ints_I, floats_F = ints.to_numpy(), floats.to_numpy()
    near_P = np.concatenate([ints_I.astype(np.float64), floats_F])
    rest_P = np.concatenate([_rounded_off(ints_I), np.zeros(len(floats_F), np.int64)])
    order_P = np.lexsort((rest_P, near_P))
    near_P, rest_P = near_P[order_P], rest_P[order_P]
    differs_P = np.ones(len(order_P), np.int64)
    differs_P[1:] = (near_P[1:] != near_P[:-1]) | (rest_P[1:] != rest_P[:-1])
    codes_P = np.empty(len(order_P), np.int64)
    codes_P[order_P] = np.cumsum(differs_P) - 1
    return np.concatenate([places_I, places_F]), codes_P


def _rounded_off(ints: np.ndarray) -> np.ndarray:
    """Return what integers differ from the nearest float, int64."""
    near = ints.astype(np.float64)
    is_over = near >= 2.0**63  # the nearest float of the greatest integers is none of 64 bits
    exact = np.where(is_over, 0.0, near).astype(np.int64)
    return np.where(is_over, (ints - _LARGEST) - 1, ints - np.where(is_over, ints, exact))


_LARGEST = 2**63 - 1


def _coded_strings(parts: Sequence[Scalars]) -> tuple[np.ndarray, np.ndarray]:
    ((places_P, values),) = parts
    encoded = values.cast(pa.large_string()).combine_chunks().dictionary_encode()
    texts = comparable(encoded.dictionary)
    return places_P, _string_codes(pa.chunked_array([texts.take(encoded.indices)]))


def _coded_bools(parts: Sequence[Scalars]) -> tuple[np.ndarray, np.ndarray]:
    ((places_P, values),) = parts
    return places_P, values.to_numpy().astype(np.int64)


_CODED: Sequence[tuple[Sequence[Kind], Callable[[Sequence[Scalars]], tuple[np.ndarray, np.ndarray]]]] = (
    (("int", "float"), _coded_numbers),
    (("string",), _coded_strings),
    (("bool",), _coded_bools),
)
"""Types of dynamic values that compare with each other, in their order, and what returns the places of values."""
