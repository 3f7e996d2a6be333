"""Data frames and Arrow tables → records, one mapping for each row.

A table is what offers the Arrow C stream interface: Arrow's tables, record batches and readers, and the frames of
pandas and polars. These libraries are not imported, and `pyarrow`, which reads the interface, only for a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.named_vectors import with_vectors
from scannery.client.request.values import plain_value

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowStream", "Table", "column_names", "is_table", "row_count", "table_rows"]

READ_ROWS = 1024
"""Rows that are made into Python's objects at once."""


@runtime_checkable
class ArrowStream(Protocol):
    """An Arrow table or reader, or a frame of pandas or polars (the Arrow PyCapsule interface)."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream as a capsule."""


@runtime_checkable
class ArrowArray(Protocol):
    """An Arrow record batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return schema and array as capsules."""


Table: TypeAlias = ArrowStream | ArrowArray
"""What `upsert` takes as a table."""


def is_table(points: object) -> bool:
    """Return whether this is a table, and not an iterable of datapoints."""
    return isinstance(points, (ArrowStream, ArrowArray)) or _is_frame(points)


def row_count(points: Any) -> int | None:
    """Return the number of rows of a table, None where it is not known beforehand."""
    try:
        return len(points)
    except TypeError:
        return None


def column_names(points: Any) -> list[str] | None:
    """Return the names of a table's columns, None where only reading it tells them."""
    names = getattr(points, "column_names", None) or getattr(points, "columns", None)
    if names is None:
        names = getattr(getattr(points, "schema", None), "names", None)
    return None if names is None else [str(name) for name in names if not _is_index(str(name))]


def table_rows(points: Any) -> Iterator[dict[str, Any]]:
    """Yield each row as a mapping of the columns that have a value: null, NaN and NaT are left out.

    Lists of floats, such as vectors, are arrays, timestamps datetimes, periods the time when they begin, UUIDs texts,
    decimals integers where they are whole, else floats. A named index is a column.

    Raises:
        InvalidArgumentError: it is no table of named columns.

    """
    points = _with_index(points) if _is_frame(points) else points
    reader = None if _has_mappings(points) else _reader(points)
    if reader is None:
        yield from (_identified(_plain_row(row)) for row in _frame_rows(points))
        return
    for batch in reader:
        for start in range(0, batch.num_rows, READ_ROWS):
            yield from map(_identified, _batch_rows(batch.slice(start, READ_ROWS)))


def _is_frame(points: object) -> bool:
    # Frames of pandas before 2.2 have no Arrow interface.
    return not isinstance(points, Mapping) and hasattr(points, "to_dict") and hasattr(points, "iloc")


def _with_index(frame: Any) -> Any:
    """Return a frame whose index, if it has a name, is a column: Arrow drops ranges, and `to_dict` any index."""
    columns = [str(name) for name in frame.columns]
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise InvalidArgumentError(f"points: two columns are called {twice!r}", field="points")
    names = getattr(getattr(frame, "index", None), "names", ())
    levels = [place for place, name in enumerate(names) if name is not None and str(name) not in columns]
    return frame.reset_index(level=levels) if levels else frame


def _has_mappings(points: Any) -> bool:
    """Return whether a frame has mappings, such as payloads: Arrow gives each of them the keys of all."""
    if not _is_frame(points):
        return False
    columns = (points[name] for name, kind in points.dtypes.items() if str(kind) == "object")
    return any(isinstance(value, Mapping) for column in columns for value in column)


def _identified(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with whole ids as integers: pandas makes floats of them beside missing ones.

    Columns `vectors.NAME` become one value `vectors`.
    """
    for name in ("id", "document_id"):
        value = row.get(name)
        if isinstance(value, float) and value.is_integer():
            row[name] = int(value)
    return with_vectors(row)


def _reader(points: Any) -> Iterable[pa.RecordBatch] | None:
    """Return the batches of a table; None for a frame whose columns Arrow cannot represent."""
    import pyarrow as pa

    try:
        if isinstance(points, ArrowStream):
            batches: Iterable[pa.RecordBatch] = _named(pa.RecordBatchReader.from_stream(points))
            return batches
        if not _is_frame(points):
            one: pa.RecordBatch = _named(pa.record_batch(points))
            return [one]
    except (pa.ArrowException, TypeError, ValueError) as error:
        if not _is_frame(points):
            raise InvalidArgumentError(
                f"points: cannot be read as an Arrow table: {error}", field="points"
            ) from error
    # A column of objects of several types, say: such frames are read row by row.
    return None


def _named(table: Any) -> Any:
    names = table.schema.names
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"points: two columns are called {twice!r}", field="points")
    return table


def _frame_rows(frame: Any) -> Iterator[dict[str, Any]]:
    for start in range(0, len(frame), READ_ROWS):
        yield from frame.iloc[start : start + READ_ROWS].to_dict("records")


def _plain_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    plain = ((str(name), plain_value(value)) for name, value in row.items())
    return {name: value for name, value in plain if value is not None}


def _batch_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    from scannery.indexer.datapoints.columns.plain import plain

    columns = {
        name: _column(plain(batch.column(place)))
        for place, name in enumerate(batch.schema.names)
        if not _is_index(name)
    }
    for row in range(batch.num_rows):
        values = ((name, values[row]) for name, values in columns.items())
        yield {name: value for name, value in values if value is not None}


def _column(array: pa.Array) -> list[Any]:
    """Return the values of a plain column, None where there is none."""
    import pyarrow as pa

    from scannery.indexer.datapoints.columns.plain import python_values

    if _is_vector(array.type):
        return _float_lists(array)
    if pa.types.is_struct(array.type) and any(_is_vector(field.type) for field in array.type):
        return _structs(array)
    return [plain_value(value) for value in python_values(array)]


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_vector(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return _is_list(kind) and bool(pa.types.is_floating(kind.value_type))


def _structs(array: pa.Array) -> list[Any]:
    """Return structs as mappings without their nulls, None for null: of vectors, each of which stays an array."""
    names = [field.name for field in array.type]
    fields = [_column(field) for field in array.flatten()]
    return [
        {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if valid
        else None
        for valid, values in zip(array.is_valid().to_pylist(), zip(*fields, strict=True), strict=True)
    ]


def _float_lists(array: pa.Array) -> list[Any]:
    """Return lists of floats as arrays of their type, without an object for each number; those with nulls as lists."""
    flat = array.flatten()
    if flat.null_count:
        return [value if value is None or None in value else np.array(value) for value in array.to_pylist()]
    if array.null_count:
        return [value.values.to_numpy() if value.is_valid else None for value in array]
    sizes = array.value_lengths().to_numpy(zero_copy_only=False)
    return list(np.split(flat.to_numpy(), np.cumsum(sizes)[:-1])) if len(sizes) else []


def _is_index(name: str) -> bool:
    # pandas' own index without a name.
    return name.startswith("__index_level_")
