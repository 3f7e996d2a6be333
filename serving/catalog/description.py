"""Descriptions of indexes as Protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from scannery.indexer import AttributeType, Distance, Manifest, MemorySegment
from scannery.indexer.manifest import Recall
from scannery.indexer.tuning.settings_choice import TUNED_K, expected_searches, named_recalls
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import index_pb2 as pb

__all__ = ["IndexCounts", "index_info", "memory_rows", "version_info"]


@dataclass(frozen=True)
class IndexCounts:
    """Current counts of an index."""

    rows: int
    """Live datapoints."""
    memory_rows: int
    """Those of them in memtables."""
    vectors: Mapping[str, int]
    """Vectors of each name."""
    sequence: int
    """The last mutation that is counted."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> IndexCounts:
        """Return the counts of a snapshot."""
        vectors = {name: snapshot.space(name).index.rows for name in snapshot.manifest.named_vectors}
        return cls(snapshot.rows, memory_rows(snapshot), vectors, snapshot.sequence)


def index_info(
    manifest: Manifest,
    *,
    details: bool,
    narrowed: bool = False,
    counts: IndexCounts | None = None,
    problem: str = "",
    aliases: Sequence[str] = (),
) -> pb.IndexInfo:
    """Return the description of an index.

    Args:
        manifest: of the version.
        details: whether segments and spec are included.
        narrowed: whether the caller sees a part of the index: sizes and segments are those of all of it.
        counts: current ones, of what the caller sees; None: those of the manifest.
        problem: current error of the index; empty: none.
        aliases: names that stand for it.

    """
    if narrowed:
        counts = counts or IndexCounts(0, 0, {}, manifest.log_sequence)
    spec, recalls = manifest.spec, named_recalls(manifest)
    info = pb.IndexInfo(
        name=manifest.index,
        version=manifest.version,
        rows=manifest.rows if counts is None else counts.rows,
        dimensions=manifest.dimensions,
        distance=_DISTANCES[spec.distance],
        attributes={name: _TYPES[kind] for name, kind in spec.attributes.items()},
        lexical=spec.lexical is not None,
        encoder=_encoder(manifest),
        shards=manifest.shards,
        size_bytes=0 if narrowed else manifest.size_bytes,
        sequence=manifest.log_sequence if counts is None else counts.sequence,
        memory_rows=0 if counts is None else counts.memory_rows,
        recall=_recall(manifest.recall) if manifest.dimensions else None,
        problem=problem,
        aliases=aliases,
        dynamic=spec.dynamic,
        named_vectors={name: _named(manifest, name, recall, counts) for name, recall in recalls.items()},
    )
    info.created_at.FromDatetime(manifest.created_at)
    if details and not narrowed:
        info.segments.extend(
            pb.SegmentInfo(
                key=entry.key,
                shard=entry.shard,
                rows=entry.live_rows,
                size_bytes=entry.size_bytes,
                kind=entry.kind,
            )
            for entry in manifest.segments
        )
    if details:
        info.spec_json = spec.model_dump_json()
    return info


def version_info(manifest: Manifest, *, current: bool, details: bool) -> pb.VersionInfo:
    """Return the description of a version.

    Args:
        manifest: of the version.
        current: whether it is the newest.
        details: whether spec and curves are included.

    """
    statistics = manifest.statistics
    info = pb.VersionInfo(
        version=manifest.version,
        current=current,
        parent=manifest.parent or 0,
        rows=manifest.rows,
        segments=len(manifest.segments),
        size_bytes=manifest.size_bytes,
        kind=str(statistics.get("mode", "")),
        content_of=statistics.get("content_of", 0),
        recall=_recall(manifest.recall) if manifest.dimensions else None,
    )
    info.created_at.FromDatetime(manifest.created_at)
    if details:
        info.spec_json = manifest.spec.model_dump_json()
        info.curves.extend(curve for name in manifest.vectors if (curve := _curve(manifest, name)).points)
    return info


def _curve(manifest: Manifest, name: str) -> pb.RecallCurve:
    segments = manifest.of_vectors(name).segments
    searches = expected_searches(segments, manifest.spec.target_recall)
    return pb.RecallCurve(
        name=name,
        k=TUNED_K,
        rows=sum(entry.live_rows for entry in segments),
        points=[pb.RecallPoint(**asdict(each)) for each in searches],
    )


def memory_rows(snapshot: Snapshot | None) -> int:
    """Return the number of datapoints in memtables; 0 without a snapshot."""
    if snapshot is None:
        return 0
    parts = zip(snapshot.segments, snapshot.alive, strict=True)
    return sum(
        segment.rows if alive is None else alive.count
        for segment, alive in parts
        if isinstance(segment, MemorySegment)
    )


def _encoder(manifest: Manifest) -> pb.EncoderInfo | None:
    if manifest.spec.encoder is None:
        return None
    return pb.EncoderInfo(
        model=manifest.spec.encoder.model,
        fingerprint=(manifest.encoder or {}).get("digest", ""),
        query_model=manifest.spec.encoder.query_model or "",
        query_fingerprint=(manifest.query_encoder or {}).get("digest", ""),
    )


def _recall(recall: Recall | None) -> pb.RecallInfo | None:
    if recall is None:
        return None
    return pb.RecallInfo(k=recall.k, target=recall.target, measured=recall.measured, reached=recall.reached)


def _named(manifest: Manifest, name: str, recall: Recall, counts: IndexCounts | None) -> pb.NamedVectorInfo:
    """Return the description of the vectors of a name and of their expected recall."""
    vectors = manifest.of_vectors(name)
    rows = sum(entry.rows for entry in vectors.segments) if counts is None else counts.vectors.get(name, 0)
    encoder = _encoder(vectors)
    return pb.NamedVectorInfo(
        dimensions=vectors.dimensions,
        distance=_DISTANCES[vectors.spec.distance],
        encoder=encoder,
        rows=rows,
        recall=_recall(recall) if any(entry.curve for entry in vectors.segments) else None,
        **({"from": manifest.spec.text_field(name)} if encoder is not None else {}),
    )


_DISTANCES: dict[Distance, pb.Distance.ValueType] = {
    "cosine": pb.DISTANCE_COSINE,
    "dot": pb.DISTANCE_DOT,
    "squared_l2": pb.DISTANCE_SQUARED_L2,
}
_TYPES: dict[AttributeType, pb.AttributeType.ValueType] = {
    "string": pb.ATTRIBUTE_TYPE_STRING,
    "string_list": pb.ATTRIBUTE_TYPE_STRING_LIST,
    "int": pb.ATTRIBUTE_TYPE_INT,
    "float": pb.ATTRIBUTE_TYPE_FLOAT,
    "bool": pb.ATTRIBUTE_TYPE_BOOL,
    "timestamp": pb.ATTRIBUTE_TYPE_TIMESTAMP,
    "geo": pb.ATTRIBUTE_TYPE_GEO,
}
