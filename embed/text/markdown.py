r"""The structure of a Markdown text, found without changing it: front matter, sections by heading, and tables.

Recognised: YAML front matter; headings (`# …`, and lines underlined by `===` or `---`), but none in code fences; tables
of rows with `|` below a delimiter row such as `| --- | --- |`. All functions take time linear in the text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["SEPARATOR", "Section", "Structure", "Table", "find_structure", "front_matter_end", "page_of",
           "passage_title"]  # fmt: skip

SEPARATOR = " > "
"""Text between the headings of a trail."""
MOST_HEADING_CHARS = 160
MOST_TRAIL_CHARS = 320
"""A trail is repeated in front of each passage of its section, so its length is bounded."""
LEAST_SECTION_CHARS = 32
"""If sections are shorter on average, the lowest headings do not cut: a text of headings alone would become a passage
per line."""
MOST_FRONT_MATTER_CHARS = 1 << 16

_FRONT_MATTER = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*\r?\n")
_JSON_FRONT_MATTER = re.compile(r"\ufeff?(?=\{\s*\")")
_KEY = re.compile(r"[ \t\r\n]*[\"']?\w[\w .-]{0,99}[\"']?[ \t]*:(?:\s|$)")
_TOML_KEY = re.compile(r"[ \t\r\n]*(?:#[^\n]*\n[ \t\r\n]*){0,20}(?:\[|[\"']?\w[\w .-]{0,99}[\"']?[ \t]*=)")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_EMPHASIS = re.compile(r"(?<!\w)[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}(?!\w)")
_LIST_OR_QUOTE = re.compile(r"(?:[-*+>|#]|\d{1,9}[.)])")


class Section(NamedTuple):
    """A heading with the text below it, up to the next heading."""

    start: int
    end: int
    trail: str | None
    """The headings above and of the section, outermost first; None before the first heading."""


class Table(NamedTuple):
    """A table."""

    start: int
    header_end: int
    """End of the delimiter row, without its line break."""
    end: int
    rows: list[int]
    """Start of each row below the header."""


@dataclass(frozen=True)
class Structure:
    """Sections and tables of a text, in order."""

    sections: list[Section]
    tables: list[Table]

    def trail_at(self, position: int) -> str | None:
        """Return the trail of the section that a character is in."""
        at = bisect_right(self.sections, position, key=lambda section: section.start) - 1
        return self.sections[at].trail if at >= 0 else None


class _Heading(NamedTuple):
    start: int
    end: int
    level: int
    text: str


def find_structure(text: str) -> Structure:
    """Return the sections and tables of a text. Together, the sections are the text without its front matter."""
    body = front_matter_end(text)
    if not text[body:].strip():
        body = 0
    headings, tables = _scan(text, body)
    return Structure(_sections(text, body, _cutting(headings, len(text) - body)), tables)


def front_matter_end(text: str) -> int:
    """Return where the body of a text begins: after its front matter in YAML, TOML (`+++`) or JSON, else 0."""
    opening = _FRONT_MATTER.match(text)
    if opening is None:
        return _json_end(text)
    is_toml = opening[1] == "+++"
    if not (_TOML_KEY if is_toml else _KEY).match(text, opening.end()):
        return 0
    closing = ("+++",) if is_toml else ("---", "...")
    for start, end in _lines(text, opening.end()):
        if start > MOST_FRONT_MATTER_CHARS:
            return 0
        if text[start:end].rstrip() in closing:
            return min(end + 1, len(text))
    return 0


def _json_end(text: str) -> int:
    """Return where an object in JSON ends that begins a text, if it stands alone on its lines and a body follows."""
    opening = _JSON_FRONT_MATTER.match(text)
    if opening is None:
        return 0
    try:
        _, end = json.JSONDecoder().raw_decode(text[: MOST_FRONT_MATTER_CHARS + 1], opening.end())
    except (ValueError, RecursionError):
        return 0
    line, _, body = text[end:].partition("\n")
    return end + len(line) + 1 if not line.strip() and body.strip() else 0


def passage_title(title: str | None, section: str | None) -> str | None:
    """Return the title of a passage: that of its document, and the headings of its section that this does not name."""
    if not section or not title:
        return title or section or None
    first, _, trail = section.partition(SEPARATOR)
    if first.casefold() not in title.casefold():
        trail = section
    return f"{title}{SEPARATOR}{trail}" if trail else title


def page_of(breaks: list[int], position: int) -> int | None:
    """Return the page of a character, from 1; `breaks` are the form feeds of the text. None if it has none."""
    return bisect_right(breaks, position) + 1 if breaks else None


def _lines(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each line, without its line break."""
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield start, end
        start = end + 1


def _scan(text: str, body: int) -> tuple[list[_Heading], list[Table]]:
    headings: list[_Heading] = []
    tables: list[Table] = []
    fence = ""
    in_table = False
    before, above = (body, body), ""  # the line above, and the one above that
    for start, end in _lines(text, body):
        line = text[start:end].strip()
        indented = text.startswith(("    ", "\t"), start)
        if fence:
            if line.startswith(fence) and not line.strip(fence[0]):
                fence = ""
            line = ""
        elif in_table and "|" in line:
            tables[-1].rows.append(start)
            tables[-1] = tables[-1]._replace(end=end)
            continue
        elif not indented and line.startswith(("```", "~~~")):
            fence = line[: len(line) - len(line.lstrip(line[0]))]
            line = ""
        elif not indented and (heading := _heading(line)) is not None:
            headings.append(_Heading(start, end, *heading))
            line = ""
        elif _is_delimiter(line) and "|" in text[slice(*before)]:
            tables.append(Table(before[0], end, end, []))
            in_table = True
            continue
        elif not above and (level := _underline(line)) and _is_title(text[slice(*before)]):
            headings.append(_Heading(before[0], end, level, _plain(text[slice(*before)])))
            line = ""
        in_table = False
        above = text[slice(*before)].strip() if before[1] > before[0] else ""
        before = (start, end) if line else (end, end)
    return headings, tables


def _heading(line: str) -> tuple[int, str] | None:
    """Return level and text of a line `# …`; None for other lines."""
    level = len(line) - len(line.lstrip("#")) if line.startswith("#") else 0
    if not 1 <= level <= 6 or (len(line) > level and line[level] not in " \t"):
        return None
    title = line[level:].strip()
    closed = title.rstrip("#")
    return level, _plain(closed if not closed or closed[-1] in " \t" else title)


def _is_delimiter(line: str) -> bool:
    return "|" in line and "-" in line and not line.strip("|-: \t")


def _underline(line: str) -> int:
    """Return the level that a line gives to the line above it; 0: none."""
    if len(line) < 3 or line[0] not in "=-" or line.strip(line[0]):
        return 0
    return 1 if line[0] == "=" else 2


def _is_title(line: str) -> bool:
    return (
        bool(line.strip()) and not line.startswith(("    ", "\t")) and not _LIST_OR_QUOTE.match(line.lstrip())
    )


def _plain(heading: str) -> str:
    """Return a heading without marks of links and emphasis, at most MOST_HEADING_CHARS."""
    heading = " ".join(heading[: 4 * MOST_HEADING_CHARS].split())
    heading = _EMPHASIS.sub("", _LINK.sub(r"\1", heading)).strip()
    return heading if len(heading) <= MOST_HEADING_CHARS else heading[: MOST_HEADING_CHARS - 1] + "…"


def _cutting(headings: list[_Heading], size: int) -> list[_Heading]:
    """Return the headings that cut, of the highest levels: few enough for a text of this size."""
    for level in range(6, 0, -1):
        kept = [heading for heading in headings if heading.level <= level]
        if len(kept) <= 16 or len(kept) * LEAST_SECTION_CHARS <= size:
            return kept
    return []


def _sections(text: str, body: int, headings: list[_Heading]) -> list[Section]:
    """Return the sections; a heading with nothing below it but the next heading is in the section of that one."""
    first = headings[0].start if headings else len(text)
    sections = [Section(body, first, None)] if text[body:first].strip() else []
    start = None if sections else body
    above: list[_Heading] = []
    for i, heading in enumerate(headings):
        end = headings[i + 1].start if i + 1 < len(headings) else len(text)
        above = [outer for outer in above if outer.level < heading.level] + [heading]
        start = heading.start if start is None else start
        if i + 1 < len(headings) and text[heading.end : end].isspace():
            continue
        sections.append(Section(start, end, _trail([outer.text for outer in above])))
        start = None
    return sections


def _trail(headings: list[str]) -> str | None:
    """Return headings as a trail; of a long one, the outermost headings are left out."""
    named = [heading for heading in headings if heading]
    while len(named) > 1 and sum(map(len, named)) > MOST_TRAIL_CHARS:
        named.pop(0)
    return SEPARATOR.join(named) or None
