"""Tables in the answers of leaves, as Arrow IPC streams."""

from __future__ import annotations

import struct

import pyarrow as pa

from scannery.runtime.errors import ServingError

__all__ = ["read_table", "table_bytes"]

# Places of fields in the tables that Arrow's Message.fbs defines.
_HEADER, _DATA, _COMPRESSION = 2, 1, 3
_ROWS_OF_A_BYTE = 8
"""Rows that one byte of a stream holds at most: of type bool."""


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_table(data: bytes) -> pa.Table:
    """Return the table of a stream; raises ServingError if it is damaged, or takes much more memory than its bytes.

    Arrow reads a stream without a look at the offsets in it: wrong ones would end the process when values are read.
    """
    try:
        _check_plain(data)
        table = pa.ipc.open_stream(data).read_all()
        if table.num_rows > _ROWS_OF_A_BYTE * len(data):
            raise ServingError(f"a leaf returned {table.num_rows} rows in {len(data)} bytes")
        table.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, struct.error) as error:
        raise ServingError(f"a leaf returned a damaged table: {error}") from error
    return table


def _check_plain(data: bytes) -> None:
    """Raise ServingError if a part of a stream is compressed: 5 kB became 160 MB, and leaves compress nothing."""
    reader = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type in ("record batch", "dictionary") and _is_compressed(message):
            raise ServingError("a leaf returned a compressed table")


def _is_compressed(message: pa.ipc.Message) -> bool:
    metadata = message.metadata.to_pybytes()
    (root,) = struct.unpack_from("<I", metadata)
    batch = _table_at(metadata, _field(metadata, root, _HEADER))
    if message.type == "dictionary":
        batch = _table_at(metadata, _field(metadata, batch, _DATA))
    return _field(metadata, batch, _COMPRESSION) != 0


def _field(metadata: bytes, table: int, number: int) -> int:
    """Return where a field of a FlatBuffers table is; 0: it is not set."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    (size,) = struct.unpack_from("<H", metadata, vtable)
    entry = 4 + 2 * number
    offset: int = struct.unpack_from("<H", metadata, vtable + entry)[0] if entry < size else 0
    return table + offset if offset else 0


def _table_at(metadata: bytes, place: int) -> int:
    """Return where the table is that a field refers to."""
    found: int = place + struct.unpack_from("<I", metadata, place)[0]
    return found
