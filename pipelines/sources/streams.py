"""Bytes → lines of bounded length, decompressed; everything before damage is kept.

Cut Zstandard data into its blocks, each of which decompresses to at most 128 KiB (RFC 8878, section 3.1.1).

Four bytes of Zstandard can decompress to 128 KiB of zeros, and Python's decoder returns the whole output of its input
at once. So the input of one call must be bounded by the size of its output.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, Protocol

import zstandard

from scannery.pipelines.sources.formats import MAX_XZ_BYTES
from scannery.pipelines.sources.locations import open_bytes
from scannery.pipelines.sources.parts import MAX_RECORD_BYTES, DamagedError, Part

__all__ = ["BLOCK_BYTES", "lines_of", "read_blocks", "read_whole", "section_of", "sized_lines_of"]


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


BLOCK_BYTES = 1 << 20

# Small, because a call that meets damage loses the output that it has decompressed; and because gzip compresses zeros a
# thousandfold, so this bounds the output of one call. For zstd, streams.py bounds it.
_COMPRESSED_BYTES = 1 << 14


def read_blocks(
    base: str, path: str, compression: str, start: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """Yield the (decompressed) bytes `start` to `end` of a file, in blocks.

    Raises:
        OSError: the file cannot be opened or read.
        DamagedError: it ends early or does not decompress; every earlier block was yielded.

    """
    with open_bytes(base, path) as raw:
        if not compression:
            raw.seek(start)
            yield from _until(_plain(raw), start, end)
        else:
            yield from section_of(_decompressed(raw, compression), start, end)


def read_whole(part: Part) -> bytes:
    """Return the (decompressed) content of a file that is one record; of a larger one more than MAX_RECORD_BYTES.

    Raises:
        OSError, DamagedError: as `read_blocks`.

    """
    blocks, size = [], 0
    for block in read_blocks(part.base, part.path, part.compression):
        blocks.append(block)
        size += len(block)
        if size > MAX_RECORD_BYTES:
            break
    return b"".join(blocks)


def section_of(blocks: Iterator[bytes], start: int, end: int | None) -> Iterator[bytes]:
    """Yield the bytes `start` to `end` of blocks."""
    return _until(_skip(blocks, start), start, end)


def lines_of(blocks: Iterator[bytes], limit: int = MAX_RECORD_BYTES) -> Iterator[bytes]:
    """Yield lines with their newline; of a line longer than `limit` only the first `limit` + 1 bytes."""
    return (line for line, _ in sized_lines_of(blocks, limit))


def sized_lines_of(blocks: Iterator[bytes], limit: int = MAX_RECORD_BYTES) -> Iterator[tuple[bytes, int]]:
    """Yield lines as `lines_of`, each with the bytes that it has in the file."""
    pending: list[bytes] = []
    size = 0
    for block in blocks:
        for piece in io.BytesIO(block):  # splits at b"\n" only, as bytes.splitlines does not
            if size <= limit:
                pending.append(piece[: limit + 1 - size])
            size += len(piece)
            if piece.endswith(b"\n"):
                yield b"".join(pending), size
                pending, size = [], 0
    if pending:
        yield b"".join(pending), size


class _Decoder(Protocol):
    """Common interface of zlib's and zstandard's streaming decoders."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _BoundedDecoder:
    """A decoder of bzip2 or xz whose calls return at most a block: one byte may stand for a million.

    Args:
        decoder: from the standard library.

    """

    def __init__(self, decoder: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._decoder = decoder

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def has_more(self) -> bool:
        """Return whether output waits that no further input is needed for."""
        return not (self._decoder.needs_input or self._decoder.eof)

    def decompress(self, data: bytes, /) -> bytes:
        return self._decoder.decompress(data, BLOCK_BYTES)


def _has_more(decoder: _Decoder) -> bool:
    return isinstance(decoder, _BoundedDecoder) and decoder.has_more()


_NEW_DECODER: Mapping[str, Callable[[], _Decoder]] = {
    "gz": lambda: zlib.decompressobj(wbits=31),
    "zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
    "bz2": lambda: _BoundedDecoder(bz2.BZ2Decompressor()),
    "xz": lambda: _BoundedDecoder(lzma.LZMADecompressor(memlimit=MAX_XZ_BYTES)),
}
_BAD_BYTES = (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, ValueError)
"""What decoders raise; that of bz2 raises OSError."""


def _decompressed(raw: BinaryIO, compression: str) -> Iterator[bytes]:
    decoder, begun, first = _NEW_DECODER[compression](), False, True
    for piece in zstd_pieces(raw) if compression == "zst" else _compressed(raw):
        tail = piece
        while (data := tail if first or begun else tail.lstrip(b"\0")) or _has_more(decoder):
            begun = True
            try:
                block = decoder.decompress(data)
            except _BAD_BYTES as error:
                raise DamagedError(f"does not decompress: {error}") from error
            if block:
                yield block
            tail = b""
            if decoder.eof:  # files may be concatenated: another member follows, or padding with zeros
                tail = decoder.unused_data
                decoder, begun, first = _NEW_DECODER[compression](), False, False
    if begun:
        raise DamagedError("the compressed data ends early")


def _compressed(raw: BinaryIO) -> Iterator[bytes]:
    while data := raw.read(_COMPRESSED_BYTES):
        yield bytes(data)


def _plain(raw: BinaryIO) -> Iterator[bytes]:
    while block := raw.read(BLOCK_BYTES):
        yield bytes(block)  # obstore's readers return their own buffer type


def _skip(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for block in blocks:
        if size < len(block):
            yield block[size:]
        size = max(0, size - len(block))


def _until(blocks: Iterator[bytes], start: int, end: int | None) -> Iterator[bytes]:
    room = None if end is None else end - start
    for block in blocks:
        if room is None:
            yield block
            continue
        yield block[:room]
        room -= len(block)
        if room <= 0:
            return
