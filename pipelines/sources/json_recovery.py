"""Where the next element of a JSON list begins, behind one that is not JSON.

Quotes and brackets of a broken element cannot be trusted, so the places that they give are tried in turn: with strings
over several lines, with strings that end at their line, and any object that begins as those before did. A place counts
if JSON begins there, or an object with the first key of the earlier ones.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator

__all__ = ["Effort", "TooBrokenError", "end_of_broken", "first_key_of"]

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
    found = _FIRST_KEY.match(element)
    return None if found is None else found[1]


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
    for found in tokens.finditer(text, start):
        token = found[0]
        if len(token) > 1 and (inverted := _INVERTED.search(token)):
            # A quote is missing, so this is no string but what stands between two: `}, {` and the next key.
            comma = found.start() + inverted.start()
            begun = _OBJECT.match(text, comma)
            if begun is not None and first_key in (None, begun[1]):
                return comma
        elif token in ("{", "["):
            opened.append(token)
        elif not opened and token in ("]", ","):
            return found.start()
        elif token in _OPENING and opened and opened[-1] == _OPENING[token]:
            opened.pop()
    return None if opened else len(text)


def _objects(text: str, start: int, first_key: str | None, effort: Effort) -> Iterator[int]:
    """Yield the commas behind which an object begins as those before did."""
    tried = 0
    for found in _OBJECT.finditer(text, start + 1):
        if first_key in (None, found[1]):
            if effort.decodes(text, found.end()):
                yield found.start()
            tried += 1
            if tried == _MAX_TRIED:
                return


def _begins(text: str, start: int, first_key: str | None, effort: Effort) -> bool:
    """Return whether an element begins: an object if there were objects before, else any value of JSON."""
    begin = next((found.start() for found in _NO_SPACE.finditer(text, start)), start)
    if first_key is not None:
        key = first_key_of(text[begin : begin + 1000])
        return key == first_key or (text[begin : begin + 1] == "{" and effort.decodes(text, begin))
    return effort.decodes(text, begin)
