"""Files of `.json`: a list of objects, an object that holds such a list, objects over several lines, or JSON lines.

A list is never parsed as a whole: its elements are found one by one, in a window that grows with the largest element.
To find where an element ends, bytes are read as Latin-1: quotes, brackets and commas are the same in UTF-8. An element
that is not JSON costs itself only: reading goes on at the next one (json_documents.py).

Where the next element of a JSON list begins, behind one that is not JSON.

Quotes and brackets of a broken element cannot be trusted, so the places that they give are tried in turn: with strings
over several lines, with strings that end at their line, and any object that begins as those before did. A place counts
if JSON begins there, or an object with the first key of the earlier ones.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from scannery.pipelines.dead_letters import DeadLetter, excerpt_of
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.sources import lines
from scannery.pipelines.sources.encodings import MAX_WIDE_PARTS, encoding_of, utf8_blocks
from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.parts import MAX_RECORD_BYTES, DamagedError, Fields, Part, Record
from scannery.pipelines.sources.streams import lines_of

__all__ = ["FORMAT", "Effort", "end_of_broken", "read", "split"]


_DECODE = json.JSONDecoder(strict=False).raw_decode
# Every string matches, also one without an end: a match that fails at the end of the text would be tried at each quote.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_LINE_TOKENS = re.compile(r'"(?:[^"\\\n]|\\[^\n])*(?:"|\\?(?=\n)|\\?\Z)|[\[\]{},]')
_OPENING = {"]": "[", "}": "{"}
_OBJECT = re.compile(r',\s*(?=\{\s*"((?:[^"\\\n]|\\.){0,200})"\s*:)')
_NO_SPACE = re.compile(r"\S")
_FIRST_KEY = re.compile(r'\{\s*"((?:[^"\\\n]|\\.){0,200})"\s*:')
_INVERTED = re.compile(r',\s*\{\s*"$')
_MAX_TRIED = 10_000
"""Most places that are tried by the begin of an object: each attempt can decode as much as an element."""


class TooBrokenError(Exception):
    """So much was read in vain that the search is given up."""


@dataclasses.dataclass
class Effort:
    """How much text of one list may still be read in vain: some at first, and more as the list goes on.

    Each broken element can make the search read all that follows. Without a limit, a file of 64 kB with thousands of
    such elements took minutes.
    """

    brackets: int = 4 << 20
    """Characters in which brackets are followed; then ends are only found by the begins of objects."""

    decoded: int = 64 << 20
    """Characters of attempts to decode that failed; then the search is given up."""

    reached: int = 0
    """Position in the file up to which the list was read."""

    def reach(self, position: int) -> None:
        """Allow more for what was read since the last call."""
        more, self.reached = position - self.reached, position
        self.brackets += more
        self.decoded += more

    def decodes(self, text: str, start: int) -> bool:
        """Return whether there is a value at a position.

        Raises:
            TooBrokenError: too many attempts failed.

        """
        try:
            _DECODE(text, start)
        except (ValueError, RecursionError) as error:
            self.failed(text, start, error)
            return False
        return True

    def failed(self, text: str, start: int, error: Exception) -> None:
        """Count an attempt to decode that failed; raises as `decodes`."""
        # Too deep a nesting does not say where it is.
        self.decoded -= (error.pos if isinstance(error, json.JSONDecodeError) else len(text)) - start
        if self.decoded < 0:
            raise TooBrokenError


def first_key_of(element: str) -> str | None:
    """Return the first key of an object's text; None for other text."""
    match = _FIRST_KEY.match(element)
    return None if match is None else match[1]


def end_of_broken(
    text: str, start: int, first_key: str | None, effort: Effort, *, is_all: bool, is_cut: bool
) -> int | None:
    """Return the end of a broken element: the position of the comma or bracket behind it; None if none is found.

    Args:
        text: of the list, from before the element on; as Latin-1.
        start: where the element begins.
        first_key: the first key of the objects before; None if there are none.
        effort: what the search may still cost.
        is_all: no more text can be read. Before that, only the surest place counts: others depend on where it ends.
        is_cut: the text ends with an element, and not with its list.

    Raises:
        TooBrokenError: the effort is spent.

    """
    for tokens in (_TOKENS, _LINE_TOKENS) if is_all else (_TOKENS,):
        if effort.brackets < 0:
            break
        end = _bracketed(text, start, tokens, first_key)
        if end == len(text) and is_all and is_cut:
            return end
        if (
            end is not None
            and end < len(text)
            and (text[end] == "]" or _begins(text, end + 1, first_key, effort))
        ):
            return end
        effort.brackets -= (len(text) if end is None else end) - start
    if not is_all and effort.brackets >= 0:
        return None
    return next(_objects(text, start, first_key, effort), len(text) if is_all and is_cut else None)


def _bracketed(text: str, start: int, tokens: re.Pattern[str], first_key: str | None) -> int | None:
    """Return the position of the comma or bracket that ends the element, by its brackets and strings.

    It is the end of the text if all brackets are closed there; None if they are not.
    """
    opened: list[str] = []
    for match in tokens.finditer(text, start):
        token = match[0]
        if len(token) > 1 and (inverted := _INVERTED.search(token)):
            # A quote is missing, so this is no string but what stands between two: `}, {` and the next key.
            comma = match.start() + inverted.start()
            begun = _OBJECT.match(text, comma)
            if begun is not None and first_key in (None, begun[1]):
                return comma
        elif token in ("{", "["):
            opened.append(token)
        elif not opened and token in ("]", ","):
            return match.start()
        elif token in _OPENING and opened and opened[-1] == _OPENING[token]:
            opened.pop()
    return None if opened else len(text)


def _objects(text: str, start: int, first_key: str | None, effort: Effort) -> Iterator[int]:
    """Yield the commas behind which an object begins as those before did."""
    tried = 0
    for match in _OBJECT.finditer(text, start + 1):
        if first_key in (None, match[1]):
            if effort.decodes(text, match.end()):
                yield match.start()
            tried += 1
            if tried == _MAX_TRIED:
                return


def _begins(text: str, start: int, first_key: str | None, effort: Effort) -> bool:
    """Return whether an element begins: an object if there were objects before, else any value of JSON."""
    begin = next((match.start() for match in _NO_SPACE.finditer(text, start)), start)
    if first_key is not None:
        key = first_key_of(text[begin : begin + 1000])
        return key == first_key or (text[begin : begin + 1] == "{" and effort.decodes(text, begin))
    return effort.decodes(text, begin)


FORMAT = "json"
"""Format of parts of a file that is not JSON lines."""
_STREAM = "stream"
"""Mark in the dialect of parts with objects one after the other, without a list around them. UTF-16 is named there,
too.
"""

_SPACE = re.compile(r"[ \t\r\n]*")
_MOST_BEHIND = 1 << 15
"""Characters before a broken element that are kept."""
_MARGIN = 16
"""An error this near to the end of the text that was read may come from the end: `tru`, `\\u00`."""


_TOO_BROKEN = "too many elements are not JSON to find where each ends"


class _BrokenError(Exception):
    """A value is not JSON."""


class _Element(NamedTuple):
    """An element of a list."""

    begin: int
    """Its position in the file."""
    text: str
    """Text, as Latin-1."""
    problem: str | None = None
    """Why it is not JSON."""


class _Scanner:
    """Reads JSON values one after the other from bytes.

    Args:
        blocks: the bytes.
        offset: of the first one in the file.

    """

    def __init__(self, blocks: Iterator[bytes], offset: int = 0) -> None:
        self._blocks, self._begin = blocks, offset
        self._text, self._at, self._has_ended = "", 0, False
        self._effort = Effort(reached=offset)

    @property
    def offset(self) -> int:
        """The position in the file."""
        return self._begin + self._at

    def peek(self) -> str:
        """Return the next character that is no space, and move to it; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match is not None else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def take(self, character: str) -> None:
        """Move past a character, which must be the next one."""
        actual = self.peek()
        if actual != character:
            raise DamagedError(
                f"not JSON: {character!r} expected at byte {self.offset}, got {actual or 'the end'!r}"
            )
        self._at += 1

    def value(self) -> str:
        """Return the text of the next value, as Latin-1, and move past it."""
        self.peek()
        while True:
            problem, failure = "", Exception()
            try:
                _, end = _DECODE(self._text, self._at)
            except (ValueError, RecursionError) as error:
                problem = str(error).partition(": line")[0]
                end = -1
                if self._is_certain(error):
                    self._count(error)
                    raise _BrokenError(problem) from error
                failure = error
            if end >= 0 and (end < len(self._text) or not self._more()):  # a number may go on
                text = self._text[self._at : end]
                self._at = end
                return text
            if end < 0 and not self._more():
                self._count(failure)
                raise _BrokenError(f"{problem}, or longer than {MAX_RECORD_BYTES} bytes")

    def skip_broken(self, first_key: str | None, *, is_cut: bool) -> str:
        """Move behind a value that is not JSON, to the comma or bracket that follows; return its text.

        Args:
            first_key: of the objects before.
            is_cut: the bytes end with an element, and not with the list.

        Raises:
            DamagedError: no element follows within `MAX_RECORD_BYTES`, or too many elements are broken.

        """
        self._effort.reach(self.offset)
        if self._at > max(_MOST_BEHIND, len(self._text) >> 8):  # each error counts the lines before it
            self._begin, self._text, self._at = self.offset, self._text[self._at :], 0
        while True:
            is_all = self._has_ended or len(self._text) - self._at > MAX_RECORD_BYTES
            is_end = is_cut and self._has_ended
            try:
                end = end_of_broken(
                    self._text, self._at, first_key, self._effort, is_all=is_all, is_cut=is_end
                )
            except TooBrokenError as error:
                raise DamagedError(_TOO_BROKEN) from error
            if end is not None:
                text = self._text[self._at : end].rstrip(" \t\r\n")
                self._at = end
                return text
            if is_all or not (self._more() or self._has_ended):
                raise DamagedError(f"no other element was found within {MAX_RECORD_BYTES} bytes")

    def _count(self, error: Exception) -> None:
        """Count an attempt to decode that failed; raises DamagedError after too many."""
        try:
            self._effort.failed(self._text, self._at, error)
        except TooBrokenError as problem:
            raise DamagedError(_TOO_BROKEN) from problem

    def _is_certain(self, error: Exception) -> bool:
        """Return whether a value is not JSON, whatever follows what was read."""
        if not isinstance(error, json.JSONDecodeError) or error.msg.startswith("Unterminated string"):
            return False
        return error.pos + _MARGIN < len(self._text)

    def _more(self) -> bool:
        """Read as much as there is already; return whether there was something."""
        if self._has_ended or len(self._text) - self._at > MAX_RECORD_BYTES:
            return False
        pieces, read, target_size = [self._text[self._at :]], 0, max(len(self._text) - self._at, 1)
        while read < target_size and not self._has_ended:
            block = next(self._blocks, None)
            self._has_ended = block is None
            pieces.append((block or b"").decode("latin-1"))
            read += len(pieces[-1])
        if read:
            self._begin, self._text, self._at = self.offset, "".join(pieces), 0
        return read > 0


def split(file: InputFile, compression: str, limit: int) -> Iterator[Part]:
    """Yield parts of about `limit` bytes each, cut between records.

    Raises:
        SpecConflictError: the spec's path to the records does not fit the file.

    """
    encoding = encoding_of(utf8_blocks(file.base, file.path, compression, ""), file.encoding)
    if encoding:
        limit = max(limit, file.size_bytes // MAX_WIDE_PARTS)
    scanner = _Scanner(_text_blocks(file, compression, encoding))
    stream = False
    if file.records is not None:
        _enter(scanner, file.records, file.source)
    elif scanner.peek() == "[":
        scanner.take("[")
    elif _holds_objects(file, compression, encoding):
        stream = True
    else:
        yield from lines.split(file, compression, limit)
        return
    dialect = f"{_STREAM} {encoding}".rstrip() if stream else encoding
    yield from _parts(scanner, file, compression, limit, dialect)


def read(part: Part, fields: Fields) -> Iterator[Record | DeadLetter]:
    """Yield the records of a part in order; an element that is not an object is a dead letter."""
    del fields
    row, stream = part.first, part.dialect.startswith(_STREAM)
    encoding = part.dialect.removeprefix(_STREAM).strip()
    blocks = utf8_blocks(part.base, part.path, part.compression, encoding, part.start, part.end)
    try:
        scanner = _Scanner(blocks, part.start)
        for element in _elements(scanner, stream=stream, is_whole=part.end is None):
            yield _record(element, part, row)
            row += 1
    except DamagedError as error:
        yield DeadLetter(reason="damaged_file", source=part.source, row=row,
                         message=f"{error}; nothing from record {row} on was read")  # fmt: skip


def _record(element: _Element, part: Part, row: int) -> Record | DeadLetter:
    data = element.text.encode("latin-1")
    if element.problem is None:
        return dataclasses.replace(lines.json_record(data, part.source, row), line=None, row=row)
    message = (
        f"not JSON: {element.problem}; the {len(data)} bytes from byte {element.begin} on were skipped, up to the next "
        "element of the list"
    )
    return DeadLetter(reason="malformed", source=part.source, row=row, message=message,
                      excerpt=excerpt_of(data))  # fmt: skip


def _parts(scanner: _Scanner, file: InputFile, compression: str, limit: int, dialect: str) -> Iterator[Part]:
    scanner.peek()
    start, first, count, end, digest = scanner.offset, 1, 0, scanner.offset, blake2b(digest_size=16)

    def part(end: int | None) -> Part:
        return Part(base=file.base, path=file.path, format=FORMAT, compression=compression, start=start, end=end,
                    first=first, records=count, size_bytes=max((end or start) - start, 1), digest=digest.hexdigest(),
                    dialect=dialect)  # fmt: skip

    try:
        stream = dialect.startswith(_STREAM)
        for begin, text, _ in _elements(
            scanner, stream=stream, is_whole=True, is_inner=file.records is not None
        ):
            if count and end - start >= limit:
                yield part(end)
                start, first, count, digest = begin, first + count, 0, blake2b(digest_size=16)
            count, end = count + 1, begin + len(text)
            digest.update(text.encode("latin-1"))
    except DamagedError:
        count += 1
        digest.update(b"damaged")
        yield part(None)  # reading the part meets the damage again, and makes the dead letter
        return
    if count:
        yield part(end)


def _elements(
    scanner: _Scanner, *, stream: bool, is_whole: bool, is_inner: bool = False
) -> Iterator[_Element]:
    """Yield each element from the next one on, to the end of the list or of the bytes.

    Args:
        scanner: at an element.
        stream: there is no list around the elements.
        is_whole: the bytes go to the end of the file, where a list must end and nothing may follow.
        is_inner: the list is inside of an object, which goes on behind it.

    Raises:
        DamagedError: no element follows one that is not JSON; the list does not end, or the file goes on behind it.

    """
    first_key: str | None = None
    while (following := scanner.peek()) not in ("", "]"):
        begin = scanner.offset
        try:
            if following in ",:}":
                raise _BrokenError(f"{following!r} in place of an element")
            element = _Element(begin, scanner.value())
            first_key = first_key_of(element.text) or first_key
        except _BrokenError as error:
            if stream:
                raise DamagedError(f"not JSON: {error}, at byte {begin}") from error
            text = scanner.skip_broken(first_key, is_cut=not is_whole)
            element = _Element(begin, text, f"{error}")
        yield element
        if not stream and scanner.peek() == ",":
            scanner.take(",")
    if not is_whole:
        return
    if not stream:
        scanner.take("]")
    if not is_inner and scanner.peek():
        raise DamagedError(f"the file goes on behind the end of its records, at byte {scanner.offset}")


def _text_blocks(file: InputFile, compression: str, encoding: str) -> Iterator[bytes]:
    """Yield the text of a file as UTF-8, with spaces in place of a byte order mark."""
    blocks = utf8_blocks(file.base, file.path, compression, encoding)
    for first in blocks:
        yield b"   " + first[3:] if first.startswith(b"\xef\xbb\xbf") else first
        yield from blocks


def _holds_objects(file: InputFile, compression: str, encoding: str) -> bool:
    """Return whether a file has an object over several lines; otherwise it is read as JSON lines."""
    blocks = _text_blocks(file, compression, encoding)
    try:
        line = next((line for line in lines_of(blocks) if not line.isspace()), b"")
        if not line.lstrip().startswith(b"{") or _is_value(line):
            return False
        _Scanner(_text_blocks(file, compression, encoding)).value()
    except (DamagedError, _BrokenError):
        return False
    return True


def _is_value(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _enter(scanner: _Scanner, path: str, source: str) -> None:
    """Move to the first element of the list at a path."""
    keys = path.split(".")
    while keys:
        if (character := scanner.peek()) != "{":
            what = (
                "is a list of records itself; leave the key out" if character == "[" else f"has no {path!r}"
            )
            raise SpecConflictError(f"source.records: {source} {what}", field="source.records")
        scanner.take("{")
        taken = _find_key(scanner, keys, path, source)
        keys = keys[taken:]
    if scanner.peek() != "[":
        message = f"source.records: {path!r} is not a list in {source}"
        raise SpecConflictError(message, field="source.records")
    scanner.take("[")


def _find_key(scanner: _Scanner, keys: list[str], path: str, source: str) -> int:
    """Move to the value of a key of an object; return how many parts of the path it is."""
    seen: list[str] = []
    while scanner.peek() == '"':
        key = str(json.loads(scanner.value().encode("latin-1").decode("utf-8", "replace")))
        scanner.take(":")
        if key == ".".join(keys):
            return len(keys)
        if key == keys[0]:
            return 1
        seen.append(key)
        scanner.value()
        if scanner.peek() == ",":
            scanner.take(",")
    has = ", ".join(seen[:12]) or "no keys"
    message = f"source.records: {source} has no {path!r}; it has {has}"
    raise SpecConflictError(message, field="source.records")
