"""The manifest: one immutable JSON file per version of an index, which names all of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_serializer

from scannery.indexer.errors import CorruptError, FormatError
from scannery.indexer.shard_groups import Shards
from scannery.indexer.spec.model import Since, as_earlier
from scannery.indexer.spec.model_reference import stored_reference
from scannery.indexer.spec.spec import MAX_SHARDS, IndexSpec
from scannery.runtime.search_modes import Mode

__all__ = [
    "FORMAT_VERSION",
    "RERANK",
    "ConfigTrial",
    "CurvePoint",
    "DeletedRows",
    "DepthCurve",
    "FileTail",
    "FusionScales",
    "FusionWeight",
    "Manifest",
    "Mirror",
    "ModelCurve",
    "NamedModel",
    "Ranker",
    "Recall",
    "Relevance",
    "RelevanceCurve",
    "SegmentEntry",
    "TriedConfig",
    "VectorMap",
    "VectorModel",
    "VectorsInfo",
    "documents_in",
    "logistic",
    "marked_builds",
    "stored_vectors",
    "vectors_key",
]


FORMAT_VERSION = 1
"""Format of manifests and segments that this release writes; it reads 1 to this one."""


# Bounds above all that can be: processes count with these numbers in 64 bits, and shards one by one.
_Count = Annotated[int, Field(ge=0, lt=1 << 48)]
_Sequence = Annotated[int, Field(ge=0, lt=1 << 63)]
_MAX_DIMENSIONS = 1 << 20

_MARK = "version-"
"""Beginning of what is among the names of builds and is none."""

_SEAL = b',\n  "sha256": "'
"""Last key of a manifest: the SHA-256 of all bytes before it. Manifests of the first releases have none."""

_PROMOTE, _MIGRATE = "`scannery model promote`", "`scannery index migrate`"
"""What sets keys of a manifest that earlier releases ignore, and lose when they write the next version."""

_UNKNOWN = frozenset({"extra_forbidden", "literal_error"})
"""Types of errors in the spec of a later release: an unknown key, or an unknown value of a known key."""


class _Record(BaseModel):
    # Unknown keys are ignored, so that this release can read manifests with keys that a later one added.
    model_config = ConfigDict(frozen=True, extra="ignore")


class CurvePoint(_Record):
    """One measured setting of a ScaNN segment."""

    leaves: int
    """Leaves searched."""
    rescore: int
    """Candidates rescored with exact vectors."""
    recall: float
    """Mean recall@k over the held-out queries."""
    error: float
    """Standard error of `recall`."""
    query_us: float
    """Time of one query in a batch on one core, in microseconds."""
    recalls: dict[str, float] = {}
    """Mean recall@k of each kind of queries, of which `recall` is the least: `stored` vectors, and `given` queries
    (or questions made from texts), or points `between` vectors; empty in manifests of earlier releases."""


class DepthCurve(_Record):
    """Measured settings of a ScaNN segment for a number of hits other than ten."""

    k: Annotated[int, Field(ge=1)]
    """Hits per query."""
    curve: tuple[CurvePoint, ...]
    """Recall@k against cost, cheapest first."""


class TriedConfig(_Record):
    """A configuration of ScaNN that was tried on a sample, at its cheapest setting that reaches the target recall."""

    leaves: int
    soar: bool
    dimensions_per_block: int
    anisotropic_threshold: float | None
    """None with `squared_l2`, which does not use it."""
    searched: int
    """Leaves searched."""
    rescore: int
    """Candidates rescored with exact vectors."""
    recall: float
    """Estimated recall@10 in the segment."""
    query_us: float | None
    """Estimated time of one query, in microseconds (tuning/search_cost.py); None: no setting reaches the target."""
    chosen: bool = False


class ConfigTrial(_Record):
    """How a segment's ScaNN configuration was chosen (tuning/config_trial.py)."""

    rows: int
    """Rows of the sample."""
    segment_rows: int
    """Rows of the segment that was tried: this one, or an earlier one of the index (`scann.config.config_like`)."""
    target: float
    """Target recall of the spec."""
    queries: dict[str, int]
    """Number of queries of each kind, named as in `CurvePoint.recalls`."""
    tried: tuple[TriedConfig, ...]
    """Settings in the order of the trial; one is chosen."""


class DeletedRows(_Record):
    """The file with the numbers of a segment's deleted rows (versions/tombstones.py)."""

    key: Annotated[str, Field(pattern=r"^deletes/[0-9a-f]{64}\.parquet$")]
    """Object key relative to the index folder."""
    rows: Annotated[int, Field(ge=1)]
    """Number of deleted rows."""
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileTail(_Record):
    """The end of a segment file: its page indexes and its footer, which tell where each vector is."""

    start: Annotated[int, Field(ge=0)]
    """First byte of the end."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the bytes from there on."""


class SegmentEntry(_Record):
    """One segment in a manifest."""

    key: Annotated[str, Field(pattern=r"^segments/[0-9a-f]{64}\.parquet$")]
    """Object key relative to the index folder."""
    shard: Annotated[int, Field(ge=0)]
    rows: _Count
    """Rows of the file, deleted ones included."""
    documents: Annotated[int, Field(ge=0)] | None = None
    """Distinct `document_id` values of the rows that are not deleted; None: not counted."""
    size_bytes: _Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tail: FileTail | None = None
    """The end of the file, for servers that read vectors by ranges (segment/cold); None: the file has no page index, in
    versions of earlier releases."""
    kind: Literal["exact", "scann"]
    """`exact` segments have no ScaNN data and are scanned."""
    vectors: bool = True
    """Whether all rows have a vector; else none has. Segments without vectors are `exact`, and only in versions whose
    spec has `vectors: optional`, a key that releases without such segments refuse."""
    curve: tuple[CurvePoint, ...] = ()
    """Recall@10 against cost, cheapest first; empty for `exact`."""
    depth_curves: tuple[DepthCurve, ...] = ()
    """The same for other numbers of hits, ascending; empty for `exact`, and in manifests of the first releases."""
    trial: ConfigTrial | None = None
    """How the ScaNN configuration was chosen; None: from the number of rows and the spec alone."""
    deleted: DeletedRows | None = None
    """Deleted rows of the file; None: no row is deleted."""
    named: dict[str, SegmentEntry] = {}
    """Files with the named vectors of the rows, by name; a name that no row has is left out. Only in versions whose
    spec has `named_vectors`, a key that releases without such files refuse."""

    @property
    def live_rows(self) -> int:
        """Rows that are not deleted."""
        return self.rows - (self.deleted.rows if self.deleted else 0)

    @property
    def by_name(self) -> dict[str, SegmentEntry]:
        """The files with the vectors of each name that a row has; "" is this entry, with or without vectors."""
        return {"": self, **self.named}

    @property
    def files(self) -> tuple[SegmentEntry | DeletedRows, ...]:
        """The segment's files: datapoints, deleted rows if there are any, and named vectors."""
        return (self, *([self.deleted] if self.deleted else []), *self.named.values())

    @property
    def content(self) -> tuple[str, ...]:
        """Hashes of the files with datapoints and vectors: what an open segment depends on."""
        return (self.sha256, *(f"{name}:{entry.sha256}" for name, entry in self.named.items()))

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the segment's files. Entries with equal keys have the same live rows."""
        return tuple(file.key for file in self.files)

    @property
    def labelled_keys(self) -> tuple[str, ...]:
        """Keys of the segment's files, those of named vectors with their name: equal only if all vectors are, too.

        Vectors that move from one name to another are the same file.
        """
        deleted = (self.deleted.key,) if self.deleted else ()
        return (
            self.key,
            *deleted,
            *(f"{name}:{named_entry.key}" for name, named_entry in self.named.items()),
        )


def marked_builds(builds: Iterable[str], version: int) -> list[str]:
    """Return names of builds with the mark of a version that live updates alone do not make of the one before.

    A repeated build has the name of the first one, a replacement has none, and a rollback has that of an earlier
    version: without the mark, who follows an index would not see that its rows are others.
    """
    return [*(build for build in builds if not build.startswith(_MARK)), f"{_MARK}{version}"]


def documents_in(entries: Sequence[SegmentEntry]) -> int | None:
    """Return the number of documents in the segments of a build; None where it is not known.

    A document is in one segment. But rows with and without vectors are in different ones, so that passages of one
    document may be in both.
    """
    counts = [entry.documents for entry in entries if entry.documents is not None]
    kinds = {(entry.shard, entry.vectors) for entry in entries}
    may_share = len(kinds) > len({entry.shard for entry in entries})
    whole = all(entry.documents == entry.live_rows for entry in entries)
    return sum(counts) if len(counts) == len(entries) and (whole or not may_share) else None


class Recall(_Record):
    """Recall of a version: expected from the tuning of each segment, and measured over all segments."""

    k: int
    """Hits per query."""
    target: float
    """Target recall of the spec."""
    measured: float
    """Expected recall@k at the default settings: the mean over segments, weighted by rows."""
    queries: int
    """Held-out queries per segment."""
    reached: bool
    """False if no setting of some segment reaches the target; that segment is searched exactly."""
    whole: float | None = None
    """Recall@k of the merged hits of all segments at the default settings, for queries that no segment was tuned for.
    None: not measured."""
    whole_queries: int = 0
    """Queries of that measurement; 0 if all segments are searched exactly."""
    given_queries: Annotated[str, Field(pattern=r"^queries/[0-9a-f]{64}\.npy$")] | None = None
    """Key, relative to the index folder, of the user's queries that the index was tuned for."""


class FusionScales(_Record):
    """Where 0 and 1 lie among scores of hybrid search by `weighted_score` (indexer/tuning/score_fusion.py)."""

    dense_zero: float
    """Score by vector that has 0: the mean of the rows at place 200 for the questions."""
    dense_one: float
    """Score by vector that has 1: the mean of the best rows."""
    lexical_one: Annotated[float, Field(gt=0, le=1)]
    """Share of the highest score by words that has 1: the mean of the best rows."""


class FusionWeight(_Record):
    """The weight of dense search in hybrid search by `weighted_score`, measured on questions made from passages."""

    alpha: Annotated[float, Field(ge=0, le=1)]
    """The weight; the lexical ranking has the rest."""
    questions: Annotated[int, Field(ge=1)]
    """Number of questions."""
    rows: Annotated[int, Field(ge=0)]
    """Datapoints of the version that it was measured on; later versions keep it until they have far more or fewer."""
    dense: float
    """nDCG@10 of dense search for the questions; each has one right passage."""
    lexical: float
    """nDCG@10 of lexical search."""
    hybrid: float
    """nDCG@10 of hybrid search with `alpha`."""
    encoder: str | None = None
    """`VectorsInfo.sides_digest` of the encoders that it was measured with."""
    lexical_rules: dict[str, Any] = {}
    """Rules of the analyser that it was measured with."""
    scales: FusionScales | None = None
    """Scales of scores, for all queries; None: of an earlier release, each query has scales of its own."""


class RelevanceCurve(_Record):
    """The probability that a hit answers the question, by its score: 1 / (1 + exp(-(intercept + slope * score)))."""

    intercept: float
    """Logarithmic odds at a score of 0."""
    slope: Annotated[float, Field(gt=0)]
    """Logarithmic odds that a score of 1 adds. In mode lexical the score is a share of the highest one that the words
    of the query allow."""
    error: float
    """Expected calibration error on questions that it was not fitted to."""
    separation: float
    """Probability that the best hit of a question made from a passage has a higher score than a foreign question's."""

    def probabilities(self, scores_H: np.ndarray) -> np.ndarray:
        """Return the probability of each score, float32 (H,)."""
        return logistic(self.intercept + self.slope * scores_H.astype(np.float64)).astype(np.float32)


def logistic(odds_H: np.ndarray) -> np.ndarray:
    """Return the probability of each logarithmic odds, 1 / (1 + exp(-odds)): float64 (H,)."""
    # In a form that cannot overflow.
    probabilities_H: np.ndarray = 0.5 + 0.5 * np.tanh(0.5 * odds_H)
    return probabilities_H


RERANK = "rerank"
"""Key of the curve of scores by the cross-encoder, among `Relevance.models`."""


def vectors_key(name: str) -> str:
    """Return the key of the curve of scores by the vectors of a name, among `Relevance.models`."""
    return f"vectors.{name}"


class ModelCurve(_Record):
    """What the scores of one model mean: of the cross-encoder, or of the encoder of named vectors."""

    model: str
    """Digest of the model: scores of another one mean something else."""
    curve: RelevanceCurve | None = None
    """None: it was measured, and its scores tell nothing."""
    questions: Annotated[int, Field(ge=0)] = 0
    """Number of questions that passages answer."""
    foreign_questions: Annotated[int, Field(ge=0)] = 0
    """Number of questions about something else."""


class Relevance(_Record):
    """What scores mean: fitted to questions that passages answer, and to foreign questions."""

    curves: dict[Mode, RelevanceCurve]
    """Curves by mode, without modes whose scores tell nothing; hybrid: of `weighted_score` with the measured weight."""
    modes: tuple[Mode, ...] = ()
    """Modes that were measured, with or without a curve."""
    source: Literal["passages", "judgements"] = "passages"
    """Source of the questions: made from passages, or judged by people."""
    questions: Annotated[int, Field(ge=0)]
    """Number of questions that passages answer."""
    foreign_questions: Annotated[int, Field(ge=0)]
    """Number of questions about something else; 0: too few could be made from passages, so no mode has a curve."""
    rows: Annotated[int, Field(ge=0)]
    """Datapoints of the version that they were fitted on; later versions keep them until they have far more."""
    encoder: str | None = None
    """`VectorsInfo.sides_digest` of the encoders that they were fitted with."""
    lexical_rules: dict[str, Any] = {}
    """Rules of the analyser that they were fitted with."""
    models: dict[str, ModelCurve] = {}
    """Curves of the scores of a model of their own: RERANK, by the cross-encoder, and `vectors_key`, by named vectors.
    Empty in manifests of earlier releases, which ignore it."""

    @property
    def all_curves(self) -> dict[str, RelevanceCurve]:
        """The curves by what gave the score: a mode, or a key of `models`."""
        curves: dict[str, RelevanceCurve] = dict(self.curves.items())
        return curves | {key: each.curve for key, each in self.models.items() if each.curve is not None}

    def of_modes(self, modes: Sequence[Mode]) -> Relevance:
        """Return the same with what was measured of some modes alone, and of all models."""
        curves = {mode: curve for mode, curve in self.curves.items() if mode in modes}
        measured = tuple(mode for mode in self.modes if mode in modes)
        return self.model_copy(update={"curves": curves, "modes": measured})


class Ranker(_Record):
    """An order of hybrid hits that was learned from judged queries: a weight of dense search, and a linear ranker."""

    model: str
    """Version of the model in the registry: `NAME@N`."""
    alpha: Annotated[float, Field(ge=0, le=1)]
    """Weight of dense search, which chooses the candidates."""
    scales: FusionScales
    """Scales of the scores among the features."""
    weights: dict[str, float] = {}
    """Weights of the features that order candidates, by name (indexer/models/features.py); empty: fused scores do."""
    curve: RelevanceCurve | None = None
    """Curve of the relevance of hits in this order; None: they have none."""
    queries: Annotated[int, Field(ge=1)]
    """Number of judged queries."""
    encoder: str | None = None
    """`VectorsInfo.sides_digest` of the version that it was learned on."""
    lexical_rules: dict[str, Any] = {}
    """Rules of the analyser of that version."""


class VectorsInfo(_Record):
    """The vectors of one name."""

    dimensions: Annotated[int, Field(ge=0, le=_MAX_DIMENSIONS)]
    """Components of a vector; 0: the index has no unnamed vectors."""
    encoder: dict[str, Any] | None = None
    """Fingerprint of the encoder that made them; None: they are given."""
    query_encoder: dict[str, Any] | None = None
    """Fingerprint of the encoder of queries; None: `encoder` encodes them, too."""

    @property
    def stored(self) -> VectorsInfo:
        """What stored vectors depend on: the same with any encoder of queries."""
        return self.model_copy(update={"query_encoder": None})

    @property
    def sides_digest(self) -> str | None:
        """Digest of everything that scores of texts depend on: of both encoders, or of the only one; None: unknown."""
        digest: str | None = (self.encoder or {}).get("digest")
        if self.query_encoder is None:
            return digest
        return hashlib.sha256(f"{digest} {self.query_encoder['digest']}".encode()).hexdigest()


class SearchState(_Record):
    """What the promotion of a model changes: the model for queries, and what is known of scores with it."""

    model: str | None = None
    """Version of the model in the registry that was promoted: `NAME@N`; None: none was."""
    query_model: str | None = None
    """`encoder.query_model` of the spec."""
    documents: str | None = None
    """Digest of the encoder of documents; None: there is none, or an earlier release, which did not tell it, wrote the
    state."""
    query_encoder: dict[str, Any] | None = None
    """Fingerprint of the encoder of queries; None: that of documents encodes them, too."""
    fusion: FusionWeight | None = None
    relevance: Relevance | None = None
    ranker: Ranker | None = None

    @property
    def measured(self) -> tuple[FusionWeight | Relevance | Ranker, ...]:
        """All that holds for certain encoders and a certain analyser only."""
        return tuple(each for each in (self.fusion, self.relevance, self.ranker) if each is not None)

    @property
    def query_version(self) -> str | None:
        """Version of the model for queries in the registry, `NAME@N`; None: there is none, or it is elsewhere."""
        return None if self.query_model is None else stored_reference(self.query_model)

    @property
    def learned_by(self) -> tuple[str, ...]:
        """Models of the registry that may be fitted to judged queries, `NAME@N`: that for queries, then `model`."""
        return tuple(dict.fromkeys(each for each in (self.query_version, self.model) if each is not None))

    @property
    def name(self) -> str | None:
        """Name of the state in comparisons: the model that was promoted, else that for queries; None: there is none."""
        return self.model or self.query_model


class Mirror(_Record):
    """What makes an index the mirror of another one: the same datapoints, with other keys of the spec.

    Only what follows the log of that index writes to a mirror (live/migration).
    """

    index: str
    """Name of the mirrored index."""
    index_id: str
    """Id of the mirrored index."""
    base: Annotated[int, Field(ge=1)]
    """Version of the mirrored index whose datapoints the mirror had first."""
    changes: dict[str, Any]
    """Keys of the mirrored index's spec that differ here, with their values here."""
    switches: _Count
    """`Manifest.switches` of the mirrored index, as of the version that is followed."""
    floor: _Sequence
    """`log_floor` of the mirrored index, as of that version."""
    builds: tuple[str, ...] = ()
    """Builds of the mirrored index, as of that version."""
    filled: bool = False
    """Whether it has the datapoints of `base`; before, it is empty."""
    former: bool = False
    """Whether it has what the mirrored index had before their contents were exchanged."""

    def follows(self, source: Manifest) -> bool:
        """Return whether a version of the mirrored index has changed by live updates alone since the one followed."""
        return (source.switches, source.log_floor, source.builds) == (self.switches, self.floor, self.builds)


class NamedModel(_Record):
    """A model by what callers may name it."""

    name: str
    """Name as a spec has it."""
    model: str = ""
    """Name in the fingerprint; empty: it has none."""
    digest: str = ""
    """Digest of the fingerprint; empty: it has none."""


class VectorModel(_Record):
    """The model of the vectors on one side of a map."""

    dimensions: Annotated[int, Field(ge=1, le=_MAX_DIMENSIONS)]
    """Components of a vector."""
    digest: str | None
    """Digest of the encoder of documents; None: callers gave the vectors."""
    models: tuple[NamedModel, ...]
    """Encoder of documents and that of queries, or the model that the spec names for vectors of callers."""

    @property
    def name(self) -> str:
        """Name of the first of its models; empty: nobody named it."""
        return self.models[0].name if self.models else ""


class VectorMap(_Record):
    """A map from vectors of one model to those of another one, by which queries of the one search vectors of the other.

    It is affine: a vector times all rows of its matrix but the last, which is added.
    """

    key: Annotated[str, Field(pattern=r"^maps/[0-9a-f]{64}\.npy$")]
    """Object key relative to the index folder, of the matrix: float32 (dimensions of `source` + 1, of `target`)."""
    size_bytes: _Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    vectors: str = ""
    """Name of the vectors; empty: the unnamed ones."""
    source: VectorModel
    target: VectorModel
    rows: Annotated[int, Field(ge=1)]
    """Datapoints whose vectors of both models it was fitted to."""
    held_out: Annotated[int, Field(ge=1)]
    """Further datapoints that it was measured with."""
    overlap: Annotated[float, Field(ge=0, le=1)]
    """Share of the ten nearest of a held-out vector of `target` that its mapped vector of `source` has, too, among all
    of these datapoints."""
    ndcg: float | None = None
    """nDCG@10 of judged queries with vectors of `source` that are mapped; None: not measured."""
    source_ndcg: float | None = None
    """nDCG@10 of the same queries where vectors of `source` search vectors of `source`."""

    def is_onto(self, name: str, info: VectorsInfo) -> bool:
        """Return whether it maps to the vectors of a name, of which this is known."""
        digest = (info.encoder or {}).get("digest")
        return (self.vectors, self.target.digest, self.target.dimensions) == (name, digest, info.dimensions)


def _with_components(info: VectorsInfo) -> VectorsInfo:
    if not info.dimensions:
        raise ValueError("named vectors have components")
    return info


class Manifest(_Record):
    """A version of an index."""

    format_version: int = FORMAT_VERSION
    index: str
    index_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    """Random id, the same in all versions; an index that is dropped and created again has another one. None in
    manifests of the first releases."""
    version: Annotated[int, Field(ge=1, lt=1 << 63)]
    parent: int | None = None
    """The version that this one was made from."""
    parent_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the parent's manifest file; None without a parent, and in manifests of earlier releases."""
    created_at: datetime
    spec: IndexSpec
    encoder: dict[str, Any] | None = None
    """Fingerprint of the encoder that made the vectors; None if the source had vectors."""
    query_encoder: dict[str, Any] | None = None
    """Fingerprint of the encoder of queries; None: `encoder` encodes them, too."""
    dimensions: Annotated[int, Field(ge=0, le=_MAX_DIMENSIONS)]
    """Components of a vector; 0: the index has no vectors."""
    named_vectors: dict[str, Annotated[VectorsInfo, AfterValidator(_with_components)]] = {}
    """What is known of the named vectors of the spec, by name; `vectors` has the unnamed one, too."""
    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS)]
    segments: tuple[SegmentEntry, ...]
    log_sequence: _Sequence = 0
    """Mutations up to this sequence are in the segments; later ones are applied on top. If other versions were
    published while a build ran, it is the sequence at the start of the build, so that mutations since then win."""
    log_reached: _Sequence = 0
    """The highest `log_sequence` of this and all earlier versions. Segments may have rows of mutations up to this
    sequence, so a new log must not assign these numbers again."""
    log_floor: _Sequence = 0
    """The least `log_sequence` of later versions: mutations up to this sequence are not applied again, since a build
    replaced their rows or a rollback undid them."""
    columns_version: _Sequence = 0
    """The version that gave rows the columns that they have: attributes, named vectors, and how vectors are made. Seals
    and merges keep it. 0: a version of an earlier release did."""
    recall: Recall | None = None
    fusion: FusionWeight | None = None
    """Default weights of hybrid search; None: not measured, both rankings count the same."""
    relevance: Relevance | None = None
    """Curves of the relevance of hits; None: not measured."""
    ranker: Annotated[Ranker | None, Since(3, _PROMOTE)] = None
    """Learned order of hybrid hits; None: that of the fused scores."""
    model: Annotated[str | None, Since(3, _PROMOTE)] = None
    """Version of the model that was promoted last, `NAME@N`, to the order of hits or to the encoding of queries."""
    former: Annotated[tuple[SearchState, ...], Since(3, _PROMOTE)] = ()
    """States of searches before promotions, the latest one last: what a rollback goes back to."""
    mirror: Annotated[Mirror | None, Since(3, _MIGRATE)] = None
    """The index that this one follows; None: it takes writes of its own."""
    switches: Annotated[_Count, Since(3, _MIGRATE)] = 0
    """Number of times that the content of the index was exchanged with that of a mirror."""
    vector_maps: Annotated[tuple[VectorMap, ...], Since(3, _MIGRATE)] = ()
    """Maps between the vectors of this index and those of its mirror, in both directions."""
    statistics: dict[str, Any] = {}
    """Counts and measurements of the build."""

    @model_serializer(mode="wrap")
    def _as_written(self, handler: Callable[[Manifest], dict[str, Any]]) -> dict[str, Any]:
        return as_earlier(self, handler(self))

    @property
    def rows(self) -> int:
        """Datapoints of all segments; deleted rows do not count."""
        return sum(segment.live_rows for segment in self.segments)

    @property
    def files(self) -> tuple[SegmentEntry | DeletedRows | VectorMap, ...]:
        """The files of all segments, and maps of vectors."""
        return (*(file for entry in self.segments for file in entry.files), *self.vector_maps)

    @property
    def vectors(self) -> dict[str, VectorsInfo]:
        """What is known of the vectors of each name; "" is the unnamed vector, and comes first."""
        unnamed = VectorsInfo(
            dimensions=self.dimensions, encoder=self.encoder, query_encoder=self.query_encoder
        )
        return {"": unnamed, **self.named_vectors}

    @property
    def measured_with(self) -> tuple[str | None, dict[str, Any]]:
        """What measurements of searches by text depend on besides the rows: digest of encoders, analysis of words."""
        lexical = self.spec.lexical
        rules = lexical.rules if lexical else {}
        if lexical and lexical.counts_documents:
            rules["scope"] = lexical.scope
        return self.vectors[""].sides_digest, rules

    @property
    def search_state(self) -> SearchState:
        """What the promotion of a model changes."""
        return SearchState(
            model=self.model,
            query_model=None if self.spec.encoder is None else self.spec.encoder.query_model,
            documents=(self.encoder or {}).get("digest"),
            query_encoder=self.query_encoder,
            fusion=self.fusion,
            relevance=self.relevance,
            ranker=self.ranker,
        )

    def with_search_state(self, state: SearchState) -> Manifest:
        """Return the manifest with another state of searches."""
        encoder = self.spec.encoder
        if encoder is not None:
            encoder = encoder.model_copy(update={"query_model": state.query_model})
        return self.model_copy(
            update={
                "spec": self.spec.model_copy(update={"encoder": encoder}),
                "query_encoder": state.query_encoder,
                "fusion": state.fusion,
                "relevance": state.relevance,
                "ranker": state.ranker,
                "model": state.model,
            }
        )

    @property
    def vector_names(self) -> list[str]:
        """Names of the vectors that the index has; "" is the unnamed vector, and comes first."""
        return [name for name, info in self.vectors.items() if info.dimensions]

    def of_shards(self, shards: Shards) -> Manifest:
        """Return the manifest with the segments of some shards alone. It is not published anywhere."""
        kept = tuple(entry for entry in self.segments if shards.has(entry.shard))
        return self.model_copy(update={"segments": kept})

    def of_vectors(self, name: str) -> Manifest:
        """Return the manifest of an index with the vectors of a name alone; KeyError if there is no such name.

        Its segments are those with vectors of the name, in order. "": the unnamed vector, of which the rest stays as it
        is. It is not published anywhere.
        """
        if not name:
            segments = tuple(entry for entry in self.segments if entry.vectors)
            whole = len(segments) == len(self.segments)
            return self if whole else self.model_copy(update={"segments": segments})
        return self.model_copy(
            update={
                **stored_vectors({"": self.named_vectors[name]}),
                "spec": self.spec.of_vectors(name),
                "segments": tuple(entry.named[name] for entry in self.segments if name in entry.named),
                "recall": None,
                "fusion": None,
                "relevance": None,
            }
        )

    @property
    def encoded(self) -> dict[str, Manifest]:
        """The manifests of the vectors that have an encoder, by name, as `of_vectors`; "" is the unnamed vector."""
        return {name: self.of_vectors(name) for name in self.spec.encoders}

    @property
    def sides(self) -> tuple[Manifest, ...]:
        """The manifests of indexes with one model: that of this one's documents, and that of its queries.

        Only this one if a single model encodes both. They are not published anywhere.
        """
        encoder = self.spec.encoder
        if encoder is None or len(encoder.sides) == 1:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "spec": self.spec.model_copy(update={"encoder": spec}),
                    "encoder": fingerprint,
                    "query_encoder": None,
                }
            )
            for spec, fingerprint in zip(encoder.sides, (self.encoder, self.query_encoder), strict=True)
        )

    @property
    def builds(self) -> tuple[str, ...]:
        """Names of the builds that its documents come from, those that are known, and the mark of `marked_builds`."""
        builds = self.statistics.get("builds") or [self.statistics.get("build_id")]
        return tuple(build for build in builds if build)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> bytes:
        """Return the manifest as UTF-8 JSON: indented, keys in a fixed order, SHA-256 last."""
        body = self.model_dump_json(indent=2).removesuffix("\n}").encode()
        return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'

    @classmethod
    def from_json(cls, data: bytes, *, origin: str) -> Manifest:
        """Return the manifest in `data`; `origin` names the file in errors.

        Raises:
            FormatError: a later release wrote it: its format version or a setting is unknown.
            CorruptError: it is damaged, or not a manifest.

        """
        body, sealed, digest = data.rpartition(_SEAL)
        if sealed and digest[:64] != hashlib.sha256(body).hexdigest().encode():
            raise CorruptError(f"{origin} is damaged: its SHA-256 is not the one at its end")
        try:
            header = _Header.model_validate_json(data)
            if header.format_version > FORMAT_VERSION:
                raise FormatError(
                    f"{origin} has format version {header.format_version}, this Scannery reads up to "
                    f"{FORMAT_VERSION}; upgrade it"
                )
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            if sealed and first["type"] in _UNKNOWN:
                raise FormatError(
                    f"{origin} was written by a later Scannery: {where} is unknown to this one; upgrade it"
                ) from error
            raise CorruptError(f"{origin} is damaged: {where}: {first['msg']}") from error


def stored_vectors(vectors: Mapping[str, VectorsInfo]) -> dict[str, Any]:
    """Return the fields of a manifest for what is known of the vectors of each name, as `Manifest.vectors`."""
    named = dict(vectors)
    unnamed = named.pop("")
    return {**dict(unnamed), "named_vectors": named}


class _Header(_Record):
    format_version: int
