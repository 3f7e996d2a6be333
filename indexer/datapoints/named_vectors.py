"""Vectors in tables of datapoints: a nullable column of lists for each name, and rows without a vector.

Rows on their way into a segment have them beside `embedding`. A segment has the vectors of each name in a file of their
own, with the number of the row that each belongs to (segment/build.py), since a file has the order of one ScaNN tree.

Shapes: N rows of a table, V vectors of one name, D dimensions.

In tables, `embedding` is null where a row has no vector, or the column is missing if none has one. Parquet files have
no nulls in it, since Arrow cannot read fixed-size lists with nulls from Parquet: segments without vectors lack the
column, and files that mix rows have zeros there and a column `PRESENT_COLUMN`.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "NAMED_TYPE",
    "ROW_COLUMN",
    "as_lists",
    "filled",
    "has_vector",
    "is_vector_column",
    "is_vectorless",
    "named_array",
    "named_column",
    "names_in",
    "parts_by_vector",
    "unfilled",
    "vector_column",
    "vector_name",
    "vectors_array",
    "vectors_table",
    "with_missing_vectors",
    "with_vectors",
    "without_absent",
    "without_named",
    "without_vectors",
]


NAMED_TYPE = pa.large_list(pa.field("item", pa.float32(), nullable=False))
"""Type of the columns: lists, since nulls of a fixed size take the space of vectors; large ones, since a shard may have
more than 2³¹ components."""
ROW_COLUMN = "_row"
"""Column of a file of named vectors: the number of the row in the file of its datapoints, int64."""
_PREFIX = "_embedding_"


def vector_column(name: str) -> str:
    """Return the column of the vectors of a name in tables of rows."""
    return _PREFIX + name if name else "embedding"


def is_vector_column(column: str) -> bool:
    """Return whether a column of a table of rows is that of a named vector."""
    return column.startswith(_PREFIX)


def vector_name(column: str) -> str | None:
    """Return the name of the vectors in a column; None for other columns."""
    return column.removeprefix(_PREFIX) if column.startswith(_PREFIX) else None


def names_in(table: pa.Table) -> list[str]:
    """Return the names of the vectors that at least one row has."""
    columns = _vector_columns(table)
    return [each.removeprefix(_PREFIX) for each in columns if table.column(each).null_count < table.num_rows]


def _vector_columns(table: pa.Table) -> list[str]:
    return [column for column in table.column_names if column.startswith(_PREFIX)]


def without_named(table: pa.Table) -> pa.Table:
    """Return a table without the columns of named vectors."""
    named = _vector_columns(table)
    return table.drop_columns(named) if named else table


def without_absent(table: pa.Table) -> pa.Table:
    """Return a table without the columns of names that no row has a vector of."""
    present = {vector_column(name) for name in names_in(table)}
    absent = [column for column in _vector_columns(table) if column not in present]
    return table.drop_columns(absent) if absent else table


def with_vectors(table: pa.Table, name: str, vectors: Sequence[np.ndarray | None]) -> pa.Table:
    """Return a table with other vectors of a name, float32 (D,) or None for each row."""
    column = vector_column(name)
    column_number, array = table.schema.get_field_index(column), vectors_array(vectors)
    if column_number < 0:
        return table.append_column(column, array)
    return table.set_column(column_number, column, array)


def with_missing_vectors(table: pa.Table, name: str, vectors: Sequence[np.ndarray | None]) -> pa.Table:
    """Return a table with vectors of a name, float32 (D,), for the rows that lack one."""
    column_number = table.schema.get_field_index(vector_column(name))
    stored, made = table.column(column_number), vectors_array(vectors)
    whole = made if stored.null_count == len(stored) else pc.coalesce(stored, made)
    return table.set_column(column_number, vector_column(name), whole)


def vectors_table(table: pa.Table, name: str, places_N: np.ndarray | None = None) -> pa.Table:
    """Return the vectors of a name as the columns `id`, `embedding` (of a fixed size) and ROW_COLUMN.

    Args:
        table: rows with their `id` and the column of the name.
        name: of the vectors.
        places_N: number of each row in the file of its datapoints, int64; None: the number in the table.

    Raises:
        ValueError: the vectors do not all have the same number of components.

    """
    column = table.column(vector_column(name))
    rows_V = np.flatnonzero(column.is_valid().to_numpy())
    chunks = [chunk.flatten().to_numpy() for chunk in column.chunks]
    values = chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.float32), *chunks])
    sizes = np.unique(pc.list_value_length(column.drop_null()).to_numpy())
    if len(sizes) != 1:
        raise ValueError(f"vectors {name!r} have {sizes.tolist()} dimensions")
    embedding = as_lists(values.reshape(-1, int(sizes[0])))
    return pa.table(
        {
            "id": table.column("id").take(pa.array(rows_V)),
            "embedding": embedding,
            ROW_COLUMN: rows_V if places_N is None else places_N[rows_V],
        }
    )


def as_lists(vectors_ND: np.ndarray) -> pa.Array:
    """Return float32 vectors as lists of a fixed size."""
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), vectors_ND.shape[1])
    return pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(vectors_ND).reshape(-1)), type=kind
    )


def named_column(vectors: pa.Table, rows: int) -> pa.Array:
    """Return the vectors in a file as a column of the rows of their datapoints, of NAMED_TYPE.

    Args:
        vectors: the columns `embedding` and ROW_COLUMN of the file.
        rows: number of datapoints.

    """
    column = vectors.column("embedding")
    size = column.type.list_size
    rows_V = vectors.column(ROW_COLUMN).to_numpy()
    order_V = np.argsort(rows_V)
    present_N = np.zeros(rows, bool)
    present_N[rows_V] = True
    flat = [chunk.flatten().to_numpy() for chunk in column.chunks]
    vectors_VD = np.concatenate([np.empty(0, np.float32), *flat]).reshape(-1, size)[order_V]
    return named_array(vectors_VD.reshape(-1), present_N, present_N * size)


def vectors_array(vectors: Sequence[np.ndarray | None]) -> pa.Array:
    """Return the vectors of rows as an array of NAMED_TYPE, null for None.

    Args:
        vectors: float32 (D,) of each row.

    """
    present = [vector for vector in vectors if vector is not None]
    values = np.concatenate([np.empty(0, np.float32), *present])
    sizes_N = np.array([0 if vector is None else len(vector) for vector in vectors], np.int64)
    return named_array(values, np.array([vector is not None for vector in vectors], bool), sizes_N)


def named_array(values: np.ndarray, present_N: np.ndarray, sizes_N: np.ndarray) -> pa.Array:
    """Return the vectors of rows as an array of NAMED_TYPE, null where a row has none.

    Args:
        values: components of the vectors of all rows that have one, one after the other, float32.
        present_N: which rows have one, bool.
        sizes_N: number of components of each row, 0 where it has no vector.

    """
    ends = pa.array(np.concatenate([[0], np.cumsum(sizes_N, dtype=np.int64)]))
    missing = pa.array(~present_N)
    return pa.LargeListArray.from_arrays(ends, pa.array(values), type=NAMED_TYPE, mask=missing)


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
    rows = pa.array(np.arange(table.num_rows), mask=~present_N)
    return _with_embedding(table, column.take(rows), nullable=True)


def _with_embedding(table: pa.Table, column: pa.ChunkedArray, *, nullable: bool) -> pa.Table:
    column_number = table.schema.get_field_index("embedding")
    return table.set_column(column_number, table.schema.field(column_number).with_nullable(nullable), column)
