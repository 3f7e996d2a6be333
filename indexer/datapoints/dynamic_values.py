"""The values of one dynamic attribute in all rows of a segment, by type.

The column holds a JSON object for each row. Parsing all of them in Python would take microseconds for each row under
the interpreter's lock. A kernel finds the values of the attribute, Arrow finds the distinct ones, and only these are
parsed.

Shapes: N rows, P values (those in lists included).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.dynamic import canonical_json
from scannery.indexer.kernels.compilation import COMPILING

__all__ = ["DynamicValues", "Kind", "dynamic_values", "warm_up"]

PIECE_BYTES = 16 << 20
"""Of the objects; a kernel reads them in about 30 ms."""
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
    """For each type that occurs: the row of each value, int32 (P,), ascending, and the values, a dictionary array."""


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
    found = []
    for piece in _pieces(column):
        check()
        found.append(_found(piece, *keys, bounds_L))
    kinds_N = np.concatenate([np.zeros(0, np.uint8), *(kinds for kinds, _, _ in found)])
    firsts = np.cumsum([0, *(len(kinds) for kinds, _, _ in found)])[:-1]
    rows_P = np.concatenate(
        [
            np.zeros(0, np.int32),
            *(rows + np.int32(first) for (_, rows, _), first in zip(found, firsts, strict=True)),
        ]
    )
    tokens = pa.chunked_array([tokens for _, _, tokens in found], pa.large_string()).combine_chunks()
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


def _found(
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
