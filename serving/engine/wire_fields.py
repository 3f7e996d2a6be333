"""Fields on the wire: how they are framed, and those of named vectors, added to hits that are written already.

Most indexes have no named vectors, so the kernel that writes hits knows only of the score by one of them: other fields
are put behind those of a datapoint or a hit, with new lengths in front.

Shapes: H hits, P hits that have a field, B bytes, S vectors of the search.

Tables in the answers of leaves, as Arrow IPC streams.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scannery.indexer import NO_ROW, SPARSE_COLUMNS, Segment
from scannery.indexer.datapoints.sparse import INDICES_COLUMN, VALUES_COLUMN
from scannery.runtime.errors import ServingError
from scannery.serving.engine import wire_kernels
from scannery.v1.search_pb2 import Hit
from scannery.v1.types_pb2 import Datapoint, SparseVector

__all__ = [
    "NO_FIELDS",
    "framed",
    "joined_fields",
    "read_table",
    "read_varint",
    "score_fields",
    "score_head",
    "sparse_fields",
    "table_bytes",
    "varint",
    "vector_bytes",
    "vector_fields",
    "with_fields",
]


_LENGTH, _FIXED32 = 2, 5
_KEY, _VALUE = 1, 2
_PACKED = 1


class ExtraFields(NamedTuple):
    """Fields of each hit, on the wire."""

    data_B: np.ndarray
    """uint8."""
    bounds: np.ndarray
    """Where those of each hit start, and where the last ones end, int64 (H + 1,); or of length 0: there are none."""


NO_FIELDS = ExtraFields(np.zeros(0, np.uint8), np.zeros(0, np.int64))


class _Field(NamedTuple):
    """A map entry that some hits have, of the same length in all of them."""

    hits_P: np.ndarray
    head: bytes
    """All before the value."""
    values_PB: np.ndarray
    """uint8."""


def vector_fields(
    segments: Sequence[Segment], names: Sequence[str], numbers_H: np.ndarray, rows_H: np.ndarray
) -> ExtraFields:
    """Return the field `vectors` of the datapoints at some rows of segments.

    Args:
        segments: of the snapshot.
        names: of all vectors.
        numbers_H: number of the segment of each datapoint, int64.
        rows_H: row in that segment, int64.

    """
    fields = []
    for number in np.unique(numbers_H).tolist():
        hits = np.flatnonzero(numbers_H == number)
        for name in names:
            if (named := segments[number].named.get(name)) is None:
                continue
            numbers = named.numbers(rows_H[hits])
            has = numbers != NO_ROW
            values_PD = np.ascontiguousarray(named.segment.vectors(numbers[has]), "<f4")
            fields.append(_Field(hits[has], _vector_head(name, values_PD.shape[1]), values_PD.view(np.uint8)))
    return _added(fields, len(rows_H))


def sparse_fields(segments: Sequence[Segment], numbers_H: np.ndarray, rows_H: np.ndarray) -> ExtraFields:
    """Return the field `sparse_vector` of the datapoints at some rows of segments; arguments as of `vector_fields`."""
    parts = [b""] * len(rows_H)
    for number in np.unique(numbers_H).tolist():
        if INDICES_COLUMN not in segments[number].table.column_names:
            continue
        hits = np.flatnonzero(numbers_H == number)
        table = segments[number].take(rows_H[hits], [*SPARSE_COLUMNS])
        for hit, row in zip(hits.tolist(), table.to_pylist(), strict=True):
            if row[INDICES_COLUMN] is not None:
                vector = SparseVector(indices=row[INDICES_COLUMN], values=row[VALUES_COLUMN])
                parts[hit] = framed(Datapoint.SPARSE_VECTOR_FIELD_NUMBER, vector.SerializeToString())
    return _of_parts(parts)


def joined_fields(first: ExtraFields, second: ExtraFields) -> ExtraFields:
    """Return the fields of both, of the same hits."""
    if not len(first.bounds) or not len(second.bounds):
        return first if len(first.bounds) else second
    parts = [b"".join(both) for both in zip(_parts(first), _parts(second), strict=True)]
    return _of_parts(parts)


def vector_bytes(segments: Sequence[Segment], numbers_H: np.ndarray) -> int:
    """Return at most how many bytes the vectors of datapoints have."""
    counts = np.bincount(numbers_H, minlength=len(segments))
    return sum(
        4 * count * sum(named.segment.dimensions for named in segment.named.values())
        for segment, count in zip(segments, counts.tolist(), strict=True)
        if count
    )


def score_fields(names: Sequence[str], scores_HS: np.ndarray) -> ExtraFields:
    """Return the field `vector_scores` of hits: an entry for each score that is not NaN.

    Args:
        names: of the vectors, S of them.
        scores_HS: float32.

    """
    fields = []
    for name, scores_H in zip(names, scores_HS.T, strict=True):
        hits = np.flatnonzero(~np.isnan(scores_H))
        head = score_head(name)
        fields.append(_Field(hits, head, scores_H[hits].astype("<f4")[:, None].view(np.uint8)))
    return _added(fields, len(scores_HS))


def with_fields(
    data_B: np.ndarray, starts_H: np.ndarray, of_datapoints: ExtraFields, of_hits: ExtraFields, *, whole: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return hits with more fields, uint8 (B,), and where each of them starts, of which the first is at 0.

    Args:
        data_B: the hits.
        starts_H: where each of them starts, int64, in a buffer that ends with them.
        of_datapoints: fields for their datapoints.
        of_hits: fields for themselves.
        whole: False if they are datapoints, as those of a ScanResponse.

    """
    size = len(data_B) + len(of_datapoints.data_B) + len(of_hits.data_B)
    out_B = np.empty(size + _GROWTH_BYTES * len(starts_H) + wire_kernels.ROOM_BYTES, np.uint8)
    added_H = np.empty(len(starts_H), np.int64)
    first = wire_kernels.add_fields(
        data_B, starts_H - starts_H[0], *of_datapoints, *of_hits, whole, added_H, out_B
    )
    return out_B[first:], added_H - first


_GROWTH_BYTES = 16
"""Two lengths take at most so much more."""


def _vector_head(name: str, dimensions: int) -> bytes:
    size = 4 * dimensions
    blank = bytes(size)
    vector = framed(_VALUE, framed(_PACKED, blank))
    entry = framed(Datapoint.VECTORS_FIELD_NUMBER, framed(_KEY, name.encode()) + vector)
    return entry[: len(entry) - size]


@lru_cache(maxsize=256)
def score_head(name: str) -> bytes:
    """Return what precedes the value of an entry of `vector_scores`."""
    entry = framed(_KEY, name.encode()) + bytes([_VALUE << 3 | _FIXED32]) + bytes(4)
    return framed(Hit.VECTOR_SCORES_FIELD_NUMBER, entry)[:-4]


def _of_parts(parts: Sequence[bytes]) -> ExtraFields:
    bounds = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return ExtraFields(np.frombuffer(b"".join(parts), np.uint8).copy(), bounds) if bounds[-1] else NO_FIELDS


def _parts(added: ExtraFields) -> list[bytes]:
    data = added.data_B.tobytes()
    return [data[start:end] for start, end in pairwise(added.bounds.tolist())]


def _added(fields: Sequence[_Field], hits: int) -> ExtraFields:
    fields = [field for field in fields if len(field.hits_P)]
    if not fields:
        return NO_FIELDS
    sizes_H = np.zeros(hits, np.int64)
    for field in fields:
        sizes_H[field.hits_P] += len(field.head) + field.values_PB.shape[1]
    bounds = np.concatenate([[0], np.cumsum(sizes_H)])
    data_B, at_H = np.empty(bounds[-1], np.uint8), bounds[:-1].copy()
    for field in fields:
        head_P, size = at_H[field.hits_P, None], field.values_PB.shape[1]
        data_B[head_P + np.arange(len(field.head))] = np.frombuffer(field.head, np.uint8)
        data_B[head_P + len(field.head) + np.arange(size)] = field.values_PB
        at_H[field.hits_P] += len(field.head) + size
    return ExtraFields(data_B, bounds)


def framed(field: int, data: bytes) -> bytes:
    """Return `data` as a field of a message that holds a message, a string or bytes."""
    return varint(field << 3 | _LENGTH) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Return a number that is not negative as protobuf writes it."""
    if value < 128:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    groups = bytearray()
    while value >= 128:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


# Places of fields in the tables that Arrow's Message.fbs defines.
_HEADER, _DATA, _COMPRESSION = 2, 1, 3
_ROWS_OF_A_BYTE = 8
"""Rows that one byte of a stream holds at most: of type bool."""


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_table(data: bytes) -> pa.Table:
    """Return the table of a stream; raises ServingError if it is damaged, or takes much more memory than its bytes.

    Arrow reads a stream without a look at the offsets in it: wrong ones would end the process when values are read.
    """
    try:
        _check_plain(data)
        table = pa.ipc.open_stream(data).read_all()
        if table.num_rows > _ROWS_OF_A_BYTE * len(data):
            raise ServingError(f"a leaf returned {table.num_rows} rows in {len(data)} bytes")
        table.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, struct.error) as error:
        raise ServingError(f"a leaf returned a damaged table: {error}") from error
    return table


def _check_plain(data: bytes) -> None:
    """Raise ServingError if a part of a stream is compressed: 5 kB became 160 MB, and leaves compress nothing."""
    reader = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type in ("record batch", "dictionary") and _is_compressed(message):
            raise ServingError("a leaf returned a compressed table")


def _is_compressed(message: pa.ipc.Message) -> bool:
    metadata = message.metadata.to_pybytes()
    (root,) = struct.unpack_from("<I", metadata)
    batch = _table_at(metadata, _field(metadata, root, _HEADER))
    if message.type == "dictionary":
        batch = _table_at(metadata, _field(metadata, batch, _DATA))
    return _field(metadata, batch, _COMPRESSION) != 0


def _field(metadata: bytes, table: int, number: int) -> int:
    """Return where a field of a FlatBuffers table is; 0: it is not set."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    (size,) = struct.unpack_from("<H", metadata, vtable)
    entry = 4 + 2 * number
    offset: int = struct.unpack_from("<H", metadata, vtable + entry)[0] if entry < size else 0
    return table + offset if offset else 0


def _table_at(metadata: bytes, at: int) -> int:
    """Return where the table is that a field refers to."""
    target: int = at + struct.unpack_from("<I", metadata, at)[0]
    return target


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number that begins at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
