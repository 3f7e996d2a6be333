"""Named vectors in tables of datapoints: one nullable column of lists for each name.

Rows on their way into a segment have them beside `embedding`. A segment has the vectors of each name in a file of their
own, with the number of the row that each belongs to (segment/build.py), since a file has the order of one ScaNN tree.

Shapes: N rows of a table, V vectors of one name, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "NAMED_TYPE",
    "ROW_COLUMN",
    "names_in",
    "vector_column",
    "vectors_array",
    "vectors_table",
    "without_named",
]

NAMED_TYPE = pa.large_list(pa.field("item", pa.float32(), nullable=False))
"""Type of the columns: lists, since nulls of a fixed size take the space of vectors; large ones, since a shard may have
more than 2³¹ components."""
ROW_COLUMN = "_row"
"""Column of a file of named vectors: the number of the row in the file of its datapoints, int64."""
_PREFIX = "_embedding_"


def vector_column(name: str) -> str:
    """Return the column of a named vector in tables of rows."""
    return _PREFIX + name


def names_in(table: pa.Table) -> list[str]:
    """Return the names of the vectors that at least one row has."""
    return [
        column.removeprefix(_PREFIX)
        for column in table.column_names
        if column.startswith(_PREFIX) and table.column(column).null_count < table.num_rows
    ]


def without_named(table: pa.Table) -> pa.Table:
    """Return a table without the columns of named vectors."""
    named = [column for column in table.column_names if column.startswith(_PREFIX)]
    return table.drop_columns(named) if named else table


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
    values = np.concatenate([np.empty(0, np.float32), *(chunk.flatten() for chunk in column.chunks)])
    sizes = np.unique(pc.list_value_length(column.drop_null()).to_numpy())
    if len(sizes) != 1:
        raise ValueError(f"vectors {name!r} have {sizes.tolist()} dimensions")
    embedding = pa.FixedSizeListArray.from_arrays(
        pa.array(values), type=pa.list_(pa.field("item", pa.float32(), nullable=False), int(sizes[0]))
    )
    return pa.table(
        {
            "id": table.column("id").take(pa.array(rows_V)),
            "embedding": embedding,
            ROW_COLUMN: rows_V if places_N is None else places_N[rows_V],
        }
    )


def vectors_array(vectors: Sequence[np.ndarray | None]) -> pa.Array:
    """Return the vectors of rows as an array of NAMED_TYPE, null for None.

    Args:
        vectors: float32 (D,) of each row.

    """
    present = [vector for vector in vectors if vector is not None]
    values = np.concatenate([np.empty(0, np.float32), *present])
    sizes_N = np.array([0 if vector is None else len(vector) for vector in vectors], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes_N)])
    missing = pa.array([vector is None for vector in vectors], pa.bool_())
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values), type=NAMED_TYPE, mask=missing)
