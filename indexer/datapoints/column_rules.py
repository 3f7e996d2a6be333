"""What a value of each column of a datapoint may be: for one value, and a quick look at a whole column.

Shapes: N rows of a batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.columns.converted import column_of_ids, converted_column
from scannery.indexer.datapoints.columns.plain import python_values
from scannery.indexer.datapoints.conversions import FLOAT_AS_ID, NUMBER_AS_TEXT, json_text
from scannery.indexer.datapoints.dynamic import dynamic_json
from scannery.indexer.datapoints.schema import (
    ARROW_TYPES,
    MAX_ID_BYTES,
    converted_value,
    encodable,
    identifier,
    text_value,
)
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import AttributeType

__all__ = [
    "NO_LIMITS",
    "Notes",
    "Rule",
    "SizeLimits",
    "Values",
    "attribute_rule",
    "dynamic_rule",
    "id_rule",
    "invalid",
    "listed",
    "payload_rule",
    "sizes_of",
    "text_rule",
]

Values: TypeAlias = "pa.Array | np.ndarray | Sequence[Any]"
Tidy: TypeAlias = Callable[[str], "str | None"]
Notes: TypeAlias = "Counter[str]"
"""How many values of a column were converted in a way that could be wrong (conversions.py)."""


@dataclass(frozen=True, kw_only=True)
class SizeLimits:
    """The most bytes of UTF-8 that texts may have; None: any number."""

    title: int | None = None
    text: int | None = None
    payload: int | None = None
    attribute: int | None = None
    """Bytes of all strings of one value."""
    strings: int | None = None
    """Strings in one list."""


NO_LIMITS = SizeLimits()


class Rule(NamedTuple):
    """How the values of a column become what an index holds."""

    type: pa.DataType
    convert: Callable[[Any, str], Any]
    """Converts a value; InvalidRecordError, with the name of the field, where it does not fit."""
    whole: Callable[[Values], pa.Array | None] = lambda _: None
    """Converts a column whose values all need little; None for others: `convert` takes those, to the same result."""
    missing: str | None = None
    """Reason to refuse a row without a value."""


def text_rule(tidy: Tidy, maximum: int | None, notes: Notes) -> Rule:
    """Return the rule of strings of at most `maximum` bytes, which are held as `tidy` returns them."""

    def convert_one(value: object, name: str) -> str | None:
        if not isinstance(value, str):
            value = text_value(value, field=name)
            notes[NUMBER_AS_TEXT] += 1
        _check_bytes([encodable(value, field=name)], maximum, name, "text")
        return tidy(value)

    def whole(values: Values) -> pa.Array | None:
        typed = _typed(values, "string")
        if typed is None or not _fit(typed, maximum):
            return None
        texts = listed(values)
        tidied = [None if text is None else tidy(text) for text in texts]
        return typed if tidied == texts else pa.array(tidied, pa.string())

    return Rule(pa.string(), convert_one, whole)


def payload_rule(maximum: int | None) -> Rule:
    """Return the rule of payloads: whatever JSON can hold; strings are JSON already (of CSV, Parquet, a request)."""

    def convert_one(value: object, name: str) -> str:
        if isinstance(value, str):
            _check_bytes([encodable(value, field=name)], maximum, name, "payload")
        try:
            text = json_text(json.loads(value) if isinstance(value, str) else value)
        except (TypeError, ValueError, RecursionError) as error:
            raise invalid("payload", name, f"not JSON: {error}") from error
        return encodable(text, field=name)

    return Rule(pa.string(), convert_one)


def attribute_rule(kind: AttributeType, limits: SizeLimits, notes: Notes) -> Rule:
    """Return the rule of an attribute."""

    def convert_one(value: object, name: str) -> Any:
        typed, note = converted_value(value, kind, field=name)
        if note is not None:
            notes[note] += 1
        if isinstance(typed, (str, list)):
            strings = [typed] if isinstance(typed, str) else typed
            if limits.strings is not None and len(strings) > limits.strings:
                what = f"must have at most {limits.strings} items, got {len(strings)}"
                raise invalid("attribute", name, what)
            _check_bytes(strings, limits.attribute, name, "attribute")
        return typed

    def whole(values: Values) -> pa.Array | None:
        typed = _typed(values, kind)
        if typed is None and isinstance(values, pa.Array):
            typed = converted_column(values, kind, notes)
        if typed is None or kind not in ("string", "string_list"):
            return typed
        strings = typed if kind == "string" else pc.list_flatten(typed)
        are_few = kind == "string" or limits.strings is None or len(strings) <= limits.strings
        is_small = limits.attribute is None or strings.nbytes <= limits.attribute
        return typed if are_few and is_small else None

    return Rule(ARROW_TYPES[kind], convert_one, whole)


def dynamic_rule(notes: Notes) -> Rule:
    """Return the rule of the attributes that the spec does not declare: mappings, or JSON objects as text."""
    return Rule(pa.string(), lambda value, name: dynamic_json(value, path=name))


def _ids(values: Values, notes: Notes) -> pa.Array | None:
    if isinstance(values, pa.Array) and not _is_text(values.type):
        ids = column_of_ids(values)
    else:
        ids = _typed(values, "string")
    if ids is None or ids.null_count or not len(ids):
        return None
    sizes_N = sizes_of(ids)
    if sizes_N.min() < 1 or sizes_N.max() > MAX_ID_BYTES:
        return None
    starts, text = np.frombuffer(ids.buffers()[1], np.int32), np.frombuffer(ids.buffers()[2], np.uint8)
    text = text[starts[ids.offset] : starts[ids.offset + len(ids)]]
    if text.min() < ord(" "):  # in UTF-8, only control characters are below
        return None
    if isinstance(values, pa.Array) and pa.types.is_floating(values.type):
        notes[FLOAT_AS_ID] += len(values)
    return ids


def id_rule(notes: Notes) -> Rule:
    """Return the rule of ids."""

    def convert_one(value: object, name: str) -> str:
        id_text = identifier(value, field=name)
        if isinstance(value, float):
            notes[FLOAT_AS_ID] += 1
        return id_text

    return Rule(pa.string(), convert_one, lambda values: _ids(values, notes), "missing_id")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_OWN_TYPES: Mapping[AttributeType, tuple[type, Callable[[pa.DataType], bool]]] = {
    "string": (str, _is_text),
    "string_list": (list, lambda kind: pa.types.is_list(kind) and _is_text(kind.value_type)),
    "int": (int, pa.types.is_integer),
    "float": (float, pa.types.is_floating),
    "bool": (bool, pa.types.is_boolean),
}
"""Types of the values that need no conversion, in Python and in Arrow."""


def _typed(values: Values, kind: AttributeType) -> pa.Array | None:
    """Return a column of a type's own values and nulls; None if it has another, or one that does not fit."""
    if kind not in _OWN_TYPES:
        return None
    exact_type, is_own = _OWN_TYPES[kind]
    if isinstance(values, pa.Array):
        is_same = pa.types.is_null(values.type) or is_own(values.type)
    else:
        is_same = {*map(type, values)} <= {exact_type, type(None)}
        if is_same and exact_type is list:
            is_same = {type(item) for value in values for item in value or ()} <= {str}
    if not is_same:
        return None
    arrow_type = ARROW_TYPES[kind]
    try:
        typed = values.cast(arrow_type) if isinstance(values, pa.Array) else pa.array(values, arrow_type)
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):  # an integer too large, a lone surrogate
        return None
    if kind == "float" and pc.any(pc.is_nan(typed)).as_py():
        typed = pc.if_else(pc.is_nan(typed), pa.scalar(None, typed.type), typed)
    return None if kind == "string_list" and pc.list_flatten(typed).null_count else typed


def sizes_of(texts: pa.Array) -> np.ndarray:
    """Return the bytes of each string, int32 (N,)."""
    starts = np.frombuffer(texts.buffers()[1] or b"", np.int32)
    return np.diff(starts[texts.offset : texts.offset + len(texts) + 1])


def listed(values: Any) -> Sequence[Any]:
    """Return values as Python has them."""
    sequence: Sequence[Any] = python_values(values) if isinstance(values, pa.Array) else values
    return sequence


def invalid(reason: str, name: str, what: str) -> InvalidRecordError:
    """Return the error that says what is wrong with a field."""
    return InvalidRecordError(f"{name}: {what}", reason=reason, field=name)


def _fit(texts: pa.Array, maximum: int | None) -> bool:
    return maximum is None or int(sizes_of(texts).max(initial=0)) <= maximum


def _check_bytes(texts: Sequence[str], maximum: int | None, name: str, reason: str) -> None:
    if maximum is None or 4 * sum(map(len, texts)) <= maximum:  # a character takes at most four bytes
        return
    size = sum(len(text.encode()) for text in texts)
    if size > maximum:
        raise invalid(reason, name, f"must have at most {maximum} bytes, got {size}")
