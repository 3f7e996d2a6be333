"""CSV and TSV, plain or compressed, in the dialect that was found (dialects.py). Empty cells count as absent."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from scannery.pipelines.dead_letters import DeadLetter, excerpt_of
from scannery.pipelines.sources.dialects import DELIMITERS, Dialect, find_dialect
from scannery.pipelines.sources.encodings import MAX_WIDE_PARTS, utf8_blocks
from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.parts import DamagedError, Fields, Part, Record
from scannery.pipelines.sources.streams import read_blocks, sized_lines_of

__all__ = ["DELIMITERS", "read", "split"]

# An unclosed quote takes in lines up to this bound, then the reader recovers.
MAX_CELL_CHARACTERS = 16 * 2**20


class _Rows:
    """CSV rows of a stream of lines, with the byte offset and the number of the line after each row.

    Bytes that are not of the encoding become lone surrogates, so that they fail one row and not the file.

    Args:
        lines: of the file, with their newlines, and the bytes of each in the file.
        dialect: of the file.
        offset: byte offset of the first line.
        line: number of the first line.

    """

    def __init__(
        self, lines: Iterator[tuple[bytes, int]], dialect: Dialect, *, offset: int = 0, line: int = 1
    ) -> None:
        self.offset = offset
        self.line = line
        self.digest = blake2b(digest_size=16)
        self._encoding = dialect.line_encoding
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        self._reader = dialect.reader(self._decoded(lines))

    def _decoded(self, lines: Iterator[tuple[bytes, int]]) -> Iterator[str]:
        for line, size in lines:
            self.offset += size  # of a line that is too long, only the begin is read
            self.line += 1
            self.digest.update(line)
            is_marked = self.line == 2 and self._encoding == "utf-8"
            yield line.decode("utf-8-sig" if is_marked else self._encoding, "surrogateescape")

    def next(self) -> list[str]:
        """Return the next row; raises StopIteration, csv.Error or DamagedError."""
        return next(self._reader)


def split(file: InputFile, kind: str, compression: str, limit: int) -> Iterator[Part]:
    """Yield parts of about `limit` bytes each, cut between rows; the header belongs to every part's digest.

    Raises:
        SpecConflictError: the delimiter of the spec is not that of the file.

    """
    dialect = find_dialect(read_blocks(file.base, file.path, compression), kind, file.csv, file.source)
    if dialect.is_wide:
        limit = max(limit, file.size_bytes // MAX_WIDE_PARTS)
    rows = _Rows(sized_lines_of(_blocks(file.base, file.path, compression, dialect)), dialect)
    above, count, dialect_text = dialect.rows_above, 0, dialect.to_text(kind)
    start, first, header = 0, 1, b""

    def part(end: int | None) -> Part:
        return Part(base=file.base, path=file.path, format=kind, compression=compression, dialect=dialect_text,
                    start=start, end=end, first=first, records=count, size_bytes=rows.offset - start,
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
        if above:
            above, header = above - 1, rows.digest.digest()
        else:
            count += 1
        if not above and rows.offset - start >= limit:
            yield part(rows.offset)
            start, first, count, rows.digest = rows.offset, rows.line, 0, blake2b(digest_size=16)
    if rows.offset > start:
        yield part(rows.offset)


def read(part: Part, fields: Fields) -> Iterator[Record | DeadLetter]:
    """Yield the rows of a part in order, as records with the header's names; `line` is the first line of a row."""
    try:
        dialect = Dialect.of(part.dialect, part.format)
        header = _header(part, dialect, fields)
        blocks = _blocks(part.base, part.path, part.compression, dialect, part.start, part.end)
        rows = _Rows(sized_lines_of(blocks), dialect, line=part.first)
        yield from _records(rows, part, header, dialect)
    except (DamagedError, csv.Error) as error:  # before the end of the first row
        yield DeadLetter(reason="damaged_file", source=part.source, line=1, message=f"no header: {error}")


def _blocks(
    base: str, path: str, compression: str, dialect: Dialect, start: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """Yield bytes `start` to `end` of a file's text, in an encoding whose line breaks are one byte."""
    return utf8_blocks(base, path, compression, dialect.encoding if dialect.is_wide else "", start, end)


def _header(part: Part, dialect: Dialect, fields: Fields) -> list[str]:
    """Return the names of the columns, without the spaces around them that the spec's names do not have."""
    if dialect.names:
        return list(dialect.names)
    rows = _Rows(sized_lines_of(_blocks(part.base, part.path, part.compression, dialect)), dialect)
    try:
        for _ in range(dialect.above):
            rows.next()
        return [name if name in fields.names else name.strip() for name in rows.next()]
    except StopIteration:
        return []


def _records(rows: _Rows, part: Part, header: list[str], dialect: Dialect) -> Iterator[Record | DeadLetter]:
    above = dialect.rows_above if part.start == 0 else 0
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
        if row and not above:
            yield _record(row, header, part, line, dialect)
        above = max(above - 1, 0)


def _record(
    row: list[str], header: list[str], part: Part, line: int, dialect: Dialect
) -> Record | DeadLetter:
    def reject(reason: str, message: str) -> DeadLetter:
        excerpt = excerpt_of(dialect.delimiter.join(row))
        return DeadLetter(reason=reason, message=message, source=part.source, line=line, excerpt=excerpt)

    if len(row) != len(header):
        return reject("malformed", f"the header has {len(header)} cells, this row has {len(row)}")
    if any("\udc80" <= char <= "\udcff" for cell in row if not cell.isascii() for char in cell):
        shown = "UTF-8" if dialect.encoding == "utf-8" else dialect.encoding
        return reject("encoding", f"not {shown} (source.encoding names another encoding)")
    cells: dict[str, Any] = {
        name: cell for name, cell in zip(header, row, strict=True) if cell and cell not in dialect.missing
    }
    return Record(cells, part.source, line=line)
