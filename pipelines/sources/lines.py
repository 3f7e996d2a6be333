"""JSON lines, plain or compressed, in UTF-8, UTF-16 or UTF-32 (with a byte order mark)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import blake2b

from scannery.indexer.strict_json import exact_json
from scannery.pipelines.dead_letters import DeadLetter, excerpt_of
from scannery.pipelines.sources.encodings import MAX_WIDE_PARTS, encoding_of, utf8_blocks
from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.parts import MAX_RECORD_BYTES, DamagedError, Fields, Part, Record
from scannery.pipelines.sources.streams import lines_of, read_blocks

__all__ = ["json_record", "read", "read_lines", "split"]


def split(file: InputFile, compression: str, limit: int) -> Iterator[Part]:
    """Yield parts of about `limit` bytes each, cut after a newline.

    A cut depends only on the bytes before it, so a file that grew keeps its earlier parts.
    """
    start, first, offset, count, digest = 0, 1, 0, 0, blake2b(digest_size=16)

    def part(end: int | None) -> Part:
        return Part(base=file.base, path=file.path, format="jsonl", compression=compression, start=start,
                    end=end, first=first, records=count, size_bytes=offset - start, dialect=encoding,
                    digest=digest.hexdigest())  # fmt: skip

    encoding = ""
    try:
        encoding = encoding_of(read_blocks(file.base, file.path, compression), file.encoding)
        if encoding:
            limit = max(limit, file.size_bytes // MAX_WIDE_PARTS)
        for block in utf8_blocks(file.base, file.path, compression, encoding):
            begin = 0
            while (cut := block.find(b"\n", max(begin, begin + limit - (offset - start) - 1))) >= 0:
                digest.update(block[begin : cut + 1])
                count += block.count(b"\n", begin, cut + 1)
                offset += cut + 1 - begin
                yield part(offset)
                start, first, begin, count, digest = (
                    offset,
                    first + count,
                    cut + 1,
                    0,
                    blake2b(digest_size=16),
                )
            digest.update(block[begin:])
            count += block.count(b"\n", begin)
            offset += len(block) - begin
    except DamagedError:
        count += 1
        yield part(None)  # reading the part meets the damage again, and makes the dead letter
        return
    if offset > start:
        count += 1
        yield part(offset)


def read(part: Part, fields: Fields) -> Iterator[Record | DeadLetter]:
    """Yield the records of a part in order; a line that is not a JSON object is a dead letter."""
    yield from read_lines(part, json_record)


def read_lines(
    part: Part, parse: Callable[[bytes, str, int], Record | DeadLetter]
) -> Iterator[Record | DeadLetter]:
    """Yield the result of `parse` for each line (its bytes, the file, its number); blank lines are skipped."""
    number = part.first
    try:
        for line in lines_of(
            utf8_blocks(part.base, part.path, part.compression, part.dialect, part.start, part.end)
        ):
            if not line.isspace():
                yield parse(line, part.source, number)
            number += 1
    except DamagedError as error:
        yield DeadLetter(reason="damaged_file", source=part.source, line=number,
                         message=f"{error}; nothing from line {number} on was read")  # fmt: skip


def json_record(line: bytes, source: str, number: int) -> Record | DeadLetter:
    """Return the JSON object in a line, or a dead letter."""

    def reject(reason: str, message: str) -> DeadLetter:
        return DeadLetter(
            reason=reason, message=message, source=source, line=number, excerpt=excerpt_of(line)
        )

    if len(line) > MAX_RECORD_BYTES:
        return reject("too_large", f"the line is longer than {MAX_RECORD_BYTES} bytes")
    try:
        record = exact_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return reject("encoding", f"not UTF-8: {error.reason} at byte {error.start} of the line")
    except (ValueError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, json.JSONDecodeError):
            # The line's end counts as another line there.
            reason = f"{error.msg} at column {min(error.pos, len(error.doc.rstrip())) + 1}"
        is_list = number == 1 and line.lstrip(b"\xef\xbb\xbf \t").startswith(b"[")
        hint = "; a JSON list is read from a file that ends with .json" if is_list else ""
        return reject("malformed", f"not JSON: {reason}{hint}")
    if not isinstance(record, dict):
        return reject("malformed", f"must be a JSON object, got {type(record).__name__}")
    return Record(record, source, line=number)
