"""From rows to messages: what an answer carries of a datapoint, in the wire format from the start.

Shapes: Q queries, H hits of all of them, C columns, S scores of a hit, N rows of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scannery.indexer import REVISION_COLUMN, AttributeType, IndexSpec, Records, Segment, kernels
from scannery.indexer.kernels import COMPILING
from scannery.serving import wire_kernels
from scannery.serving.options import Fields
from scannery.serving.ranking import Ranking, merge
from scannery.v1.search_pb2 import HitList
from scannery.v1.types_pb2 import Datapoint

__all__ = ["Hydrator", "framed", "varint", "warm_up"]

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_STRING = (wire_kernels.FIELD_STRING, _LENGTH)
_INT = (wire_kernels.FIELD_INT, _VARINT)
_DOUBLE = (wire_kernels.FIELD_DOUBLE, _FIXED64)
_FIELDS = {
    "id": (1, *_STRING),
    "document_id": (2, *_STRING),
    "text": (5, *_STRING),
    "title": (6, *_STRING),
    "payload": (8, *_STRING),
    "text_start": (9, *_INT),
    "text_end": (10, *_INT),
    "time_start_s": (11, *_DOUBLE),
    "time_end_s": (12, *_DOUBLE),
    REVISION_COLUMN: (13, *_INT),
}
"""Columns that a Datapoint has a field for: its number, and how it is written. All have tags of one byte."""
_ENTRY_KEY = 1
_OFFSETS = ("text_start", "text_end", "time_start_s", "time_end_s")
_NO_VECTORS = np.zeros((0, 0), np.uint8)
_ONE_AFTER_THE_OTHER = np.zeros(0, np.int64)
_NO_VECTORS.setflags(write=False)  # as those of a segment: each kind of array is compiled for apart


class Hydrator:
    """Writes what answers carry of the rows of some segments. Safe to use from several threads."""

    def __init__(
        self, segments: Sequence[Segment], spec: IndexSpec, fields: Fields, *, group_by: str | None
    ) -> None:
        """`group_by` names the column of `Hit.group`; None leaves it out."""
        self._segments = segments
        self._spec = spec
        self._fields = fields
        self._group_by = group_by
        self._layouts: dict[int, _Layout] = {}

    def hits(self, rankings: Sequence[Ranking]) -> list[bytes]:
        """Return the hits of each query as the field `hits` of a SearchResponse, or of a HitList, on the wire."""
        whole = rankings[0] if len(rankings) == 1 else _joined(rankings)
        if not len(whole):
            return [b""] * len(rankings)
        data, sizes_H = self._written(whole)
        if len(rankings) == 1:
            return [data]
        bounds_H = np.concatenate([[0], np.cumsum(sizes_H)])
        bounds_Q = bounds_H[np.cumsum([0, *map(len, rankings)])].tolist()
        return [data[start:end] for start, end in pairwise(bounds_Q)]

    def datapoints(self, places: Sequence[tuple[int, int]]) -> list[Datapoint]:
        """Return the datapoints at (segment number, row), in their order."""
        if not places:
            return []
        numbers, rows = np.ascontiguousarray(np.array(places, np.int64).T)
        [data] = self.hits([Ranking(numbers, rows, np.zeros(len(rows), np.float32))])
        return [hit.datapoint for hit in HitList.FromString(data).hits]

    def _written(self, whole: Ranking) -> tuple[bytes, np.ndarray]:
        """Return all hits on the wire, and the size of each: int64 (H,)."""
        scores_SH = _scores(whole)
        sizes_3H = np.empty((3, len(whole)), np.int64)
        if len(self._segments) == 1:
            layout, rows = self._layout(0, whole.rows)
            out_B = np.empty(_measure(layout, rows, scores_SH, sizes_3H), np.uint8)
            _write(layout, rows, scores_SH, sizes_3H, _ONE_AFTER_THE_OTHER, out_B)
            return out_B.tobytes(), sizes_3H[2]
        parts = []
        for number in np.unique(whole.segments).tolist():
            positions = np.flatnonzero(whole.segments == number)
            layout, rows = self._layout(number, whole.rows[positions])
            part_SH, sizes = np.ascontiguousarray(scores_SH[:, positions]), np.empty((3, len(rows)), np.int64)
            _measure(layout, rows, part_SH, sizes)
            sizes_3H[:, positions] = sizes
            parts.append((positions, layout, rows, part_SH, sizes))
        ends_H = np.cumsum(sizes_3H[2])
        out_B = np.empty(ends_H[-1], np.uint8)
        for positions, layout, rows, part_SH, sizes in parts:
            _write(layout, rows, part_SH, sizes, (ends_H - sizes_3H[2])[positions], out_B)
        return out_B.tobytes(), sizes_3H[2]

    def _layout(self, number: int, rows: np.ndarray) -> tuple[_Layout, np.ndarray]:
        """Return where the fields of a segment lie, and the number that each row has there."""
        segment = self._segments[number]
        if not segment.records.in_one_piece:
            # More than 2 GB of text: Arrow holds it in pieces, and so the rows wanted are put into one first.
            few, vectors_ND = Records.of(segment.take(rows)), segment.vectors(rows)
            vectors_ND.setflags(write=False)
            return self._laid_out(few, vectors_ND), np.arange(len(rows))
        layout = self._layouts.get(number)
        if layout is None:
            layout = self._layouts[number] = self._laid_out(segment.records, segment.given_ND)
        return layout, rows

    def _laid_out(self, records: Records, vectors_ND: np.ndarray) -> _Layout:
        heads, fields, attributes = bytearray(), self._fields, self._spec.attributes
        names = _columns(fields)
        if REVISION_COLUMN in records.table.column_names:  # segments of a build have none
            names.append(REVISION_COLUMN)
        columns = [_field(records, name, heads) for name in names]
        columns += [_attribute(records, name, attributes[name], heads) for name in fields.attributes]
        groups = []
        if self._group_by is not None:
            kind = attributes.get(self._group_by, "string")
            groups.append(_attribute(records, self._group_by, kind, heads))
        return _Layout(
            records.views,
            np.array(columns, np.int64),
            np.array(groups, np.int64).reshape(-1, 7),
            np.frombuffer(bytes(heads), np.uint8),
            vectors_ND.view(np.uint8) if fields.vector else _NO_VECTORS,
        )


def warm_up(segments: Sequence[Segment], spec: IndexSpec) -> None:
    """Compile the kernels of every query, or load them from numba's cache: none should wait for that."""
    nothing = Fields(title=False, text=False, payload=False, offsets=False, attributes=(), vector=False)
    if segments and segments[0].rows:
        with COMPILING:
            kernels.surely_valid(np.frombuffer(bytes(4), np.float32)[None])
            merge([(0, np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32))], 1, 1, segments)
            Hydrator(segments, spec, nothing, group_by=None).datapoints([(0, 0)])


def framed(field: int, data: bytes) -> bytes:
    """Return `data` as a field of a message that holds a message, a string or bytes."""
    return varint(field << 3 | _LENGTH) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Return a number that is not negative as protobuf writes it."""
    groups = bytearray()
    while value >= 128:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _joined(rankings: Sequence[Ranking]) -> Ranking:
    rankings = [ranking for ranking in rankings if len(ranking)] or rankings[:1]
    if len(rankings) == 1:
        return rankings[0]
    parts: list[np.ndarray | None] = []
    for name in Ranking.PARTS:
        arrays = [getattr(ranking, name) for ranking in rankings]
        parts.append(None if arrays[0] is None else np.concatenate(arrays))
    return Ranking(*parts)  # type: ignore[arg-type]  # only those that may be are None


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Where the kernels find in a segment what an answer carries."""

    views: tuple[np.ndarray, np.ndarray, np.ndarray]
    columns_C7: np.ndarray
    groups_G7: np.ndarray
    heads_B: np.ndarray
    vectors_NV: np.ndarray


def _measure(layout: _Layout, rows: np.ndarray, scores_SH: np.ndarray, sizes_3H: np.ndarray) -> int:
    return wire_kernels.measure_hits(
        *layout.views, layout.columns_C7, layout.groups_G7, layout.vectors_NV.shape[1], rows, scores_SH, sizes_3H
    )  # fmt: skip


def _write(
    layout: _Layout,
    rows: np.ndarray,
    scores_SH: np.ndarray,
    sizes_3H: np.ndarray,
    starts_H: np.ndarray,
    out_B: np.ndarray,
) -> None:
    wire_kernels.write_hits(
        *layout.views, layout.columns_C7, layout.groups_G7, layout.heads_B, layout.vectors_NV,
        rows, scores_SH, scores_SH.view(np.uint8), sizes_3H, starts_H, out_B,
    )  # fmt: skip


def _scores(whole: Ranking) -> np.ndarray:
    """Return `score` and, if there are any, the other scores of each hit: float32 (S, H)."""
    others = (whole.dense, whole.lexical, whole.rerank)
    if whole.dense is None and whole.lexical is None and whole.rerank is None:
        return np.ascontiguousarray(whole.scores[None])
    none_H = np.full(len(whole), np.nan, np.float32)
    return np.stack([whole.scores, *(none_H if other is None else other for other in others)])


def _columns(fields: Fields) -> list[str]:
    offsets = _OFFSETS if fields.offsets else ()
    return [
        "id",
        "document_id",
        *(name for name in ("title", "text", "payload") if getattr(fields, name)),
        *offsets,
    ]


def _field(records: Records, name: str, heads: bytearray) -> list[int]:
    number, kind, wire_type = _FIELDS[name]
    return _described(records, name, kind, bytes([number << 3 | wire_type]), heads)


def _attribute(records: Records, name: str, kind: AttributeType, heads: bytearray) -> list[int]:
    return _described(records, name, wire_kernels.VALUE_KINDS[kind], framed(_ENTRY_KEY, name.encode()), heads)


def _described(records: Records, name: str, kind: int, head: bytes, heads: bytearray) -> list[int]:
    place = len(heads)
    heads += head
    return [kind, place, len(head), *records.place(name)]
