"""Rows with and without a vector: they never share a segment.

In tables, `embedding` is null where a row has no vector, or the column is missing if none has one. Parquet files have
no nulls in it, since Arrow cannot read fixed-size lists with nulls from Parquet: segments without vectors lack the
column, and files that mix rows have zeros there and a column `PRESENT_COLUMN`.

Shapes: N rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = [
    "PRESENT_COLUMN",
    "filled",
    "has_vector",
    "is_vectorless",
    "parts_by_vector",
    "unfilled",
    "without_vectors",
]

PRESENT_COLUMN = "_has_vector"
"""Column of `filled` tables: whether a row has a vector, bool."""


def is_vectorless(table: pa.Table) -> bool:
    """Return whether a table has rows, and none with a vector."""
    if "embedding" not in table.column_names:
        return bool(table.num_rows)
    return bool(0 < table.num_rows == table.column("embedding").null_count)


def has_vector(table: pa.Table, column: str = "embedding") -> np.ndarray:
    """Return which rows have a vector in a column, that of the unnamed one by default, bool (N,)."""
    if column not in table.column_names:
        return np.zeros(table.num_rows, bool)
    vectors = table.column(column)
    if not vectors.null_count:
        return np.ones(table.num_rows, bool)
    present_N: np.ndarray = vectors.is_valid().to_numpy()
    return present_N


def without_vectors(table: pa.Table) -> pa.Table:
    """Return a table without the column of vectors; the table itself if it has none."""
    return table.drop_columns(["embedding"]) if "embedding" in table.column_names else table


def parts_by_vector(table: pa.Table) -> list[pa.Table]:
    """Return the rows with a vector, and then those without one, whose table lacks `embedding`; no empty tables."""
    present_N = has_vector(table)
    if present_N.all():
        return [table] if table.num_rows else []
    without = without_vectors(table)
    if not present_N.any():
        return [without]
    return [table.filter(pa.array(present_N)), without.filter(pa.array(~present_N))]


def filled(table: pa.Table) -> pa.Table:
    """Return a table for a Parquet file: zeros in place of missing vectors, and `PRESENT_COLUMN` if a row has none."""
    present_N = has_vector(table)
    if present_N.all():
        return _with_embedding(table, table.column("embedding"), nullable=False)
    column = table.column("embedding")
    zeros = pa.array(np.zeros(column.type.list_size, np.float32))
    zero = pa.FixedSizeListArray.from_arrays(zeros, type=column.type)
    # In place of nulls: the zero vector, which is last.
    places_N = np.where(present_N, np.arange(table.num_rows), table.num_rows)
    whole = pa.chunked_array([*column.chunks, zero], type=column.type)
    table = _with_embedding(table, whole.take(pa.array(places_N)), nullable=False)
    return table.append_column(pa.field(PRESENT_COLUMN, pa.bool_(), nullable=False), pa.array(present_N))


def unfilled(table: pa.Table) -> pa.Table:
    """Return what `filled` was given."""
    if PRESENT_COLUMN not in table.column_names:
        return table
    present_N = table.column(PRESENT_COLUMN).to_numpy()
    table = table.drop_columns([PRESENT_COLUMN])
    if "embedding" not in table.column_names or present_N.all():
        return table
    column = table.column("embedding")
    places = pa.array(np.arange(table.num_rows), mask=~present_N)
    return _with_embedding(table, column.take(places), nullable=True)


def _with_embedding(table: pa.Table, column: pa.ChunkedArray, *, nullable: bool) -> pa.Table:
    place = table.schema.get_field_index("embedding")
    return table.set_column(place, table.schema.field(place).with_nullable(nullable), column)
