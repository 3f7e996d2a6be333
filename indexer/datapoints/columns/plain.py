"""Arrow columns of any type → columns of the types that Python and Arrow's kernels read alike.

Writers have more types than readers: string and binary views, list views, run-end and dictionary encoding, extension
types, nanoseconds, half floats; each may lie inside of another. Everything behind this module sees none of them.

    string, binary and list views     strings, bytes and lists
    dictionary and run-end encoding   the values themselves
    arrow.uuid                        its text
    arrow.bool8                       bool
    pandas.period                     the time when it begins
    other extension types             what they are stored as: a tensor is the list of its numbers
    timestamps, times and durations   to the microsecond, cut towards the past
    half floats                       float32
    NaN, but in lists                 null: it has no order, so no filter could find it

Tables brought to a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["conformed", "plain", "plain_batch", "python_rows", "python_values", "unreadable"]


def unreadable(field: pa.Field) -> str | None:
    """Return why the columns of a field cannot be read, and what to do; None where they can."""
    kind = _without_form(field.type)
    if (field.metadata or {}).get(b"ARROW:extension:name") == b"pandas.period" and not _is_extension(
        field.type
    ):
        kind = "pandas.period, and pandas is not installed"  # what is left of it is a number
    if kind is None:
        return None
    whole = "" if str(field.type) == kind else f" (within {field.type!s:.80})"
    return f"is a column of type {kind}{whole}, which cannot be read; write it as text, numbers or timestamps"


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with each column as `plain` returns it.

    Raises:
        pa.ArrowInvalid: a column is of a type that has no plain form; the message is that of `unreadable`.

    """
    for field in batch.schema:
        if problem := unreadable(field):
            raise pa.ArrowInvalid(f"{field.name}: {problem}")
    return pa.record_batch([plain(column) for column in batch.columns], names=batch.schema.names)


def plain(array: pa.Array) -> pa.Array:
    """Return a column in the types that the module names; a column that has them is returned as it is."""
    form = next((form for is_form, form in _FORMS if is_form(array.type)), None)
    return array if form is None else form(array)


def python_values(array: pa.Array) -> list[Any]:
    """Return the values of a plain column as Python has them; maps are dictionaries. Raises as `python_rows`."""
    return [row["_"] for row in python_rows(pa.record_batch([array], names=["_"]))]


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a plain batch as Python has them; maps are dictionaries.

    Raises:
        ValueError, OverflowError, pa.ArrowException: not UTF-8, a time after the year 9999, a map with a key twice.

    """
    try:
        rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    except (KeyError, TypeError) as error:  # a key twice, or one that is no key in Python
        raise ValueError(f"a map cannot be read: {error}") from error
    return rows


def _without_form(kind: pa.DataType) -> str | None:
    """Return the type within a type that has no plain form; None without one."""
    if isinstance(kind, pa.BaseExtensionType):
        return _without_form(kind.storage_type)
    if pa.types.is_union(kind) or pa.types.is_interval(kind):
        return str(kind)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _without_form(kind.value_type)
    return next(filter(None, map(_without_form, _inner_types(kind))), None)


def _inner_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    return (kind.field(number).type for number in range(kind.num_fields))


def _is_extension(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or _is_view_of_lists(kind)
    )


def _is_view_of_lists(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _stored(array: pa.Array) -> pa.Array:
    """Return what a column of an extension type stands for."""
    name, stored = array.type.extension_name, array.storage
    if name == "arrow.uuid":
        import uuid

        values = stored.to_pylist()
        return pa.array(
            [None if each is None else str(uuid.UUID(bytes=each)) for each in values], pa.string()
        )
    if name == "arrow.bool8":
        return stored.cast(pa.bool_())
    if name == "pandas.period":  # stored as a count of periods since 1970, not of seconds
        import pandas as pd

        ordinals, freq = stored.to_pylist(), array.type.freq
        times = [None if each is None else pd.Period(ordinal=each, freq=freq).start_time for each in ordinals]
        return pa.array(times, pa.timestamp("us"))
    return plain(stored)


def _struct(array: pa.Array) -> pa.Array:
    fields = list(array.type)
    flattened = array.flatten()  # in which nulls of the struct are nulls of its fields
    inner = [plain(column) for column in flattened]
    if all(field is plain_field for field, plain_field in zip(flattened, inner, strict=True)):
        return array
    named = [
        field.with_type(column.type).with_nullable(True) for field, column in zip(fields, inner, strict=True)
    ]
    return pa.StructArray.from_arrays(inner, fields=named, mask=pc.is_null(array))


def _map(array: pa.Array) -> pa.Array:
    key, item = array.type.key_type, array.type.item_type
    pairs = array.cast(pa.list_(pa.struct({"key": key, "value": item})))
    lists = _list(pairs)
    if lists is pairs:
        return array
    keys, items = lists.values.flatten()
    return pa.MapArray.from_arrays(lists.offsets, keys, items, mask=pc.is_null(array))


def _list(array: pa.Array) -> pa.Array:
    kind = array.type
    flat = array.flatten()
    items = flat if pa.types.is_floating(kind.value_type) and kind.value_type != pa.float16() else plain(flat)
    if items is flat and not _is_view_of_lists(kind):
        return array
    sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    is_large = len(items) >= 1 << 31
    lists, offset = (pa.LargeListArray, pa.int64()) if is_large else (pa.ListArray, pa.int32())
    return lists.from_arrays(pa.array(ends, offset), items, mask=pc.is_null(array))


def _without_nan(array: pa.Array) -> pa.Array:
    if array.type == pa.float16():
        array = array.cast(pa.float32())
    is_nan = pc.is_nan(array)
    return pc.if_else(is_nan, pa.scalar(None, array.type), array) if pc.any(is_nan).as_py() else array


def _runs(array: pa.Array) -> pa.Array:
    rows = np.arange(array.offset, array.offset + len(array))
    runs = np.searchsorted(array.run_ends.to_numpy(zero_copy_only=False), rows, side="right")
    return plain(array.values).take(pa.array(runs))


def _timestamps(array: pa.Array) -> pa.Array:
    kind = array.type
    zone = kind.tz if kind.tz is None or _is_zone(kind.tz) else "UTC"
    if kind.unit == "ns":
        return _in_micros(array, pa.timestamp("us", zone))
    return array if zone == kind.tz else array.cast(pa.timestamp(kind.unit, zone))


def _is_zone(name: str) -> bool:
    """Return whether Python has a time zone."""
    try:
        pa.scalar(0, pa.timestamp("us", name)).as_py()
    except (KeyError, ValueError, OSError, pa.ArrowException):
        return False
    return True


def _in_micros(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return nanoseconds as microseconds, rounded down. Arrow's own cast rounds towards 1970."""
    nanos = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return pa.array(nanos // 1000, mask=np.asarray(pc.is_null(array))).cast(kind)


_FORMS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (_is_extension, _stored),
    (pa.types.is_dictionary, lambda array: plain(array.dictionary).take(array.indices)),
    (pa.types.is_run_end_encoded, _runs),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
    (_is_list, _list),
    (pa.types.is_floating, _without_nan),
    (pa.types.is_string_view, lambda array: array.cast(pa.string())),
    (pa.types.is_binary_view, lambda array: array.cast(pa.binary())),
    (pa.types.is_timestamp, _timestamps),
    (lambda kind: kind == pa.duration("ns"), lambda array: _in_micros(array, pa.duration("us"))),
    (lambda kind: kind == pa.time64("ns"), lambda array: _in_micros(array, pa.time64("us"))),
)
"""What makes a column of a type plain; types that are not listed are."""


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema, in its order: cast where the type is another, null where the table has none.

    Unlike `Table.cast`, it takes fixed-size lists that are null: Arrow refuses to cast them, even to their own type.

    Raises:
        ValueError, pa.ArrowException: a value does not fit, or a column that must have values has nulls.

    """
    columns = [_column(table, field) for field in schema]
    return pa.table(columns, schema=schema)


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name in table.column_names:
        column = table.column(field.name)
    else:
        column = pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    if column.null_count and not field.nullable:
        raise pa.ArrowInvalid(f"column {field.name} has nulls")
    return column if column.type == field.type else column.cast(field.type)
