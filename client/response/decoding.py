"""From messages of the wire to what calls return."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from scannery.client.errors import InternalError
from scannery.client.response.index_info import (
    EncoderInfo,
    IndexInfo,
    Migration,
    NamedVectorInfo,
    RecallCurve,
    RecallInfo,
    RecallPoint,
    SegmentInfo,
    VersionInfo,
)
from scannery.client.response.results import (
    AttributeValue,
    Context,
    Coverage,
    Datapoint,
    Explanation,
    Hit,
    Hits,
    RankerPlan,
    RankingPlan,
    ScanPage,
    SegmentPlan,
    Snippet,
    VectorMapping,
    new_point,
    put_message,
    undecoded,
)
from scannery.runtime.search_modes import FusionMethod, Mode
from scannery.v1 import embedding_pb2, index_pb2, search_pb2, types_pb2

__all__ = [
    "parse_embed",
    "parse_encoders",
    "parse_explanation",
    "parse_get",
    "parse_hit",
    "parse_hits",
    "parse_index",
    "parse_many",
    "parse_migration",
    "parse_page",
    "parse_value",
    "parse_vectors",
    "parse_version",
]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def parse_hits(response: search_pb2.SearchResponse) -> Hits:
    """Return the hits of a response."""
    hits = _hits(response, response.version, response.sequence, response.mode)
    if response.HasField("coverage"):
        hits.coverage = _coverage(response.coverage)
    if response.query_id:
        hits.query_id = response.query_id
    return hits


def _hits(
    message: search_pb2.SearchResponse | search_pb2.HitList, version: int, sequence: int, mode: int
) -> Hits:
    hits = undecoded(message, version, sequence, _MODES.get(mode))
    if message.HasField("explanation"):
        hits.explanation = parse_explanation(message.explanation)
    return hits


def parse_many(response: search_pb2.SearchManyResponse) -> list[Hits]:
    """Return the hits of each query of a response."""
    results, modes = response.results, response.modes
    each = modes if len(modes) == len(results) else [modes[0] if modes else 0] * len(results)
    version, sequence = response.version, response.sequence
    if results and results[0].HasField("explanation"):  # then all have one
        hit_lists = [
            _hits(result, version, sequence, mode) for result, mode in zip(results, each, strict=True)
        ]
    else:
        hit_lists = [
            undecoded(result, version, sequence, _MODES.get(mode))
            for result, mode in zip(results, each, strict=True)
        ]
    if response.HasField("coverage"):
        coverage = _coverage(response.coverage)
        for hits in hit_lists:
            hits.coverage = coverage
    for hits, query_id in zip(hit_lists, response.query_ids, strict=False):
        hits.query_id = query_id
    return hit_lists


def parse_get(ids: Iterable[str], response: search_pb2.GetResponse) -> list[Datapoint | None]:
    """Return one datapoint per id, None where there is none."""
    by_id = {point.id: _datapoint(point) for point in response.datapoints}
    return [by_id.get(identifier) for identifier in ids]


def parse_page(response: search_pb2.ScanResponse) -> ScanPage:
    """Return a page of a scan; its datapoints are decoded when a field of them is first read.

    Raises:
        InternalError: the position of the page cannot be read.

    """
    snapshot, _, position = response.page_token.rpartition(".")
    if not (position.isascii() and position.isdigit() and len(position) < 20):
        raise InternalError(
            f"the server answered with a page_token that cannot be read: {response.page_token!r:.80}"
        )
    return ScanPage(
        points=map(_undecoded, response.datapoints),
        size=len(response.datapoints),
        snapshot=snapshot,
        position=int(position),
        next_token=response.next_page_token,
        total=response.total,
        version=response.version,
        sequence=response.sequence,
        index_name=response.index,
    )


def parse_embed(response: embedding_pb2.EmbedResponse) -> np.ndarray:
    """Return the vectors of a response, float32 (texts, dimensions)."""
    return parse_vectors(response.vectors)


def parse_vectors(message: types_pb2.Matrix) -> np.ndarray:
    """Return vectors, float32 (vectors, dimensions), or (0, 1) without any; InternalError if they cannot be read."""
    packed, dimensions = message.packed, message.dimensions
    if packed and (not dimensions or len(packed) % (4 * dimensions)):
        raise InternalError(
            f"the server answered with vectors that cannot be read: {len(packed)} bytes, {dimensions} dimensions"
        )
    return np.frombuffer(packed, "<f4").reshape(-1, dimensions or 1).astype(np.float32)


def parse_encoders(response: embedding_pb2.ListEncodersResponse) -> list[EncoderInfo]:
    """Return the encoders of a response."""
    return [
        EncoderInfo(
            model=encoder.model,
            fingerprint=encoder.fingerprint,
            dimensions=encoder.dimensions or None,
            max_tokens=encoder.max_tokens or None,
            device=encoder.device or None,
        )
        for encoder in response.encoders
    ]


def parse_index(message: index_pb2.IndexInfo) -> IndexInfo:
    """Return the description of an index."""
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
        encoder=_encoder(message),
        shards=message.shards,
        size_bytes=message.size_bytes,
        sequence=message.sequence,
        memory_rows=message.memory_rows,
        recall=_recall(message),
        segments=tuple(
            SegmentInfo(key=s.key, shard=s.shard, rows=s.rows, size_bytes=s.size_bytes, kind=s.kind)
            for s in message.segments
        ),
        spec=json.loads(message.spec_json) if message.spec_json else {},
        problem=message.problem,
        aliases=tuple(message.aliases),
        dynamic=message.dynamic,
        named_vectors={
            name: _named_vectors(message.named_vectors[name]) for name in sorted(message.named_vectors)
        },
    )


def parse_version(message: index_pb2.VersionInfo) -> VersionInfo:
    """Return the description of a version."""
    utc = dt.timezone.utc
    return VersionInfo(
        version=message.version,
        current=message.current,
        parent=message.parent or None,
        created_at=message.created_at.ToDatetime(tzinfo=utc) if message.HasField("created_at") else None,
        rows=message.rows,
        segments=message.segments,
        size_bytes=message.size_bytes,
        kind=message.kind,
        content_of=message.content_of or None,
        recall=_recall(message),
        problem=message.problem,
        spec=json.loads(message.spec_json) if message.spec_json else {},
        curves=tuple(
            RecallCurve(
                name=curve.name,
                k=curve.k,
                rows=curve.rows,
                points=tuple(
                    RecallPoint(
                        target=point.target,
                        recall=point.recall,
                        error=point.error,
                        query_us=point.query_us,
                        leaves=point.leaves,
                        exact_rows=point.exact_rows,
                    )
                    for point in curve.points
                ),
            )
            for curve in message.curves
        ),
    )


def parse_migration(message: index_pb2.Migration) -> Migration:
    """Return the state of a migration."""
    return Migration(
        index=message.index,
        version=message.version,
        model=message.model or None,
        dimensions=message.dimensions,
        mirror=message.mirror,
        mirror_model=message.mirror_model or None,
        mirror_dimensions=message.mirror_dimensions,
        goal=_GOALS.get(message.goal),
        filled=message.filled,
        exchanged=message.exchanged,
        reached=message.reached,
        converted=message.converted,
        to_convert=message.to_convert,
        rows_per_s=message.rows_per_second,
        seconds_left=message.seconds_left if message.HasField("seconds_left") else None,
        error=message.error,
    )


_GOALS: dict[int, Literal["switch", "mirror", "undo", "abandon"]] = {
    index_pb2.MIGRATION_GOAL_SWITCH: "switch",
    index_pb2.MIGRATION_GOAL_MIRROR: "mirror",
    index_pb2.MIGRATION_GOAL_UNDO: "undo",
    index_pb2.MIGRATION_GOAL_ABANDON: "abandon",
}


def _named_vectors(message: index_pb2.NamedVectorInfo) -> NamedVectorInfo:
    return NamedVectorInfo(
        dimensions=message.dimensions,
        distance=_DISTANCES[message.distance],
        encoder=_encoder(message),
        from_=getattr(message, "from") or None,
        rows=message.rows,
        recall=_recall(message),
    )


def _encoder(message: index_pb2.IndexInfo | index_pb2.NamedVectorInfo) -> EncoderInfo | None:
    encoder = message.encoder
    return (
        EncoderInfo(
            model=encoder.model,
            fingerprint=encoder.fingerprint,
            query_model=encoder.query_model or None,
            query_fingerprint=encoder.query_fingerprint or None,
        )
        if message.HasField("encoder")
        else None
    )


def _recall(
    message: index_pb2.IndexInfo | index_pb2.NamedVectorInfo | index_pb2.VersionInfo,
) -> RecallInfo | None:
    recall = message.recall
    if not message.HasField("recall"):
        return None
    return RecallInfo(k=recall.k, target=recall.target, measured=recall.measured, reached=recall.reached)


_DISTANCES: dict[int, Literal["cosine", "dot", "squared_l2"]] = {
    index_pb2.DISTANCE_COSINE: "cosine",
    index_pb2.DISTANCE_DOT: "dot",
    index_pb2.DISTANCE_SQUARED_L2: "squared_l2",
}


_MODES: dict[int, Mode] = {
    search_pb2.MODE_DENSE: "dense",
    search_pb2.MODE_LEXICAL: "lexical",
    search_pb2.MODE_HYBRID: "hybrid",
}
_METHODS: dict[int, FusionMethod] = {
    search_pb2.FUSION_METHOD_WEIGHTED_SCORE: "weighted_score",
    search_pb2.FUSION_METHOD_RECIPROCAL_RANK: "reciprocal_rank",
}


def _coverage(message: search_pb2.Coverage) -> Coverage:
    return Coverage(
        shards=message.shards,
        shards_answered=message.shards_answered,
        rows=message.rows,
        rows_answered=message.rows_answered,
    )


def parse_hit(message: search_pb2.Hit) -> Hit:
    """Return a hit, which is decoded when a field of it is first read."""
    hit = new_point(Hit)
    put_message(hit, message)
    return hit


def parse_explanation(message: search_pb2.Explanation) -> Explanation:
    """Return how a query was answered."""
    fused = message.HasField("fusion")
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
                predicted_us=plan.predicted_us,
                measured_us=plan.measured_us,
            )
            for plan in message.segments
        ),
        stages_us={stage.stage: stage.duration_us for stage in message.stages},
        expected_recall=message.expected_recall,
        target_recall=message.target_recall or None,
        effective_target_recall=message.effective_target_recall or None,
        recall_steps=message.recall_steps,
        mode=_MODES.get(message.mode),
        fusion=_METHODS.get(message.fusion.method) if fused else None,
        alpha=message.fusion.alpha if fused else None,
        expanded_words={each.word: each.pattern for each in message.expanded_words},
        phrases=tuple(message.phrases),
        ranking=_ranking_plan(message.ranking) if message.HasField("ranking") else None,
        ranker=RankerPlan(model=message.ranker.model, weights=dict(sorted(message.ranker.weights.items())))
        if message.HasField("ranker")
        else None,
        query_models=tuple(message.query_models),
        warnings=tuple(message.warnings),
        strangeness=message.strangeness if message.HasField("strangeness") else None,
        maps=tuple(map(_vector_mapping, message.maps)),
    )


def _vector_mapping(message: search_pb2.VectorMapping) -> VectorMapping:
    return VectorMapping(
        vectors=message.vectors,
        from_model=message.from_model,
        to_model=message.to_model,
        rows=message.rows,
        overlap=message.overlap,
        ndcg=message.ndcg if message.HasField("ndcg") else None,
        source_ndcg=message.source_ndcg if message.HasField("source_ndcg") else None,
    )


def _ranking_plan(message: search_pb2.RankingPlan) -> RankingPlan:
    bound = message.unseen_bound if message.HasField("unseen_bound") else None
    return RankingPlan(expression=message.expression, rows=message.rows, unseen_bound=bound)


def _datapoint(message: types_pb2.Datapoint) -> Datapoint:
    point = new_point(Datapoint)
    _fill(point, message)
    return point


def _undecoded(message: types_pb2.Datapoint) -> Datapoint:
    point = new_point(Datapoint)
    put_message(point, message)
    return point


def _fill(point: Datapoint, message: search_pb2.Hit | types_pb2.Datapoint) -> None:
    for descriptor, value in message.ListFields():
        _SETTERS[descriptor](point, value)


def _decode(point: Datapoint, message: search_pb2.Hit | types_pb2.Datapoint) -> None:
    """Set the fields of a datapoint that was handed out without them; InternalError if they cannot be read."""
    try:
        _fill(point, message)
    except ValueError as error:
        raise InternalError(f"the server answered with a datapoint that cannot be read: {error}") from error


Datapoint._decode = _decode


def _attributes(values: Mapping[str, types_pb2.Value]) -> dict[str, AttributeValue]:
    decoded: dict[str, AttributeValue] = {}
    for name in sorted(values):
        message, kind = values[name], _LIKELY.get(name)
        # Only the kind that is set has a value; to ask for it takes as long as to read it.
        if kind is not None and (value := getattr(message, kind)):
            decoded[name] = value
            continue
        value = parse_value(message)
        if value is not None:
            decoded[name] = value
            if type(value) in _SCALARS and name not in _LIKELY and len(_LIKELY) < MAX_LIKELY:
                _LIKELY[name] = _SCALARS[type(value)]
    return decoded


MAX_LIKELY = 4096
_LIKELY: dict[str, str] = {}
"""Kinds of attributes by name, as they were last time: most answers are of the same index."""
_SCALARS: dict[type, str] = {
    str: "string_value",
    int: "int_value",
    float: "float_value",
    bool: "bool_value",
}


def _array(message: types_pb2.Vector) -> np.ndarray:
    return np.frombuffer(message.packed, dtype="<f4")


def parse_value(message: types_pb2.Value) -> AttributeValue | None:
    """Return a value of an attribute; None for null."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "string_list_value":
        return list(message.string_list_value.values)
    if kind == "geo_value":
        return {"lat": message.geo_value.latitude, "lon": message.geo_value.longitude}
    if kind == "timestamp_value":
        stamp = message.timestamp_value
        return _EPOCH + dt.timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
    value: AttributeValue = getattr(message, kind)
    return value


def _context(message: search_pb2.HitContext) -> Context:
    return Context(
        text=message.text,
        start=message.start if message.HasField("start") else None,
        end=message.end if message.HasField("end") else None,
        time_start_s=message.time_start_s if message.HasField("time_start_s") else None,
        time_end_s=message.time_end_s if message.HasField("time_end_s") else None,
        ids=tuple(message.ids),
        tokens=message.tokens,
        cut=message.cut,
        within=message.within or None,
    )


_CONVERTED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "attributes": ("attributes", _attributes),
    "payload_json": ("payload", json.loads),
    "vector": ("vector", _array),
    "vectors": ("vectors", lambda vectors: {name: _array(vectors[name]) for name in sorted(vectors)}),
    "vector_scores": (
        "vector_scores",
        lambda scores: {name: scores[name] for name in scores},
    ),  # `dict` takes thrice as long
    "group": ("group", parse_value),
    "context": ("context", _context),
    "features": ("features", lambda features: dict(sorted(features.values.items()))),
}
"""Fields of the wire that are not taken as they are: what they are called here, and how they become that."""


def _setter(descriptor: FieldDescriptor) -> Callable[[Any, Any], None]:
    """Return what puts the value of a field of the wire into a point."""
    if descriptor.name == "datapoint":
        return _fill
    if descriptor.name == "sparse_vector":
        return _ignore
    if descriptor.name == "snippet":
        return _set_snippet
    if descriptor.name == "dynamic_json":
        return _add_dynamic
    name, convert = _CONVERTED.get(descriptor.name, (descriptor.name, None))
    # A slot's own setter: what a frozen class refuses is only `point.name = value`.
    put: Callable[[Any, Any], None] = getattr(Hit, name).__set__
    return put if convert is None else lambda point, value: put(point, convert(value))


def _ignore(point: Datapoint, value: object) -> None:
    pass


def _set_snippet(hit: Hit, message: search_pb2.Snippet) -> None:
    # Fields come by their numbers, so the datapoint is there already.
    snippet = Snippet(
        text=None if hit.text is None else hit.text[message.start : message.end],
        start=message.start,
        end=message.end,
        score=message.score if message.HasField("score") else None,
        words=tuple((word.start, word.end) for word in message.words),
    )
    _put_snippet(hit, snippet)


_put_snippet: Callable[[Hit, Snippet], None] = getattr(Hit, "snippet").__set__  # noqa: B009  mypy takes it for the value


def _add_dynamic(point: Datapoint, text: str) -> None:
    # Fields come by their numbers, so the declared attributes are there already. Not by `point.attributes`: of a
    # datapoint that has none of these and is decoded now, that would decode it again.
    try:
        declared = _ATTRIBUTES.__get__(point)
    except AttributeError:
        declared = {}
    _ATTRIBUTES.__set__(point, declared | json.loads(text))


_ATTRIBUTES: Any = vars(Datapoint)["attributes"]


_SETTERS: dict[FieldDescriptor, Callable[[Any, Any], None]] = {
    descriptor: _setter(descriptor)
    for message in (search_pb2.Hit, types_pb2.Datapoint)
    for descriptor in message.DESCRIPTOR.fields
}


def _text(hit: Hit, message: search_pb2.Hit) -> str | None:
    text = message.datapoint.text if message.datapoint.HasField("text") else None
    _put_text(hit, text)
    return text


_put_text: Callable[[Hit, str | None], None] = vars(Datapoint)["text"].__set__
Hit._peek = MappingProxyType({"text": _text})
