"""From rows to the fields of an answer, written in the wire format without messages.

Shapes: Q queries, H hits of all of them, C columns, S scores of a hit, N rows of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from scannery.indexer import DYNAMIC_COLUMN, REVISION_COLUMN, AttributeType, IndexSpec, Records, Segment
from scannery.indexer.datapoints import dynamic
from scannery.indexer.datapoints.dynamic import some_dynamic
from scannery.indexer.kernels import fused
from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.vectors.vector_files import no_vectors
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.pieces import joined
from scannery.serving.engine import wire_kernels
from scannery.serving.engine.top_k import Ranking, concatenated
from scannery.serving.engine.wire_fields import (
    NO_FIELDS,
    framed,
    joined_fields,
    read_varint,
    score_fields,
    score_head,
    sparse_fields,
    vector_bytes,
    vector_fields,
    with_fields,
)
from scannery.serving.request.options import Fields
from scannery.v1.search_pb2 import HitList, SearchResponse
from scannery.v1.types_pb2 import Datapoint

__all__ = ["Hydrator", "WrittenHits", "warm_up"]

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
    DYNAMIC_COLUMN: (14, *_STRING),
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
_NOTHING = np.zeros(0, np.uint8)
_NOTHING.setflags(write=False)  # as the heads of names
FIRST_BYTES, HIT_BYTES = 1 << 15, 256
"""Room for hits at first, in all at least and for each. Larger ones are written once their size is known."""
MAX_ANSWER_BYTES = 256 << 20
"""Bytes of the hits of one answer: 100,000 hits with a text of 1 MiB each would take all memory."""
_NO_VECTORS.setflags(write=False)  # as those of a segment: each kind of array is compiled for apart


@dataclass(frozen=True, slots=True, eq=False)
class WrittenHits:
    """The hits of some queries, each as a field `hits` of a SearchResponse or a HitList, on the wire."""

    data_B: np.ndarray
    """All of them, query by query, uint8."""
    bounds_L: np.ndarray | None
    """Where those of each query start, and where the last ones end, int64; None: there is one query."""

    @classmethod
    def of(cls, lists: Sequence[bytes]) -> WrittenHits:
        """Return the hits of some queries, each serialised."""
        # A copy that can be written, since the kernels for other arrays are compiled separately.
        data_B = np.frombuffer(joined(lists), np.uint8).copy()
        return cls(data_B, np.cumsum([0, *map(len, lists)], dtype=np.int64))

    def whole(self, *trailer: bytes) -> bytes:
        """Return the hits of all queries, and `trailer` behind them."""
        return joined((self.data_B.data, *trailer))

    def lists(self, *trailer: bytes) -> list[bytes]:
        """Return the hits of each query, and `trailer` behind each."""
        if self.bounds_L is None:
            return [self.whole(*trailer)]
        data = self.data_B.data
        return [joined((data[start:end], *trailer)) for start, end in pairwise(self.bounds_L.tolist())]

    def with_field(self, field: int, messages: Sequence[Sequence[bytes]]) -> WrittenHits:
        """Return the same hits, each with a further field.

        Args:
            field: its number in a Hit.
            messages: for each query one per hit, serialised; an empty one is left out.

        """
        pairs = zip(self.lists(), messages, strict=True)
        return WrittenHits.of(
            [joined(_with_field(data, field, each)) if any(each) else data for data, each in pairs]
        )

    def framed(self, field: int) -> memoryview:
        """Return the hits of each query as a message, and these as a field that repeats."""
        bounds_L = np.array([0, len(self.data_B)]) if self.bounds_L is None else self.bounds_L
        out_B = np.empty(len(self.data_B) + wire_kernels.ROOM_BYTES * len(bounds_L), np.uint8)
        first = wire_kernels.frame_lists(field << 3 | _LENGTH, self.data_B, bounds_L, out_B)
        return out_B[first:].data


def _with_field(data: bytes, field: int, messages: Sequence[bytes]) -> list[bytes]:
    """Return the hits of one query, each with a further field."""
    hits, position = [], 0
    for message in messages:
        size, start = read_varint(data, position + 1)
        position = start + size
        added = framed(field, message) if message else b""
        hits.append(framed(SearchResponse.HITS_FIELD_NUMBER, data[start:position] + added))
    return hits


class Hydrator:
    """Writes what answers carry of the rows of some segments. Safe to use from several threads."""

    def __init__(
        self,
        segments: Sequence[Segment],
        spec: IndexSpec,
        fields: Fields,
        *,
        group_by: str | None,
        scored: Sequence[str] = (),
    ) -> None:
        """Prepare.

        Args:
            segments: of the snapshot.
            spec: of the index.
            fields: of datapoints.
            group_by: the column of `Hit.group`; None leaves it out.
            scored: names of the vectors of `Hit.vector_scores`; none leaves it out.

        """
        self._segments = segments
        self._names = tuple(spec.named_vectors) if fields.vector else ()
        self._sparse = fields.vector and spec.source.sparse_vector is not None
        self._scored = scored
        self._score_head = np.frombuffer(score_head(scored[0]), np.uint8) if len(scored) == 1 else _NOTHING
        """Head of the only entry of `Hit.vector_scores`, which where one vector is searched has the value of `score`.
        """
        self._spec = spec
        self._fields = fields
        self._group_by = group_by
        self._layouts: dict[int, _Layout] = {}

    def hits(self, rankings: Sequence[Ranking]) -> WrittenHits:
        """Return the hits of each query."""
        whole = rankings[0] if len(rankings) == 1 else concatenated(rankings)
        if not len(whole):
            return WrittenHits(_NOTHING, np.zeros(len(rankings) + 1, np.int64))
        alone = self._is_alone(whole)
        data_B, starts_H = self._put(whole, _scores(whole), self._score_head if alone else _NOTHING)
        if self._names or self._sparse or (self._scored and not alone):
            by_vector_HS = None if alone else whole.by_vector
            data_B, starts_H = self._with_named(data_B, starts_H, whole.segments, whole.rows, by_vector_HS)
        ends_Q = np.cumsum([len(ranking) for ranking in rankings])
        return WrittenHits(data_B, _bounds(data_B, starts_H, ends_Q))

    @property
    def waits(self) -> bool:
        """Whether it may wait for the store, for vectors that it writes."""
        return self._fields.vector and any(
            each.reads_given
            for segment in self._segments
            for each in (segment, *(named.segment for named in segment.named.values()))
        )

    def block(
        self, number: int, rows_QK: np.ndarray, scores_QK: np.ndarray, relevance_QK: np.ndarray | None = None
    ) -> WrittenHits:
        """Return the hits of each query: K rows of one segment, int64, and scores, float32 (Q, K).

        Cheaper than rankings. `relevance_QK` is float32, too; None leaves it out.
        """
        queries, k = rows_QK.shape
        rows_H = rows_QK.reshape(-1)
        scores_SH = scores_QK.reshape(1, -1)
        if relevance_QK is not None:
            scores_SH = np.concatenate((scores_SH, relevance_QK.reshape(1, -1)))
        data_B, starts_H = self._put_one(number, rows_H, scores_SH, self._score_head)
        if (self._names or self._sparse) and len(starts_H):
            numbers_H = np.full(rows_QK.size, number, np.int64)
            data_B, starts_H = self._with_named(data_B, starts_H, numbers_H, rows_H, None)
        if queries == 1:
            return WrittenHits(data_B, None)
        return WrittenHits(data_B, _bounds(data_B, starts_H, k * np.arange(1, queries + 1)))

    def datapoints(self, locations: Sequence[tuple[int, int]]) -> list[Datapoint]:
        """Return the datapoints at (segment number, row), in their order."""
        if not locations:
            return []
        numbers, rows = np.ascontiguousarray(np.array(locations, np.int64).T)
        serialized = self.hits([Ranking(numbers, rows, np.zeros(len(rows), np.float32))])
        return [hit.datapoint for hit in HitList.FromString(serialized.whole()).hits]

    def datapoint_fields(self, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
        """Return datapoints as fields of a ScanResponse, uint8; also where each starts, and the end, int64 (H + 1,).

        Raises:
            InvalidRequestError: they have more than MAX_ANSWER_BYTES.

        """
        data_B, starts_H = self._put(ranking, np.zeros((0, len(ranking)), np.float32), _NOTHING)
        if self._names or self._sparse:
            data_B, starts_H = self._with_named(
                data_B, starts_H, ranking.segments, ranking.rows, None, as_hits=False
            )
        return data_B, np.append(starts_H - starts_H[0], len(data_B))

    def _is_alone(self, whole: Ranking) -> bool:
        """Return whether each hit has one named score, which is its score: none is of a search with words."""
        if whole.by_vector is None or len(self._scored) != 1 or whole.base is not None:
            return False
        return whole.dense is None and whole.lexical is None and not np.isnan(whole.by_vector).any()

    def _put(
        self, whole: Ranking, scores_SH: np.ndarray, named_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what `_put_one` does, of any number of segments."""
        first = whole.segments[0]
        if len(self._segments) == 1 or (whole.segments == first).all():
            return self._put_one(int(first), whole.rows, scores_SH, named_B)
        sizes_H, parts, size = np.empty(len(whole), np.int64), [], 0
        for number in np.unique(whole.segments).tolist():
            places_P = np.flatnonzero(whole.segments == number)
            part_SP = np.ascontiguousarray(scores_SH[:, places_P])
            part_B, starts_P = self._put_one(number, whole.rows[places_P], part_SP, named_B)
            sizes_H[places_P] = np.diff(starts_P, append=starts_P[0] + len(part_B))
            parts.append((part_B, starts_P, places_P))
            size += len(part_B)
            if size > MAX_ANSWER_BYTES:
                raise _too_large()
        ends_H = np.cumsum(sizes_H)
        out_B = np.empty(size, np.uint8)
        for part in parts:
            wire_kernels.put_in_order(*part, ends_H, out_B)
        return out_B, ends_H - sizes_H

    def _with_named(
        self,
        data_B: np.ndarray,
        starts_H: np.ndarray,
        numbers_H: np.ndarray,
        rows_H: np.ndarray,
        by_vector_HS: np.ndarray | None,
        *,
        as_hits: bool = True,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return hits, or datapoints if not `as_hits`, with named and sparse vectors, and scores by named ones."""
        of_datapoints = of_hits = NO_FIELDS
        if self._names:
            if len(data_B) + vector_bytes(self._segments, numbers_H) > MAX_ANSWER_BYTES:
                raise _too_large()
            of_datapoints = vector_fields(self._segments, self._names, numbers_H, rows_H)
        if self._sparse:
            of_datapoints = joined_fields(of_datapoints, sparse_fields(self._segments, numbers_H, rows_H))
            if len(data_B) + len(of_datapoints.data_B) > MAX_ANSWER_BYTES:
                raise _too_large()
        if self._scored and by_vector_HS is not None:
            of_hits = score_fields(self._scored, by_vector_HS)
        return with_fields(data_B, starts_H, of_datapoints, of_hits, whole=as_hits)

    def _put_one(
        self, number: int, rows_H: np.ndarray, scores_SH: np.ndarray, named_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return hits of one segment on the wire, and where each of them starts in a buffer that ends with them."""
        layout = self._layouts.get(number)
        if layout is None:
            layout, rows_H = self._layout(number, rows_H)
        starts_H = np.empty(len(rows_H), np.int64)
        size, first = max(FIRST_BYTES, HIT_BYTES * len(rows_H)), -1
        while first < 0:
            out_B = np.empty(size, np.uint8)
            first, least = wire_kernels.write_hits(
                *layout, named_B, rows_H, scores_SH.view(np.uint32), starts_H, out_B
            )
            if (least if first < 0 else size - first) > MAX_ANSWER_BYTES:
                raise _too_large()
            size = max(size, -first)
        return out_B[first:], starts_H

    def _layout(self, number: int, rows: np.ndarray) -> tuple[_Layout, np.ndarray]:
        """Return where the fields of a segment lie, and the number that each row has there."""
        segment = self._segments[number]
        has_dynamic = self._fields.dynamic and DYNAMIC_COLUMN in segment.table.column_names
        if has_dynamic and self._fields.dynamic_names:
            return self._cut(segment, rows)
        if segment.records.in_one_piece and not (self._fields.vector and segment.reads_given):
            layout = self._layouts[number] = self._laid_out(segment.records, segment.given_ND)
            return layout, rows
        # More than 2 GB of text: Arrow holds it in pieces, and so the rows wanted are put into one first. Or vectors
        # that must be read from the store.
        few = Records.of(segment.take(rows))
        return self._laid_out(few, self._vectors(segment, rows)), np.arange(len(rows))

    def _cut(self, segment: Segment, rows: np.ndarray) -> tuple[_Layout, np.ndarray]:
        """Return the layout of a copy of some rows, with some of their dynamic attributes only."""
        table = segment.take(rows)
        cut = some_dynamic(table.column(DYNAMIC_COLUMN), self._fields.dynamic_names)
        table = table.set_column(table.schema.get_field_index(DYNAMIC_COLUMN), DYNAMIC_COLUMN, cut)
        return self._laid_out(Records.of(table), self._vectors(segment, rows)), np.arange(len(rows))

    def _vectors(self, segment: Segment, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of some rows as they were given, read-only; (P, 0) if none are written."""
        if not self._fields.vector:
            return no_vectors(len(rows))  # they may be in the store
        vectors_PD = segment.vectors(rows)
        vectors_PD.setflags(write=False)
        return vectors_PD

    def _laid_out(self, records: Records, vectors_ND: np.ndarray) -> _Layout:
        heads, fields, attributes = bytearray(), self._fields, self._spec.attributes
        # Without the columns that the segment lacks: the revision in one of a build, attributes that are newer. Also
        # without those that have no value in any row: to look for one in each row took a third of the time of a scan.
        stored = {name for name in records.table.column_names if records.has_values(name)}
        columns = [_field(records, name, heads) for name in _columns(fields) if name in stored]
        columns += [
            _attribute(records, name, attributes[name], heads) for name in fields.attributes if name in stored
        ]
        groups = []
        if self._group_by is not None and self._group_by in stored:
            kind = attributes.get(self._group_by, "string")
            groups.append(_attribute(records, self._group_by, kind, heads))
        return _Layout(
            *records.views,
            np.array(columns, np.int64).reshape(-1, 7),
            np.array(groups, np.int64).reshape(-1, 7),
            np.frombuffer(bytes(heads), np.uint8),
            vectors_ND.view(np.uint8) if fields.vector and vectors_ND.shape[1] else _NO_VECTORS,
        )


def warm_up(segments: Sequence[Segment], spec: IndexSpec) -> None:
    """Compile the kernels that every query needs, or load them from numba's cache, before the first query."""
    if spec.dynamic:
        dynamic.warm_up()
    nothing = Fields(title=False, text=False, payload=False, offsets=False, attributes=(), vector=False)
    if segments and segments[0].rows:
        with COMPILING:
            vector_11 = np.frombuffer(bytes(4), np.float32)[None]
            fused.surely_valid(vector_11)
            fused.unit_vectors(vector_11, np.empty_like(vector_11))
            rows_21, scores_21 = np.zeros((2, 1), np.int64), np.zeros((2, 1), np.float32)
            scored = tuple(spec.named_vectors)[:1]
            hydrator = Hydrator(segments, spec, nothing, group_by=None, scored=scored)
            hydrator.block(0, rows_21, scores_21).framed(1)


def _too_large() -> InvalidRequestError:
    return InvalidRequestError(
        f"the answer would have more than {MAX_ANSWER_BYTES >> 20} MiB; ask for fewer hits, or for fewer fields",
        field="k",
    )


class _Layout(NamedTuple):
    """Where the kernels find in a segment what an answer carries: the first arguments of `write_hits`."""

    bytes_B: np.ndarray
    ints_B: np.ndarray
    longs_B: np.ndarray
    columns_C7: np.ndarray
    groups_G7: np.ndarray
    heads_B: np.ndarray
    vectors_NV: np.ndarray


def _bounds(data_B: np.ndarray, starts_H: np.ndarray, ends_Q: np.ndarray) -> np.ndarray:
    """Return where the hits of each query start, and at last where those of the last one end: int64 (Q + 1,)."""
    first = starts_H[0] if len(starts_H) else 0
    bounds_H = np.append(starts_H - first, len(data_B))
    bounds_L: np.ndarray = bounds_H[np.concatenate([[0], ends_Q])]
    return bounds_L


def _scores(whole: Ranking) -> np.ndarray:
    """Return `score` and, if there are any, the other scores of hits: float32 (S, H), as `write_hits` takes them."""
    optional = [whole.dense, whole.lexical, whole.rerank]
    if whole.base is not None:
        optional += [whole.relevance, whole.base]
    kinds = [whole.scores]
    if any(scores is not None for scores in optional):
        none_H = np.full(len(whole), np.nan, np.float32)
        kinds += [none_H if scores is None else scores for scores in optional]
    if whole.relevance is not None and whole.base is None:
        kinds.append(whole.relevance)
    return np.stack(kinds) if len(kinds) > 1 else np.ascontiguousarray(whole.scores[None])


def _columns(fields: Fields) -> list[str]:
    offsets = _OFFSETS if fields.offsets else ()
    return [
        "id",
        "document_id",
        *(name for name in ("title", "text", "payload") if getattr(fields, name)),
        *offsets,
        REVISION_COLUMN,
        *([DYNAMIC_COLUMN] if fields.dynamic else []),
    ]


def _field(records: Records, name: str, heads: bytearray) -> list[int]:
    number, kind, wire_type = _FIELDS[name]
    return _described(records, name, kind, bytes([number << 3 | wire_type]), heads)


def _attribute(records: Records, name: str, kind: AttributeType, heads: bytearray) -> list[int]:
    return _described(records, name, wire_kernels.VALUE_KINDS[kind], framed(_ENTRY_KEY, name.encode()), heads)


def _described(records: Records, name: str, kind: int, head: bytes, heads: bytearray) -> list[int]:
    at = len(heads)
    heads += head
    return [kind, at, len(head), *records.address(name)]
