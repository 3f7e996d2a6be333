"""Write tables to the files of an export: Parquet, or JSON lines, plain or compressed.

The rows of an export, in parts of bounded size: those of a segment, and those of live updates.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from scannery.indexer import CorruptError, SegmentEntry, Store, conformed, read_live_mask, segment_key
from scannery.indexer.datapoints.named_vectors import (
    NAMED_TYPE,
    ROW_COLUMN,
    as_lists,
    named_column,
    vector_column,
    vector_name,
    without_named,
)
from scannery.indexer.datapoints.schema import DYNAMIC_COLUMN
from scannery.indexer.datapoints.sparse import INDICES_COLUMN, SPARSE_COLUMNS, VALUES_COLUMN
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.segment.expired_rows import unexpired_rows
from scannery.indexer.spec.spec import ExpirySpec

__all__ = [
    "FORMATS",
    "SPARSE",
    "ExportRows",
    "LiveChange",
    "LiveRows",
    "SegmentRows",
    "exported",
    "exported_schema",
    "format_of_name",
    "open_writer",
]


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
    column_number = table.schema.get_field_index("embedding")
    if column_number >= 0 and table.schema.field(column_number).nullable:
        vectors = table.column(column_number).cast(_VECTOR_OR_NULL)
        table = table.set_column(column_number, _exported_field(table.schema.field(column_number)), vectors)
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


# Bytes of vectors in a batch; decoded, converted and encoded copies take about ten times that memory.
BATCH_BYTES = 1 << 24
MAX_BATCH_ROWS = 1 << 14
READ_BUFFER_BYTES = 1 << 20


class LiveChange(Protocol):
    """What live updates change in a version: rows of it die, then new rows are added."""

    @property
    def ids(self) -> Sequence[str]:
        """Rows of the version with these ids die."""

    @property
    def documents(self) -> Sequence[str]:
        """Rows of the version of these documents die."""

    @property
    def rows(self) -> pa.Table:
        """New rows, with at least the columns of `written_schema`."""

    @property
    def mutations(self) -> int:
        """Batches of live updates."""


class ExportRows(Protocol):
    """Rows of an export that go to one file together."""

    def tables(self) -> Iterator[pa.Table]:
        """Yield them in parts, with the columns of the schema."""


@dataclasses.dataclass(frozen=True)
class LiveRows:
    """The new rows of live updates."""

    change: LiveChange
    schema: pa.Schema
    components: int
    """Components of all vectors of a row."""
    expiry: ExpirySpec | None
    second: int
    """Second since 1970, by which rows have expired."""

    def tables(self) -> Iterator[pa.Table]:
        """Yield the new rows in parts."""
        size = _batch_rows(self.components)
        for start in range(0, self.change.rows.num_rows, size):
            table = conformed(self.change.rows.slice(start, size), self.schema)
            yield unexpired_rows(table, self.expiry, self.second)


@dataclasses.dataclass(frozen=True)
class SegmentRows:
    """The live rows of a segment."""

    store: Store
    index: str
    entry: SegmentEntry
    schema: pa.Schema
    change: LiveChange | None
    components: int
    """Components of all vectors of a row."""
    expiry: ExpirySpec | None
    second: int
    """Second since 1970, by which rows have expired."""

    def tables(self) -> Iterator[pa.Table]:
        """Yield the live rows in parts; CorruptError, before the first, if the segment does not match the manifest."""
        entry, rows, key = self.entry, 0, segment_key(self.index, self.entry.key)
        mask_N = read_live_mask(self.store, self.index, entry)
        with _verified(self.store, key, entry) as file, scratch_folder("export") as folder:
            present, named = _present(file, self.schema, key), self._named(folder)
            for batch in file.iter_batches(_batch_rows(self.components), columns=present):
                first, rows = rows, rows + batch.num_rows
                table = pa.Table.from_batches([batch])
                for name, vectors in named.items():
                    table = table.append_column(vector_column(name), vectors.column(first, rows))
                table = conformed(table, self.schema)
                if mask_N is not None:
                    table = table.filter(pa.array(mask_N[first:rows]))
                yield unexpired_rows(self._without_dead(table), self.expiry, self.second)
        if rows != entry.rows:
            raise CorruptError(f"{key} has {rows} rows, the manifest says {entry.rows}")

    def _named(self, folder: Path) -> dict[str, _VectorsByRow]:
        """Return the named vectors that are exported."""
        entries = {
            name: entry
            for name, entry in self.entry.named.items()
            if vector_column(name) in self.schema.names
        }
        return {name: self._by_row(entry, folder / name) for name, entry in entries.items()}

    def _by_row(self, entry: SegmentEntry, path: Path) -> _VectorsByRow:
        with _verified(self.store, segment_key(self.index, entry.key), entry) as file:
            size = file.schema_arrow.field("embedding").type.list_size
            vectors = _VectorsByRow.new(path, self.entry.rows, size)
            for batch in file.iter_batches(_batch_rows(size), columns=["embedding", ROW_COLUMN]):
                vectors.add(batch)
        return vectors

    def _without_dead(self, table: pa.Table) -> pa.Table:
        """Return the rows that live updates neither replace nor delete."""
        if self.change is None:
            return table
        for column, values in (("id", self.change.ids), ("document_id", self.change.documents)):
            if values:
                dead = pc.is_in(table.column(column), value_set=pa.array(values, pa.string()))
                table = table.filter(pc.invert(dead))
        return table


@dataclasses.dataclass(frozen=True)
class _VectorsByRow:
    """The vectors of a name in the order of their datapoints, which is not that of their file.

    They are in a file of their own: in memory they could take as much as all other rows of the segment.

    Shapes: N datapoints, D dimensions.
    """

    vectors_ND: np.ndarray
    present_N: np.ndarray

    @classmethod
    def new(cls, path: Path, rows: int, dimensions: int) -> _VectorsByRow:
        return cls(np.memmap(path, np.float32, "w+", shape=(rows, dimensions)), np.zeros(rows, bool))

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some rows of the file."""
        rows_V = batch.column(ROW_COLUMN).to_numpy()
        self.vectors_ND[rows_V] = batch.column("embedding").flatten().to_numpy().reshape(len(rows_V), -1)
        self.present_N[rows_V] = True

    def column(self, first: int, last: int) -> pa.Array:
        """Return the vectors of the rows from `first` to `last` (exclusive), null where a row has none."""
        rows_V = np.flatnonzero(self.present_N[first:last])
        vectors = {"embedding": as_lists(self.vectors_ND[first:last][rows_V]), ROW_COLUMN: rows_V}
        return named_column(pa.table(vectors), last - first)


@contextlib.contextmanager
def _verified(store: Store, key: str, entry: SegmentEntry) -> Iterator[pq.ParquetFile]:
    with (
        store.open_checked(key, sha256=entry.sha256, size_bytes=entry.size_bytes) as path,
        # With read-ahead, a whole column would be in memory before its first row is decoded.
        pq.ParquetFile(
            path, pre_buffer=False, buffer_size=READ_BUFFER_BYTES, page_checksum_verification=True
        ) as file,
    ):
        yield file


def _present(file: pq.ParquetFile, schema: pa.Schema, key: str) -> list[str]:
    """Return the columns of the schema that the file has; old segments lack attributes added to the spec later."""
    present = [name for name in schema.names if name in file.schema_arrow.names]
    missing = [field.name for field in schema if not field.nullable and field.name not in present]
    if missing:
        raise CorruptError(f"{key} has no column {missing[0]}")
    return present


def _batch_rows(components: int) -> int:
    return max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // (4 * max(1, components))))
