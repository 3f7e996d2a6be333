"""Fields of a record as a spec names them: a name, a path into nested values, or a template of several.

    title                    the field of this name
    meta.author.name         a field of an object in an object
    authors.name             of a list of objects: the list of their fields
    authors.0.name           of an element of a list; `authors[0].name` is the same
    {show}: {meta.title}     a text with fields in it; `{{` and `}}` are braces

A field whose name is the whole text wins over what the text means otherwise, at every level. Text that is JSON, such as
a database's column in a CSV cell, is looked into like the value that it describes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scannery.indexer.datapoints.conversions import is_nan, plain_text
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.strict_json import exact_json

__all__ = ["TEXT_SEPARATORS", "FieldExpression", "join_texts"]

TEXT_SEPARATORS = {"title": ", ", "text": "\n\n"}
"""What joins the items of a list that is a title or a text."""

MAX_DOTTED_PARTS = 64
"""Most parts of a path that are looked up as one name with dots in it. Without a limit, a path of n parts would stand
for names of n² characters in all."""

_PART = re.compile(r"[^.\[\]]+")
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")


class FieldExpression:
    """What a spec says about a field, ready to be looked up in records.

    Args:
        text: as in the spec.

    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.inner = [FieldExpression(name) for name in _BRACES.findall(text) if name]
        """The fields of a template; none if it is not one."""
        parts = [] if self.inner else [part for part in _PART.findall(text) if part != "*"]
        self.parts = parts if len(parts) > 1 or parts != [text] else []
        """The parts of a path; none if it is a name."""

    @property
    def is_name(self) -> bool:
        """Whether the text can only be a name."""
        return not self.inner and not self.parts

    @property
    def names(self) -> set[str]:
        """The fields that a record may have it in."""
        most = min(len(self.parts), MAX_DOTTED_PARTS)
        paths = {".".join(self.parts[:size]) for size in range(1, most + 1)}
        return {self.text} | paths | {name for one in self.inner for name in one.names}

    def value(self, record: Mapping[str, Any]) -> Any:
        """Return the value in a record; None if there is none, or NaN. Templates give text, without missing fields.

        Raises:
            InvalidRecordError: a field of a template holds what has no text, such as an object.

        """
        if self.is_name or self.text in record:
            found = record.get(self.text)
        else:
            found = self._filled(record) if self.inner else _at(record, self.parts)
        return None if is_nan(found) else found

    def part(self, record: Mapping[str, Any], separator: str) -> str | None:
        """Return the value in a record as a part of a text, items of a list joined; raises as `value`."""
        value = join_texts(self.value(record), separator)
        try:
            return None if value is None else plain_text(value)
        except (TypeError, ValueError) as error:
            what = f"must be a text, number or time as a part of a text, got {type(value).__name__}"
            raise InvalidRecordError(f"{self.text}: {what}", reason="text", field=self.text) from error

    def is_complete(self, record: Mapping[str, Any]) -> bool:
        """Return whether all fields of a template have values, as an id needs it."""
        return self.text in record or all(one.value(record) is not None for one in self.inner)

    def _filled(self, record: Mapping[str, Any]) -> str | None:
        texts = [one.part(record, ", ") for one in self.inner]
        if all(text is None for text in texts):
            return None
        given = iter(texts)

        def replaced(found: re.Match[str]) -> str:
            if found[1] is None:
                return found[0][0]
            return next(given) or ""

        return _BRACES.sub(replaced, self.text).strip() or None


def join_texts(value: Any, separator: str) -> Any:
    """Return a list of texts as one text, None without any; values that are no lists as they are."""
    if not isinstance(value, (list, tuple)):
        return value
    if not all(item is None or isinstance(item, (str, int, float)) for item in value):
        return value
    return (
        separator.join(plain_text(item) for item in value if not (item is None or item == "" or is_nan(item)))
        or None
    )


def _at(value: Any, parts: Sequence[str]) -> Any:
    if not parts:
        return value
    if isinstance(value, str):
        value = _described(value)
    if isinstance(value, Mapping):
        most = min(len(parts), MAX_DOTTED_PARTS)
        sizes = (size for size in range(most, 0, -1) if ".".join(parts[:size]) in value)
        size = next(sizes, 0)
        return _at(value[".".join(parts[:size])], parts[size:]) if size else None
    if not isinstance(value, list):
        return None
    if parts[0].isdecimal():
        return _at(value[int(parts[0])], parts[1:]) if int(parts[0]) < len(value) else None
    found: list[Any] = []
    for item in value:
        inner = _at(item, parts)
        if inner is not None:
            found += inner if isinstance(inner, list) else [inner]
    return found or None


def _described(text: str) -> object:
    """Return what JSON text describes; other text as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return exact_json(text)
    except (ValueError, RecursionError):
        return text
