"""What a column of each kind may become at each place of a datapoint.

Kinds are those of plain columns (plain.py). A kind that a place has no entry for is refused there, row by row, with a
message that names the field. docs/columns.md is made of this table, and a test holds all conversions to it: each type
of Arrow at each place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import pyarrow as pa

__all__ = ["KINDS", "PLACES", "ColumnKind", "Place", "has_json_form", "kind_of", "takes"]

ColumnKind = Literal[
    "null", "bool", "int", "float", "decimal", "text", "bytes", "date", "time", "timestamp", "duration", "list",
    "struct", "map",
]  # fmt: skip
Place = Literal[
    "id", "text", "string", "string_list", "int", "float", "bool", "timestamp", "geo", "dynamic", "payload",
    "vector", "sparse_vector",
]  # fmt: skip
"""Places of values: ids, texts (title and templates too), attributes of each type, and what else a datapoint has."""

_TEXTS: Mapping[ColumnKind, str] = {
    "bool": "`true`, `false`",
    "int": "its digits",
    "float": "as JSON writes it",
    "decimal": "its digits",
    "text": "as it is",
    "bytes": "if UTF-8",
    "date": "ISO 8601",
    "time": "ISO 8601",
    "timestamp": "ISO 8601",
}
_JSON: Mapping[ColumnKind, str] = {
    "bool": "as it is",
    "int": "as it is",
    "float": "as it is, if finite",
    "decimal": "a number",
    "text": "as it is",
    "date": "ISO 8601",
    "time": "ISO 8601",
    "timestamp": "ISO 8601",
    "duration": "seconds",
    "list": "a list",
    "struct": "an object",
    "map": "an object",
}

PLACES: Mapping[Place, Mapping[ColumnKind, str]] = {
    "id": {
        "int": "its digits",
        "float": "if whole, below 2⁵³",
        "decimal": "if whole",
        "text": "as it is",
    },
    "text": {**_TEXTS, "list": "joined, of texts and numbers"},
    "string": _TEXTS,
    "string_list": {"text": "a list in it, or one item", "list": "its items as texts"},
    "int": {
        "int": "within 64 bits",
        "float": "if whole",
        "decimal": "if whole",
        "text": "the number in it",
    },
    "float": {
        "int": "as it is",
        "float": "as it is",
        "decimal": "the nearest",
        "text": "the number in it",
        "duration": "seconds",
    },
    "bool": {
        "bool": "as it is",
        "int": "1 or 0",
        "float": "1 or 0",
        "decimal": "1 or 0",
        "text": "yes or no",
    },
    "timestamp": {
        "int": "since 1970",
        "float": "since 1970",
        "decimal": "since 1970",
        "text": "the time in it",
        "date": "its beginning, UTC",
        "timestamp": "as it is, else UTC",
    },
    "geo": {"text": "latitude,longitude", "struct": "lat and lon", "map": "lat and lon"},
    "dynamic": _JSON,
    "payload": {**_JSON, "text": "JSON in it", "bytes": "a text, if UTF-8"},
    "vector": {"text": "JSON in it", "bytes": "by `vector_bytes`", "list": "of numbers"},
    "sparse_vector": {"text": "JSON in it", "struct": "indices and values", "map": "weights by index"},
}
"""Table: by place and kind, what a value becomes. Null is no value anywhere."""


def takes(place: Place, kind: ColumnKind) -> bool:
    """Return whether values of a kind can be used at a place."""
    return kind == "null" or kind in PLACES[place]


def kind_of(type: pa.DataType) -> ColumnKind:
    """Return the kind of a plain column."""
    return next(kind for kind, is_kind in KINDS.items() if is_kind(type))


def has_json_form(type: pa.DataType) -> bool:
    """Return whether a dynamic attribute can be made of a column, nested ones of all that is within."""
    if isinstance(type, pa.BaseExtensionType):
        return type.extension_name == "arrow.uuid" or has_json_form(type.storage_type)
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return has_json_form(type.value_type)
    inner = (type.field(place).type for place in range(type.num_fields))
    return takes("dynamic", kind_of(type)) and all(map(has_json_form, inner))


def _either(*checks: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda type: any(check(type) for check in checks)


KINDS: Mapping[ColumnKind, Callable[[pa.DataType], bool]] = {
    "null": pa.types.is_null,
    "bool": pa.types.is_boolean,
    "int": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "text": _either(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": _either(
        pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view
    ),
    "date": pa.types.is_date,
    "time": pa.types.is_time,
    "timestamp": pa.types.is_timestamp,
    "duration": pa.types.is_duration,
    "struct": pa.types.is_struct,
    "map": pa.types.is_map,
    "list": lambda type: type.num_fields == 1,
}
