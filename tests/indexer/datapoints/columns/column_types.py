"""Columns of two rows, the second of them null, in every type that writers have: what tests of readers try."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import Any, NamedTuple

import pyarrow as pa

__all__ = ["COLUMNS", "REFUSED", "TypedColumn"]

ID = uuid.UUID("5d760231-7a8d-49ce-9de8-6e7933ce50ef")
NANOS = 1_709_424_000_123_456_789
TIME = dt.datetime(2024, 3, 3, 0, 0, 0, 123456)
BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)


class TypedColumn(NamedTuple):
    """A column, and its first value as a plain column has it."""

    array: pa.Array
    value: Any


def _dictionary(words: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), words)


def _runs(values: list[Any], type: pa.DataType | None = None) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array(values, type))


def _stored(type: pa.BaseExtensionType, values: list[Any], storage: pa.DataType) -> pa.Array:
    return pa.ExtensionArray.from_storage(type, pa.array(values, storage))


def _typed(value: Any, type: pa.DataType, plain: Any = None) -> TypedColumn:
    return TypedColumn(pa.array([value, None], type), value if plain is None else plain)


COLUMNS: dict[str, TypedColumn] = {
    "null": TypedColumn(pa.nulls(2), None),
    "bool": _typed(True, pa.bool_()),
    "int8": _typed(7, pa.int8()),
    "uint64 beyond int64": _typed(2**64 - 1, pa.uint64()),
    "float16": _typed(1.5, pa.float16()),
    "float32": _typed(0.5, pa.float32()),
    "NaN": TypedColumn(pa.array([float("nan"), None]), None),
    "infinity": _typed(float("inf"), pa.float64()),
    "decimal32": _typed(decimal.Decimal("1.50"), pa.decimal32(5, 2)),
    "decimal256": _typed(decimal.Decimal("1.50"), pa.decimal256(50, 2)),
    "string": _typed("a", pa.string()),
    "large string": _typed("a", pa.large_string()),
    "string view": _typed("a", pa.string_view()),
    "binary": _typed(b"a", pa.binary()),
    "binary view": _typed(b"a", pa.binary_view()),
    "fixed-size binary": _typed(b"ab", pa.binary(2)),
    "date32": _typed(dt.date(2024, 3, 3), pa.date32()),
    "date64": _typed(dt.date(2024, 3, 3), pa.date64()),
    "time32": _typed(dt.time(1, 2, 3), pa.time32("s")),
    "time64[ns]": _typed(3_723_000_000_789, pa.time64("ns"), dt.time(1, 2, 3)),
    "timestamp[s]": _typed(TIME.replace(microsecond=0), pa.timestamp("s")),
    "timestamp[ns]": _typed(NANOS, pa.timestamp("ns"), TIME),
    "timestamp[ns], before 1970": _typed(-1, pa.timestamp("ns"), BEFORE_1970),
    "timestamp[ns, UTC]": _typed(NANOS, pa.timestamp("ns", "UTC"), TIME.replace(tzinfo=dt.timezone.utc)),
    "timestamp[ns, unknown zone]": _typed(
        NANOS, pa.timestamp("ns", "Mars/Olympus"), TIME.replace(tzinfo=dt.timezone.utc)
    ),
    "duration[ns]": _typed(1_500_000_789, pa.duration("ns"), dt.timedelta(seconds=1.5)),
    "dictionary": TypedColumn(_dictionary(pa.array(["a"])), "a"),
    "dictionary of integers": TypedColumn(_dictionary(pa.array([7])), 7),
    "dictionary of string views": TypedColumn(_dictionary(pa.array(["a"], pa.string_view())), "a"),
    "dictionary of lists": TypedColumn(_dictionary(pa.array([["a"]])), ["a"]),
    "run-end encoded": TypedColumn(_runs(["a", None]), "a"),
    "run-end encoded times": TypedColumn(_runs([NANOS, None], pa.timestamp("ns")), TIME),
    "list": _typed(["a"], pa.list_(pa.string())),
    "large list": _typed(["a"], pa.large_list(pa.string())),
    "list view": _typed(["a"], pa.list_view(pa.string())),
    "list of string views": _typed(["a"], pa.list_(pa.string_view())),
    "list of dictionaries": _typed(["a"], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "list of nanoseconds": _typed([-1], pa.list_(pa.timestamp("ns")), [BEFORE_1970]),
    "fixed-size list": _typed([1.0, 2.0], pa.list_(pa.float32(), 2)),
    "fixed-size list of float16": _typed([1.0, 2.0], pa.list_(pa.float16(), 2)),
    "list of fixed-size lists": _typed([[1.0, 2.0], None], pa.list_(pa.list_(pa.float32(), 2))),
    "struct": _typed({"lat": 1.0, "lon": 2.0}, pa.struct({"lat": pa.float64(), "lon": pa.float64()})),
    "struct of nanoseconds": _typed({"at": NANOS}, pa.struct({"at": pa.timestamp("ns")}), {"at": TIME}),
    "struct of a fixed-size list": _typed({"v": [1.0, 2.0]}, pa.struct({"v": pa.list_(pa.float32(), 2)})),
    "list of structs": _typed([{"n": "Ann"}], pa.list_(pa.struct({"n": pa.string()}))),
    "map": _typed([("k", 1)], pa.map_(pa.string(), pa.int32()), {"k": 1}),
    "map of integers": _typed([(3, 0.5)], pa.map_(pa.int32(), pa.float32()), {3: 0.5}),
    "map of nanoseconds": _typed([("k", NANOS)], pa.map_(pa.string(), pa.timestamp("ns")), {"k": TIME}),
    "uuid": TypedColumn(pa.array([ID.bytes, None], pa.uuid()), str(ID)),
    "bool8": TypedColumn(_stored(pa.bool8(), [1, None], pa.int8()), True),
    "JSON": TypedColumn(_stored(pa.json_(), ['{"a":1}', None], pa.string()), '{"a":1}'),
    "fixed-shape tensor": TypedColumn(
        _stored(pa.fixed_shape_tensor(pa.float32(), [2]), [[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
        [1.0, 2.0],
    ),
}
REFUSED: dict[str, pa.Array] = {
    "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "union": pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
    "list of intervals": pa.array([[(1, 2, 3)], None], pa.list_(pa.month_day_nano_interval())),
}
"""Types that have no plain form."""
