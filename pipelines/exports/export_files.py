"""Write tables to the files of an export: Parquet, or JSON lines, plain or compressed."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from scannery.indexer.datapoints.named_vectors import (
    NAMED_TYPE,
    vector_column,
    vector_name,
    without_named,
)
from scannery.indexer.datapoints.schema import DYNAMIC_COLUMN
from scannery.indexer.datapoints.sparse import INDICES_COLUMN, SPARSE_COLUMNS, VALUES_COLUMN

__all__ = ["FORMATS", "SPARSE", "RowWriter", "exported", "exported_schema", "format_of_name", "open_writer"]

SPARSE = "sparse"
"""Column of sparse vectors. No attribute can have this name."""

_SPARSE_TYPE = pa.struct({"indices": pa.list_(pa.uint32()), "values": pa.list_(pa.float32())})

NAMED = "vectors"
"""Column of named vectors, by name."""

_VECTOR_OR_NULL = pa.list_(pa.float32())

_ROWS_BOXED = 256
"""Rows held as Python objects at once: a float then takes eight times its size."""

FORMATS = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")


class RowWriter(Protocol):
    """A file that takes tables of one schema."""

    def write(self, table: pa.Table) -> None:
        """Append the rows."""


def exported_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of exported files.

    Sparse vectors are one column, as builds and updates read them, and so are named vectors. Vectors that may be
    missing are lists of any size: Arrow cannot read nulls among lists of a fixed size from Parquet.
    """
    named = _named_in(schema)
    left_out = {*SPARSE_COLUMNS, *map(vector_column, named)}
    fields = [_exported_field(field) for field in schema if field.name not in left_out]
    if named:
        fields.append(pa.field(NAMED, _named_type(named)))
    if INDICES_COLUMN in schema.names:
        fields.append(pa.field(SPARSE, _SPARSE_TYPE))
    return pa.schema(fields, metadata=schema.metadata)


def _named_in(schema: pa.Schema) -> list[str]:
    return [
        name for field in schema if field.type == NAMED_TYPE and (name := vector_name(field.name)) is not None
    ]


def _named_type(names: Sequence[str]) -> pa.StructType:
    return pa.struct(dict.fromkeys(names, _VECTOR_OR_NULL))


def _exported_field(field: pa.Field) -> pa.Field:
    return field.with_type(_VECTOR_OR_NULL) if field.name == "embedding" and field.nullable else field


def exported(table: pa.Table) -> pa.Table:
    """Return rows of a segment in the schema of `exported_schema`."""
    place = table.schema.get_field_index("embedding")
    if place >= 0 and table.schema.field(place).nullable:
        vectors = table.column(place).cast(_VECTOR_OR_NULL)
        table = table.set_column(place, _exported_field(table.schema.field(place)), vectors)
    table = _with_named(table)
    if INDICES_COLUMN not in table.column_names:
        return table
    parts = [table.column(name).combine_chunks() for name in (INDICES_COLUMN, VALUES_COLUMN)]
    sparse = pa.StructArray.from_arrays(parts, fields=list(_SPARSE_TYPE), mask=parts[0].is_null())
    return table.drop_columns(list(SPARSE_COLUMNS)).append_column(SPARSE, sparse)


def _with_named(table: pa.Table) -> pa.Table:
    """Return rows with their named vectors in one column: null for a row without any."""
    names = _named_in(table.schema)
    if not names:
        return table
    parts = [table.column(vector_column(name)).combine_chunks().cast(_VECTOR_OR_NULL) for name in names]
    missing = np.logical_and.reduce([part.is_null().to_numpy(zero_copy_only=False) for part in parts])
    column = pa.StructArray.from_arrays(parts, fields=list(_named_type(names)), mask=pa.array(missing))
    return without_named(table).append_column(NAMED, column)


def format_of_name(name: str) -> str | None:
    """Return the format for a file name's ending, or None if no format has that ending."""
    return next((format for format in FORMATS if name.endswith(f".{format}") and name != f".{format}"), None)


@contextlib.contextmanager
def open_writer(path: Path, format: str, schema: pa.Schema) -> Iterator[RowWriter]:
    """Yield a writer to a new file."""
    if format == "parquet":
        with _parquet(path, schema) as parquet:
            yield _ParquetRows(parquet)
        return
    with path.open("wb") as raw, _compressed(raw, format) as file:
        yield _JsonRows(file)


def _parquet(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    plain = [field.name for field in schema if not pa.types.is_nested(field.type)]
    lists = [
        f"{field.name}.list.element"
        for field in schema
        if pa.types.is_list(field.type) and field.name != "embedding"
    ]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        # As in segments: vectors get smaller by split byte streams, never by dictionaries.
        use_dictionary=plain + lists,
        column_encoding=dict.fromkeys(_vector_paths(schema), "BYTE_STREAM_SPLIT") or None,
        write_page_checksum=True,
    )


def _vector_paths(schema: pa.Schema) -> list[str]:
    named = schema.field(NAMED).type if NAMED in schema.names else ()
    inner = [f"{NAMED}.{field.name}.list.element" for field in named if pa.types.is_list(field.type)]
    return inner + (["embedding.list.element"] if "embedding" in schema.names else [])


class _ParquetRows:
    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))


class _JsonRows:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, table: pa.Table) -> None:
        for start in range(0, table.num_rows, _ROWS_BOXED):
            for row in table.slice(start, _ROWS_BOXED).to_pylist():
                line = json.dumps(_json_row(row), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
                self._file.write(f"{line}\n".encode())


def _json_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a datapoint as JSON values; null fields are left out.

    Python writes a float32 with all digits that its double needs, so reading it back gives the same bits.
    """
    return {name: _json_value(name, value) for name, value in row.items() if value is not None}


def _json_value(name: str, value: Any) -> Any:
    if name == DYNAMIC_COLUMN:
        return json.loads(value)
    if name == NAMED:
        return {name: vector for name, vector in value.items() if vector is not None}
    if name == "payload":
        # Objects and lists become JSON values; a payload that is a string stays JSON in a string, as in Parquet.
        return json.loads(value) if value[:1] in ("{", "[") else value
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"  # JSON has no number for it; the build reads both
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value


@contextlib.contextmanager
def _compressed(raw: BinaryIO, format: str) -> Iterator[BinaryIO]:
    if format == "jsonl.gz":
        # Without name and time, so that equal datapoints make equal files.
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed:
            yield packed  # type: ignore[misc]  # a GzipFile writes like any binary file
    elif format == "jsonl.zst":
        with zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as packed:
            yield packed
    else:
        yield raw
