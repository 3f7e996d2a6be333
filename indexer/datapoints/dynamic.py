"""Dynamic attributes: what a datapoint may have beside the attributes that its index declares (`dynamic: true`).

All of a row are one JSON object in the column `_dynamic`. Its text is canonical: names in the order of code points, no
white space, characters as UTF-8. So equal attributes are equal text, and a value is found without parsing the object.

The column holds a JSON object for each row. Parsing all of them in Python would take microseconds for each row under
the interpreter's lock. A kernel finds the values of the attribute, Arrow finds the distinct ones, and only these are
parsed.

Shapes: N rows, P values (those in lists included).
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.conversions import json_value
from scannery.indexer.datapoints.schema import DYNAMIC_COLUMN
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.strict_json import strict_json

__all__ = [
    "DYNAMIC_COLUMN",
    "MAX_DEPTH",
    "MAX_DYNAMIC_BYTES",
    "MAX_NAME_BYTES",
    "NOT_DYNAMIC",
    "DynamicValues",
    "Kind",
    "canonical_json",
    "changed_dynamic",
    "check_dynamic_name",
    "check_json_size",
    "dynamic_json",
    "dynamic_values",
    "parsed_dynamic",
    "some_dynamic",
    "timestamp_text",
    "warm_up",
]


MAX_DYNAMIC_BYTES = 1 << 20
PARSED_PER_KEPT = 6
"""Most characters that an escape in JSON takes for a byte of UTF-8."""
MAX_DYNAMIC_NAMES = 256
MAX_NAME_BYTES = 256
MAX_DEPTH = 64
MAX_ITEMS = 65_536
"""Items of a list."""
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
    changed: dict[str | None, str | None] = {}
    texts: list[str | None] = column.to_pylist()
    for text in texts:
        if text not in changed:
            values = {**(json.loads(text) if text else {}), **changes}
            kept = {name: value for name, value in values.items() if changes.get(name, name) is not None}
            changed[text] = dynamic_json(kept, path=path)
    return pa.array([changed[text] for text in texts], pa.string())


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
_LEAST, _GREATEST = -(2**63), 2**63 - 1


class _Exactly:
    """Converts values to what JSON keeps, until they must have more than MAX_DYNAMIC_BYTES."""

    def __init__(self, path: str) -> None:
        """Count the values of the attributes at a path."""
        self._path, self._remaining = path, MAX_VALUES

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
        self._remaining -= values
        if self._remaining < 0:
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
    if not _LEAST <= value <= _GREATEST:
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


PIECE_BYTES = 16 << 20
"""Bytes of the objects; a kernel reads them in about 30 ms."""
Kind = Literal["bool", "int", "float", "string"]
"""Types of values that can be filtered by."""


@dataclass(frozen=True, slots=True, eq=False)
class DynamicValues:
    """The values of one attribute."""

    rows: int
    """N."""
    present_N: np.ndarray
    """Which rows have the attribute, and not null, bool."""
    lists: np.ndarray
    """The rows whose value is a list of scalars, int32, ascending."""
    nested: np.ndarray
    """The rows whose value is an object, or a list that has objects or lists, int32, ascending."""
    by_kind: Mapping[Kind, tuple[np.ndarray, pa.Array]]
    """Values for each type that occurs: the row of each value, int32 (P,), ascending, and the values, a dictionary
    array.
    """


def dynamic_values(
    column: pa.ChunkedArray, name: str, *, check: Callable[[], None] = lambda: None
) -> DynamicValues:
    """Return the values of an attribute in a `_dynamic` column; of a list, those of its elements that are not null.

    A name with dots is also a path into objects: `source.page` is the key `page` of the attribute `source`, in rows
    that have no attribute of this very name. `check` is called every PIECE_BYTES, and ends the work by an exception.
    """
    from scannery.indexer.kernels import json_kernels as kernels  # imports numba: only where it is needed

    parts = [canonical_json(part).encode() for part in name.split(".")] if "." in name else []
    keys = (_read_only(canonical_json(name).encode()), _read_only(b"".join(parts)))
    bounds_L = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    piece_values = []
    for piece in _pieces(column):
        check()
        piece_values.append(_piece_values(piece, *keys, bounds_L))
    kinds_N = np.concatenate([np.zeros(0, np.uint8), *(kinds for kinds, _, _ in piece_values)])
    firsts = np.cumsum([0, *(len(kinds) for kinds, _, _ in piece_values)])[:-1]
    rows_P = np.concatenate(
        [
            np.zeros(0, np.int32),
            *(rows + np.int32(first) for (_, rows, _), first in zip(piece_values, firsts, strict=True)),
        ]
    )
    tokens = pa.chunked_array([tokens for _, _, tokens in piece_values], pa.large_string()).combine_chunks()
    return DynamicValues(
        rows=len(kinds_N),
        present_N=kinds_N >= kernels.SCALAR,
        lists=np.flatnonzero(kinds_N == kernels.LIST).astype(np.int32),
        nested=np.flatnonzero(kinds_N == kernels.NESTED).astype(np.int32),
        by_kind=_typed(rows_P, tokens),
    )


def warm_up() -> None:
    """Compile the kernels, or load them from numba's cache."""
    with COMPILING:
        dynamic_values(pa.chunked_array([pa.array(['{"a":[1]}', '{"a":{"b":1}}', None])]), "a.b")


def _pieces(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    for chunk in column.chunks:
        rows = max(1, len(chunk) * PIECE_BYTES // max(chunk.nbytes, 1))
        for start in range(0, len(chunk), rows):
            yield chunk.slice(start, rows)


def _piece_values(
    objects: pa.Array, key_K: np.ndarray, path_K: np.ndarray, bounds_L: np.ndarray
) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    """Return what each row has, and the rows and the JSON of the scalars."""
    from scannery.indexer.kernels import json_kernels as kernels

    rows = len(objects)
    _, offsets, data = objects.buffers()
    if offsets is None or data is None or not data.size:
        return np.zeros(rows, np.uint8), np.zeros(0, np.int32), pa.array([], pa.large_string())
    json_B = _read_only(data)
    offsets_N = _read_only(offsets, np.int32)[objects.offset : objects.offset + rows + 1]
    valid_N = np.zeros(0, bool)
    if objects.null_count:
        valid_N = pc.is_valid(objects).to_numpy(zero_copy_only=False)
    kinds_N, starts_N, sizes_2 = np.empty(rows, np.uint8), np.empty(rows, np.int32), np.zeros(2, np.int64)
    kernels.find_values(json_B, offsets_N, valid_N, key_K, path_K, bounds_L, kinds_N, starts_N, sizes_2)
    count, size = sizes_2.tolist()
    rows_P, ends_P, out_T = np.empty(count, np.int32), np.empty(count + 1, np.int64), np.empty(size, np.uint8)
    kernels.copy_values(json_B, offsets_N, kinds_N, starts_N, rows_P, ends_P, out_T)
    return kinds_N, rows_P, pa.LargeStringArray.from_buffers(count, pa.py_buffer(ends_P), pa.py_buffer(out_T))


def _typed(rows_P: np.ndarray, tokens: pa.Array) -> dict[Kind, tuple[np.ndarray, pa.Array]]:
    """Return the values of each type, parsed."""
    if not len(tokens):
        return {}
    encoded = tokens.dictionary_encode()
    codes_P, distinct = encoded.indices.to_numpy(), encoded.dictionary
    kinds_V = _kinds(distinct)
    kinds_P = kinds_V[codes_P]
    typed: dict[Kind, tuple[np.ndarray, pa.Array]] = {}
    for code in np.unique(kinds_V).tolist():
        kind, parse = _PARSERS[code]
        own_V, own_P = np.flatnonzero(kinds_V == code), np.flatnonzero(kinds_P == code)
        number_V = np.zeros(len(kinds_V), np.int32)
        number_V[own_V] = np.arange(len(own_V))
        values = parse(distinct.take(pa.array(own_V)))
        typed[kind] = (
            rows_P[own_P],
            pa.DictionaryArray.from_arrays(pa.array(number_V[codes_P[own_P]]), values),
        )
    return typed


def _kinds(tokens: pa.Array) -> np.ndarray:
    """Return the place in `_PARSERS` of the type of each token, int8."""
    _, offsets, data = tokens.buffers()
    starts = np.frombuffer(offsets, np.int64)[tokens.offset : tokens.offset + len(tokens)]
    kinds_V: np.ndarray = _FIRST_BYTES[np.frombuffer(data, np.uint8)[starts]]
    if (kinds_V == _INT).any():
        has_fraction = pc.match_substring_regex(tokens, '^[^"]*[.eE]').to_numpy(zero_copy_only=False)
        kinds_V[(kinds_V == _INT) & has_fraction] = _FLOAT
    return kinds_V


def _strings(tokens: pa.Array) -> pa.Array:
    texts = pc.binary_slice(tokens.cast(pa.large_binary()), 1, -1).cast(pa.large_string())
    is_escaped = pc.match_substring(tokens, "\\")
    if pc.any(is_escaped).as_py():
        parsed = [json.loads(token) for token in tokens.filter(is_escaped).to_pylist()]
        texts = pc.replace_with_mask(texts, is_escaped, pa.array(parsed, pa.large_string()))
    # More than 2 GiB keep their type.
    return texts.cast(pa.string()) if texts.nbytes < MAX_STRING_BYTES else texts


_PARSERS: tuple[tuple[Kind, Callable[[pa.Array], pa.Array]], ...] = (
    ("bool", lambda tokens: pc.equal(tokens, "true")),
    ("int", lambda tokens: tokens.cast(pa.int64())),
    ("float", lambda tokens: tokens.cast(pa.float64())),
    ("string", _strings),
)
"""Types with what parses the JSON of their values, in the order in which facets list them."""
_BOOL, _INT, _FLOAT, _STRING = range(4)
_FIRST_BYTES = np.full(256, _INT, np.int8)
_FIRST_BYTES[[ord("t"), ord("f")]] = _BOOL
_FIRST_BYTES[ord('"')] = _STRING
MAX_STRING_BYTES = 1 << 31


def _read_only(data: Any, kind: type = np.uint8) -> np.ndarray:
    # Of whatever buffer: kernels are compiled for read-only arrays apart.
    array: np.ndarray = np.frombuffer(data, kind)
    array.setflags(write=False)
    return array
