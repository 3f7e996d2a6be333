"""Dynamic attributes: what a datapoint may have beside the attributes that its index declares (`dynamic: true`).

All of a row are one JSON object in the column `_dynamic`. Its text is canonical: names in the order of code points, no
white space, characters as UTF-8. So equal attributes are equal text, and a value is found without parsing the object.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa

from scannery.indexer.datapoints.conversions import json_value
from scannery.indexer.datapoints.schema import DYNAMIC_COLUMN
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.strict_json import strict_json

__all__ = [
    "DYNAMIC_COLUMN",
    "MAX_DEPTH",
    "MAX_DYNAMIC_BYTES",
    "MAX_DYNAMIC_NAMES",
    "MAX_NAME_BYTES",
    "NOT_DYNAMIC",
    "CanonicalJson",
    "canonical_json",
    "changed_dynamic",
    "check_dynamic_name",
    "check_json_size",
    "dynamic_json",
    "parsed_dynamic",
    "some_dynamic",
    "timestamp_text",
]

MAX_DYNAMIC_BYTES = 1 << 20
PARSED_PER_KEPT = 6
"""Most characters that an escape in JSON takes for a byte of UTF-8."""
MAX_DYNAMIC_NAMES = 256
MAX_NAME_BYTES = 256
MAX_DEPTH = 64
MAX_ITEMS = 65_536
"""Of a list."""
MAX_VALUES = MAX_DYNAMIC_BYTES // 2
"""Each value takes at least two bytes, its own and a comma: with more of them, JSON is too long whatever they are."""
NOT_DYNAMIC = ("id", "document_id")
"""Names that no dynamic attribute has: filters have them for something else."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))

canonical_json = _ENCODER.encode
"""Return a value as canonical JSON."""


class CanonicalJson(str):
    """What `dynamic_json` returned: it is not parsed again."""

    __slots__ = ()


def dynamic_json(values: Mapping[str, Any] | str, *, path: str = "") -> str | None:
    """Return the dynamic attributes of a row as canonical JSON; None if there are none.

    Args:
        values: attributes by name, or a JSON object of them. Values are what JSON can hold, or dates and timestamps,
            which become ISO 8601 in UTC.
        path: of the attributes, for errors.

    Raises:
        InvalidRecordError: a name or a value that cannot be kept, or too many of them.

    """
    if isinstance(values, CanonicalJson):
        return values
    if isinstance(values, str):
        values = parsed_dynamic(values, path=path)
    if not values:
        return None
    if len(values) > MAX_DYNAMIC_NAMES:
        raise _invalid(
            path, f"must have at most {MAX_DYNAMIC_NAMES} undeclared attributes, got {len(values)}"
        )
    exact, exactly = {}, _Exactly(path)
    for name, value in values.items():
        here = f"{path}.{name}"[:200] if path else str(name)[:200]
        check_dynamic_name(name, path=here)
        exact[name] = exactly.of(value, here, 1)
    text = canonical_json(exact)
    if 4 * len(text) > MAX_DYNAMIC_BYTES and (size := len(text.encode())) > MAX_DYNAMIC_BYTES:
        raise _invalid(path, f"undeclared attributes must have at most {MAX_DYNAMIC_BYTES} bytes, got {size}")
    return CanonicalJson(text)


def parsed_dynamic(value: object, *, path: str = "") -> Mapping[str, Any]:
    """Return the attributes in a JSON object, or in its text; none for None.

    Raises:
        InvalidRecordError: it is no JSON object, or an object has a key twice.

    """
    if isinstance(value, str):
        check_json_size(len(value), path=path)
    try:
        values = strict_json(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"must be a JSON object: {error}") from error
    if values is not None and not isinstance(values, Mapping):
        raise _invalid(path, f"must be a JSON object, got {value!r:.80}")
    return values or {}


def check_json_size(size: int, *, path: str) -> None:
    """Raise InvalidRecordError for JSON that is too long to be parsed: its values take up to 30 times its size."""
    # White space and escapes of characters do not count, so the text may be longer than what is kept.
    if size > PARSED_PER_KEPT * MAX_DYNAMIC_BYTES:
        raise _invalid(path, f"undeclared attributes must have at most {MAX_DYNAMIC_BYTES} bytes, got {size}")


def changed_dynamic(column: pa.ChunkedArray, changes: Mapping[str, Any], *, path: str = "") -> pa.Array:
    """Return a `_dynamic` column with some attributes changed in every row; others stay as they are.

    Args:
        column: the JSON objects, null where a row has none.
        changes: new values by name; None removes the attribute.
        path: of the attributes, for errors.

    Raises:
        InvalidRecordError: as for `dynamic_json`; also if a row would have too many attributes.

    """
    known: dict[str | None, str | None] = {}
    texts: list[str | None] = column.to_pylist()
    for text in texts:
        if text not in known:
            values = {**(json.loads(text) if text else {}), **changes}
            kept = {name: value for name, value in values.items() if changes.get(name, name) is not None}
            known[text] = dynamic_json(kept, path=path)
    return pa.array([known[text] for text in texts], pa.string())


def some_dynamic(column: pa.ChunkedArray, names: Collection[str]) -> pa.Array:
    """Return a `_dynamic` column with some attributes only; null where a row has none of them."""
    cut = []
    for text in column.to_pylist():
        values = json.loads(text) if text else {}
        kept = {name: values[name] for name in names if name in values}
        cut.append(canonical_json(kept) if kept else None)
    return pa.array(cut, pa.string())


def check_dynamic_name(name: object, *, path: str) -> None:
    """Raise InvalidRecordError for a name that a dynamic attribute cannot have."""
    if not isinstance(name, str) or not name:
        raise _invalid(path, "names of attributes must be strings that are not empty")
    if name in NOT_DYNAMIC or name[0] == "$":
        raise _invalid(path, "cannot be the name of an attribute: it stands for something else in filters")
    if not name.isprintable() and any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in name):
        raise _invalid(path, "must not have control characters in its name")
    if 4 * len(name) > MAX_NAME_BYTES and (size := len(name.encode())) > MAX_NAME_BYTES:
        raise _invalid(path, f"names of attributes must have at most {MAX_NAME_BYTES} bytes, got {size}")


def timestamp_text(value: dt.datetime) -> str:
    """Return a timestamp as ISO 8601 in UTC; texts of this form are in the order of time. Naive ones are UTC.

    To the microsecond, also of pandas, whose own text has nanoseconds.
    """
    aware = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
    return dt.datetime.isoformat(aware.astimezone(dt.timezone.utc))


MAX_SHOWN_BITS = 256
"""Python refuses to write numbers of many digits."""
_LEAST, _MOST = -(2**63), 2**63 - 1


class _Exactly:
    """Converts values to what JSON keeps, until they must have more than MAX_DYNAMIC_BYTES."""

    def __init__(self, path: str) -> None:
        """Count the values of the attributes at a path."""
        self._path, self._left = path, MAX_VALUES

    def of(self, value: Any, path: str, depth: int) -> Any:
        """Return a value as JSON keeps it."""
        check = _CHECKS.get(type(value))
        if check is not None:
            if type(value) is float and math.isnan(value):
                return None  # as in columns
            check(value, path)
            return value
        if depth > MAX_DEPTH:
            raise _invalid(path, f"must be nested at most {MAX_DEPTH} deep")
        if isinstance(value, (list, tuple)):
            if len(value) > MAX_ITEMS:
                raise _invalid(path, f"must have at most {MAX_ITEMS} items, got {len(value)}")
            self._count(len(value))
            return [self.of(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        if isinstance(value, Mapping):
            self._count(len(value))
            return {
                _key(name, path): self.of(item, f"{path}.{name}"[:200], depth + 1)
                for name, item in value.items()
            }
        return self.of(_plain(value, path), path, depth + 1)

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            what = f"must have at most {MAX_DYNAMIC_BYTES} bytes, got more than {MAX_VALUES} values"
            raise _invalid(self._path, f"undeclared attributes {what}")


def _plain(value: object, path: str) -> object:
    if isinstance(value, dt.datetime):
        return timestamp_text(value)
    if isinstance(value, dt.date):  # the beginning of the day, as the SDK writes and compares it
        return timestamp_text(dt.datetime(value.year, value.month, value.day))
    if isinstance(value, bytes):
        raise _invalid(path, "bytes have no form in JSON; declare a string for UTF-8, or write them as text")
    try:
        return json_value(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _invalid(path, f"has no form in JSON: {type(value).__name__}") from error


def _check_int(value: int, path: str) -> None:
    if not _LEAST <= value <= _MOST:
        shown = f", got {value}" if value.bit_length() < MAX_SHOWN_BITS else ""
        raise _invalid(path, f"must fit 64 bits{shown}")


def _check_float(value: float, path: str) -> None:
    if not math.isfinite(value):
        raise _invalid(path, f"must be finite, got {value}")


def _key(name: object, path: str) -> str:
    if isinstance(name, int) and not isinstance(
        name, bool
    ):  # as JSON writes them, and maps of Arrow have them
        return str(name)
    if not isinstance(name, str):
        raise _invalid(path, f"keys must be strings, got {name!r:.80}")
    _check_text(name, path)
    return name


def _check_text(text: str, path: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            what = f"is not valid Unicode: lone surrogate at character {error.start}"
            raise _invalid(path, what, "encoding") from error


_CHECKS: Mapping[type, Callable[[Any, str], None]] = {
    str: _check_text,
    int: _check_int,
    float: _check_float,
    bool: lambda value, path: None,
    type(None): lambda value, path: None,
}


def _invalid(path: str, what: str, reason: str = "attribute") -> InvalidRecordError:
    field = path or DYNAMIC_COLUMN
    return InvalidRecordError(f"{field}: {what}", reason=reason, field=field)
