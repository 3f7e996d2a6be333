"""Whole Arrow columns of another type than the attribute's → the attribute's, as `convert` does with single values.

Where this returns None, values are converted one by one, with the same result.

`KINDS` tells what a column of each kind may become at each place of a datapoint. Kinds are those of plain columns
(plain.py). A kind that a place has no entry for is refused there, row by row, with a message that names the field.
docs/columns.md is made of this table, and a test holds all conversions to it: each type of Arrow at each place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.conversions import (
    LONG_DECIMAL,
    ONE_AS_BOOL,
    WHOLE_AS_INT,
    epoch_note,
)
from scannery.indexer.datapoints.places import places_column
from scannery.indexer.datapoints.text_values import LAST_SECOND, unit_of
from scannery.indexer.spec.spec import AttributeType

__all__ = [
    "KINDS",
    "TARGETS",
    "ColumnKind",
    "Target",
    "column_of_ids",
    "converted_column",
    "has_json_form",
    "kind_of",
    "takes",
]


_FIRST_SECOND = -62_135_596_800
"""The begin of the year 1."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UTC_MICROS = pa.timestamp("us", tz="UTC")


def converted_column(values: pa.Array, kind: AttributeType, notes: Counter[str]) -> pa.Array | None:
    """Return a column as the type of an attribute, and count what could be wrong in `notes`; None if it cannot."""
    notes_of_column: Counter[str] = Counter()
    try:
        converted = _CONVERTERS[kind](values, notes_of_column)
    except (
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
    ):  # a value that does not fit, or a type without such a cast
        return None
    if converted is not None:
        notes.update(notes_of_column)
    return converted


def column_of_ids(values: pa.Array) -> pa.Array | None:
    """Return a column of whole numbers as ids; None for others."""
    try:
        if pa.types.is_floating(values.type):
            if (pc.max(pc.abs(values)).as_py() or 0) >= 2**53:
                return None  # which is no exact number
            values = _whole(values)
        is_known = pa.types.is_integer(values.type) or pa.types.is_string(values.type)
        return values.cast(pa.string()) if is_known else None
    except pa.ArrowInvalid:
        return None


def _whole(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.int64())  # safe: a fraction, NaN or a number too large is an error


def _ints(values: pa.Array, notes: Counter[str]) -> pa.Array | None:
    if pa.types.is_decimal(values.type):
        return _whole(values)
    if not pa.types.is_floating(values.type):
        return None
    notes[WHOLE_AS_INT] += len(values) - values.null_count
    return _whole(values)


def _floats(values: pa.Array, notes: Counter[str]) -> pa.Array | None:
    if pa.types.is_integer(values.type):
        return values.cast(pa.float64())
    if pa.types.is_duration(values.type):
        notes["a duration as seconds"] += len(values) - values.null_count
        return pc.divide(values.cast(pa.int64()).cast(pa.float64()), float(_PER_SECOND[values.type.unit]))
    if not pa.types.is_decimal(values.type):
        return None
    floats = values.cast(pa.float64())
    if values.type.precision > 15:
        same = pc.equal(floats.cast(values.type, safe=False), values)
        notes[LONG_DECIMAL] += pc.sum(pc.invert(same)).as_py() or 0
    return floats


def _bools(values: pa.Array, notes: Counter[str]) -> pa.Array | None:
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    ones = pc.equal(values, 1)
    if not pc.all(pc.or_(ones, pc.equal(values, 0))).as_py():
        return None
    notes[ONE_AS_BOOL] += len(values) - values.null_count
    return ones


def _strings(values: pa.Array, notes: Counter[str]) -> pa.Array | None:
    del notes
    kind = values.type
    exact = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind)
    return values.cast(pa.string()) if exact else None


def _string_lists(values: pa.Array, notes: Counter[str]) -> pa.Array | None:
    del notes
    kind = values.type
    if not (pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind)):
        return None
    inner = kind.value_type
    if not (pa.types.is_string(inner) or pa.types.is_large_string(inner)):
        return None
    lists = values.cast(pa.list_(pa.string()))
    return None if pc.list_flatten(lists).null_count else lists


def _timestamps(values: pa.Array, notes: Counter[str]) -> pa.Array | None:
    kind = values.type
    if pa.types.is_date(kind):
        values = values.cast(pa.timestamp("us"))
        kind = values.type
    if pa.types.is_timestamp(kind):
        if not _lie_within_years(values.cast(pa.int64()), kind.unit):
            return None
        return values.cast(pa.timestamp("us", tz=kind.tz)).cast(_UTC_MICROS)
    return _epochs(values.cast(pa.int64()), notes) if pa.types.is_integer(kind) else None


def _locations(values: pa.Array, notes: Counter[str]) -> pa.Array | None:
    del notes
    return places_column(values)


def _lie_within_years(numbers: pa.Array, unit: str) -> bool:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None:
        return True
    per_second = _PER_SECOND[unit]
    return bool(_FIRST_SECOND * per_second <= ends["min"] and ends["max"] < (LAST_SECOND + 1) * per_second)


def _epochs(numbers: pa.Array, notes: Counter[str]) -> pa.Array | None:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or ends["min"] < 0:
        return None
    unit, note = unit_of(ends["max"]), epoch_note(ends["max"])
    if unit_of(ends["min"]) != unit or epoch_note(ends["min"]) != note:
        return None  # numbers of several kinds, one by one
    if note is not None:
        notes[note] += len(numbers) - numbers.null_count
    if not _lie_within_years(numbers, unit):
        return None
    return numbers.cast(pa.timestamp(unit)).cast(pa.timestamp("us"), safe=False).cast(_UTC_MICROS)


_CONVERTERS: dict[AttributeType, Callable[[pa.Array, Counter[str]], pa.Array | None]] = {
    "string": _strings,
    "string_list": _string_lists,
    "int": _ints,
    "float": _floats,
    "bool": _bools,
    "timestamp": _timestamps,
    "geo": _locations,
}


ColumnKind = Literal[
    "null", "bool", "int", "float", "decimal", "text", "bytes", "date", "time", "timestamp", "duration", "list",
    "struct", "map",
]  # fmt: skip
Target = Literal[
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

TARGETS: Mapping[Target, Mapping[ColumnKind, str]] = {
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


def takes(target: Target, kind: ColumnKind) -> bool:
    """Return whether values of a kind can be used at a place."""
    return kind == "null" or kind in TARGETS[target]


def kind_of(type: pa.DataType) -> ColumnKind:
    """Return the kind of a plain column."""
    return next(kind for kind, is_kind in KINDS.items() if is_kind(type))


def has_json_form(type: pa.DataType) -> bool:
    """Return whether a dynamic attribute can be made of a column, nested ones of all that is within."""
    if isinstance(type, pa.BaseExtensionType):
        return type.extension_name == "arrow.uuid" or has_json_form(type.storage_type)
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return has_json_form(type.value_type)
    inner = (type.field(number).type for number in range(type.num_fields))
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
