"""JSON Schema of data objects: the part of draft 7 that describes records.

A keyword that is not known here is refused where a schema is written, and not ignored: data that it forbids would be
let in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scannery.runtime.errors import InvalidRequestError

__all__ = ["DataSchema"]

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "format"}
)
_COUNTS: dict[str, tuple[str, type[Any], Callable[[int, int], bool]]] = {
    "minLength": ("at least {} characters", str, lambda have, limit: have >= limit),
    "maxLength": ("at most {} characters", str, lambda have, limit: have <= limit),
    "minItems": ("at least {} items", list, lambda have, limit: have >= limit),
    "maxItems": ("at most {} items", list, lambda have, limit: have <= limit),
    "minProperties": ("at least {} fields", dict, lambda have, limit: have >= limit),
    "maxProperties": ("at most {} fields", dict, lambda have, limit: have <= limit),
}
_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": ("at least {}", lambda value, bound: value >= bound),
    "maximum": ("at most {}", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("more than {}", lambda value, bound: value > bound),
    "exclusiveMaximum": ("less than {}", lambda value, bound: value < bound),
}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_ASSERTIONS = frozenset({"type", "enum", "const", "properties", "required", "additionalProperties", "items"})
_KEYWORDS = _ANNOTATIONS | _ASSERTIONS | _COUNTS.keys() | _BOUNDS.keys()
_MAX_DEPTH = 16


class DataSchema:
    """A schema that was checked. Immutable."""

    def __init__(self, schema: Mapping[str, Any], path: str = "collection.data_schema") -> None:
        """Check a schema; InvalidRequestError names the keyword below `path` that is wrong."""
        self._schema = schema
        if schema.get("type", "object") != "object":
            raise InvalidRequestError.at(f"{path}.type", "must be object: data objects have fields")
        _check(schema, path, 0)

    def check(self, data: Mapping[str, Any], path: str) -> None:
        """Check data; InvalidRequestError names the first field below `path` that is wrong."""
        _validate(dict(data), self._schema, path)


def _check(schema: Any, path: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise InvalidRequestError.at(path, "must be a schema: an object, true or false")
    if depth > _MAX_DEPTH:
        raise InvalidRequestError.at(path, f"must be nested at most {_MAX_DEPTH} deep")
    for keyword, value in schema.items():
        keyword_path = f"{path}.{keyword:.80}"
        if keyword not in _KEYWORDS:
            raise InvalidRequestError.at(
                keyword_path, f"is not supported; there are {', '.join(sorted(_KEYWORDS - _ANNOTATIONS))}"
            )
        if keyword == "properties":
            _check_properties(value, keyword_path, depth)
        elif keyword in ("items", "additionalProperties"):
            _check(value, keyword_path, depth + 1)
        else:
            _check_keyword(keyword, value, keyword_path)


def _check_properties(value: Any, path: str, depth: int) -> None:
    if not isinstance(value, Mapping):
        raise InvalidRequestError.at(path, "must be an object: schemas by field")
    for name, each in value.items():
        if not _NAME.fullmatch(name):
            raise InvalidRequestError.at(
                f"{path}.{name:.80}", "must have letters, digits, underscores and hyphens only"
            )
        _check(each, f"{path}.{name:.80}", depth + 1)


def _check_keyword(keyword: str, value: Any, path: str) -> None:
    if keyword == "type":
        for name in value if isinstance(value, list) and value else [value]:
            if not isinstance(name, str) or name not in _TYPES:
                raise InvalidRequestError.at(path, f"must be of {', '.join(_TYPES)}, got {name!r:.80}")
    elif keyword in _COUNTS and (not _TYPES["integer"](value) or value < 0):
        raise InvalidRequestError.at(path, f"must be a whole number of at least 0, got {value!r:.80}")
    elif keyword in _BOUNDS and not _TYPES["number"](value):
        raise InvalidRequestError.at(path, f"must be a number, got {value!r:.80}")
    elif keyword == "enum" and not (isinstance(value, list) and value):
        raise InvalidRequestError.at(path, "must be a list of at least one value")
    elif keyword == "required" and not (
        isinstance(value, list) and all(isinstance(name, str) for name in value)
    ):
        raise InvalidRequestError.at(path, "must be a list of fields")


def _validate(value: Any, schema: Mapping[str, Any] | bool, path: str) -> None:
    if isinstance(schema, bool):
        if not schema:
            raise InvalidRequestError.at(path, "is not in the data schema")
        return
    kinds = _kinds(schema)
    if kinds and not any(_TYPES[kind](value) for kind in kinds):
        raise InvalidRequestError.at(path, f"must be {' or '.join(kinds)}, got {_shown(value)}")
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        allowed = ", ".join(map(_shown, schema["enum"]))
        raise InvalidRequestError.at(path, f"must be one of {allowed:.200}, got {_shown(value)}")
    if "const" in schema and not _same(value, schema["const"]):
        raise InvalidRequestError.at(path, f"must be {_shown(schema['const'])}, got {_shown(value)}")
    _validate_size(value, schema, path)
    if isinstance(value, dict):
        _validate_fields(value, schema, path)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _validate(each, schema.get("items", True), f"{path}[{number}]")


def _kinds(schema: Mapping[str, Any]) -> Sequence[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _validate_size(value: Any, schema: Mapping[str, Any], path: str) -> None:
    for keyword, (text, kind, holds) in _COUNTS.items():
        if keyword in schema and isinstance(value, kind) and not holds(len(value), schema[keyword]):
            raise InvalidRequestError.at(path, f"must have {text.format(schema[keyword])}, got {len(value)}")
    for keyword, (text, within) in _BOUNDS.items():
        if keyword in schema and _TYPES["number"](value) and not within(value, schema[keyword]):
            raise InvalidRequestError.at(path, f"must be {text.format(schema[keyword])}, got {value}")


def _validate_fields(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> None:
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        raise InvalidRequestError.at(f"{path}.{missing[0]:.80}", "is required by the data schema")
    properties, default = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, each in value.items():
        _validate(each, properties.get(name, default), f"{path}.{name:.80}")


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are equal in JSON, where true is not 1."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _shown(value: Any) -> str:
    return f"{value!r:.80}"
