r"""CSV with an escape character, as MySQL and PostgreSQL write it: `\"`, `\n` for a line break, `\N` for no value.

Python's reader takes the escape character away and keeps the next one, so that `\N` would be `N` and `\n` would be `n`.
Here an escaped character becomes a lone surrogate before the cells are found, which no decoded text has, and is put
back afterwards.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

__all__ = ["EscapedRows", "escapes_are_usual", "unescaped"]

_FIRST, _LAST = 0xD800, 0xD8FF
"""Surrogates for escaped characters up to U+00FF. Bytes that are not of the encoding are from U+DC80 on."""
_MEANINGS = {"n": "\n", "t": "\t", "r": "\r", "0": "", "b": "\b", "Z": "\x1a"}
_SHIELDED = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
_NULL = chr(_FIRST + ord("N"))
_LINE_END = chr(_FIRST + ord("\n"))
_RETURN_END = chr(_FIRST + ord("\r")) + "\n"
_MOST_CHARACTERS = 16 * 2**20
"""Of lines that escaped line breaks join: without a bound, a file could be one row."""
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
    return all(found[1] in _USUAL for found in re.finditer(re.escape(escape) + "(.)", text, re.DOTALL))


def _shield(found: re.Match[str]) -> str:
    return chr(_FIRST + ord(found[1])) if ord(found[1]) <= _LAST - _FIRST else found[1]


def _meaning(found: re.Match[str]) -> str:
    char = chr(ord(found[0]) - _FIRST)
    return _MEANINGS.get(char, char)
