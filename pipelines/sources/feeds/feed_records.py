"""RSS and Atom → one record per episode or entry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timezone
from html import unescape
from typing import Any
from urllib.parse import urljoin

from scannery.indexer.datapoints.text_values import time_in_text
from scannery.pipelines.sources.documents.archives import xml_root
from scannery.pipelines.sources.documents.document import DocumentError, one_line
from scannery.pipelines.sources.documents.html_pages import markdown_of

__all__ = ["Entry", "Transcript", "entries_of", "is_feed"]

_BEGINNINGS = (b"<rss", b"<feed", b"<rdf:rdf")
_CONTENT = ("{http://purl.org/rss/1.0/modules/content/}encoded", "content", "description", "summary",
            "{http://www.itunes.com/dtds/podcast-1.0.dtd}summary")  # fmt: skip
_ENTITY = re.compile(rb"&(?:#?[A-Za-z0-9]{1,31};)?")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_ITUNES = "{http://www.itunes.com/dtds/podcast-1.0.dtd}"
_DC = "{http://purl.org/dc/elements/1.1/}"
_NAMESPACES = ("http://www.w3.org/2005/Atom", "http://purl.org/rss/1.0/", "http://backend.userland.com/rss2",
               "http://my.netscape.com/rdf/simple/0.9/")  # fmt: skip
"""Namespaces of RSS and Atom themselves, whose names are used without them here."""


_FIRST_YEAR, _LAST_YEAR = 1, 9999
"""Times of these years stand for none, and may have no time in another zone."""


@dataclass(frozen=True)
class Transcript:
    """A transcript that an episode names (`podcast:transcript`)."""

    url: str
    type: str
    """Media type; may be empty."""


@dataclass(frozen=True)
class Entry:
    """An episode or entry."""

    fields: dict[str, Any]
    transcripts: tuple[Transcript, ...] = ()
    problems: tuple[str, ...] = ()
    """What of it could not be read."""


def is_feed(beginning: bytes) -> bool:
    """Return whether the beginning of an XML file is that of a feed."""
    head = beginning.replace(b"\0", b"").lower()  # UTF-16, too
    return any(tag in head for tag in _BEGINNINGS)


def entries_of(data: bytes, name: str) -> tuple[list[Entry], str | None]:
    """Return the entries of a feed in its order, and what is wrong if some may be missing.

    Raises:
        DocumentError: it is no feed, not XML, or too large.

    """
    root, problem = _parsed(data, name)
    for element in root.iter():
        if isinstance(element.tag, str):
            element.tag = _own_name(element.tag)
    if root.tag.rpartition("}")[2].lower() not in ("rss", "feed", "rdf"):
        raise DocumentError("malformed", f"{name} is not an RSS or Atom feed: it begins with <{root.tag}>")
    channel = root.find("channel")
    channel = root if channel is None else channel
    about = {
        "podcast": _text(channel, "title"),
        "language": _text(channel, "language") or channel.get("{http://www.w3.org/XML/1998/namespace}lang"),
        "podcast_author": _text(channel, f"{_ITUNES}author") or _author(channel),
    }
    about = {key: value for key, value in about.items() if value}
    site = _link(channel)
    return [_entry(entry, about, site) for entry in root.iter("item", "entry")], problem


def _parsed(data: bytes, name: str) -> tuple[Any, str | None]:
    """Return the root of a feed, and what is wrong if not all of it could be read."""
    try:
        return xml_root(data, name), None
    except DocumentError as error:
        if error.reason == "too_large":
            raise
    # Many feeds have entities of HTML, or ampersands that are no entities.
    data = _ENTITY.sub(_reference, data)
    try:
        return xml_root(data, name), None
    except DocumentError as error:
        return xml_root(data, name, recover=True), f"{error}; entries behind this may be missing"


def _reference(match: re.Match[bytes]) -> bytes:
    entity = match[0].decode("ascii")
    if entity in ("&amp;", "&lt;", "&gt;", "&quot;", "&apos;") or entity.startswith("&#"):
        return match[0]
    decoded = unescape(entity)
    return (
        b"&amp;" + match[0][1:]
        if decoded == entity
        else "".join(f"&#{ord(char)};" for char in decoded).encode()
    )


def _own_name(tag: str) -> str:
    namespace, _, name = tag[1:].partition("}") if tag.startswith("{") else ("", "", tag)
    return name if namespace in _NAMESPACES else tag


def _entry(entry: Any, about: dict[str, Any], site: str | None) -> Entry:
    enclosure = entry.find("enclosure")
    if enclosure is None:
        enclosure = next((child for child in entry.iterfind("link") if child.get("rel") == "enclosure"), {})
    link = _link(entry, site)
    url = enclosure.get("url") or enclosure.get("href")
    description = _description(entry)
    published, problems = _time(entry, "pubDate", "published", f"{_DC}date", "updated")
    fields = {
        **about,
        "id": _text(entry, "guid") or _text(entry, "id") or link or url,
        "title": _title(entry) or _text(entry, f"{_ITUNES}title"),
        "text": description,
        "description": description,
        "link": link,
        "published": published,
        "author": _text(entry, f"{_ITUNES}author") or _author(entry) or about.get("podcast_author"),
        "duration_s": _duration_s(_text(entry, f"{_ITUNES}duration")),
        "season": _number(_text(entry, f"{_ITUNES}season")),
        "episode": _number(_text(entry, f"{_ITUNES}episode")),
        "categories": [
            text
            for child in entry.iterfind("category")
            if (text := one_line(child.text or child.get("term") or ""))
        ],
        "enclosure_url": url,
        "enclosure_type": enclosure.get("type"),
    }
    transcripts = tuple(
        Transcript(child.get("url"), (child.get("type") or "").lower())
        for child in entry.iterchildren()
        if isinstance(child.tag, str) and child.tag.endswith("}transcript") and child.get("url")
    )
    return Entry(
        {key: value for key, value in fields.items() if value not in (None, "", [])}, transcripts, problems
    )


def _content(element: Any) -> str:
    """Return the text of an element; entities of HTML, which XML does not know, are decoded."""
    pieces = [element.text or ""]
    for child in element.iter():
        if child is element:
            continue
        if isinstance(child.tag, str):
            pieces.append(child.text or "")
        elif str(child).startswith("&"):
            pieces.append(unescape(str(child)))
        pieces.append(child.tail or "")
    return "".join(pieces)


def _text(element: Any, name: str) -> str | None:
    child = element.find(name)
    return None if child is None else one_line(unescape(_content(child))) or None


def _author(element: Any) -> str | None:
    author = element.find("author")
    if author is not None and author.find("name") is not None:
        return _text(author, "name")
    return _text(element, "author") or _text(element, f"{_DC}creator")


def _description(entry: Any) -> str:
    """Return the longest of the entry's descriptions as Markdown: feeds repeat it, shortened."""
    from lxml import etree

    best = ""
    for name in _CONTENT:
        description = entry.find(name)
        if description is None:
            continue
        if description.get("type") == "xhtml":
            html = "".join(etree.tostring(child, encoding="unicode") for child in description)
        else:
            html = _content(description)
            html = (
                html.replace("&", "&amp;").replace("<", "&lt;") if description.get("type") == "text" else html
            )
        text = markdown_of(html)
        best = max(best, text, key=len)
    return best


def _title(entry: Any) -> str | None:
    title = entry.find("title")
    if title is None or title.get("type") != "html":
        return _text(entry, "title")
    return one_line(unescape(_TAG.sub("", _content(title)))) or None


def _link(element: Any, site: str | None = None) -> str | None:
    """Return the page of an entry or feed; a relative one from `xml:base`, else from the feed's own page."""
    for link in element.iterfind("link"):
        if link.get("href") and link.get("rel", "alternate") == "alternate":
            return _absolute(link.get("href"), link.base or site)
    texts = ((one_line(link.text or ""), link.base) for link in element.iterfind("link"))
    return next((_absolute(text, base or site) for text, base in texts if text), None)


def _absolute(link: str, base: str | None) -> str:
    if not base or not base.startswith(("http://", "https://")):
        return link
    try:
        return urljoin(base, link)
    except ValueError:
        return link


def _time(entry: Any, *names: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the first time as ISO 8601, and what is wrong with those that are none.

    A field that is no time would cost the episode, where the index has times of it.
    """
    problems: list[str] = []
    for name in names:
        text = _text(entry, name)
        if text is None:
            continue
        try:
            time = time_in_text(text)
            if _FIRST_YEAR < time.year < _LAST_YEAR:
                return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).isoformat(), ()
        except (ValueError, OverflowError):
            pass
        problems.append(f"{name.rpartition('}')[2]}: not a time")
    return None, tuple(problems)


def _duration_s(text: str | None) -> int | None:
    """Return the seconds in `[hh:]mm:ss`, or in a number of seconds."""
    parts = (text or "").split(":")
    if len(parts) > 3 or not all(
        part.isascii() and part.replace(".", "", 1).isdigit() and len(part) < 12 for part in parts
    ):
        return None
    return int(sum(float(part) * 60**power for power, part in enumerate(reversed(parts))))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
