"""Read rows of open segments as tables from which new segments are built.

Shapes: N rows of a segment, R selected rows.

Size of rows of a table, from the offsets of its arrays: nothing is copied.

Shapes: R rows, C of them in one chunk of a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    NO_ROW,
    REVISION_COLUMN,
    AllowedRows,
    Manifest,
    Segment,
    vector_column,
    written_schema,
)

__all__ = ["fitting_rows", "live_rows", "row_sizes", "rows_of_documents", "stored_schema", "whole_rows"]


def stored_schema(manifest: Manifest) -> pa.Schema:
    """Return the schema of a segment of live rows: the columns of every segment, and the revision."""
    schema = written_schema(manifest.spec, manifest.dimensions)
    return schema.append(pa.field(REVISION_COLUMN, pa.int64()))


def live_rows(segments: Iterable[tuple[Segment, AllowedRows | None]], schema: pa.Schema) -> pa.Table:
    """Return the live rows of segments (None: all rows), with all columns of a schema."""
    tables = [
        whole_rows(segment, np.arange(segment.rows) if alive is None else alive.rows, schema)
        for segment, alive in segments
    ]
    return pa.concat_tables([schema.empty_table(), *tables])


def whole_rows(segment: Segment, rows_R: np.ndarray, schema: pa.Schema) -> pa.Table:
    """Return rows of a segment with all columns of a schema; what the segment lacks is null: attributes, vectors."""
    stored = set(segment.table.column_names)
    taken = segment.take(rows_R, [name for name in schema.names if name in stored])
    named = {vector_column(name): vectors for name, vectors in segment.named.items()}
    arrays = [
        _embedding(segment, rows_R, field.type)
        if field.name == "embedding" and segment.has_vectors
        else named[field.name].column(rows_R)
        if field.name in named
        else taken.column(field.name)
        if field.name in stored
        else pa.nulls(taken.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def rows_of_documents(
    segments: Iterable[tuple[Segment, AllowedRows | None]], documents: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """Return the live rows of documents in segments (None: all rows live), with all columns of a schema."""
    tables = [schema.empty_table()]
    for segment, alive in segments:
        rows_R = np.concatenate([np.empty(0, np.int64), *map(segment.rows_of_document, documents)])
        if alive is not None:
            rows_R = rows_R[alive.holds(rows_R)]
        if len(rows_R):
            tables.append(whole_rows(segment, rows_R, schema))
    return pa.concat_tables(tables)


def _embedding(segment: Segment, rows_R: np.ndarray, kind: pa.DataType) -> pa.Array:
    vectors_RD = np.ascontiguousarray(segment.vectors(rows_R), np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors_RD.reshape(-1)), type=kind)


def fitting_rows(segment: Segment, rows_R: np.ndarray, most_bytes: int, *, new_bytes: int = 0) -> np.ndarray:
    """Return the first rows that have at most `most_bytes`, each with `new_bytes` more. Nothing is copied."""
    sizes_R = row_sizes(segment.table, rows_R) + 4 * segment.dimensions + new_bytes
    for vectors in segment.named.values():
        sizes_R += 4 * vectors.segment.dimensions * (vectors.numbers(rows_R) != NO_ROW)
    return rows_R[: int(np.searchsorted(np.cumsum(sizes_R), most_bytes, side="right"))]


def row_sizes(table: pa.Table, rows_R: np.ndarray) -> np.ndarray:
    """Return the bytes of the values of each row, int64 (R,)."""
    sizes_R = np.zeros(len(rows_R), np.int64)
    for column in table.columns:
        first = 0
        for chunk in column.chunks:
            in_chunk_R = (rows_R >= first) & (rows_R < first + len(chunk))
            rows_C = rows_R[in_chunk_R] - first
            sizes_R[in_chunk_R] += _sizes(chunk, rows_C, rows_C + 1)
            first += len(chunk)
    return sizes_R


def _sizes(array: pa.Array, starts_C: np.ndarray, ends_C: np.ndarray) -> np.ndarray:
    """Return the bytes of the values in ranges of an array, int64 (C,)."""
    kind = array.type
    if pa.types.is_struct(kind):
        total_C = np.zeros(len(starts_C), np.int64)
        for part in array.flatten():
            total_C += _sizes(part, starts_C, ends_C)
        return total_C
    if pa.types.is_fixed_size_list(kind):
        return _sizes(array.values, *((at_C + array.offset) * kind.list_size for at_C in (starts_C, ends_C)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = array.offsets.to_numpy()
        return _sizes(array.values, offsets[starts_C].astype(np.int64), offsets[ends_C].astype(np.int64))
    if (width := _OFFSET_TYPES.get(kind)) is not None:
        return _text_sizes(array, width, starts_C, ends_C)
    bytes_each = 0 if pa.types.is_null(kind) else max(1, kind.bit_width // 8)
    sizes_C: np.ndarray = (ends_C - starts_C) * bytes_each
    return sizes_C


_OFFSET_TYPES = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}


def _text_sizes(array: pa.Array, kind: type, starts_C: np.ndarray, ends_C: np.ndarray) -> np.ndarray:
    offsets: np.ndarray = np.frombuffer(array.buffers()[1] or b"", kind)
    if not len(offsets):  # an array without values may have no offsets
        return np.zeros(len(starts_C), np.int64)
    sizes_C: np.ndarray = offsets[ends_C + array.offset].astype(np.int64) - offsets[starts_C + array.offset]
    return sizes_C
