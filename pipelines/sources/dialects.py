"""How a file of CSV is written: delimiter, quoting, encoding and header, as the spec says or as its bytes show."""

from __future__ import annotations

import codecs
import csv
import dataclasses
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from charset_normalizer import from_bytes

from scannery.indexer.spec.source_spec import CsvSpec
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.sources.parts import DamagedError

__all__ = ["DELIMITERS", "Dialect", "find_dialect", "transcoded"]

DELIMITERS = {"csv": ",", "tsv": "\t"}
"""Of files that may be written in any way."""

SAMPLE_BYTES = 1 << 18
SCANNED_BYTES = 32 << 20
"""How much of a file is looked at for characters that are not UTF-8."""
_ENOUGH_LINES = 2000
_SAMPLED_ROWS = 500
_MAX_ROWS_ABOVE_HEADER = 10
_CONSISTENT = 0.9

_CANDIDATES = (",", ";", "\t", "|")
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
          codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}  # fmt: skip
_LEGACY = ["cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp932", "euc_jp", "gb18030", "big5", "euc_kr",
           "koi8_r", "mac_roman", "cp850"]  # fmt: skip
"""Encodings of spreadsheets and databases, from before UTF-8."""
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?[\r\n]*$', re.IGNORECASE)
_NAMES = {"\t": "tab"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a file of CSV is written."""

    delimiter: str
    quote: str = '"'
    """The character around cells; empty: none."""

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
        return self.encoding.replace("_", "-").startswith(("utf-16", "utf-32"))

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
        if not self.quote:
            return csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self.delimiter, quotechar=self.quote)

    def to_text(self, kind: str) -> str:
        """Return the dialect as a part of a file holds it; empty for the usual one of its format."""
        return "" if self == Dialect(delimiter=DELIMITERS[kind]) else json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, text: str, kind: str) -> Dialect:
        """Return the dialect in the text that `to_text` made."""
        if not text:
            return cls(delimiter=DELIMITERS[kind])
        data: dict[str, Any] = json.loads(text)
        return cls(**data | {"names": tuple(data["names"]), "missing": tuple(data["missing"])})


def find_dialect(blocks: Iterator[bytes], kind: str, given: CsvSpec | None, source: str) -> Dialect:
    """Return how a file is written.

    Args:
        blocks: of the file, decompressed; its first 32 MiB are read at most.
        kind: a key of `DELIMITERS`.
        given: what the spec says.
        source: the file, for messages.

    Raises:
        SpecConflictError: another delimiter than the given one makes columns of the file.

    """
    spec = given or CsvSpec()
    head, encoding, is_guessed = _encoding(blocks, spec.encoding)
    quote = "" if spec.quote == "none" else spec.quote or '"'
    text = _text(head, encoding)
    base = Dialect(
        delimiter=DELIMITERS[kind], quote=quote, encoding=encoding, is_guessed=is_guessed,
        missing=tuple(spec.missing or ()),
    )  # fmt: skip
    marked = _SEPARATOR_LINE.match(text.partition("\n")[0])  # of Excel
    if spec.delimiter is not None:
        base = dataclasses.replace(base, delimiter=spec.delimiter)
        _check_delimiter(text, base, source)
    elif marked is not None:
        base = dataclasses.replace(base, delimiter=marked[1])
    else:
        base = dataclasses.replace(base, delimiter=_likely_delimiter(text, base))
    return _with_header(base, _rows(text, base), spec, 1 if marked is not None else 0)


def transcoded(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the bytes of UTF-16 or UTF-32 as those of UTF-8.

    Raises:
        DamagedError: the text ends within a character.

    """
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    try:
        for block in blocks:
            yield decoder.decode(block).encode("utf-8", "surrogatepass")
        yield decoder.decode(b"", True).encode("utf-8", "surrogatepass")
    except UnicodeError as error:
        raise DamagedError(f"not {encoding}: {error}") from error


def _encoding(blocks: Iterator[bytes], given: str | None) -> tuple[bytes, str, bool]:
    """Return the begin of a file, its encoding, and whether that was guessed."""
    head, seen = b"", 0
    unread: Iterator[bytes] = _until_damage(blocks)
    for block in unread:
        head += block
        if len(head) >= SAMPLE_BYTES:
            break
    if given is not None:
        return head[:SAMPLE_BYTES], given, False
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return head[:SAMPLE_BYTES], encoding, False
    if head[1:200:2].count(0) > len(head[1:200:2]) * 0.8 or head[:200:2].count(0) > len(head[:200:2]) * 0.8:
        return head[:SAMPLE_BYTES], "utf-16-le" if head[1:2] == b"\0" else "utf-16-be", False
    good, bad = 0, list[bytes]()
    for block in _and_then(head, unread):
        good += _add_lines(block, bad)
        seen += len(block)
        if good + len(bad) >= _ENOUGH_LINES or seen >= SCANNED_BYTES:
            break
    # A few bad lines among good ones are damage, and cost their own records.
    if len(bad) <= good:
        return head[:SAMPLE_BYTES], "utf-8", False
    return head[:SAMPLE_BYTES], _legacy_encoding(bad), True


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
            bad.append(line[:2000])
    return good


def _legacy_encoding(lines: Sequence[bytes]) -> str:
    sample = b"\n".join(lines)[: 1 << 16]
    best = from_bytes(sample, cp_isolation=_LEGACY).best()
    try:
        western = sample.decode("cp1252")
    except UnicodeDecodeError:
        return best.encoding if best is not None else "latin-1"
    # Of encodings that make the same text of a sample, the one of most spreadsheets.
    return "cp1252" if best is None or str(best) == western else best.encoding


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
