"""The data of data objects: messages, dynamic attributes, and the text that word searches see.

A Struct has numbers as doubles only. Whole ones become integers here, so that other clients of the index see `1999`,
not `1999.0`; the managed service's clients get doubles either way.

Templates of texts: `Title: {title}, plot: {plot}` with values of the data in place of names in braces.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.struct_pb2 import Struct, Value

from scannery.runtime.errors import InvalidRequestError

__all__ = [
    "TextTemplate",
    "attribute_name",
    "data_of",
    "field_name",
    "fill",
    "json_of",
    "plain",
    "searched_text",
    "struct_of",
]


_WHOLE = 2.0**53
"""Up to this a double is the exact integer that it shows."""
_ESCAPE = "data:"
"""Mark of escaped names without a dot: dots in filters lead into objects, and `data.id` would also be the key `id` of
an object `data`.
"""
_TAKEN = frozenset({"id", "document_id"})
"""Names that attributes of ours cannot have."""


def plain(value: Value, path: str) -> Any:
    """Return a value as Python's; InvalidRequestError for a number that JSON does not have."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        return _number(value.number_value, path)
    if kind == "struct_value":
        return {
            name: plain(each, f"{path}.{name:.80}")
            for name, each in sorted(value.struct_value.fields.items())
        }
    if kind == "list_value":
        return [plain(each, f"{path}[{i}]") for i, each in enumerate(value.list_value.values)]
    return None if kind in (None, "null_value") else getattr(value, str(kind))


def struct_of(struct: Struct, path: str) -> dict[str, Any]:
    """Return a Struct as a dict, in the order of its names; `path` names it in errors."""
    return {name: plain(value, f"{path}.{name:.80}") for name, value in sorted(struct.fields.items())}


def fill(struct: Struct, values: Mapping[str, Any]) -> None:
    """Set the fields of a Struct from Python's values."""
    for name, value in values.items():
        _fill(struct.fields[name], value)


def attribute_name(field: str) -> str:
    """Return the name of the attribute that keeps a field of the data, or of a path into it.

    `id` and `document_id` are taken, so these become `data:id` and `data:document_id`, and `id.part` `data:id.part`.
    Names that begin with `data:` get another `data:`, so that no two fields share an attribute.
    """
    is_taken = field.split(".", 1)[0] in _TAKEN
    return f"{_ESCAPE}{field}" if is_taken or field.startswith(_ESCAPE) else field


def field_name(attribute: str) -> str:
    """Return the field of the data that an attribute keeps."""
    return attribute.removeprefix(_ESCAPE)


def json_of(data: Mapping[str, Any]) -> str:
    """Return data as the JSON of dynamic attributes."""
    renamed = {attribute_name(name): value for name, value in data.items()}
    return json.dumps(renamed, ensure_ascii=False, separators=(",", ":"))


def data_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data that dynamic attributes keep."""
    return {field_name(name): value for name, value in attributes.items()}


def searched_text(data: Mapping[str, Any], fields: Iterable[str] | None = None) -> str:
    """Return the strings of the data, and of its lists of strings, each on a line of its own.

    Args:
        data: of a data object.
        fields: only of these; None: of all.

    """
    names = sorted(data) if fields is None else [name for name in dict.fromkeys(fields) if name in data]
    lines: list[str] = []
    for name in names:
        value = data[name]
        lines += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
    return "\n".join(lines)


def _number(number: float, path: str) -> int | float:
    if not math.isfinite(number):
        raise InvalidRequestError.at(path, f"must be a finite number, got {number}")
    # Minus zero is a double only.
    if number.is_integer() and abs(number) <= _WHOLE and (number or math.copysign(1, number) > 0):
        return int(number)
    return number


def _fill(value: Value, content: Any) -> None:
    if content is None:
        value.null_value = 0  # type: ignore[assignment]  # the only member of NullValue
    elif isinstance(content, bool):
        value.bool_value = content
    elif isinstance(content, int | float):
        value.number_value = content
    elif isinstance(content, str):
        value.string_value = content
    elif isinstance(content, Mapping):
        value.struct_value.SetInParent()
        fill(value.struct_value, content)
    else:
        value.list_value.SetInParent()
        for each in content:
            _fill(value.list_value.values.add(), each)


_FIELD = re.compile(r"\{([^{}]*)\}")
MAX_TEMPLATE_CHARACTERS = 4096
MAX_TEXT_CHARACTERS = 1 << 18
"""Characters of a text that is made: a template can have a large field a thousand times. No model reads as far."""


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
