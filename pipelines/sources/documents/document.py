"""What a reader of documents returns, and the Markdown that all of them write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["MAX_TEXT_CHARS", "PAGE_BREAK", "Block", "Document", "DocumentError", "escaped", "joined", "one_line",
           "table"]  # fmt: skip

MAX_TEXT_CHARS = 16 * 2**20
"""Longest text of a document: about eight times the longest novel."""
PAGE_BREAK = "\n\n\f"
"""Between the pages of a text: form feeds, as `pdftotext` writes them, count the pages."""

_MARK = re.compile(r"^(#{1,6}(?=\s|$)|```|~~~)", re.MULTILINE)
_REFERENCE_SPACE = re.compile(r"[ \t\r\n\f\v\u00a0]+")


class DocumentError(Exception):
    """A file that is no document that can be indexed; becomes a dead letter.

    Attributes:
        reason: of the dead letter.

    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Document:
    """The text of a file as Markdown, and what the file says of itself."""

    text: str
    title: str | None = None
    language: str | None = None
    author: str | None = None
    description: str | None = None
    published: str | None = None
    """As the file writes it: ISO 8601 in most formats."""
    pages: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the record; what is not known has none."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Block:
    """A paragraph, heading, item of a list or table."""

    text: str
    is_item: bool = False
    """Whether it is an item of a list, between which there is no blank line."""


def joined(blocks: Sequence[Block]) -> str:
    """Return blocks as a text."""
    pieces: list[str] = []
    for i, block in enumerate(blocks):
        if i:
            pieces.append("\n" if block.is_item and blocks[i - 1].is_item else "\n\n")
        pieces.append(block.text)
    text = "".join(pieces)
    if len(text) > MAX_TEXT_CHARS:
        raise DocumentError("too_large", f"the text is longer than {MAX_TEXT_CHARS} characters")
    return text


def one_line(text: str) -> str:
    """Return a text without line breaks and runs of white space."""
    return _REFERENCE_SPACE.sub(" ", text).strip(" ")


def escaped(text: str) -> str:
    r"""Return a text in which no line begins as a heading or a code fence does."""
    return _MARK.sub(r"\\\1", text)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a Markdown table, whose header is the first of them; rows of one cell as lines."""
    kept = [[one_line(cell).replace("|", "\\|") for cell in row] for row in rows]
    kept = [row for row in kept if any(row)]
    if not kept:
        return ""
    if max(map(len, kept)) == 1:
        return "\n".join(escaped(row[0]) for row in kept)
    lines = [f"| {' | '.join(row)} |" for row in kept]
    return "\n".join([lines[0], f"|{' --- |' * len(kept[0])}", *lines[1:]])
