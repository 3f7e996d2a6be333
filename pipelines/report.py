"""The report of a build."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from scannery.indexer.manifest import Manifest, documents_in
from scannery.indexer.tuning.settings_choice import named_recalls
from scannery.pipelines.sources import InputFile
from scannery.pipelines.stages.publish import BuildRecord
from scannery.pipelines.state.job import Job

__all__ = ["BuildReport", "NamedVectorsReport"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedVectorsReport:
    """The vectors of one name in a version."""

    dimensions: int
    """Components of a vector."""

    vectors: int
    """Number of vectors in the files of the version, those of deleted datapoints included."""

    embedded: int
    """Texts that went through the encoder in this run; equal texts of a unit count once."""

    recall: float
    """Expected recall@10 at default settings; 1.0 if all are searched exactly."""

    recall_reached: bool
    """Whether every file has a setting that reaches the target recall; others are searched exactly."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildReport:
    """Result of a build that committed a version, found the current version up to date, or only embedded its input."""

    index: str
    store: str
    """URI or absolute path of the store."""

    version: int
    """Number of the current version after the build; 0 if the index has none yet (`until`)."""

    up_to_date: bool
    """Whether nothing had changed, so that no version was made."""

    mode: str
    """`full`: the input is the whole index; `upsert`: the input updated the index."""

    files: int
    """Number of input files."""

    documents: int
    """Records of the input that passed validation."""

    passages: int
    """Datapoints in the version; with `until`, datapoints of the input."""

    embedded: int
    """Passages that went through the encoder in this run."""

    reused: int
    """Passages whose vectors existed already: those of finished units and of documents embedded before."""

    tokens: int
    """Tokens encoded in this run, without padding."""

    padding_share: float
    """Padding tokens as a share of all computed tokens."""

    passages_per_s: float | None
    """Embedded passages per second of encoding; None where nothing was embedded."""

    tokens_per_s: float | None
    """Tokens per second of encoding; None if nothing was embedded."""

    device: str | None
    """Device of the encoder; None if nothing was embedded."""

    dtype: str | None
    """Number type of the encoder's weights; None if nothing was embedded."""

    dtypes: Mapping[str, int]
    """Units embedded in this run by the number type that they were computed in."""

    hardware_dtypes: Mapping[str, int]
    """The same units by the number type that their worker's device computes fastest in: several, if workers differ."""

    dimensions: int
    """Components of a vector."""

    shards: int
    """Number of hash partitions."""

    input_bytes: int
    """Size of the input files as stored: compressed files count compressed."""

    embeddings_bytes: int
    """Size of the embeddings files of the version."""

    index_bytes: int
    """Size of its segments."""

    dead_letters: Mapping[str, int]
    """Refused records by reason (dead_letters.REASONS)."""

    dead_letters_key: str | None
    """Store key of the file that holds them, as JSON lines; None without any."""

    dead_letter_examples: Mapping[str, str]
    """The first refused record of each reason: file, position and problem."""

    record_errors: Mapping[str, int]
    """The same by the managed service's category, for input in its layout; errors without a category are left out."""

    ignored: Mapping[str, int]
    """Namespaces of such input that the spec does not name, each with its number of records."""

    cut_texts: int
    """Datapoints of the input whose text was cut off at the encoder's limit: only its beginning is in their vectors."""

    cut_tokens: int
    """Tokens that these texts lost, about."""

    missing_fields: Mapping[str, Sequence[str]]
    """Fields that the spec names and no record of the input had, each with similar names that records have."""

    unused_fields: Sequence[str]
    """If there are missing fields: some that records have and the spec does not name."""

    converted: Mapping[str, int]
    """Values that were converted in a way that could be wrong, by attribute or field and what was done."""

    sampled_texts: int
    """Texts of the input whose language was looked at."""

    foreign_texts: Mapping[str, int]
    """Those of them in languages that the encoder is not made for, by language."""

    recall: float | None
    """Expected recall@10 at default settings, from measurements per segment; 1.0 if all are searched exactly,
    None for an index without vectors."""

    whole_recall: float | None
    """Recall@10 of all segments together, for queries that no segment was tuned for; None if not measured."""

    recall_reached: bool
    """Whether every segment has a setting that reaches the target recall; others are searched exactly."""

    target_recall: float
    alpha: float | None
    """Default weight of dense search in hybrid search, from the spec or measured; None without hybrid search."""

    alpha_questions: int
    """Number of questions made from passages that it was measured with; 0 if it was not measured."""

    seconds: Mapping[str, float]
    """Seconds of this run by stage, and `wall` for the whole run."""

    added: int = 0
    """Documents that an update added; this and `replaced` are 0 for a full build."""

    replaced: int = 0
    """Documents that an update replaced, with all of their passages."""

    unchanged: int = 0
    """Documents that are equal in the index and in the input."""

    removed: int = 0
    """Documents that the caller wanted deleted and the index had."""

    unknown_deletes: int = 0
    """Documents that the caller wanted deleted and the index did not have."""

    removed_datapoints: int | None = None
    """Datapoints of the index that a full build did not find in its input and removed; None for an update, for a new
    index, or if they were not counted (more than 20 million rows changed)."""

    dropped_live: int | None = None
    """Datapoints that live updates had written, and a full build removed or replaced; None as above."""

    indexed_documents: int | None = None
    """Documents in the version; None if it has segments of an older release, which did not count documents."""

    not_in_input: int | None = None
    """Documents of the index that the input of an update does not mention; None for a full build, or if the index has
    segments of an older release, which did not count documents."""

    errors_allowed: bool = False
    """Whether the caller or the spec set a limit of refused records, which this build kept."""

    named_vectors: Mapping[str, NamedVectorsReport] = dataclasses.field(default_factory=dict)
    """The vectors of each name."""

    until: str | None = None
    """`embed` if the build stopped after embedding, so that `version` has nothing of the input; None: it is
    complete."""

    @property
    def dead(self) -> int:
        """Number of refused records."""
        return sum(self.dead_letters.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return dataclasses.asdict(self)

    @classmethod
    def of(
        cls,
        record: BuildRecord,
        manifest: Manifest,
        *,
        store: str,
        files: Sequence[InputFile],
        seconds: Mapping[str, float],
        errors_allowed: bool,
    ) -> BuildReport:
        """Return the report of a build from its record and its manifest."""
        names = {field.name for field in dataclasses.fields(cls)}
        recall = manifest.recall if manifest.dimensions else None
        taken = {name: value for name, value in record.statistics.items() if name in names}
        return cls(**taken | {
            "index": manifest.index,
            "store": store,
            "version": manifest.version,
            "up_to_date": record.status == "unchanged",
            "files": len(files),
            "input_bytes": sum(file.size_bytes for file in files),
            "passages": manifest.rows,
            "indexed_documents": documents_in(manifest.segments),
            "dimensions": manifest.dimensions,
            "named_vectors": _named(manifest, record),
            "shards": manifest.shards,
            "index_bytes": manifest.size_bytes,
            "recall": recall and recall.measured,
            "whole_recall": recall and recall.whole,
            "recall_reached": manifest.recall is None or manifest.recall.reached,
            "target_recall": manifest.spec.target_recall,
            "alpha": _alpha(manifest),
            "alpha_questions": manifest.fusion.questions if manifest.fusion else 0,
            "seconds": dict(seconds),
            "errors_allowed": errors_allowed,
        })  # fmt: skip

    @classmethod
    def of_units(
        cls,
        record: BuildRecord,
        job: Job,
        parent: Manifest | None,
        *,
        files: Sequence[InputFile],
        seconds: Mapping[str, float],
    ) -> BuildReport:
        """Return the report of a build that stopped after embedding."""
        names = {field.name for field in dataclasses.fields(cls)}
        taken = {name: value for name, value in record.statistics.items() if name in names}
        return cls(**taken | {
            "index": job.index,
            "store": job.store_uri,
            "version": parent.version if parent is not None else 0,
            "up_to_date": False,
            "files": len(files),
            "input_bytes": sum(file.size_bytes for file in files),
            "dimensions": job.dimensions,
            "shards": job.shards,
            "index_bytes": parent.size_bytes if parent is not None else 0,
            "recall": None,
            "whole_recall": None,
            "recall_reached": True,
            "target_recall": job.spec.target_recall,
            "alpha": None,
            "alpha_questions": 0,
            "seconds": dict(seconds),
            "errors_allowed": job.max_dead_letters is not None,
            "until": "embed",
        })  # fmt: skip


def _named(manifest: Manifest, record: BuildRecord) -> dict[str, NamedVectorsReport]:
    recalls = named_recalls(manifest)
    return {
        name: NamedVectorsReport(
            dimensions=info.dimensions,
            vectors=sum(entry.rows for entry in manifest.of_vectors(name).segments),
            embedded=record.counts.named_embedded.get(name, 0),
            recall=recalls[name].measured,
            recall_reached=recalls[name].reached,
        )
        for name, info in manifest.named_vectors.items()
    }


def _alpha(manifest: Manifest) -> float | None:
    spec = manifest.spec
    if spec.lexical is None or spec.encoder is None:
        return None
    if spec.search.alpha is not None:
        return spec.search.alpha
    return manifest.fusion.alpha if manifest.fusion else 0.5
