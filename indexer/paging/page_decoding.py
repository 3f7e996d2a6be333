"""From the bytes of a Parquet page to vectors. Checked before it is decompressed: its checksum; after: all sizes.

A page (version 1) of a column of lists has, after decompression: repetition levels and definition levels, each with its
length in four bytes before it, and then the values. In the column of the vectors every row has as many values as the
vectors have components, so that the levels say nothing, and are skipped.

Shapes: R rows of a page, D dimensions.
"""

from __future__ import annotations

import zlib

import numpy as np
import zstandard

from scannery.indexer.errors import CorruptError
from scannery.indexer.paging.page_index import Struct, read_struct

__all__ = ["decoded_page"]

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


def _checked(header: Struct, wanted: int, key: str) -> tuple[int, int]:
    """Return the bytes of a page after decompression, and its encoding."""
    about, raw_bytes, crc = header.get(_DATA_HEADER), header.get(_RAW_BYTES), header.get(_CRC)
    if not (isinstance(about, dict) and isinstance(raw_bytes, int) and isinstance(crc, int)):
        raise CorruptError(f"{key} has a page without sizes or a checksum")
    encoding = about.get(_ENCODING)
    if header.get(_TYPE) != _DATA_PAGE or encoding not in (_PLAIN, _BYTE_STREAM_SPLIT):
        raise CorruptError(f"{key} has a page of another kind than pages of vectors")
    if about.get(_VALUES) != wanted:
        raise CorruptError(f"{key} has a page with {about.get(_VALUES)} values, not {wanted}")
    if not 4 * wanted <= raw_bytes <= (4 + _LEVEL_BYTES_PER_VALUE) * wanted + _FREE_BYTES:
        raise CorruptError(f"{key} has a page of {raw_bytes} bytes for {wanted} values")
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
