"""A reader of Thrift's compact protocol, in which Parquet writes its footer, its page indexes and its page headers.

PyArrow does not tell where the pages of a column are. Values are read by their number in parquet.thrift of
https://github.com/apache/parquet-format, without a schema: a struct is a dict from field numbers to values.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from scannery.indexer.errors import CorruptError

__all__ = ["Struct", "read_struct"]

Struct: TypeAlias = "dict[int, Any]"
"""Field number → bool, int, bytes, Struct, or list of these. `Any`, since the type depends on the file."""

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)
_MOST_DEPTH = 32
_MOST_BITS = 63


def read_struct(data: memoryview, start: int = 0) -> tuple[Struct, int]:
    """Return the struct at a place, and the place after it.

    Raises:
        CorruptError: it does not end within the data, or is no struct.

    """
    reader = _Reader(data, start)
    try:
        return reader.struct(0), reader.at
    except (IndexError, ValueError) as error:
        raise CorruptError(f"a part of a segment's index of pages is damaged: {error}") from error


class _Reader:
    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self.at = data, at

    def struct(self, depth: int) -> Struct:
        found: Struct = {}
        number = 0
        while (head := self._byte()) != _STOP:
            kind, more = head & 15, head >> 4
            number = number + more if more else self._signed()
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:  # as its type says
        if depth > _MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        if kind in _INTEGERS:
            return self._signed()
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind == _STRUCT:
            return self.struct(depth)
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind in (_BYTE, _TRUE, _FALSE):  # booleans of a list have a byte each
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        raise ValueError(f"type {kind} is unknown")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._unsigned()
        if count > len(self._data) - self.at:  # each item has a byte at least
            raise ValueError(f"a list of {count} items does not fit")
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        value = self._data[self.at]
        self.at += 1
        return value

    def _bytes(self, count: int) -> bytes:
        if count > len(self._data) - self.at:
            raise ValueError(f"{count} bytes do not fit")
        self.at += count
        return bytes(self._data[self.at - count : self.at])

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > _MOST_BITS:
                raise ValueError("a number is too long")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
