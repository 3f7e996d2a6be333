"""What calls return: plain immutable objects; messages of the wire stay inside."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from scannery.client.errors import ScanneryError
from scannery.v1 import embedding_pb2, index_pb2, search_pb2, types_pb2

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = [
    "AttributeValue",
    "Datapoint",
    "Deleted",
    "EncoderInfo",
    "Explanation",
    "Hit",
    "Hits",
    "IndexInfo",
    "RecallInfo",
    "SegmentInfo",
    "SegmentPlan",
    "Written",
    "parse_found",
    "parse_get",
    "parse_hits",
    "parse_index",
    "parse_many",
]

AttributeValue: TypeAlias = str | list[str] | int | float | bool | dt.datetime
"""Timestamps are datetimes with the time zone UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Datapoint:
    """One row of an index."""

    id: str
    document_id: str
    """The document it is a passage of; the id itself where documents are not cut."""
    title: str | None = None
    text: str | None = None
    """The passage."""
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    """Without those that are not set."""
    payload: Any = None
    """Parsed JSON."""
    text_start: int | None = None
    """Where the passage lies in the document's text, in characters: `text[text_start:text_end]`."""
    text_end: int | None = None
    time_start_s: float | None = None
    """Where it lies in the recording, in seconds."""
    time_end_s: float | None = None
    revision: int = 0
    """Sequence of the mutation that wrote it; 0 where it came from a build."""
    vector: np.ndarray | None = field(default=None, compare=False, repr=False)
    """float32 `(dimensions,)`, read-only; only if asked for. Not part of the comparison of two objects."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Answers set what they carry, and no more: to set all fields would take longer than everything else.
            if name == "attributes":
                object.__setattr__(self, name, {})
                return self.attributes
            try:
                return _DEFAULTS[name]
            except KeyError:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit(Datapoint):
    """A datapoint that a search found."""

    score: float
    """Bigger is better. Cosine and dot: the inner product; squared_l2: minus the squared distance. Lexical: BM25.
    Hybrid: what `fusion` makes of both."""
    dense_score: float | None = None
    """Hybrid: the score by vector, if that side found it."""
    lexical_score: float | None = None
    """Hybrid: the BM25 score, if the lexical side found it."""
    rerank_score: float | None = None
    """The cross-encoder's score, if it looked at this hit; hits with one come first, by it."""
    group: AttributeValue | None = None
    """What `max_per_group` grouped by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan:
    """What was done in one segment."""

    segment: str
    """First 12 digits of its hash."""
    shard: int
    plan: str
    """`scann`; `exact`; with a filter `exact_allowed` (all allowed rows), `leaves` (allowed rows of the nearest
    leaves), `scann_allowed` (more candidates than needed, checked), or `none` (no vectors were compared)."""
    rows: int
    rows_allowed: int
    """By the filter."""
    leaves_searched: int
    """0 where there are none, or all rows were compared."""
    candidates: int
    """Rows that were compared by their vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How a query was answered."""

    segments: tuple[SegmentPlan, ...]
    stages_us: dict[str, int]
    """Microseconds by stage, in the order of the work; of a batch, those of all queries with the same filter."""
    expected_recall: float


class Hits(list[Hit]):
    """The hits of one query, best first, and the snapshot that answered it."""

    version: int = 0
    """Version of the index."""
    sequence: int = 0
    """Mutations up to this sequence were visible."""
    explanation: Explanation | None = None
    """If asked for with `explain`."""

    def to_arrow(self) -> pa.Table:
        """Return the hits as an Arrow table: a column for each field, and one for each attribute by its name.

        An attribute that is called like a field is prefixed with `attribute_`. A payload is JSON. Needs `pyarrow`.
        """
        from scannery.client.tables import hits_table

        return hits_table(self)

    def to_pandas(self) -> pd.DataFrame:
        """Return the hits as a data frame, with the columns of `to_arrow`. Needs `pandas`."""
        return self.to_arrow().to_pandas()


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that is durable."""

    sequence: int
    """Its position in the log. Later calls of the same client see it; others can ask for it with `min_sequence`."""
    written: int
    """Datapoints: passages, where texts are cut."""


@dataclass(frozen=True, slots=True)
class NotWritten:
    """A datapoint of a bulk upsert that was not written, or of which that is not known."""

    position: int
    """Among all that were given, from 0."""
    id: str
    """Empty if it had none."""
    error: ScanneryError
    """Why; after an UnavailableError or a DeadlineExceededError it may have been written all the same."""


@dataclass(frozen=True, slots=True)
class BulkWritten:
    """What a bulk upsert did. All of it is durable."""

    sequence: int
    """Of its last batch, as in Written."""
    written: int
    """Datapoints: passages, where texts are cut."""
    failed: tuple[NotWritten, ...]
    """By position; only with `errors="return"`."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deletion that is durable."""

    sequence: int
    """As in Written."""
    deleted: int
    """Datapoints that were there and are not any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInfo:
    """The model that encodes texts."""

    model: str
    fingerprint: str
    """Hash over everything that decides on its vectors; empty where that is not known."""
    dimensions: int | None = None
    """Components of a vector; None in the description of an index, which has them itself."""
    max_tokens: int | None = None
    """Tokens after which a text is cut off; None where the server that was asked has not loaded it."""
    device: str | None = None
    """What it runs on, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallInfo:
    """What was measured after the build."""

    k: int
    target: float
    measured: float
    reached: bool
    """False: in some segment no setting reaches the target, and it is searched exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment file."""

    key: str
    shard: int
    rows: int
    size_bytes: int
    kind: str
    """`exact` or `scann`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexInfo:
    """What an index is, as it is being served."""

    name: str
    version: int
    created_at: dt.datetime
    rows: int
    dimensions: int
    distance: Literal["cosine", "dot", "squared_l2"]
    attributes: dict[str, str]
    """Name → `string`, `string_list`, `int`, `float`, `bool` or `timestamp`."""
    lexical: bool
    encoder: EncoderInfo | None
    shards: int
    size_bytes: int
    sequence: int
    """Mutations up to this one are visible."""
    memory_rows: int
    """Datapoints, among `rows`, that are in no segment yet."""
    recall: RecallInfo | None
    """None where nothing was measured: segments that are searched exactly have recall 1."""
    segments: tuple[SegmentInfo, ...]
    """Empty in a list of indexes."""
    spec: dict[str, Any]
    """Empty in a list of indexes."""
    problem: str = ""
    """What is wrong while the index answers: a later version that cannot be opened, say. Empty: nothing."""


PointT = TypeVar("PointT", bound=Datapoint)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def parse_hits(response: search_pb2.SearchResponse) -> Hits:
    """Return the hits of a response."""
    return parse_found(response, response.version, response.sequence)


def parse_found(message: search_pb2.SearchResponse | search_pb2.HitList, version: int, sequence: int) -> Hits:
    """Return the hits of one query, and the snapshot that answered it."""
    hits = Hits(map(_hit, message.hits))
    hits.version, hits.sequence = version, sequence
    if message.HasField("explanation"):
        hits.explanation = _explanation(message.explanation)
    return hits


def parse_many(response: search_pb2.SearchManyResponse) -> list[Hits]:
    """Return the hits of each query of a response."""
    return [parse_found(result, response.version, response.sequence) for result in response.results]


def parse_get(ids: Iterable[str], response: search_pb2.GetResponse) -> list[Datapoint | None]:
    """Return one datapoint per id, None where there is none."""
    found = {point.id: _datapoint(point) for point in response.datapoints}
    return [found.get(identifier) for identifier in ids]


def parse_embed(response: embedding_pb2.EmbedResponse) -> np.ndarray:
    """Return the vectors of a response, float32 (texts, dimensions)."""
    vectors = response.vectors
    return np.frombuffer(vectors.packed, dtype="<f4").reshape(-1, vectors.dimensions).astype(np.float32)


def parse_encoders(response: embedding_pb2.ListEncodersResponse) -> list[EncoderInfo]:
    """Return the encoders of a response."""
    return [
        EncoderInfo(
            model=one.model,
            fingerprint=one.fingerprint,
            dimensions=one.dimensions,
            max_tokens=one.max_tokens or None,
            device=one.device or None,
        )
        for one in response.encoders
    ]


def parse_index(message: index_pb2.IndexInfo) -> IndexInfo:
    """Return the description of an index."""
    recall, encoder = message.recall, message.encoder
    return IndexInfo(
        name=message.name,
        version=message.version,
        created_at=message.created_at.ToDatetime(tzinfo=dt.timezone.utc),
        rows=message.rows,
        dimensions=message.dimensions,
        distance=_DISTANCES[message.distance],
        attributes={
            name: index_pb2.AttributeType.Name(kind).removeprefix("ATTRIBUTE_TYPE_").lower()
            for name, kind in sorted(message.attributes.items())
        },
        lexical=message.lexical,
        encoder=EncoderInfo(model=encoder.model, fingerprint=encoder.fingerprint)
        if message.HasField("encoder")
        else None,
        shards=message.shards,
        size_bytes=message.size_bytes,
        sequence=message.sequence,
        memory_rows=message.memory_rows,
        recall=RecallInfo(k=recall.k, target=recall.target, measured=recall.measured, reached=recall.reached)
        if message.HasField("recall")
        else None,
        segments=tuple(
            SegmentInfo(key=s.key, shard=s.shard, rows=s.rows, size_bytes=s.size_bytes, kind=s.kind)
            for s in message.segments
        ),
        spec=json.loads(message.spec_json) if message.spec_json else {},
        problem=message.problem,
    )


_DISTANCES: dict[int, Literal["cosine", "dot", "squared_l2"]] = {
    index_pb2.DISTANCE_COSINE: "cosine",
    index_pb2.DISTANCE_DOT: "dot",
    index_pb2.DISTANCE_SQUARED_L2: "squared_l2",
}


def _explanation(message: search_pb2.Explanation) -> Explanation:
    return Explanation(
        segments=tuple(
            SegmentPlan(
                segment=plan.segment,
                shard=plan.shard,
                plan=plan.plan,
                rows=plan.rows,
                rows_allowed=plan.rows_allowed,
                leaves_searched=plan.leaves_searched,
                candidates=plan.candidates,
            )
            for plan in message.segments
        ),
        stages_us={stage.stage: stage.duration_us for stage in message.stages},
        expected_recall=message.expected_recall,
    )


def _hit(message: search_pb2.Hit) -> Hit:
    hit = _new(Hit)
    _fill(hit, message)
    return hit


def _datapoint(message: types_pb2.Datapoint) -> Datapoint:
    point = _new(Datapoint)
    _fill(point, message)
    return point


def _fill(point: Datapoint, message: search_pb2.Hit | types_pb2.Datapoint) -> None:
    for descriptor, value in message.ListFields():
        _SETTERS[descriptor](point, value)


_new: Callable[[type[PointT]], PointT] = object.__new__
"""Without the fields that an answer leaves out."""


def _attributes(values: Mapping[str, types_pb2.Value]) -> dict[str, AttributeValue]:
    pairs = ((name, _value(values[name])) for name in sorted(values))
    return {name: value for name, value in pairs if value is not None}


def _array(message: types_pb2.Vector) -> np.ndarray:
    return np.frombuffer(message.packed, dtype="<f4")


def _value(message: types_pb2.Value) -> AttributeValue | None:
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "string_list_value":
        return list(message.string_list_value.values)
    if kind == "timestamp_value":
        stamp = message.timestamp_value
        return _EPOCH + dt.timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
    value: AttributeValue = getattr(message, kind)
    return value


_CONVERTED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "attributes": ("attributes", _attributes),
    "payload_json": ("payload", json.loads),
    "vector": ("vector", _array),
    "group": ("group", _value),
}
"""Fields of the wire that are not taken as they are: what they are called here, and how they become that."""


def _setter(descriptor: FieldDescriptor) -> Callable[[Any, Any], None]:
    """Return what puts the value of a field of the wire into a point."""
    if descriptor.name == "datapoint":
        return _fill
    if descriptor.name == "sparse_vector":
        return _ignore  # answers have none
    name, convert = _CONVERTED.get(descriptor.name, (descriptor.name, None))
    # A slot's own setter: what a frozen class refuses is only `point.name = value`.
    put: Callable[[Any, Any], None] = getattr(Hit, name).__set__
    return put if convert is None else lambda point, value: put(point, convert(value))


def _ignore(point: Datapoint, value: object) -> None:
    pass


_SETTERS: dict[FieldDescriptor, Callable[[Any, Any], None]] = {
    descriptor: _setter(descriptor)
    for message in (search_pb2.Hit, types_pb2.Datapoint)
    for descriptor in message.DESCRIPTOR.fields
}
_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Hit) if each.default is not MISSING}
_DEFAULTS |= {"id": "", "document_id": "", "score": 0.0}
"""The wire leaves out what is empty or 0."""
