"""Kernels that write hits in protobuf's wire format, straight from the columns of a segment.

Making the messages of ten hits takes Python as long as the search for them. Here the bytes of an answer are copied from
where the columns lie (`scannery.indexer.records`). Field numbers are those of proto/scannery/v1; the tests read what is
written here with the generated code.

A column is a row of `columns_C7`: its kind, where its head lies in `heads_B`, how long that is, and its `Place`. The
head is what stands in front of the value: the tag of a field, or the key of an attribute.

Shapes: B bytes, C columns, G 0 or 1, H hits, S scores of a hit, N rows, V bytes of a vector.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from scannery.indexer.kernels import compiled

__all__ = ["FIELD_DOUBLE", "FIELD_INT", "FIELD_STRING", "VALUE_KINDS", "measure_hits", "write_hits"]

# Fields of a Datapoint.
FIELD_STRING, FIELD_INT, FIELD_DOUBLE = 0, 1, 2
# Attributes: a Value behind a key.
_STRING, _STRING_LIST, _INT, _DOUBLE, _BOOL, _TIMESTAMP = 3, 4, 5, 6, 7, 8
VALUE_KINDS = {
    "string": _STRING,
    "string_list": _STRING_LIST,
    "int": _INT,
    "float": _DOUBLE,
    "bool": _BOOL,
    "timestamp": _TIMESTAMP,
}

_KIND, _HEAD, _HEAD_SIZE, _VALID, _OFFSETS, _VALUES, _INNER = range(7)


def _tag(field: int, wire_type: int) -> int:
    return field << 3 | wire_type


_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Of a Hit; the tags of the other scores follow that of `score`.
_HIT_DATAPOINT, _HIT_SCORE, _HIT_GROUP = _tag(1, _LENGTH), _tag(2, _FIXED32), _tag(6, _LENGTH)
_DATAPOINT_VECTOR, _DATAPOINT_ATTRIBUTE = _tag(3, _LENGTH), _tag(7, _LENGTH)
_VECTOR_PACKED = _tag(1, _LENGTH)
_ENTRY_VALUE = _tag(2, _LENGTH)
# Of a Value, and of what is in one.
_VALUE_STRING, _VALUE_LIST, _VALUE_INT = _tag(1, _LENGTH), _tag(2, _LENGTH), _tag(3, _VARINT)
_VALUE_DOUBLE, _VALUE_BOOL, _VALUE_TIME = _tag(4, _FIXED64), _tag(5, _VARINT), _tag(6, _LENGTH)
_LIST_ITEM = _tag(1, _LENGTH)
_SECONDS, _NANOS = _tag(1, _VARINT), _tag(2, _VARINT)
_HITS = _tag(1, _LENGTH)
_MICROS = 1_000_000


@compiled
def _varint_size(value: int) -> int:
    rest = np.uint64(value)  # negative numbers take all of their 64 bits
    size = 1
    while rest >= np.uint64(128):
        rest >>= np.uint64(7)
        size += 1
    return size


@compiled
def _put_varint(out_B: np.ndarray, at: int, value: int) -> int:
    rest = np.uint64(value)
    while rest >= np.uint64(128):
        out_B[at] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
        at += 1
    out_B[at] = np.uint8(rest)
    return at + 1


@compiled
def _put_size(out_B: np.ndarray, at: int, tag: int, size: int) -> int:
    out_B[at] = tag
    return _put_varint(out_B, at + 1, size)


@compiled
def _put_bytes(out_B: np.ndarray, at: int, from_B: np.ndarray, start: int, size: int) -> int:
    for i in range(size):
        out_B[at + i] = from_B[start + i]
    return at + size


@compiled
def _framed(size: int) -> int:
    """Return the size of so many bytes with a tag of one byte and their length in front."""
    return 1 + _varint_size(size) + size


@compiled
def _is_set(bytes_B: np.ndarray, column_7: np.ndarray, row: int) -> bool:
    valid = column_7[_VALID]
    return bool(valid < 0 or (bytes_B[valid + (row >> 3)] >> (row & 7)) & 1 == 1)


@compiled
def _run(ints_B: np.ndarray, offsets: int, number: int) -> tuple[int, int]:
    """Return the start and the size of the string or list of a number."""
    start = ints_B[(offsets >> 2) + number]
    return start, ints_B[(offsets >> 2) + number + 1] - start


@compiled
def _instant(micros: int) -> tuple[int, int]:
    seconds = micros // _MICROS  # towards the past, so that the rest is not negative
    return seconds, (micros - seconds * _MICROS) * 1000


@compiled
def _list_size(ints_B: np.ndarray, column_7: np.ndarray, row: int) -> int:
    first, count = _run(ints_B, column_7[_OFFSETS], row)
    size = 0
    for item in range(first, first + count):
        size += _framed(_run(ints_B, column_7[_INNER], item)[1])
    return size


@compiled
def _time_size(micros: int) -> int:
    seconds, nanos = _instant(micros)
    return 2 + _varint_size(seconds) + _varint_size(nanos)


@compiled
def _value_size(
    bytes_B: np.ndarray, ints_B: np.ndarray, longs_B: np.ndarray, column_7: np.ndarray, row: int
) -> int:
    """Return the size of a Value, without its frame."""
    kind = column_7[_KIND]
    if kind == _STRING:
        return _framed(_run(ints_B, column_7[_OFFSETS], row)[1])
    if kind == _STRING_LIST:
        return _framed(_list_size(ints_B, column_7, row))
    if kind == _INT:
        return 1 + _varint_size(longs_B[(column_7[_VALUES] >> 3) + row])
    if kind == _TIMESTAMP:
        return _framed(_time_size(longs_B[(column_7[_VALUES] >> 3) + row]))
    return 9 if kind == _DOUBLE else 2


@compiled
def _put_value(
    bytes_B: np.ndarray,
    ints_B: np.ndarray,
    longs_B: np.ndarray,
    column_7: np.ndarray,
    row: int,
    out_B: np.ndarray,
    at: int,
) -> int:
    kind, values = column_7[_KIND], column_7[_VALUES]
    if kind == _STRING:
        start, size = _run(ints_B, column_7[_OFFSETS], row)
        return _put_bytes(out_B, _put_size(out_B, at, _VALUE_STRING, size), bytes_B, values + start, size)
    if kind == _STRING_LIST:
        at = _put_size(out_B, at, _VALUE_LIST, _list_size(ints_B, column_7, row))
        first, count = _run(ints_B, column_7[_OFFSETS], row)
        for item in range(first, first + count):
            start, size = _run(ints_B, column_7[_INNER], item)
            at = _put_bytes(out_B, _put_size(out_B, at, _LIST_ITEM, size), bytes_B, values + start, size)
        return at
    if kind == _INT:
        out_B[at] = _VALUE_INT
        return _put_varint(out_B, at + 1, longs_B[(values >> 3) + row])
    if kind == _DOUBLE:
        out_B[at] = _VALUE_DOUBLE
        return _put_bytes(out_B, at + 1, bytes_B, values + 8 * row, 8)
    if kind == _BOOL:
        out_B[at] = _VALUE_BOOL
        out_B[at + 1] = (bytes_B[values + (row >> 3)] >> (row & 7)) & 1
        return at + 2
    micros = longs_B[(values >> 3) + row]
    seconds, nanos = _instant(micros)
    at = _put_size(out_B, at, _VALUE_TIME, _time_size(micros))
    out_B[at] = _SECONDS
    at = _put_varint(out_B, at + 1, seconds)
    out_B[at] = _NANOS
    return _put_varint(out_B, at + 1, nanos)


@compiled
def _field_size(
    bytes_B: np.ndarray, ints_B: np.ndarray, longs_B: np.ndarray, column_7: np.ndarray, row: int
) -> int:
    """Return the size of a field of a Datapoint, its tag included; 0 if it is not set."""
    if not _is_set(bytes_B, column_7, row):
        return 0
    kind = column_7[_KIND]
    if kind == FIELD_STRING:
        return _framed(_run(ints_B, column_7[_OFFSETS], row)[1])
    if kind == FIELD_INT:
        return 1 + _varint_size(longs_B[(column_7[_VALUES] >> 3) + row])
    if kind == FIELD_DOUBLE:
        return 9
    return _framed(column_7[_HEAD_SIZE] + _framed(_value_size(bytes_B, ints_B, longs_B, column_7, row)))


@compiled
def _put_field(
    bytes_B: np.ndarray,
    ints_B: np.ndarray,
    longs_B: np.ndarray,
    heads_B: np.ndarray,
    column_7: np.ndarray,
    row: int,
    out_B: np.ndarray,
    at: int,
) -> int:
    if not _is_set(bytes_B, column_7, row):
        return at
    kind, head, values = column_7[_KIND], column_7[_HEAD], column_7[_VALUES]
    if kind == FIELD_STRING:
        start, size = _run(ints_B, column_7[_OFFSETS], row)
        return _put_bytes(out_B, _put_size(out_B, at, heads_B[head], size), bytes_B, values + start, size)
    if kind == FIELD_INT:
        out_B[at] = heads_B[head]
        return _put_varint(out_B, at + 1, longs_B[(values >> 3) + row])
    if kind == FIELD_DOUBLE:
        out_B[at] = heads_B[head]
        return _put_bytes(out_B, at + 1, bytes_B, values + 8 * row, 8)
    size = _value_size(bytes_B, ints_B, longs_B, column_7, row)
    at = _put_size(out_B, at, _DATAPOINT_ATTRIBUTE, column_7[_HEAD_SIZE] + _framed(size))
    at = _put_bytes(out_B, at, heads_B, head, column_7[_HEAD_SIZE])
    at = _put_size(out_B, at, _ENTRY_VALUE, size)
    return _put_value(bytes_B, ints_B, longs_B, column_7, row, out_B, at)


@partial(compiled, brief=True)
def measure_hits(
    bytes_B: np.ndarray,
    ints_B: np.ndarray,
    longs_B: np.ndarray,
    columns_C7: np.ndarray,
    groups_G7: np.ndarray,
    vector_bytes: int,
    rows_H: np.ndarray,
    scores_SH: np.ndarray,
    sizes_3H: np.ndarray,
) -> int:
    """Write the size of each hit's datapoint, of the hit, and of the hit as a field, to `sizes_3H` (int64).

    Returns the sum of the last.

    Args:
        bytes_B: the buffer of the segment's records.
        ints_B: the same as int32.
        longs_B: the same as int64.
        columns_C7: what a datapoint carries.
        groups_G7: the column of `Hit.group`, if any.
        vector_bytes: bytes of a vector; 0 leaves it out.
        rows_H: the hits.
        scores_SH: `score`, and then, if S is not 1, `dense_score`, `lexical_score` and `rerank_score`: float32, NaN
            where a hit has none.
        sizes_3H: written.

    """
    total = 0
    for hit in range(rows_H.shape[0]):
        row = rows_H[hit]
        size = _framed(_framed(vector_bytes)) if vector_bytes > 0 else 0
        for column in range(columns_C7.shape[0]):
            size += _field_size(bytes_B, ints_B, longs_B, columns_C7[column], row)
        sizes_3H[0, hit] = size
        size = _framed(size)
        for kind in range(scores_SH.shape[0]):
            size += 0 if np.isnan(scores_SH[kind, hit]) else 5
        for group in range(groups_G7.shape[0]):
            if _is_set(bytes_B, groups_G7[group], row):
                size += _framed(_value_size(bytes_B, ints_B, longs_B, groups_G7[group], row))
        sizes_3H[1, hit] = size
        sizes_3H[2, hit] = _framed(size)
        total += sizes_3H[2, hit]
    return total


@compiled
def write_hits(
    bytes_B: np.ndarray,
    ints_B: np.ndarray,
    longs_B: np.ndarray,
    columns_C7: np.ndarray,
    groups_G7: np.ndarray,
    heads_B: np.ndarray,
    vectors_NV: np.ndarray,
    rows_H: np.ndarray,
    scores_SH: np.ndarray,
    score_bytes_SB: np.ndarray,
    sizes_3H: np.ndarray,
    starts_H: np.ndarray,
    out_B: np.ndarray,
) -> None:
    """Write each hit as a field `hits` to `out_B`, from `starts_H` on, or without those one after the other.

    `vectors_NV` and `score_bytes_SB` are float32 as bytes, the latter those of `scores_SH`; for the others see
    `measure_hits`.
    """
    vector_bytes = vectors_NV.shape[1]
    at = 0
    for hit in range(rows_H.shape[0]):
        row = rows_H[hit]
        at = _put_size(out_B, starts_H[hit] if starts_H.shape[0] > 0 else at, _HITS, sizes_3H[1, hit])
        at = _put_size(out_B, at, _HIT_DATAPOINT, sizes_3H[0, hit])
        for column in range(columns_C7.shape[0]):
            at = _put_field(bytes_B, ints_B, longs_B, heads_B, columns_C7[column], row, out_B, at)
        if vector_bytes > 0:
            at = _put_size(out_B, at, _DATAPOINT_VECTOR, _framed(vector_bytes))
            at = _put_size(out_B, at, _VECTOR_PACKED, vector_bytes)
            at = _put_bytes(out_B, at, vectors_NV[row], 0, vector_bytes)
        for kind in range(scores_SH.shape[0]):
            if not np.isnan(scores_SH[kind, hit]):
                out_B[at] = _HIT_SCORE + (kind << 3)
                at = _put_bytes(out_B, at + 1, score_bytes_SB[kind], 4 * hit, 4)
        for group in range(groups_G7.shape[0]):
            if _is_set(bytes_B, groups_G7[group], row):
                size = _value_size(bytes_B, ints_B, longs_B, groups_G7[group], row)
                at = _put_size(out_B, at, _HIT_GROUP, size)
                at = _put_value(bytes_B, ints_B, longs_B, groups_G7[group], row, out_B, at)
