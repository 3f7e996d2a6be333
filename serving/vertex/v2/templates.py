"""Templates of texts: `Title: {title}, plot: {plot}` with values of the data in place of names in braces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from scannery.runtime.errors import InvalidRequestError

__all__ = ["TextTemplate"]

_FIELD = re.compile(r"\{([^{}]*)\}")


class TextTemplate:
    """A template that was checked. Immutable."""

    def __init__(self, template: str, path: str) -> None:
        """Check a template; InvalidRequestError names `path` if no field is in it, or braces are unbalanced."""
        self._template = template
        self.fields = frozenset(name.strip() for name in _FIELD.findall(template))
        """Fields of the data that it has."""
        if not self.fields or "" in self.fields or re.search(r"[{}]", _FIELD.sub("", template)):
            raise InvalidRequestError.at(
                path, f"must have fields of the data in braces, such as {{title}}, got {template!r:.200}"
            )

    def render(self, data: Mapping[str, Any]) -> str | None:
        """Return the text for some data, with nothing in place of fields that it lacks; None if it lacks all."""
        if not any(data.get(name) not in (None, "", [], {}) for name in self.fields):
            return None
        return _FIELD.sub(lambda match: _text(data.get(match[1].strip())), self._template)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)
