"""Columns of a table as places in one buffer, so that a kernel can read single rows without making Arrow objects.

An Arrow IPC file holds the buffers of all its columns; mapped into memory it is one array of bytes. Taking ten rows of
three columns out of it with Arrow costs 60 µs, because each row and column becomes an object; reading their bytes in
place costs one.

Shapes: B bytes of the buffer, N rows.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from scannery.indexer.errors import CorruptError

__all__ = ["ColumnAddress", "Records", "write_records"]

ColumnAddress = tuple[int, int, int, int]
"""Where a column lies, in bytes: its validity bits (-1: no nulls), its offsets (-1: none), its values, and the offsets
of the strings in a list (-1: it is no list). Of places: latitudes are the values, and longitudes the last."""

_ABSENT = -1


class Records:
    """A table whose columns each lie in one piece in one buffer. Immutable."""

    def __init__(self, buffer: pa.Buffer) -> None:
        self.table: pa.Table = pa.ipc.open_file(buffer).read_all()
        """The same columns as Arrow sees them, without a copy."""
        self._buffer = buffer
        self._addresses: dict[str, ColumnAddress] = {}

    @classmethod
    def map(cls, path: Path) -> Records:
        """Return the records that `write_records` wrote, memory-mapped."""
        with pa.memory_map(str(path)) as file:  # which the buffer outlives
            return cls(file.read_buffer())

    @classmethod
    def of(cls, table: pa.Table) -> Records:
        """Return the records of a table in memory. For few rows: they are copied."""
        sink = pa.BufferOutputStream()
        _write(table, sink)
        return cls(sink.getvalue())

    @property
    def size_bytes(self) -> int:
        """Bytes of the buffer."""
        return int(self._buffer.size)

    @cached_property
    def views(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The buffer as uint8, as int32 and as int64: Arrow aligns what it holds."""
        bytes_B = np.frombuffer(self._buffer, np.uint8)
        bytes_B.setflags(write=False)  # whatever the buffer: kernels are compiled for read-only arrays apart
        whole_B = bytes_B[: len(bytes_B) // 8 * 8]
        return bytes_B, whole_B.view(np.int32), whole_B.view(np.int64)

    @cached_property
    def in_one_piece(self) -> bool:
        """Whether there are rows, and columns have places: strings of more than 2 GB lie in several pieces."""
        return all(column.num_chunks == 1 for column in self.table.columns)

    def has_values(self, name: str) -> bool:
        """Return whether any row has a value in a column; KeyError if there is none."""
        column = self.table.column(name)
        return bool(column.null_count < len(column))

    def address(self, name: str) -> ColumnAddress:
        """Return where a column lies; KeyError if there is none."""
        if name not in self._addresses:
            self._addresses[name] = self._address(self.table.column(name).chunk(0))
        return self._addresses[name]

    def _address(self, array: pa.Array) -> ColumnAddress:
        buffers = [self._position(buffer) for buffer in array.buffers()]
        valid = buffers[0] if array.null_count else _ABSENT
        if pa.types.is_list(array.type):
            return valid, buffers[1], buffers[4], buffers[3]
        if pa.types.is_string(array.type):
            return valid, buffers[1], buffers[2], _ABSENT
        if pa.types.is_struct(array.type):
            return valid, _ABSENT, buffers[2], buffers[4]
        return valid, _ABSENT, buffers[1], _ABSENT

    def _position(self, buffer: pa.Buffer | None) -> int:
        if buffer is None:
            return _ABSENT
        if not buffer.size:  # of nothing; its address may be anywhere
            return 0
        position = int(buffer.address - self._buffer.address)
        if position % 8 or not 0 <= position <= self._buffer.size - buffer.size:
            raise CorruptError("the columns of a segment do not lie in its file")
        return position


def write_records(table: pa.Table, path: Path) -> None:
    """Write a table for `Records.map`."""
    with pa.OSFile(str(path), "wb") as sink:
        _write(table, sink)


def _write(table: pa.Table, sink: pa.NativeFile) -> None:
    table = table.replace_schema_metadata(None).combine_chunks()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
