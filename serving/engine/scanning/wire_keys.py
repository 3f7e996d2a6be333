"""What rows are ordered by, as messages: leaves write it, and a root orders the rows of all groups by it.

The values are exactly those of the segments, so that the order is that of one server: an Arrow IPC stream with the
column `id`, and `value` or, of a dynamic attribute, `present` and a column for each type.

Shapes: R rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.runtime.errors import ServingError
from scannery.serving.engine.scanning.row_order import DYNAMIC_TYPES, DynamicScalars, KeyColumns, Scalars
from scannery.serving.engine.wire_tables import read_table, table_bytes

__all__ = ["decoded_keys", "encoded_keys"]

_ID, _VALUE, _PRESENT = "id", "value", "present"


def encoded_keys(columns: KeyColumns) -> bytes:
    """Return what rows are ordered by as a message; `decoded_keys` reads it."""
    if not columns.ids:
        return b""
    table = {_ID: _joined(columns.ids)}
    if columns.values:
        table[_VALUE] = _joined(columns.values)
    if columns.dynamic is not None:
        table[_PRESENT] = pa.chunked_array([pa.array(columns.dynamic.present_R)])
        rows = len(columns.dynamic.present_R)
        table.update((kind, _spread(found, rows)) for kind, found in columns.dynamic.by_kind.items())
    return table_bytes(pa.table(table))


def decoded_keys(messages: Sequence[bytes]) -> KeyColumns:
    """Return what the rows of several messages are ordered by; raises ServingError if one is not of this form."""
    try:
        tables = [read_table(data) for data in messages if data]
        ids = [table.column(_ID) for table in tables]
        if tables and _PRESENT in tables[0].column_names:
            return KeyColumns(ids, dynamic=_dynamic(tables))
        values = [table.column(_VALUE) for table in tables if _VALUE in table.column_names]
        return KeyColumns(ids, values)
    except (pa.ArrowInvalid, KeyError) as error:
        raise ServingError("a leaf returned no keys of rows") from error


def _dynamic(tables: Sequence[pa.Table]) -> DynamicScalars:
    present_R = np.concatenate([table.column(_PRESENT).to_numpy() for table in tables])
    by_kind: dict[str, Scalars] = {}
    for kind in DYNAMIC_TYPES:
        column = pa.chunked_array([chunk for table in tables for chunk in table.column(kind).chunks])
        places_P = np.flatnonzero(pc.is_valid(column).to_numpy())
        by_kind[kind] = places_P, column.drop_null()
    return DynamicScalars(present_R, by_kind)  # type: ignore[arg-type]  # mypy widens the keys to str


def _joined(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    tables = [pa.table({"values": column}) for column in columns]
    return pa.concat_tables(tables, promote_options="permissive").column("values")


def _spread(found: Scalars, rows: int) -> pa.ChunkedArray:
    """Return the value of each row, null where it has none of the type."""
    places_P, values = found
    numbers_R = np.full(rows, -1, np.int64)
    numbers_R[places_P] = np.arange(len(places_P))
    return values.take(pa.array(numbers_R, mask=numbers_R < 0))
