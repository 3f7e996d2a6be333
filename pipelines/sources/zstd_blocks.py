"""Cut Zstandard data into its blocks, each of which decompresses to at most 128 KiB (RFC 8878, section 3.1.1).

Four bytes of Zstandard can decompress to 128 KiB of zeros, and Python's decoder returns the whole output of its input
at once. So the input of one call must be bounded by the size of its output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["zstd_pieces"]

_FRAME = b"\x28\xb5\x2f\xfd"
_PIECE_BYTES = 1 << 14
_DICTIONARY_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_REPEATED = 1
"""Type of a block that repeats one byte."""


def zstd_pieces(raw: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a file in order, at most one block of a frame in each piece.

    Nothing is checked: data that is not a frame or ends early is yielded unchanged, and the decoder refuses it.
    """
    while magic := raw.read(4):
        if magic == _FRAME:
            yield from _frame(raw)
        elif len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5:
            size = raw.read(4)
            yield magic + size
            yield from _passed(raw, int.from_bytes(size, "little"))
        else:  # padding, or not Zstandard
            yield magic
            while data := raw.read(_PIECE_BYTES):
                yield data


def _frame(raw: BinaryIO) -> Iterator[bytes]:
    descriptor = raw.read(1)
    flags = descriptor[0] if descriptor else 0
    single_segment = flags >> 5 & 1
    content_size = _CONTENT_SIZE_BYTES[flags >> 6] or single_segment
    yield _FRAME + descriptor + raw.read(1 - single_segment + _DICTIONARY_BYTES[flags & 3] + content_size)
    while len(header := raw.read(3)) == 3:
        value = int.from_bytes(header, "little")
        is_last, kind, size = value & 1, value >> 1 & 3, value >> 3
        yield header + raw.read(1 if kind == _REPEATED else size)
        if is_last:
            break
    else:
        yield header
        return
    if flags >> 2 & 1:
        yield raw.read(4)  # the checksum


def _passed(raw: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (data := raw.read(min(size, _PIECE_BYTES))):
        yield data
        size -= len(data)
