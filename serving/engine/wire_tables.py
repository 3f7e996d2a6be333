"""Tables in the answers of leaves, as Arrow IPC streams."""

from __future__ import annotations

import pyarrow as pa

from scannery.runtime.errors import ServingError

__all__ = ["read_table", "table_bytes"]


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_table(data: bytes) -> pa.Table:
    """Return the table of a stream; raises ServingError if it is damaged.

    Arrow reads a stream without a look at the offsets in it: wrong ones would end the process when values are read.
    """
    try:
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise ServingError(f"a leaf returned a damaged table: {error}") from error
    return table
