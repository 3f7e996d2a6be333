"""HTML in text fields of records, as databases and feeds have it: whether there is some, and its text as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from html import unescape
from typing import Any

from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.sources.documents.document import DocumentError, one_line
from scannery.pipelines.sources.documents.html_pages import markdown_of

__all__ = ["HTML_SHARE", "has_html", "html_share", "mapping_of", "readable", "readable_html"]

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
    found = [_TAG.search(text) is not None for text in texts if text]
    return sum(found) / len(found) if found else 0.0


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
