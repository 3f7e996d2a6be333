"""CSV and TSV with a header row, plain or compressed. Empty cells count as absent."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from scannery.pipelines.dead_letters import DeadLetter, excerpt_of
from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.parts import DamagedError, Fields, Part, Record
from scannery.pipelines.sources.streams import lines_of, read_blocks

__all__ = ["read", "split"]

# An unclosed quote takes in lines up to this bound, then the reader recovers.
MAX_CELL_CHARACTERS = 16 * 2**20
DELIMITERS = {"csv": ",", "tsv": "\t"}


class _Rows:
    """CSV rows of a stream of lines, with the byte offset and the number of the line after each row.

    Bytes that are not UTF-8 become lone surrogates, so that they fail one row and not the file.

    Args:
        lines: of the file, with their newlines.
        kind: a key of `DELIMITERS`.
        offset: byte offset of the first line.
        line: number of the first line.

    """

    def __init__(self, lines: Iterator[bytes], kind: str, *, offset: int = 0, line: int = 1) -> None:
        self.offset = offset
        self.line = line
        self.digest = blake2b(digest_size=16)
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        self._reader = csv.reader(self._decoded(lines), delimiter=DELIMITERS[kind])

    def _decoded(self, lines: Iterator[bytes]) -> Iterator[str]:
        for line in lines:
            self.offset += len(line)
            self.line += 1
            self.digest.update(line)
            yield line.decode("utf-8-sig" if self.line == 2 else "utf-8", "surrogateescape")

    def next(self) -> list[str]:
        """Return the next row; raises StopIteration, csv.Error or DamagedError."""
        return next(self._reader)


def split(file: InputFile, kind: str, compression: str, limit: int) -> Iterator[Part]:
    """Yield parts of about `limit` bytes each, cut between rows; the header belongs to every part's digest."""
    rows = _Rows(lines_of(read_blocks(file.base, file.path, compression)), kind)
    begun, count = False, 0
    start, first, header = 0, 1, b""

    def part(end: int | None) -> Part:
        return Part(base=file.base, path=file.path, format=kind, compression=compression, start=start, end=end,
                    first=first, records=count, size_bytes=rows.offset - start,
                    digest=blake2b(header + rows.digest.digest(), digest_size=16).hexdigest())  # fmt: skip

    while True:
        try:
            rows.next()
        except StopIteration:
            break
        except csv.Error:
            pass  # reading the part makes the dead letter
        except DamagedError:
            yield part(None)
            return
        if not begun:
            begun, header = True, rows.digest.digest()
        else:
            count += 1
        if rows.offset - start >= limit:
            yield part(rows.offset)
            start, first, count, rows.digest = rows.offset, rows.line, 0, blake2b(digest_size=16)
    if rows.offset > start:
        yield part(rows.offset)


def read(part: Part, fields: Fields) -> Iterator[Record | DeadLetter]:
    """Yield the rows of a part in order, as records with the header's names; `line` is the first line of a row."""
    try:
        header = _header(part)
        blocks = read_blocks(part.base, part.path, part.compression, part.start, part.end)
        yield from _records(_Rows(lines_of(blocks), part.format, line=part.first), part, header, fields)
    except (DamagedError, csv.Error) as error:  # before the end of the first row
        yield DeadLetter(reason="damaged_file", source=part.source, line=1, message=f"no header: {error}")


def _header(part: Part) -> list[str]:
    try:
        return _Rows(lines_of(read_blocks(part.base, part.path, part.compression)), part.format).next()
    except StopIteration:
        return []


def _records(rows: _Rows, part: Part, header: list[str], fields: Fields) -> Iterator[Record | DeadLetter]:
    is_header = part.start == 0
    while True:
        line = rows.line
        try:
            row = rows.next()
        except StopIteration:
            return
        except csv.Error as error:
            yield DeadLetter(reason="malformed", source=part.source, line=line, message=f"not CSV: {error}")
            continue
        except DamagedError as error:
            yield DeadLetter(reason="damaged_file", source=part.source, line=line,
                             message=f"{error}; nothing from line {line} on was read")  # fmt: skip
            return
        if row and not is_header:
            yield _record(row, header, part, line, fields)
        is_header = False


def _record(row: list[str], header: list[str], part: Part, line: int, fields: Fields) -> Record | DeadLetter:
    def reject(reason: str, message: str) -> DeadLetter:
        excerpt = excerpt_of(DELIMITERS[part.format].join(row))
        return DeadLetter(reason=reason, message=message, source=part.source, line=line, excerpt=excerpt)

    if len(row) != len(header):
        return reject("malformed", f"the header has {len(header)} cells, this row has {len(row)}")
    if any("\udc80" <= char <= "\udcff" for cell in row if not cell.isascii() for char in cell):
        return reject("encoding", "not UTF-8")
    cells: dict[str, Any] = {name: cell for name, cell in zip(header, row, strict=True) if cell != ""}
    if fields.vector in cells:
        cells[fields.vector] = _vector(cells[fields.vector])
    return Record(cells, part.source, line=line)


def _vector(cell: str) -> object:
    """Return the JSON list in a cell; other text is returned unchanged, and validation refuses it."""
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
