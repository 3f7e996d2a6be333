"""DOCX → Markdown: headings, lists and tables of the main text (ECMA-376, WordprocessingML)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from scannery.pipelines.sources.documents.archives import Archive
from scannery.pipelines.sources.documents.document import (
    Block,
    Document,
    DocumentError,
    escaped,
    joined,
    one_line,
    table,
)

__all__ = ["read_docx"]

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_STRICT = b"http://purl.oclc.org/ooxml/wordprocessingml/main"
_CORE = {
    "title": "{http://purl.org/dc/elements/1.1/}title",
    "author": "{http://purl.org/dc/elements/1.1/}creator",
    "description": "{http://purl.org/dc/elements/1.1/}description",
    "language": "{http://purl.org/dc/elements/1.1/}language",
    "published": "{http://purl.org/dc/terms/}created",
}
_HEADING = re.compile(r"(?:heading|überschrift|titre|título|titolo|kop|заголовок)\s*([1-6])", re.IGNORECASE)
_BODY = 9
"""The outline level that means: no heading."""
MOST_STYLES = 10_000


def read_docx(file: BinaryIO) -> Document:
    """Return the text of a document.

    Raises:
        DocumentError: it is no DOCX file, damaged, encrypted or too large.

    """
    archive = Archive(file, "DOCX")
    data = archive.read("word/document.xml")
    if _STRICT in data[:4096]:
        raise DocumentError(
            "malformed", "the file is in the strict variant of DOCX; save it as an ordinary one"
        )
    root = archive.xml("word/document.xml")
    levels = _heading_levels(archive)
    core = _core(archive)
    blocks: list[Block] = []
    titles: list[str] = []
    body = root.find(f"{_W}body")
    for element in [] if body is None else _content(body):
        if element.tag == f"{_W}tbl":
            if text := table(_rows(element)):
                blocks.append(Block(text))
        elif block := _paragraph(element, levels):
            blocks.append(block)
            if block.text.startswith("#") and not titles:
                titles.append(block.text.lstrip("# "))
    return Document(
        text=joined(blocks),
        title=core.get("title") or next(iter(titles), None),
        author=core.get("author"),
        description=core.get("description"),
        language=core.get("language"),
        published=core.get("published"),
    )


def _core(archive: Archive) -> dict[str, str]:
    if "docProps/core.xml" not in archive:
        return {}
    root = archive.xml("docProps/core.xml")
    values = {name: one_line(root.findtext(tag) or "") for name, tag in _CORE.items()}
    return {name: value for name, value in values.items() if value}


def _heading_levels(archive: Archive) -> dict[str, int]:
    """Return the heading level, from 1, of each paragraph style that has one."""
    if "word/styles.xml" not in archive:
        return {}
    levels: dict[str, int] = {}
    parents: dict[str, str] = {}
    for style in archive.xml("word/styles.xml").iterfind(f"{_W}style"):
        name = style.get(f"{_W}styleId")
        if name is None or len(parents) + len(levels) > MOST_STYLES:
            continue
        level = _level(style)
        if level is not None:
            levels[name] = level
        elif (based := style.find(f"{_W}basedOn")) is not None:
            parents[name] = based.get(f"{_W}val") or ""
    for name in parents:
        above = name
        for _ in range(16):  # styles may be based on each other in a circle
            above = parents.get(above, above)
        if above in levels:
            levels[name] = levels[above]
    return {name: level for name, level in levels.items() if level < _BODY}


def _level(style: Any) -> int | None:
    """Return the level of a style or a paragraph: 1 to 6, `_BODY` for a text; None where it does not say."""
    outline = style.find(f"{_W}pPr/{_W}outlineLvl")
    if outline is None:
        outline = style.find(f"{_W}outlineLvl")
    value = "" if outline is None else outline.get(f"{_W}val") or ""
    if value.isascii() and value.isdigit():
        return min(int(value[:3]) + 1, 6) if int(value[:3]) < _BODY else _BODY
    named = style.find(f"{_W}name")
    name = "" if named is None else named.get(f"{_W}val") or ""
    if name.lower() == "title":
        return 1
    match = _HEADING.fullmatch(name.strip())
    return int(match[1]) if match else None


def _content(body: Any) -> Iterator[Any]:
    """Yield the paragraphs and tables of a body, also those in content controls."""
    from lxml import etree

    walker = etree.iterwalk(body, events=("start",), tag=(f"{_W}p", f"{_W}tbl"))
    for _, element in walker:
        walker.skip_subtree()
        yield element


def _paragraph(element: Any, levels: dict[str, int]) -> Block | None:
    properties = element.find(f"{_W}pPr")
    text = _text(element)
    if not text.strip():
        return None
    level, is_item, depth = None, False, 0
    if properties is not None:
        style = properties.find(f"{_W}pStyle")
        name = "" if style is None else style.get(f"{_W}val") or ""
        level = _level(properties) or levels.get(name)
        is_item = properties.find(f"{_W}numPr") is not None or name.startswith("List")
        value = (
            "" if (indent := properties.find(f"{_W}numPr/{_W}ilvl")) is None else indent.get(f"{_W}val") or ""
        )
        depth = min(int(value[:2]), 8) if value.isascii() and value.isdigit() else 0
    if level is not None and level < _BODY:
        return Block(f"{'#' * level} {one_line(text)}")
    text = escaped("\n".join(filter(None, map(one_line, text.split("\n")))))
    if is_item:
        return Block("  " * depth + "- " + text.replace("\n", "\n  " + "  " * depth), is_item=True)
    return Block(text)


_BREAKS = {f"{_W}tab": " ", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}


def _text(element: Any) -> str:
    """Return the text of an element, without what is deleted in tracked changes."""
    # `w:t` is text; deleted text is `w:delText`, and fields are `w:instrText`.
    return "".join(
        run.text or "" if run.tag == f"{_W}t" else _BREAKS[run.tag]
        for run in element.iter(f"{_W}t", *_BREAKS)
    )


def _rows(element: Any) -> Iterator[list[str]]:
    for row in element.iter(f"{_W}tr"):
        yield [_cell(cell) for cell in row.iterchildren(f"{_W}tc")]


def _cell(cell: Any) -> str:
    # A table within a cell has rows of its own, which `_rows` finds.
    return one_line(" ".join(_text(paragraph) for paragraph in cell.iterchildren(f"{_W}p", f"{_W}sdt")))
