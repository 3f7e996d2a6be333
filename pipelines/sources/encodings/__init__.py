"""The encoding of a text file, by its byte order mark or by the letters in it, and its text as UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from scannery.pipelines.sources.encodings.legacy_encodings import likely_encoding
from scannery.pipelines.sources.parts import DamagedError
from scannery.pipelines.sources.streams import read_blocks, section_of

__all__ = ["MAX_WIDE_PARTS", "SAMPLE_BYTES", "decoded_text", "encoding_of", "find_encoding", "is_wide",
           "marked_encoding", "utf8_blocks"]  # fmt: skip

SAMPLE_BYTES = 1 << 18
MAX_WIDE_PARTS = 64
"""UTF-16 can only be read from its beginning: n parts cost n/2 times its decoding."""
SCANNED_BYTES = 32 << 20
"""How much of a file is looked at for characters that are not UTF-8."""
_ENOUGH_LINES = 2000

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
          codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}  # fmt: skip
_CONTROLS = bytes({*range(32)} - {*b"\t\n\r\f\x1a\x1b"})
"""Bytes that no text has in an encoding of one byte for a letter."""


def is_wide(encoding: str) -> bool:
    """Return whether a line break is not one byte, so that a file is read as UTF-8 made of it."""
    return encoding.replace("_", "-").startswith(("utf-16", "utf-32"))


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding that a file shows by its byte order mark, or by the zeros of UTF-16; else None."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    if head[1:200:2].count(0) > len(head[1:200:2]) * 0.8 or head[:200:2].count(0) > len(head[:200:2]) * 0.8:
        return "utf-16-le" if head[1:2] == b"\0" else "utf-16-be"
    return None


def encoding_of(blocks: Iterator[bytes], default: str) -> str:
    """Return the encoding of a file that is UTF-16 or UTF-32, else the given one; empty for UTF-8.

    Raises:
        OSError, DamagedError: as `read_blocks`.

    """
    encoding = marked_encoding(next(blocks, b"")[:200])
    return encoding if encoding is not None and is_wide(encoding) else default


def decoded_text(data: bytes, declared: str = "") -> tuple[str, str]:
    """Return the text of a whole file, and how it was read, where that could be wrong; else an empty text.

    Args:
        data: the bytes of the file.
        declared: its encoding, if that is known.

    Raises:
        UnicodeDecodeError: it has not the given encoding, or is no text.

    """
    marked = marked_encoding(data[:200])
    if declared and not is_wide(marked or ""):
        return data.decode(declared).removeprefix("\ufeff"), ""
    try:
        return data.decode(marked or "utf-8").removeprefix("\ufeff"), ""
    except UnicodeDecodeError:
        _, encoding, is_guessed = find_encoding(iter([data + b"\n"]))
        has_controls = len(data.translate(None, _CONTROLS)) < len(data)
        if has_controls and not is_wide(encoding):
            raise
        text = data.decode(encoding, "replace").removeprefix("\ufeff")
        if is_guessed:
            return text, f"text that is not UTF-8 as {encoding}"
        return text, f"bytes that are not {encoding.upper()} as U+FFFD"


def utf8_blocks(
    base: str, path: str, compression: str, encoding: str, start: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """Yield bytes `start` to `end` of a file's text in UTF-8; an empty encoding is UTF-8, as read.

    Raises:
        OSError, DamagedError: as `read_blocks`; also where the text ends within a character.

    """
    if encoding in ("", "utf-8"):
        return read_blocks(base, path, compression, start, end)
    return section_of(_transcoded(read_blocks(base, path, compression), encoding), start, end)


def _transcoded(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the bytes of a text as those of UTF-8.

    Raises:
        DamagedError: the text ends within a character.

    """
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass" if is_wide(encoding) else "strict")
    try:
        for block in blocks:
            yield decoder.decode(block).encode("utf-8", "surrogatepass")
        yield decoder.decode(b"", True).encode("utf-8", "surrogatepass")
    except UnicodeError as error:
        raise DamagedError(f"not {encoding}: {error}") from error


def find_encoding(blocks: Iterator[bytes], encoding: str | None = None) -> tuple[bytes, str, bool]:
    """Return the begin of a file, its encoding, and whether that was guessed.

    Args:
        blocks: of the file, decompressed; its first 32 MiB are read at most.
        encoding: the encoding, if it is known.

    """
    head, seen = b"", 0
    unread: Iterator[bytes] = _until_damage(blocks)
    for block in unread:
        head += block
        if len(head) >= SAMPLE_BYTES:
            break
    if encoding is not None:
        return head[:SAMPLE_BYTES], encoding, False
    if (marked := marked_encoding(head)) is not None:
        return head[:SAMPLE_BYTES], marked, False
    good, bad = 0, list[bytes]()
    for block in _and_then(head, unread):
        good += _add_lines(block, bad)
        seen += len(block)
        if good + len(bad) >= _ENOUGH_LINES or seen >= SCANNED_BYTES:
            break
    # A few bad lines among good ones are damage, and cost their own records.
    if len(bad) <= good:
        return head[:SAMPLE_BYTES], "utf-8", False
    return head[:SAMPLE_BYTES], likely_encoding(b"\n".join(bad)), True


def _and_then(head: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from blocks


def _until_damage(blocks: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from blocks
    except DamagedError:  # which reading the file will tell
        return


def _add_lines(block: bytes, bad: list[bytes]) -> int:
    """Return how many lines have letters beyond ASCII in UTF-8; those that have others are added to `bad`."""
    good = 0
    if block.isascii():
        return good
    # At its end, a block may end within a character.
    for line in block[: block.rfind(b"\n") + 1 or None].split(b"\n"):
        if line.isascii():
            continue
        try:
            line.decode()
            good += 1
        except UnicodeDecodeError:
            # One broken byte in a long line of UTF-8 is damage, too: no other text makes so many of its sequences.
            letters = [character for character in line.decode("utf-8", "replace") if character > "\x7f"]
            if 2 * letters.count("\ufffd") < len(letters):
                good += 1
            else:
                bad.append(line[:2000])
    return good
