"""What a reader of documents returns, and the Markdown that all of them write.

Words that a page cuts at the end of a line, made whole: `photo-` and `synthesis` become `photosynthesis`.

There is no dictionary. What the document writes within its lines decides: the whole word, the word with a hyphen, or
other words with the same part. Where it says nothing, the hyphen is one of the page, unless one of these tells that it
belongs to the word: a capital or a digit behind it (`Müller-Lüdenscheidt`, `COVID-19`), a single letter before it
(`e-mail`), another hyphen in the word (`state-of-the-art`), a part that is nearly always written so (`self-`). A hyphen
before a conjunction stands for a part of the next word, and both stay as they are (`Groß- und Kleinschreibung`). Soft
hyphens only show where a page may cut.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "MAX_TEXT_CHARS",
    "PAGE_BREAK",
    "Block",
    "Document",
    "DocumentError",
    "escaped",
    "joined",
    "one_line",
    "table",
    "with_whole_words",
]


MAX_TEXT_CHARS = 16 * 2**20
"""Longest text of a document: about eight times the longest novel."""
PAGE_BREAK = "\n\n\f"
"""Text between the pages of a text: form feeds, as `pdftotext` writes them, count the pages."""

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
    """Date, as the file writes it: ISO 8601 in most formats."""
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


SOFT_HYPHEN = "\u00ad"
_CUT = re.compile(
    r"(?<![\w'’./@:_\u2010\u00ad-])(?P<left>[^\W_](?:[\w'’]|[-\u2010](?=\w)){0,79})(?P<hyphen>[-\u2010\u00ad])"
    r"[ \t\r]{0,8}\n(?P<page>\n\f)?[ \t]{0,80}"
    r"(?P<right>[^\W_](?:[\w'’]|[-\u2010\u00ad](?=\w)){0,79})(?P<rest>\S{0,80})[ \t]{0,8}\n?"
)
_WORD = re.compile(r"[^\W_](?:[\w'’]|[-\u2010](?=\w)){0,79}")
_CONJUNCTIONS = frozenset(("and", "or", "to", "nor", "und", "oder", "bzw", "bis", "sowie", "et", "ou", "y", "o", "e",
                           "og", "och", "eller", "en", "of", "ja", "tai", "i", "lub", "a", "nebo", "és", "vagy", "и",
                           "или"))  # fmt: skip
_PARTS_WITH_HYPHEN = frozenset(
    ("self", "well", "ill", "ex", "all", "half", "quasi", "non", "so", "vis", "demi", "mi")
)
_SMALL_WORDS = frozenset(("a", "an", "and", "at", "by", "de", "for", "from", "in", "la", "le", "of", "off", "on", "or",
                          "out", "the", "to", "up"))  # fmt: skip


def with_whole_words(text: str) -> str:
    """Return a text whose lines do not end within words; line breaks stay, behind the word. In linear time."""
    if _CUT.search(text) is None:
        return text
    document = _Document(text)
    pieces, at = [], 0
    while match := _CUT.search(text, at):
        joint = document.joint(match)
        if joint is None:
            # The next line may end within a word, too.
            pieces.append(text[at : match.start("right")])
            at = match.start("right")
            continue
        pieces += [text[at : match.end("left")], joint]
        at = match.start("right")
        if match["rest"][:1] not in ("-", "\u2010", SOFT_HYPHEN):
            behind = "\n" if match.end() > match.end("rest") else ""
            pieces += [match["right"], match["rest"], "\n\n\f" if match["page"] else behind]
            at = match.end()
    return "".join([*pieces, text[at:]])


class _Document:
    """What a text writes within its lines."""

    def __init__(self, text: str) -> None:
        words = [word.casefold().replace("\u2010", "-") for word in _WORD.findall(_CUT.sub(" ", text))]
        self._counts = Counter(words)
        self._first = {word.partition("-")[0] for word in words if "-" in word}
        self._last = {word.rpartition("-")[2] for word in words if "-" in word}

    def joint(self, cut: re.Match[str]) -> str | None:
        """Return what stands between the two parts of a word: nothing or a hyphen; None if they are two words."""
        left, right = cut["left"], cut["right"]
        part = re.split(r"[-\u2010]", left)[-1]
        hyphen = "-" if cut["hyphen"] == SOFT_HYPHEN else cut["hyphen"]
        whole, parted = (
            self._count(left + right, part + right),
            self._count(f"{left}-{right}", f"{part}-{right}"),
        )
        if whole != parted:
            return "" if whole > parted else hyphen
        if cut["hyphen"] != SOFT_HYPHEN and right.casefold() in _CONJUNCTIONS:
            return None
        return hyphen if cut["hyphen"] != SOFT_HYPHEN and self._has_own_hyphen(left, part, right) else ""

    def _count(self, *words: str) -> int:
        return max(self._counts[word.casefold().replace("\u2010", "-")] for word in words)

    def _has_own_hyphen(self, left: str, part: str, right: str) -> bool:
        first, last = part.casefold(), re.split(r"[-\u2010]", right)[0].casefold()
        if not right[0].islower() and not (left.isupper() and right.isupper() and right[0].isalpha()):
            return right[0].isupper() or right[0].isdigit() or left[-1].isdigit()
        if len(left) == 1 or left[-1].isdigit() or first in _PARTS_WITH_HYPHEN or last != right.casefold():
            return True
        are_words = bool(self._counts[first] and self._counts[last])
        if part != left:
            return first in _SMALL_WORDS or bool(self._counts[first])
        return are_words and (first in self._first or last in self._last)
