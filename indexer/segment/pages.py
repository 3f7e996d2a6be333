"""The pages of a segment's vectors: where they are in its file, and the vectors in them.

The places are in the footer and the page indexes of Parquet. Both are at the end of the file. The manifest has the
SHA-256 of that end (`FileTail`), so that nothing is parsed that was not checked.

PyArrow does not tell where the pages of a column are, so Thrift's compact protocol is read here, in which Parquet
writes its footer, its page indexes and its page headers. Values are read by their number in parquet.thrift of
https://github.com/apache/parquet-format, without a schema: a struct is a dict from field numbers to values.

The checksum of a page is checked before it is decompressed, and all sizes after.

A page (version 1) of a column of lists has, after decompression: repetition levels and definition levels, each with its
length in four bytes before it, and then the values. In the column of the vectors every row has as many values as the
vectors have components, so that the levels say nothing, and are skipped.

Shapes: P pages, R rows of a page, D dimensions.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import zstandard

from scannery.indexer.errors import CorruptError
from scannery.indexer.manifest import FileTail, SegmentEntry
from scannery.indexer.store.object_store import Store
from scannery.indexer.vectors.arrays import mapped

__all__ = ["Pages", "Struct", "decoded_page", "find_pages", "read_struct", "read_tail", "tail_of"]


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
        fields: Struct = {}
        number = 0
        while (head := self._byte()) != _STOP:
            kind, more = head & 15, head >> 4
            number = number + more if more else self._signed()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth + 1)
        return fields

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


_MAGIC = b"PAR1"
_ENDING = 8
"""Bytes after the footer: its length, and the magic number."""
_EMBEDDING = [b"embedding", b"list", b"element"]

# Numbers of fields in parquet.thrift.
_ROW_GROUPS = 4
_COLUMNS, _GROUP_ROWS = 1, 3
_COLUMN_METADATA, _OFFSET_INDEX, _OFFSET_INDEX_BYTES, _COLUMN_INDEX = 3, 4, 5, 6
_PATH, _CODEC = 3, 4
_ZSTD = 6
_LOCATIONS = 1
_OFFSET, _SIZE, _FIRST_ROW = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Pages:
    """The pages with vectors of a segment, in the order of their rows."""

    rows_P1: np.ndarray
    """First row of each page, and after the last one the number of rows, int64 (P + 1,)."""
    offsets_P: np.ndarray
    """First byte of each page, its header included, int64."""
    sizes_P: np.ndarray
    """Bytes of each page, int64."""

    def save(self, path: Path) -> None:
        """Write the places as a `.npy` file."""
        np.save(path, np.concatenate([self.rows_P1, self.offsets_P, self.sizes_P]))

    @classmethod
    def map(cls, path: Path) -> Pages:
        """Return what `save` wrote, memory-mapped."""
        whole = mapped(path)
        count = (len(whole) - 1) // 3
        return cls(whole[: count + 1], whole[count + 1 : 2 * count + 1], whole[2 * count + 1 :])

    def __len__(self) -> int:
        return len(self.offsets_P)

    def of_rows(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the number of the page of each row, int64 (R,)."""
        pages_R: np.ndarray = np.searchsorted(self.rows_P1, rows_R, side="right") - 1
        return pages_R

    def row_count(self, page: int) -> int:
        """Return the number of rows of a page."""
        return int(self.rows_P1[page + 1] - self.rows_P1[page])


def tail_of(path: Path) -> FileTail | None:
    """Return the end of a segment file that `find_pages` reads; None if its vectors have no page index."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(size - _ENDING)
        footer_bytes = int.from_bytes(file.read(4), "little")
        start = file.seek(size - _ENDING - footer_bytes)
        footer, _ = read_struct(memoryview(file.read(footer_bytes)))
        indexed = [
            column.get(number)
            for group in footer.get(_ROW_GROUPS, ())
            for column in group[_COLUMNS]
            for number in (_OFFSET_INDEX, _COLUMN_INDEX)
        ]
        if not any(indexed):
            return None
        start = min(start, *(offset for offset in indexed if offset))
        file.seek(start)
        return FileTail(start=start, sha256=hashlib.sha256(file.read()).hexdigest())


def read_tail(store: Store, key: str, entry: SegmentEntry) -> memoryview:
    """Return the checked end of a segment file.

    Raises:
        NotFoundError, StoreError: it cannot be read.
        CorruptError: its hash is not the one in the manifest.

    """
    tail = entry.tail
    if tail is None or not 0 <= tail.start < entry.size_bytes:
        raise CorruptError(f"{key} has no page index by its manifest")
    data = store.read_range(key, tail.start, entry.size_bytes - tail.start)
    if hashlib.sha256(data).hexdigest() != tail.sha256:
        raise CorruptError(f"{key} is damaged: the SHA-256 of its end is not the one in the manifest")
    return memoryview(data)


def find_pages(tail: memoryview, start: int, key: str, rows: int) -> Pages:
    """Return the pages of the vectors.

    Args:
        tail: the end of the file.
        start: its place in the file.
        key: of the file, for errors.
        rows: of the segment.

    Raises:
        CorruptError: the pages do not have the rows of the segment, or are not in the file.

    """
    try:
        pages = list(_located(tail, start, key))
    except (KeyError, TypeError) as error:
        raise CorruptError(f"{key} has a page index without {error}") from error
    places_P3 = np.array(pages, np.int64).reshape(-1, 3)
    first_P, offsets_P, sizes_P = places_P3.T
    rows_P1 = np.append(first_P, rows)
    ends_P = offsets_P + sizes_P
    if rows_P1[0] != 0 or (np.diff(rows_P1) <= 0).any():
        raise CorruptError(f"{key} has a page index for other rows")
    if (sizes_P <= 0).any() or (offsets_P < len(_MAGIC)).any() or (ends_P > start).any():
        raise CorruptError(f"{key} has a page index with places outside of it")
    return Pages(rows_P1, np.ascontiguousarray(offsets_P), np.ascontiguousarray(sizes_P))


def _located(tail: memoryview, start: int, key: str) -> Iterator[tuple[int, int, int]]:
    """Yield first row, offset and size of each page."""
    footer_bytes = int.from_bytes(tail[-_ENDING:-4], "little")
    if bytes(tail[-4:]) != _MAGIC or footer_bytes > len(tail) - _ENDING:
        raise CorruptError(f"{key} does not end as a Parquet file")
    footer, _ = read_struct(tail, len(tail) - _ENDING - footer_bytes)
    before = 0
    for group in footer[_ROW_GROUPS]:
        column = _vectors_in(group, key)
        at = column[_OFFSET_INDEX] - start
        if not 0 <= at <= len(tail) - column[_OFFSET_INDEX_BYTES]:
            raise CorruptError(f"{key} has a page index outside of its end")
        index, _ = read_struct(tail[at : at + column[_OFFSET_INDEX_BYTES]])
        for location in index[_LOCATIONS]:
            yield before + location[_FIRST_ROW], location[_OFFSET], location[_SIZE]
        before += group[_GROUP_ROWS]


def _vectors_in(group: Struct, key: str) -> Struct:
    """Return the column of the vectors in a row group."""
    for column in group[_COLUMNS]:
        about = column[_COLUMN_METADATA]
        if about[_PATH] == _EMBEDDING:
            if about[_CODEC] != _ZSTD:
                raise CorruptError(f"{key} has vectors in codec {about[_CODEC]}, not zstd")
            struct: Struct = column
            return struct
    raise CorruptError(f"{key} has no vectors")


# Numbers of fields, and values, in parquet.thrift.
_TYPE, _RAW_BYTES, _BYTES, _CRC, _DATA_HEADER = 1, 2, 3, 4, 5
_VALUES, _ENCODING = 1, 2
_DATA_PAGE = 0
_PLAIN, _BYTE_STREAM_SPLIT = 0, 9
_LEVEL_BYTES_PER_VALUE = 1
"""Most bytes of both kinds of levels for each value, besides the free ones."""
_FREE_BYTES = 1 << 10


def decoded_page(data: memoryview, rows: int, dimensions: int, key: str) -> np.ndarray:
    """Return the vectors of a page, float32 (R, D), read-only.

    Args:
        data: the page, with its header.
        rows: that it has by the page index.
        dimensions: components of a vector.
        key: of the file, for errors.

    Raises:
        CorruptError: its checksum is wrong, or it has not these values.

    """
    header, at = read_struct(data)
    values = rows * dimensions
    raw_bytes, encoding = _checked(header, values, key)
    body = data[at:]
    if len(body) != header.get(_BYTES) or zlib.crc32(body) != header[_CRC] & 0xFFFFFFFF:
        raise CorruptError(f"{key} has a damaged page: its checksum is wrong")
    try:
        raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=raw_bytes)
    except zstandard.ZstdError as error:
        raise CorruptError(f"{key} has a page that does not decompress: {error}") from error
    start = _values_at(raw)
    if len(raw) != raw_bytes or len(raw) - start != 4 * values:
        raise CorruptError(f"{key} has a page with another number of values than its rows have")
    vectors_RD = _values(raw, start, encoding).reshape(rows, dimensions)
    vectors_RD.setflags(write=False)
    return vectors_RD


def _checked(header: Struct, count: int, key: str) -> tuple[int, int]:
    """Return the bytes of a page after decompression, and its encoding."""
    about, raw_bytes, crc = header.get(_DATA_HEADER), header.get(_RAW_BYTES), header.get(_CRC)
    if not (isinstance(about, dict) and isinstance(raw_bytes, int) and isinstance(crc, int)):
        raise CorruptError(f"{key} has a page without sizes or a checksum")
    encoding = about.get(_ENCODING)
    if header.get(_TYPE) != _DATA_PAGE or encoding not in (_PLAIN, _BYTE_STREAM_SPLIT):
        raise CorruptError(f"{key} has a page of another kind than pages of vectors")
    if about.get(_VALUES) != count:
        raise CorruptError(f"{key} has a page with {about.get(_VALUES)} values, not {count}")
    if not 4 * count <= raw_bytes <= (4 + _LEVEL_BYTES_PER_VALUE) * count + _FREE_BYTES:
        raise CorruptError(f"{key} has a page of {raw_bytes} bytes for {count} values")
    return raw_bytes, int(encoding)


def _values_at(raw: bytes) -> int:
    """Return where the values begin: after two kinds of levels."""
    at = 0
    for _ in range(2):
        at += 4 + int.from_bytes(raw[at : at + 4], "little")
    return at


def _values(raw: bytes, start: int, encoding: int) -> np.ndarray:
    """Return the values, float32: in the second encoding all first bytes, then all second ones, and so on."""
    if encoding == _PLAIN:
        return np.frombuffer(raw, "<f4", offset=start)
    split = np.frombuffer(raw, np.uint8, offset=start).reshape(4, -1)
    joined: np.ndarray = np.ascontiguousarray(split.T).view("<f4")[:, 0]
    return joined
