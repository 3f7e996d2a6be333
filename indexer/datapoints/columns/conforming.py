"""Tables brought to a schema."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["conformed"]


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
