"""HTML → Markdown: the main content of a page, with headings, lists, tables and code.

Everything takes time linear in the page. Elements are visited by iteration, since pages nest arbitrarily deep.

HTML in text fields of records, as databases and feeds have it: whether there is some, and its text as Markdown.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import unescape
from typing import Any

from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.sources.documents.document import (
    Block,
    Document,
    DocumentError,
    escaped,
    joined,
    one_line,
    table,
)

__all__ = ["HTML_SHARE", "has_html", "html_share", "mapping_of", "markdown_of", "read_html", "readable"]


MAX_HTML_BYTES = 32 * 2**20
MAX_TAGS = 1_000_000
"""Most `<`: an element takes about 200 bytes of memory and 20 µs."""
MOST_SPAN = 20
"""Rows and columns that one cell of a table spans, at most."""
MOST_REPEATED = 200
"""Longest cell that is repeated in each row that it spans."""

_DROPPED = (
    "script", "style", "template", "noscript", "svg", "math", "iframe", "object", "embed", "canvas", "audio", "video",
    "nav", "footer", "aside", "form", "button", "select", "textarea", "dialog", "head", "map",
)  # fmt: skip
_HIDDEN_ROLES = frozenset(
    {"navigation", "banner", "contentinfo", "search", "complementary", "menu", "dialog"}
)
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "html", "li",
    "main", "ol", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul",
})  # fmt: skip
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_CHARSET = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,500}?(?:charset|encoding)\s{0,9}=\s{0,9}["']?\s{0,9}([\w.:-]{1,40})""", re.I
)
_CHARSETS = re.compile(
    r"ascii|utf-(?:8|16|32).*|cp\d+|iso8859-\d+|koi8-.|kz1048|ptcp154|tis-620|mac-.+|big5.*|gb.+|hz|johab|"
    r"euc_.+|shift_jis.*|iso2022_.+"
)
"""Codecs for text. Others take quadratic time (punycode), or do not replace what they cannot read (idna)."""
_BREAK = "\x00"
"""A line break in the text of a block; the parser leaves none in texts."""
# Aliases that browsers read as the first, which has more characters.
_WINDOWS = {
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    "latin-1": "cp1252",
    "us-ascii": "cp1252",
    "ascii": "cp1252",
}


def read_html(data: bytes, encoding: str = "") -> Document:
    """Return the main content of a page; `encoding` is that of its bytes, if it is known.

    Raises:
        DocumentError: the page is too large, or its elements nest too deep.

    """
    from lxml import etree

    root = _parsed(data, encoding or None)
    if root is None:
        return Document(text="")
    metas = _metas(root)
    titles = [one_line("".join(title.itertext())) for title in root.iter("title")][:1]
    etree.strip_elements(root, *_DROPPED, with_tail=False)
    content, hidden = _content(root)
    title = next(filter(None, [*titles, metas.get("og:title"), _first_heading(content)]), None)
    return Document(
        text=_markdown(content, hidden),
        title=title,
        language=root.get("lang") or root.get("{http://www.w3.org/XML/1998/namespace}lang"),
        author=metas.get("author"),
        description=metas.get("description") or metas.get("og:description"),
        published=metas.get("article:published_time") or metas.get("date"),
    )


def markdown_of(html: str) -> str:
    """Return a fragment of HTML, such as the description of an episode, as Markdown; raises as `read_html`."""
    from lxml import etree

    root = _parsed(html.encode("utf-8", "replace"), "utf-8")
    if root is None:
        return ""
    etree.strip_elements(root, *_DROPPED, with_tail=False)
    return _markdown(root, frozenset())


def _parsed(data: bytes, encoding: str | None = None) -> Any:
    """Return the root of a page; None for an empty one."""
    from lxml import etree

    if len(data) > MAX_HTML_BYTES or data.count(b"<") > MAX_TAGS:
        what = f"{MAX_HTML_BYTES >> 20} MiB or {MAX_TAGS} tags"
        raise DocumentError("too_large", f"the page is larger than {what}")
    text = _decoded(data, encoding).replace(_BREAK, " ")
    # UTF-8 by argument: a charset in the page does not apply any more.
    parser = etree.HTMLParser(
        encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True, huge_tree=True
    )
    try:
        root = etree.fromstring(text.encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError:  # nothing in it is an element
        return None
    if any("xcessive depth" in error.message for error in parser.error_log):
        raise DocumentError("malformed", "the elements of the page nest too deep")
    return root


def _decoded(data: bytes, encoding: str | None) -> str:
    """Return a page as text: by its byte order mark, as UTF-8, by the charset it names, or as windows-1252."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if encoding is not None:
        return data.decode(encoding, "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        named = _CHARSET.search(data[:4096])
        name = named[1].decode("ascii").lower() if named else "cp1252"
    try:
        codec = codecs.lookup(_WINDOWS.get(name, name)).name
    except LookupError:
        codec = "cp1252"
    return data.decode(codec if _CHARSETS.fullmatch(codec) else "cp1252", "replace")


def _metas(root: Any) -> dict[str, str]:
    metas: dict[str, str] = {}
    for meta in root.iter("meta"):
        name = (meta.get("name") or meta.get("property") or "").lower()
        if name and (content := one_line(meta.get("content") or "")):
            metas.setdefault(name, content)
    return metas


def _content(root: Any) -> tuple[Any, frozenset[Any]]:
    """Return the element with the main content, and the elements in it that are navigation or hidden."""
    body = next(root.iter("body"), root)
    mains = [node for node in body.iter() if node.tag == "main" or node.get("role") == "main"][:1]
    articles = [*body.iter("article")]
    kept = mains or (articles if len(articles) == 1 else [])
    content = body
    if kept and (size := _size(kept[0])) >= min(500, _size(body) // 3):
        content = kept[0] if size else body
    return content, frozenset(node for node in content.iter() if node is not content and _is_hidden(node))


def _is_hidden(element: Any) -> bool:
    attributes = element.attrib
    if attributes and (
        attributes.get("role") in _HIDDEN_ROLES
        or "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or "display:none" in attributes.get("style", "").replace(" ", "").lower()
    ):
        return True
    # The header of a page is content if it has the heading of the page.
    return bool(
        element.tag == "header" and element.getparent().tag == "body" and element.find(".//h1") is None
    )


def _size(element: Any) -> int:
    return sum(len(text.strip()) for text in element.itertext())


def _first_heading(root: Any) -> str | None:
    return next(
        (text for heading in root.iter("h1", "h2") if (text := one_line("".join(heading.itertext())))), None
    )


def _markdown(root: Any, hidden: frozenset[Any]) -> str:
    from lxml import etree

    writer, layouts = _Writer(), _layout_tables(root)
    walker = etree.iterwalk(root, events=("start", "end"))
    for event, element in walker:
        if event == "end":
            if element not in hidden:
                writer.end(element.tag)
            if element is not root:
                writer.write(element.tail)
        elif element in hidden:
            walker.skip_subtree()
        elif element.tag == "table" and element not in layouts:
            writer.table(element)
            walker.skip_subtree()
        else:
            writer.start(element.tag, element)
            writer.write(element.text)
    writer.flush()
    return joined(writer.blocks)


def _layout_tables(root: Any) -> set[Any]:
    """Return the tables that contain tables or headings: these arrange a page."""
    from lxml import etree

    layouts: set[Any] = set()
    around: list[Any] = []
    for event, element in etree.iterwalk(root, events=("start", "end")):
        if element.tag == "table" and event == "end":
            around.pop()
        elif event == "start" and (element.tag == "table" or element.tag in _HEADINGS):
            if around:
                layouts.add(around[-1])
            if element.tag == "table":
                around.append(element)
    return layouts


class _Writer:
    """Writes elements as blocks of Markdown."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._inline: list[str] = []
        self._lists: list[int | None] = []
        """The number of the last item of each open list; None: it has no numbers."""
        self._bullet = ""
        self._heading = 0
        self._quotes = 0
        self._raw = 0

    def start(self, tag: str, element: Any) -> None:
        """Begin an element."""
        if tag not in _BLOCKS:
            if tag == "br":
                self._inline.append(_BREAK)
            elif tag == "img" and (alt := one_line(element.get("alt") or "")):
                self._inline.append(f" {alt} ")
            elif tag in ("code", "kbd", "samp", "tt") and not self._raw:
                self._inline.append("`")
            return
        self.flush()
        if tag in ("ul", "ol"):
            self._lists.append(0 if tag == "ol" else None)
        elif tag == "li":
            number = self._lists[-1] if self._lists else None
            if self._lists and number is not None:
                self._lists[-1] = number + 1
            self._bullet = "- " if number is None else f"{number + 1}. "
        elif tag in _HEADINGS:
            self._heading = _HEADINGS[tag]
        elif tag == "blockquote":
            self._quotes += 1
        elif tag == "pre":
            self._raw += 1

    def end(self, tag: str) -> None:
        """End an element."""
        if tag not in _BLOCKS:
            if tag in ("code", "kbd", "samp", "tt") and not self._raw:
                self._inline.append("`")
            return
        self.flush()
        if tag in ("ul", "ol") and self._lists:
            self._lists.pop()
        elif tag in _HEADINGS:
            self._heading = 0
        elif tag == "blockquote":
            self._quotes -= 1
        elif tag == "pre":
            self._raw -= 1

    def write(self, text: str | None) -> None:
        """Add text to the open block."""
        if text:
            self._inline.append(text)

    def flush(self) -> None:
        """Close the open block."""
        text, self._inline = "".join(self._inline), []
        if self._raw:
            code = text.replace(_BREAK, "\n").strip("\n")
            if code.strip():
                fence = "```" if "```" not in code else "~~~~"
                self.blocks.append(Block(f"{fence}\n{code}\n{fence}"))
            return
        text = "\n".join(filter(None, map(one_line, text.split(_BREAK)))).replace("``", "")
        if not text:
            return
        if self._heading:
            self.blocks.append(Block(f"{'#' * self._heading} {one_line(text)}"))
            return
        text = escaped(text)
        # Deeper nesting than a reader sees would make each line as long as the nesting.
        depth = min(len(self._lists), 8)
        if depth:
            indent = "  " * (depth - 1) + ("" if self._bullet else "  ")
            text = indent + self._bullet + text.replace("\n", "\n" + "  " * depth)
        if self._quotes:
            text = "> " + text.replace("\n", "\n> ")
        self.blocks.append(Block(text, is_item=depth > 0))
        self._bullet = ""

    def table(self, element: Any) -> None:
        """Write a table of data."""
        self.flush()
        captions = [one_line("".join(caption.itertext())) for caption in element.iter("caption")]
        self.blocks += [Block(escaped(caption)) for caption in captions if caption]
        if text := table(_rows(element)):
            self.blocks.append(Block(text))


def _rows(element: Any) -> Iterator[list[str]]:
    """Yield the rows of a table; a cell that spans rows is in each of them."""
    pending: dict[int, tuple[str, int]] = {}
    for row in element.iter("tr"):
        cells: list[str] = []
        for cell in row.iterchildren("td", "th"):
            _fill(cells, pending)
            text = one_line(" ".join(cell.itertext()))
            down = _span(cell, "rowspan") - 1
            if down > 0:
                pending[len(cells)] = (text if len(text) <= MOST_REPEATED else "", down)
            cells.append(text)
            cells += [""] * (_span(cell, "colspan") - 1)
        _fill(cells, pending)
        yield cells


def _fill(cells: list[str], pending: dict[int, tuple[str, int]]) -> None:
    """Add the cells of rows above that span the next places."""
    while (column := len(cells)) in pending:
        text, down = pending.pop(column)
        cells.append(text)
        if down > 1:
            pending[column] = (text, down - 1)


def _span(cell: Any, name: str) -> int:
    value = (cell.get(name) or "1").strip()
    return max(1, min(int(value), MOST_SPAN)) if value.isascii() and value.isdigit() and len(value) < 6 else 1


HTML_SHARE = 0.1
"""Share of texts with HTML from which on reading them as HTML is recommended."""

_TAG = re.compile(
    r"</?(?:p|br|div|span|a|b|i|u|em|strong|ul|ol|li|h[1-6]|table|tr|td|th|img|blockquote|pre|code|hr|figure|iframe|"
    r"section|article|small|sup|sub)(?:\s[^<>]{0,2000})?/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:[a-zA-Z]{2,10}|#\d{2,6}|#[xX][0-9a-fA-F]{2,6});")
_ESCAPED_TAG = re.compile(r"&lt;/?(?:p|br|div|span|a|b|i|em|strong|ul|ol|li|h[1-6])\b", re.IGNORECASE)


def has_html(text: str) -> bool:
    """Return whether a text has tags or entities of HTML."""
    return _TAG.search(text) is not None or _ENTITY.search(text) is not None


def html_share(texts: Iterable[str | None]) -> float:
    """Return the share of texts that have HTML, entities alone not counted."""
    has_tag = [_TAG.search(text) is not None for text in texts if text]
    return sum(has_tag) / len(has_tag) if has_tag else 0.0


def mapping_of(spec: IndexSpec) -> FieldMapping:
    """Return the mapping of a spec, which reads texts and titles as `source.text_format` says."""
    mapping = FieldMapping.of(spec)
    if spec.source.text_format != "html" or spec.source.format == "datapoints":  # exports were read before
        return mapping
    return mapping.converting(_CONVERSIONS)


def readable(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a datapoint with its text and title read as HTML; raises as `readable_html`."""
    return {key: _CONVERSIONS[key](value) if key in _CONVERSIONS else value for key, value in point.items()}


def readable_html(value: object) -> object:
    """Return a text with HTML as Markdown; other values as they are.

    Raises:
        InvalidRecordError: the text is too large to be read.

    """
    if not isinstance(value, str) or not has_html(value):
        return value
    html = unescape(value) if _ESCAPED_TAG.search(value) and not _TAG.search(value) else value
    try:
        return markdown_of(html)
    except DocumentError as error:
        raise InvalidRecordError(f"text: {error}", reason="text", field="text") from error


def _title(value: object) -> object:
    if not isinstance(value, str) or not has_html(value):
        return value
    return one_line(unescape(_TAG.sub(" ", value)))


_CONVERSIONS: Mapping[str, Callable[[object], object]] = {"text": readable_html, "title": _title}
