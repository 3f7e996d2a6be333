"""Kernels that find the value of a key in JSON objects, without parsing the rest of them.

The objects are canonical (`datapoints/dynamic.py`): no white space, so a key is found by its bytes. Damaged text gives
wrong values, but nothing beyond the end of an object is read.

Shapes: B bytes of the objects, K bytes of keys with their quotes, L levels of a path, N rows, P values found, T bytes
of these.
"""

from __future__ import annotations

import numpy as np

from scannery.indexer.kernels.fused import compiled

__all__ = [
    "LIST",
    "MISSING",
    "NESTED",
    "NULL",
    "SCALAR",
    "copy_values",
    "find_values",
]

MISSING, NULL, SCALAR, LIST, NESTED = range(5)
"""What a row has below a key: NESTED is an object, or a list that has an object or a list."""

_QUOTE, _ESCAPE, _COMMA, _N = ord('"'), ord("\\"), ord(","), ord("n")
_OBJECT, _END_OBJECT, _ARRAY, _END_ARRAY = ord("{"), ord("}"), ord("["), ord("]")


@compiled
def _after_string(json_B: np.ndarray, at: int, end: int) -> int:
    """Return where a string ends that starts at `at`."""
    at += 1
    while at < end and json_B[at] != _QUOTE:
        at += 2 if json_B[at] == _ESCAPE else 1
    return min(at + 1, end)


@compiled
def _after_value(json_B: np.ndarray, at: int, end: int) -> int:
    """Return where a value ends that starts at `at`."""
    if at >= end:
        return end
    if json_B[at] == _QUOTE:
        return _after_string(json_B, at, end)
    if json_B[at] != _OBJECT and json_B[at] != _ARRAY:
        while at < end:
            byte = json_B[at]
            if byte in (_COMMA, _END_OBJECT, _END_ARRAY):
                break
            at += 1
        return at
    depth = 0
    while at < end:
        byte = json_B[at]
        if byte == _QUOTE:
            at = _after_string(json_B, at, end)
            continue
        at += 1
        if byte in (_OBJECT, _ARRAY):
            depth += 1
        elif byte in (_END_OBJECT, _END_ARRAY):
            depth -= 1
            if depth == 0:
                break
    return at


@compiled
def _is_key(json_B: np.ndarray, at: int, size: int, key_K: np.ndarray) -> bool:
    if size != key_K.shape[0]:
        return False
    same = 0
    while same < size and json_B[at + same] == key_K[same]:
        same += 1
    return same == size


@compiled
def _value_at(json_B: np.ndarray, at: int, end: int, key_K: np.ndarray) -> int:
    """Return where the value of a key starts in an object; -1 if it has no such key."""
    at += 1
    while at < end and json_B[at] == _QUOTE:
        after = _after_string(json_B, at, end)
        if _is_key(json_B, at, after - at, key_K):
            return after + 1 if after + 1 < end else -1
        at = _after_value(json_B, after + 1, end) + 1
    return -1


@compiled
def _value_below(json_B: np.ndarray, at: int, end: int, path_K: np.ndarray, bounds_L: np.ndarray) -> int:
    """Return where the value at a path starts in an object; -1 if it has no such path."""
    for level in range(bounds_L.shape[0] - 1):
        if at >= end or json_B[at] != _OBJECT:  # texts, numbers and lists have no keys
            return -1
        at = _value_at(json_B, at, end, path_K[bounds_L[level] : bounds_L[level + 1]])
        if at < 0:
            return -1
    return at


@compiled
def _list_sizes(json_B: np.ndarray, at: int, end: int, sizes_2: np.ndarray) -> bool:
    """Add the number and bytes of the elements of a list, nulls left out; return whether it is flat."""
    count, size = 0, 0
    at += 1
    while at < end and json_B[at] != _END_ARRAY:
        if json_B[at] == _OBJECT or json_B[at] == _ARRAY:
            return False
        after = _after_value(json_B, at, end)
        if json_B[at] != _N:
            count, size = count + 1, size + after - at
        at = after + 1 if after < end and json_B[after] == _COMMA else after
    sizes_2[0] += count
    sizes_2[1] += size
    return True


@compiled
def find_values(
    json_B: np.ndarray,
    offsets_N: np.ndarray,
    valid_N: np.ndarray,
    key_K: np.ndarray,
    path_K: np.ndarray,
    bounds_L: np.ndarray,
    kinds_N: np.ndarray,
    starts_N: np.ndarray,
    sizes_2: np.ndarray,
) -> None:
    """Find in each row the value of a key, or else at a path.

    Args:
        json_B: the objects, uint8.
        offsets_N: where each starts, and where the last one ends, int32 (N + 1,).
        valid_N: which rows have an object, bool; empty: all.
        key_K: the key as it stands in the objects, uint8.
        path_K: the keys of the path, one after the other, as they stand there.
        bounds_L: where each starts in `path_K`, and where the last one ends, int64 (L + 1,); of length 1: no path.
        kinds_N: output: MISSING, NULL, SCALAR, LIST or NESTED, uint8.
        starts_N: output: where the value starts, int32.
        sizes_2: output: the number of scalars in all, those in lists included, and their bytes, int64.

    """
    sizes_2[:] = 0
    for row in range(kinds_N.shape[0]):
        end = offsets_N[row + 1]
        kinds_N[row] = MISSING
        if valid_N.shape[0] > 0 and not valid_N[row]:
            continue
        at = _value_at(json_B, offsets_N[row], end, key_K)
        if at < 0 and bounds_L.shape[0] > 1:
            at = _value_below(json_B, offsets_N[row], end, path_K, bounds_L)
        if at < 0:
            continue
        starts_N[row] = at
        if json_B[at] == _N:
            kinds_N[row] = NULL
        elif json_B[at] == _OBJECT:
            kinds_N[row] = NESTED
        elif json_B[at] == _ARRAY:
            kinds_N[row] = LIST if _list_sizes(json_B, at, end, sizes_2) else NESTED
        else:
            kinds_N[row] = SCALAR
            sizes_2[0] += 1
            sizes_2[1] += _after_value(json_B, at, end) - at


@compiled
def copy_values(
    json_B: np.ndarray,
    offsets_N: np.ndarray,
    kinds_N: np.ndarray,
    starts_N: np.ndarray,
    rows_P: np.ndarray,
    ends_P: np.ndarray,
    out_T: np.ndarray,
) -> None:
    """Copy the scalars that `find_values` found.

    Args:
        json_B: as for `find_values`; so are `offsets_N`, `kinds_N` and `starts_N`.
        offsets_N: see there.
        kinds_N: see there.
        starts_N: see there.
        rows_P: output: the row of each scalar, int32.
        ends_P: output: where each starts in `out_T`, and where the last one ends, int64 (P + 1,).
        out_T: output: their JSON, uint8.

    """
    position, to = 0, 0
    ends_P[0] = 0
    for row in range(kinds_N.shape[0]):
        if kinds_N[row] != SCALAR and kinds_N[row] != LIST:
            continue
        at, end = starts_N[row], offsets_N[row + 1]
        at += 1 if kinds_N[row] == LIST else 0
        while at < end and json_B[at] != _END_ARRAY:
            after = _after_value(json_B, at, end)
            if json_B[at] != _N:
                for i in range(at, after):
                    out_T[to] = json_B[i]
                    to += 1
                rows_P[position] = row
                position += 1
                ends_P[position] = to
            if kinds_N[row] == SCALAR:
                break
            at = after + 1 if after < end and json_B[after] == _COMMA else after
