r"""How a file of CSV is written: delimiter, quoting, encoding and header, as the spec says or as its bytes show.

CSV with an escape character, as MySQL and PostgreSQL write it: `\"`, `\n` for a line break, `\N` for no value.

Python's reader takes the escape character away and keeps the next one, so that `\N` would be `N` and `\n` would be `n`.
Here an escaped character becomes a lone surrogate before the cells are found, which no decoded text has, and is put
back afterwards.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from scannery.indexer.spec.source_spec import CsvSpec
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.sources.encodings import SAMPLE_BYTES, find_encoding, is_wide

__all__ = ["DELIMITERS", "Dialect", "EscapedRows", "find_dialect"]


_FIRST, _LAST = 0xD800, 0xD8FF
"""Surrogates for escaped characters up to U+00FF. Bytes that are not of the encoding are from U+DC80 on."""
_MEANINGS = {"n": "\n", "t": "\t", "r": "\r", "0": "", "b": "\b", "Z": "\x1a"}
_SHIELDED = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
_NULL = chr(_FIRST + ord("N"))
_LINE_END = chr(_FIRST + ord("\n"))
_RETURN_END = chr(_FIRST + ord("\r")) + "\n"
_MOST_CHARACTERS = 16 * 2**20
"""Characters of lines that escaped line breaks join: without a bound, a file could be one row."""
_USUAL = frozenset("\\\"'0bnrtZN,;|\t\r\n")
"""What MySQL and PostgreSQL escape."""


class EscapedRows:
    """Rows of CSV with an escape character, as an iterator that goes on after an error.

    Args:
        lines: of the file.
        escape: the character.
        options: of `csv.reader`.

    """

    def __init__(self, lines: Iterator[str], escape: str, **options: str | int) -> None:
        self._pattern = re.compile(re.escape(escape) + "(.)", re.DOTALL)
        self._reader = csv.reader(self._shielded(lines), **options)  # type: ignore[arg-type]  # by name

    def __iter__(self) -> EscapedRows:
        return self

    def __next__(self) -> list[str]:
        return [unescaped(cell) for cell in next(self._reader)]

    def _shielded(self, lines: Iterator[str]) -> Iterator[str]:
        """Yield the lines; one that ends with an escaped line break together with the next."""
        pending: list[str] = []
        size = 0
        for line in lines:
            text = self._pattern.sub(_shield, line)
            is_open = text.endswith((_LINE_END, _RETURN_END))
            pending.append(text.removesuffix("\n") + _LINE_END if text.endswith(_RETURN_END) else text)
            size += len(text)
            if is_open and size <= _MOST_CHARACTERS:
                continue
            yield "".join(pending)
            pending, size = [], 0
        if pending:
            yield "".join(pending)


def unescaped(cell: str) -> str:
    """Return a cell with its escaped characters; empty for the sign of no value."""
    if cell.isascii():
        return cell
    return "" if cell == _NULL else _SHIELDED.sub(_meaning, cell)


def escapes_are_usual(text: str, escape: str) -> bool:
    """Return whether each escape character in a text stands before one that databases escape."""
    return all(match[1] in _USUAL for match in re.finditer(re.escape(escape) + "(.)", text, re.DOTALL))


def _shield(match: re.Match[str]) -> str:
    return chr(_FIRST + ord(match[1])) if ord(match[1]) <= _LAST - _FIRST else match[1]


def _meaning(match: re.Match[str]) -> str:
    char = chr(ord(match[0]) - _FIRST)
    return _MEANINGS.get(char, char)


DELIMITERS = {"csv": ",", "tsv": "\t"}
"""Delimiters of files that may be written in any way."""

_SAMPLED_ROWS = 500
_MAX_ROWS_ABOVE_HEADER = 10
_CONSISTENT = 0.9

_CANDIDATES = (",", ";", "\t", "|")
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?[\r\n]*$', re.IGNORECASE)
_NAMES = {"\t": "tab"}
ESCAPE = "\\"
"""The escape character that is looked for."""
_NO_VALUE = "\\N"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a file of CSV is written."""

    delimiter: str
    quote: str = '"'
    """The character around cells; empty: none."""

    escape: str = ""
    """The character that takes the meaning from the next one; empty: none."""

    encoding: str = "utf-8"
    is_guessed: bool = False
    """Whether the encoding was guessed by the letters of a sample."""

    above: int = 0
    """Rows in front of the header, and of the records where there is none."""

    names: tuple[str, ...] = ()
    """Names of the columns where the file has no header."""

    missing: tuple[str, ...] = ()
    """Texts of cells that stand for no value, besides empty ones."""

    @property
    def is_wide(self) -> bool:
        """Whether a line break is not one byte, so that the file is read as UTF-8 made of it."""
        return is_wide(self.encoding)

    @property
    def line_encoding(self) -> str:
        """The encoding of the lines that are read."""
        return "utf-8" if self.is_wide else self.encoding

    @property
    def rows_above(self) -> int:
        """Rows in front of the first record."""
        return self.above + (0 if self.names else 1)

    def reader(self, lines: Iterator[str] | io.StringIO) -> Iterator[list[str]]:
        """Return the rows of lines."""
        if self.escape:
            return EscapedRows(iter(lines), self.escape, **self._options())
        return csv.reader(lines, **self._options())

    def strict_reader(self, lines: io.StringIO) -> Iterator[list[str]]:
        """Return the rows of lines, with csv.Error where text follows a closing quote."""
        if self.escape:
            return EscapedRows(iter(lines), self.escape, strict=True, **self._options())
        return csv.reader(lines, strict=True, **self._options())

    def _options(self) -> dict[str, Any]:
        if not self.quote:
            return {"delimiter": self.delimiter, "quoting": csv.QUOTE_NONE}
        return {"delimiter": self.delimiter, "quotechar": self.quote}

    def to_text(self, kind: str) -> str:
        """Return the dialect as a part of a file holds it; empty for the usual one of its format."""
        if self == Dialect(delimiter=DELIMITERS[kind]):
            return ""
        settings = dataclasses.asdict(self)
        if not self.escape:  # as earlier releases wrote it: finished work keeps its keys
            del settings["escape"]
        return json.dumps(settings)

    @classmethod
    def of(cls, text: str, kind: str) -> Dialect:
        """Return the dialect in the text that `to_text` made."""
        if not text:
            return cls(delimiter=DELIMITERS[kind])
        data: dict[str, Any] = json.loads(text)
        return cls(**data | {"names": tuple(data["names"]), "missing": tuple(data["missing"])})


def find_dialect(blocks: Iterator[bytes], kind: str, csv: CsvSpec | None, source: str) -> Dialect:
    """Return how a file is written.

    Args:
        blocks: of the file, decompressed; its first 32 MiB are read at most.
        kind: a key of `DELIMITERS`.
        csv: what the spec says.
        source: the file, for messages.

    Raises:
        SpecConflictError: another delimiter than the given one makes columns of the file.

    """
    spec = csv or CsvSpec()
    head, encoding, is_guessed = find_encoding(blocks, spec.encoding)
    quote = "" if spec.quote == "none" else spec.quote or '"'
    text = _text(head, encoding)
    base = Dialect(
        delimiter=DELIMITERS[kind], quote=quote, encoding=encoding, is_guessed=is_guessed,
        missing=tuple(spec.missing or ()), escape="" if spec.escape in (None, "none") else spec.escape or "",
    )  # fmt: skip
    marked = _SEPARATOR_LINE.match(text.partition("\n")[0])  # of Excel
    if spec.delimiter is not None:
        base = dataclasses.replace(base, delimiter=spec.delimiter)
        _check_delimiter(text, base, source)
    elif marked is not None:
        base = dataclasses.replace(base, delimiter=marked[1])
    else:
        base = dataclasses.replace(base, delimiter=_likely_delimiter(text, base))
    if spec.escape is None and _has_escapes(text, base):
        base = dataclasses.replace(base, escape=ESCAPE)
    return _with_header(base, _rows(text, base), spec, 1 if marked is not None else 0)


def _text(head: bytes, encoding: str) -> str:
    """Return the text in the begin of a file, up to a line break."""
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head).removeprefix("\ufeff")
    return text if len(head) < SAMPLE_BYTES else text[: text.rfind("\n") + 1] or text


def _rows(text: str, dialect: Dialect) -> list[list[str]]:
    rows: list[list[str]] = []
    reader = dialect.reader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            rows.append(row)
            if len(rows) == _SAMPLED_ROWS:
                break
    except csv.Error:  # reading the file makes the dead letter
        pass
    return rows


def _shape(rows: Sequence[Sequence[str]]) -> tuple[int, float]:
    """Return the most common number of cells, and the share of rows that have it; 0 where there is one column."""
    counts = Counter(len(row) for row in rows if row)
    if not counts:
        return 0, 0.0
    cells, many = max(counts.items(), key=lambda item: (item[1], item[0]))
    return (cells, many / counts.total()) if cells > 1 else (cells, 0.0)


def _likely_delimiter(text: str, base: Dialect) -> str:
    """Return the delimiter that makes the most regular table; the usual one of the format where none is better."""
    scores: dict[str, tuple[bool, float, bool, int]] = {}
    for delimiter in (base.delimiter, *_CANDIDATES):
        if delimiter != base.quote:
            rows = _rows(text, dataclasses.replace(base, delimiter=delimiter))
            cells, share = _shape(rows)
            # Decimal commas can be as regular as the delimiter, but the header has none.
            has_header = cells > 1 and share > 0.5 and len(next(filter(any, rows))) == cells
            scores[delimiter] = (has_header, round(share, 2), delimiter == base.delimiter, cells)
    return max(scores, key=lambda delimiter: scores[delimiter])


def _has_escapes(text: str, base: Dialect) -> bool:
    """Return whether a sample can only be read with the escape character of databases.

    That is: quotes make sense with it and not without it, or cells are exactly the sign of databases for no value.
    """
    if ESCAPE not in text or ESCAPE in (base.quote, base.delimiter):
        return False
    escaped = dataclasses.replace(base, escape=ESCAPE)
    if _regular_rows(text, escaped) > _regular_rows(text, base):
        return True
    has_nulls = any(cell == _NO_VALUE for row in _rows(text, base) for cell in row)
    return has_nulls and escapes_are_usual(text, ESCAPE)


def _regular_rows(text: str, dialect: Dialect) -> int:
    """Return how many rows have as many cells as most; rows behind one whose quotes are wrong do not count."""
    rows: list[list[str]] = []
    try:
        for row in itertools.islice(dialect.strict_reader(io.StringIO(text, newline="")), _SAMPLED_ROWS):
            rows.append(row)
    except csv.Error:
        pass
    cells, share = _shape(rows)
    return sum(len(row) == cells for row in rows) if share >= _CONSISTENT else 0


def _check_delimiter(text: str, dialect: Dialect, source: str) -> None:
    if _shape(_rows(text, dialect))[0] > 1:
        return
    likely = dataclasses.replace(dialect, delimiter=_likely_delimiter(text, dialect))
    rows = _rows(text, likely)
    cells, share = _shape(rows)
    if cells > 1 and share >= _CONSISTENT:
        names = ", ".join(next(row for row in rows if len(row) == cells)[:6])
        raise SpecConflictError(
            f"source.csv.delimiter: {_shown(dialect.delimiter)} makes one column of {source}; "
            f"{_shown(likely.delimiter)} makes {cells} ({names}). Without the key it is found in each file",
            field="source.csv.delimiter",
        )


def _shown(delimiter: str) -> str:
    return _NAMES.get(delimiter) or repr(delimiter)


def _with_header(base: Dialect, rows: Sequence[Sequence[str]], spec: CsvSpec, above: int) -> Dialect:
    header, cells = spec.header, _shape(rows)[0]
    if isinstance(header, list):
        return dataclasses.replace(base, names=tuple(header), above=above)
    if header is False:
        return dataclasses.replace(base, names=tuple(str(n + 1) for n in range(max(cells, 1))), above=above)
    if header is None and cells > 1:
        for row in rows[above : above + _MAX_ROWS_ABOVE_HEADER]:
            if sum(map(bool, row)) > 1:
                break
            above += 1  # a title, or an empty line
    elif header is not None and header is not True:
        above = header - 1
    return dataclasses.replace(base, above=above)
