"""Kernels that serialise hits in Protobuf's wire format directly from the columns of a segment.

In Python, building the messages of ten hits takes as long as the search. Here the bytes are copied from the columns
(`indexer/datapoints/row_records.py`). Field numbers are those of proto/scannery/v1; tests parse the output with the
generated code.

A row of `columns_C7` describes a column: its kind, offset and length of its head in `heads_B`, and its address. The
head precedes the value: the tag of a field, or the key of an attribute.

Buffers are written from the end to the start: the length of a message precedes it, and is known once the message is
written. `at` is the offset of the first byte written so far. Nothing is checked while writing: `write_hits` measures
before how much room the hits need. No kernel raises, since numba would never release the arguments of the call.

Shapes: B bytes, C columns, G 0 or 1, H hits, L bounds of lists, N rows, P hits of a part, S scores of a hit,
V bytes of a vector.

Bytes are copied by the C library's `memcpy`: a loop is compiled to one byte at a time, since an index might be
negative, and has a tenth of the speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from scannery.indexer.kernels.fused import compiled

__all__ = [
    "FIELD_DOUBLE",
    "FIELD_INT",
    "FIELD_STRING",
    "ROOM_BYTES",
    "VALUE_KINDS",
    "add_fields",
    "copy_bytes",
    "frame_lists",
    "put_in_order",
    "write_hits",
]


def _copy_bytes(typing: Any, out_B: Any, at: Any, from_B: Any, start: Any, size: Any) -> tuple[Any, Any]:
    """Return the signature, and what generates the code, for arguments of these types."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        out, at_, source, start_, size_ = values
        to = context.make_array(signature.args[0])(context, builder, out).data
        of = context.make_array(signature.args[2])(context, builder, source).data
        cgutils.raw_memcpy(builder, builder.gep(to, [at_]), builder.gep(of, [start_]), size_, itemsize=1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.none(out_B, types.intp, from_B, types.intp, types.intp), generate


copy_bytes = cast("Callable[[np.ndarray, int, np.ndarray, int, int], None]", intrinsic(_copy_bytes))
"""Copies from an offset of the second array as many bytes as the last argument says to an offset of the first, within
kernels. Both are contiguous uint8. Nothing is checked, and the two must not overlap."""


# Fields of a Datapoint.
FIELD_STRING, FIELD_INT, FIELD_DOUBLE = 0, 1, 2
# Attributes: a Value behind a key.
_STRING, _STRING_LIST, _INT, _DOUBLE, _BOOL, _TIMESTAMP, _GEO = 3, 4, 5, 6, 7, 8, 9
VALUE_KINDS = {
    "string": _STRING,
    "string_list": _STRING_LIST,
    "int": _INT,
    "float": _DOUBLE,
    "bool": _BOOL,
    "timestamp": _TIMESTAMP,
    "geo": _GEO,
}

_KIND, _HEAD, _HEAD_SIZE, _VALID, _OFFSETS, _VALUES, _INNER = range(7)


def _tag(field: int, wire_type: int) -> int:
    return field << 3 | wire_type


_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Fields of a Hit; the tags of the other scores follow that of `score`, and that of `base_score` that of `relevance`.
_HIT_DATAPOINT, _HIT_SCORE, _HIT_GROUP = _tag(1, _LENGTH), _tag(2, _FIXED32), _tag(6, _LENGTH)
_HIT_RELEVANCE = _tag(9, _FIXED32)
_SCORES = 4
"""Scores that a hit may have, besides those by named vectors."""
_DATAPOINT_VECTOR, _DATAPOINT_ATTRIBUTE = _tag(3, _LENGTH), _tag(7, _LENGTH)
_VECTOR_PACKED = _tag(1, _LENGTH)
_ENTRY_VALUE = _tag(2, _LENGTH)
# Fields of a Value and of the messages in it.
_VALUE_STRING, _VALUE_LIST, _VALUE_INT = _tag(1, _LENGTH), _tag(2, _LENGTH), _tag(3, _VARINT)
_VALUE_DOUBLE, _VALUE_BOOL, _VALUE_TIME = _tag(4, _FIXED64), _tag(5, _VARINT), _tag(6, _LENGTH)
_VALUE_GEO, _LATITUDE, _LONGITUDE = _tag(8, _LENGTH), _tag(1, _FIXED64), _tag(2, _FIXED64)
_LIST_ITEM = _tag(1, _LENGTH)
_SECONDS, _NANOS = _tag(1, _VARINT), _tag(2, _VARINT)
_HITS = _tag(1, _LENGTH)
_MICROS = 1_000_000
_ABSOLUTE, _INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
"""Mask of the bits of a float32 without its sign, and those of infinity: NaN has more."""

ROOM_BYTES = 64
"""More than the tags, lengths and numbers of a hit apart from the fields of its datapoint."""
_FIELD_BYTES, _ATTRIBUTE_BYTES, _ITEM_BYTES = 11, 36, 6
"""Most bytes beside the strings: of a field of a Datapoint, of an attribute, and of an item of a list."""


@compiled
def _put_byte(out_B: np.ndarray, at: int, value: int) -> int:
    out_B[at - 1] = np.uint8(value)
    return at - 1


@compiled
def _put_varint(out_B: np.ndarray, at: int, value: int) -> int:
    tail = np.uint64(value)  # negative numbers take all of their 64 bits
    if tail < np.uint64(128):  # as are most lengths
        return _put_byte(out_B, at, value)
    size, more = 1, tail >> np.uint64(7)
    while more > np.uint64(0):
        size, more = size + 1, more >> np.uint64(7)
    for i in range(size):
        carries_on = np.uint64(128) if i + 1 < size else np.uint64(0)
        out_B[at - size + i] = np.uint8((tail & np.uint64(127)) | carries_on)
        tail >>= np.uint64(7)
    return at - size


@compiled
def _put_tag(out_B: np.ndarray, at: int, tag: int, end: int) -> int:
    """Put a one-byte tag and the length in front of the bytes from `at` to `end`."""
    return _put_byte(out_B, _put_varint(out_B, at, end - at), tag)


@compiled
def _put_bytes(out_B: np.ndarray, at: int, from_B: np.ndarray, start: int, size: int) -> int:
    copy_bytes(out_B, at - size, from_B, start, size)
    return at - size


@compiled
def _put_fixed32(out_B: np.ndarray, at: int, bits: np.uint32) -> int:
    for i in range(4):
        out_B[at - 4 + i] = np.uint8((bits >> np.uint32(8 * i)) & np.uint32(255))
    return at - 4


@compiled
def _is_set(bytes_B: np.ndarray, column_7: np.ndarray, row: int) -> bool:
    valid = column_7[_VALID]
    return bool(valid < 0 or (bytes_B[valid + (row >> 3)] >> (row & 7)) & 1 == 1)


@compiled
def _put_text(
    bytes_B: np.ndarray,
    ints_B: np.ndarray,
    offsets: int,
    values: int,
    number: int,
    out_B: np.ndarray,
    at: int,
) -> int:
    """Put string `number` of a column."""
    start = ints_B[(offsets >> 2) + number]
    size = ints_B[(offsets >> 2) + number + 1] - start
    return _put_bytes(out_B, at, bytes_B, values + start, size)


@compiled
def _put_list(
    bytes_B: np.ndarray, ints_B: np.ndarray, column_7: np.ndarray, row: int, out_B: np.ndarray, at: int
) -> int:
    first, last = ints_B[(column_7[_OFFSETS] >> 2) + row], ints_B[(column_7[_OFFSETS] >> 2) + row + 1]
    for item in range(last - 1, first - 1, -1):
        end = at
        at = _put_text(bytes_B, ints_B, column_7[_INNER], column_7[_VALUES], item, out_B, at)
        at = _put_tag(out_B, at, _LIST_ITEM, end)
    return at


@compiled
def _put_time(micros: int, out_B: np.ndarray, at: int) -> int:
    seconds = micros // _MICROS  # rounds down, so that the remainder is not negative
    at = _put_varint(out_B, at, (micros - seconds * _MICROS) * 1000)
    at = _put_byte(out_B, at, _NANOS)
    return _put_byte(out_B, _put_varint(out_B, at, seconds), _SECONDS)


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
    """Put a Value, without tag and length."""
    kind, values, end = column_7[_KIND], column_7[_VALUES], at
    if kind == _STRING:
        at = _put_text(bytes_B, ints_B, column_7[_OFFSETS], values, row, out_B, at)
        return _put_tag(out_B, at, _VALUE_STRING, end)
    if kind == _STRING_LIST:
        return _put_tag(out_B, _put_list(bytes_B, ints_B, column_7, row, out_B, at), _VALUE_LIST, end)
    if kind == _INT:
        return _put_byte(out_B, _put_varint(out_B, at, longs_B[(values >> 3) + row]), _VALUE_INT)
    if kind == _DOUBLE:
        return _put_byte(out_B, _put_bytes(out_B, at, bytes_B, values + 8 * row, 8), _VALUE_DOUBLE)
    if kind == _BOOL:
        at = _put_byte(out_B, at, (bytes_B[values + (row >> 3)] >> (row & 7)) & 1)
        return _put_byte(out_B, at, _VALUE_BOOL)
    if kind == _GEO:
        at = _put_byte(out_B, _put_bytes(out_B, at, bytes_B, column_7[_INNER] + 8 * row, 8), _LONGITUDE)
        at = _put_byte(out_B, _put_bytes(out_B, at, bytes_B, values + 8 * row, 8), _LATITUDE)
    else:
        at = _put_time(longs_B[(values >> 3) + row], out_B, at)
    return _put_tag(out_B, at, _VALUE_GEO if kind == _GEO else _VALUE_TIME, end)


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
    """Put a field of a Datapoint, if it is set."""
    if not _is_set(bytes_B, column_7, row):
        return at
    kind, head, values, end = column_7[_KIND], column_7[_HEAD], column_7[_VALUES], at
    if kind == FIELD_STRING:
        at = _put_text(bytes_B, ints_B, column_7[_OFFSETS], values, row, out_B, at)
        return _put_tag(out_B, at, heads_B[head], end)
    if kind == FIELD_INT:
        return _put_byte(out_B, _put_varint(out_B, at, longs_B[(values >> 3) + row]), heads_B[head])
    if kind == FIELD_DOUBLE:
        return _put_byte(out_B, _put_bytes(out_B, at, bytes_B, values + 8 * row, 8), heads_B[head])
    at = _put_value(bytes_B, ints_B, longs_B, column_7, row, out_B, at)
    at = _put_tag(out_B, at, _ENTRY_VALUE, end)
    at = _put_bytes(out_B, at, heads_B, head, column_7[_HEAD_SIZE])
    return _put_tag(out_B, at, _DATAPOINT_ATTRIBUTE, end)


@compiled
def _measure_hits(
    bytes_B: np.ndarray,
    ints_B: np.ndarray,
    columns_C7: np.ndarray,
    groups_G7: np.ndarray,
    vector_bytes: int,
    named_bytes: int,
    rows_H: np.ndarray,
    read_H: np.ndarray,
) -> tuple[int, int]:
    """Return how many bytes hits have on the wire at least, and at most; arguments as of `write_hits`.

    Also reads a byte of each string, so that it is in the cache when it is copied: rows lie at random addresses, and a
    cache miss takes as long as the copy, but independent reads overlap. The sums in `read_H` (int64) keep the compiler
    from removing the reads.
    """
    read_H[:] = 0
    size = strings = 0
    for hit in range(rows_H.shape[0]):
        for column in range(columns_C7.shape[0]):
            valid, offsets = columns_C7[column, _VALID], columns_C7[column, _OFFSETS]
            if valid >= 0:
                read_H[hit] += bytes_B[valid + (rows_H[hit] >> 3)]
            if offsets >= 0:
                read_H[hit] += ints_B[(offsets >> 2) + rows_H[hit]]
    for hit in range(rows_H.shape[0]):
        for column in range(columns_C7.shape[0]):
            column_size, column_strings = _strings(bytes_B, ints_B, columns_C7[column], rows_H[hit])
            size, strings = size + column_size, strings + column_strings
            if column_size > 0 and columns_C7[column, _INNER] < 0:
                first = ints_B[(columns_C7[column, _OFFSETS] >> 2) + rows_H[hit]]
                read_H[hit] += bytes_B[columns_C7[column, _VALUES] + first]
        for group in range(groups_G7.shape[0]):
            group_size, group_strings = _strings(bytes_B, ints_B, groups_G7[group], rows_H[hit])
            size, strings = size + group_size, strings + group_strings
    fixed = ROOM_BYTES + named_bytes + _ATTRIBUTE_BYTES * groups_G7.shape[0]
    for column in range(columns_C7.shape[0]):
        is_attribute = columns_C7[column, _KIND] > FIELD_DOUBLE
        fixed += columns_C7[column, _HEAD_SIZE] + (_ATTRIBUTE_BYTES if is_attribute else _FIELD_BYTES)
    size += vector_bytes * rows_H.shape[0]
    return size + 2 * strings, size + _ITEM_BYTES * strings + fixed * rows_H.shape[0]


@compiled
def _strings(bytes_B: np.ndarray, ints_B: np.ndarray, column_7: np.ndarray, row: int) -> tuple[int, int]:
    """Return the bytes and the number of the strings that a column has in a row; 0 of other types."""
    offsets, inner = column_7[_OFFSETS] >> 2, column_7[_INNER] >> 2
    if column_7[_OFFSETS] < 0 or not _is_set(bytes_B, column_7, row):
        return 0, 0
    first, last = ints_B[offsets + row], ints_B[offsets + row + 1]
    if column_7[_INNER] < 0:
        return last - first, 1
    return ints_B[inner + last] - ints_B[inner + first], last - first


@compiled
def write_hits(
    bytes_B: np.ndarray,
    ints_B: np.ndarray,
    longs_B: np.ndarray,
    columns_C7: np.ndarray,
    groups_G7: np.ndarray,
    heads_B: np.ndarray,
    vectors_NV: np.ndarray,
    named_B: np.ndarray,
    rows_H: np.ndarray,
    bits_SH: np.ndarray,
    starts_H: np.ndarray,
    out_B: np.ndarray,
) -> tuple[int, int]:
    """Write each hit as a field `hits` at the end of `out_B`; return the offset of the first, and 0.

    If the hits might not fit, write nothing, and return the bytes that they need at most, negative, and at least.
    Without scores (S = 0), each datapoint is written instead, as a field `datapoints` of a ScanResponse.

    Args:
        bytes_B: the segment's records, uint8.
        ints_B: the same buffer as int32.
        longs_B: the same buffer as int64.
        columns_C7: columns of a datapoint.
        groups_G7: the column of `Hit.group`, if any.
        heads_B: heads of the columns, uint8.
        vectors_NV: float32 vectors as bytes; V = 0 leaves them out.
        named_B: head of the entry of `vector_scores` with the value of `score`, uint8; empty: there is none.
        rows_H: rows of the hits.
        bits_SH: uint32 of the float32 `score`, or of `score`, `dense_score`, `lexical_score` and `rerank_score`; behind
            these perhaps of `relevance`, and of `base_score`. NaN: unset.
        starts_H: output: the offset of each hit, int64.
        out_B: output, uint8.

    """
    vector_bytes = vectors_NV.shape[1]
    scores = _SCORES if bits_SH.shape[0] >= _SCORES else 1
    at: int = out_B.shape[0]
    # In the same call, which would cost a lone search some microseconds more than the work.
    least, upper = _measure_hits(
        bytes_B, ints_B, columns_C7, groups_G7, vector_bytes, named_B.shape[0], rows_H, starts_H
    )
    if upper > at:
        return -upper, least
    for hit in range(rows_H.shape[0] - 1, -1, -1):
        row, end = rows_H[hit], at
        for group in range(groups_G7.shape[0]):
            if _is_set(bytes_B, groups_G7[group], row):
                at = _put_value(bytes_B, ints_B, longs_B, groups_G7[group], row, out_B, at)
                at = _put_tag(out_B, at, _HIT_GROUP, end)
        if named_B.shape[0] > 0:
            at = _put_bytes(out_B, _put_fixed32(out_B, at, bits_SH[0, hit]), named_B, 0, named_B.shape[0])
        for kind in range(bits_SH.shape[0] - 1, -1, -1):
            if bits_SH[kind, hit] & _ABSOLUTE <= _INFINITE:
                at = _put_fixed32(out_B, at, bits_SH[kind, hit])
                at = _put_byte(
                    out_B,
                    at,
                    (_HIT_SCORE + (kind << 3))
                    if kind < scores
                    else (_HIT_RELEVANCE + ((kind - scores) << 3)),
                )
        datapoint_end = at
        if vector_bytes > 0:
            at = _put_bytes(out_B, at, vectors_NV[row], 0, vector_bytes)
            at = _put_tag(out_B, at, _VECTOR_PACKED, datapoint_end)
            at = _put_tag(out_B, at, _DATAPOINT_VECTOR, datapoint_end)
        for column in range(columns_C7.shape[0] - 1, -1, -1):
            at = _put_field(bytes_B, ints_B, longs_B, heads_B, columns_C7[column], row, out_B, at)
        at = _put_tag(
            out_B, at, _HIT_DATAPOINT, datapoint_end
        )  # which is also the tag of a scan's datapoints
        if bits_SH.shape[0] > 0:
            at = _put_tag(out_B, at, _HITS, end)
        starts_H[hit] = at
    return at, 0


@compiled
def put_in_order(
    part_B: np.ndarray, starts_P: np.ndarray, places_P: np.ndarray, ends_H: np.ndarray, out_B: np.ndarray
) -> None:
    """Copy the hits of one segment to their places among the hits of all segments.

    Args:
        part_B: the serialised hits of the segment, in sequence.
        starts_P: their offsets, of which the first is that of `part_B`.
        places_P: their positions among all hits.
        ends_H: the end offset of each position in `out_B`.
        out_B: output.

    """
    for part in range(starts_P.shape[0]):
        start = starts_P[part] - starts_P[0]
        size = (starts_P[part + 1] - starts_P[0] if part + 1 < starts_P.shape[0] else part_B.shape[0]) - start
        end = ends_H[places_P[part]]
        copy_bytes(out_B, end - size, part_B, start, size)


@compiled
def _length(data_B: np.ndarray, at: int) -> tuple[int, int]:
    """Return the length that is written at an offset, and the offset after it."""
    size, shift = 0, 0
    while data_B[at] >= 128:
        size |= (data_B[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return size | data_B[at] << shift, at + 1


@compiled
def _put_range(out_B: np.ndarray, at: int, from_B: np.ndarray, start: int, stop: int) -> int:
    copy_bytes(out_B, at - (stop - start), from_B, start, stop - start)
    return at - (stop - start)


@compiled
def add_fields(
    data_B: np.ndarray,
    starts_H: np.ndarray,
    inner_B: np.ndarray,
    inner_bounds: np.ndarray,
    outer_B: np.ndarray,
    outer_bounds: np.ndarray,
    whole: bool,
    added_H: np.ndarray,
    out_B: np.ndarray,
) -> int:
    """Write hits, or datapoints if not `whole`, again with more fields; return the offset of the first.

    Args:
        data_B: the hits.
        starts_H: their offsets, int64.
        inner_B: fields at the end of datapoints.
        inner_bounds: where those of each begin, int64 (H + 1,); empty: there are none.
        outer_B: fields at the end of hits.
        outer_bounds: as `inner_bounds`.
        whole: whether `data_B` has hits.
        added_H: output: the offset of each, int64.
        out_B: output, large enough.

    """
    at: int = out_B.shape[0]
    stop = data_B.shape[0]
    for hit in range(starts_H.shape[0] - 1, -1, -1):
        end, start = at, starts_H[hit]
        if whole:
            _, start = _length(data_B, start + 1)
        size, start = _length(data_B, start + 1)
        if outer_bounds.shape[0] > 0:
            at = _put_range(out_B, at, outer_B, outer_bounds[hit], outer_bounds[hit + 1])
        at = _put_range(out_B, at, data_B, start + size, stop)
        datapoint_end = at
        if inner_bounds.shape[0] > 0:
            at = _put_range(out_B, at, inner_B, inner_bounds[hit], inner_bounds[hit + 1])
        at = _put_range(out_B, at, data_B, start, start + size)
        at = _put_tag(out_B, at, _HIT_DATAPOINT, datapoint_end)
        if whole:
            at = _put_tag(out_B, at, _HITS, end)
        added_H[hit], stop = at, starts_H[hit]
    return at


@compiled
def frame_lists(tag: int, data_B: np.ndarray, bounds_L: np.ndarray, out_B: np.ndarray) -> int:
    """Write the bytes between consecutive bounds as fields with a one-byte tag; return the offset of the first.

    `out_B` is written from its end, and needs ROOM_BYTES per field in addition to the data.
    """
    at: int = out_B.shape[0]
    for number in range(bounds_L.shape[0] - 2, -1, -1):
        end, start, size = at, bounds_L[number], bounds_L[number + 1] - bounds_L[number]
        copy_bytes(out_B, at - size, data_B, start, size)
        at = _put_tag(out_B, at - size, tag, end)
    return at
