"""Templates of texts: `Title: {title}, plot: {plot}` with values of the data in place of names in braces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from scannery.runtime.errors import InvalidRequestError

__all__ = ["TextTemplate"]

_FIELD = re.compile(r"\{([^{}]*)\}")
MAX_TEMPLATE_CHARACTERS = 4096
MAX_TEXT_CHARACTERS = 1 << 18
"""Of a text that is made: a template can have a large field a thousand times. No model reads as far."""


class TextTemplate:
    """A template that was checked. Immutable."""

    def __init__(self, template: str, path: str) -> None:
        """Check a template.

        Raises:
            InvalidRequestError: it is too long, has no field, or its braces are unbalanced; names `path`.

        """
        if len(template) > MAX_TEMPLATE_CHARACTERS:
            raise InvalidRequestError.at(
                path, f"must have at most {MAX_TEMPLATE_CHARACTERS} characters, got {len(template)}"
            )
        self._pieces = _FIELD.split(template)
        self.fields = frozenset(name.strip() for name in _FIELD.findall(template))
        """Fields of the data that it has."""
        if not self.fields or "" in self.fields or re.search(r"[{}]", _FIELD.sub("", template)):
            raise InvalidRequestError.at(
                path, f"must have fields of the data in braces, such as {{title}}, got {template!r:.200}"
            )

    def render(self, data: Mapping[str, Any]) -> str | None:
        """Return the text for some data, with nothing in place of fields that it lacks; None if it lacks all.

        A text of more than MAX_TEXT_CHARACTERS is cut.
        """
        if not any(data.get(name) not in (None, "", [], {}) for name in self.fields):
            return None
        made, room = list[str](), MAX_TEXT_CHARACTERS
        for number, piece in enumerate(self._pieces):  # texts and fields by turns
            text = _text(data.get(piece.strip())) if number % 2 else piece
            made.append(text[:room])
            room -= len(made[-1])
            if not room:
                break
        return "".join(made)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)
