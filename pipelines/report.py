"""What a build did, for people and machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from scannery.indexer.manifest import Manifest
from scannery.pipelines.sources import InputFile
from scannery.pipelines.stages.publish import BuildRecord

__all__ = ["BuildReport"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildReport:
    """The outcome of a build that left a version behind, or found that the current one is up to date."""

    index: str
    store: str
    version: int
    up_to_date: bool
    """Nothing had changed, so no version was made."""

    mode: str
    """`full`: the input is the whole index; `upsert`: the index was updated."""

    files: int
    documents: int
    """Records of the input that passed validation."""

    passages: int
    """Datapoints in the version."""

    embedded: int
    """Passages that went through the encoder in this run."""

    reused: int
    """Passages whose vectors were there already: finished units, and documents seen before."""

    tokens: int
    padding_share: float
    """Tokens computed only to fill up batches, as a share of all that were computed."""

    passages_per_s: float | None
    """Embedded passages per second of encoding; None where nothing was embedded."""

    tokens_per_s: float | None
    device: str | None
    dtype: str | None
    dimensions: int
    shards: int
    input_bytes: int
    """Size of the files as they are, compressed or not."""

    embeddings_bytes: int
    """Size of the embeddings files of the version."""

    index_bytes: int
    """Size of its segments."""

    dead_letters: Mapping[str, int]
    """Records that were refused, by reason (deadletters.REASONS)."""

    dead_letters_key: str | None
    """Object of the store that holds them, as JSON lines."""

    record_errors: Mapping[str, int]
    """The same by the managed service's category, for input in its layout; what it has no category for is left out."""

    ignored: Mapping[str, int]
    """Namespaces of such input that the spec does not name, and how many records have them."""

    recall: float | None
    """Expected recall@10 at default settings, as measured for each segment; 1.0 where all are searched exactly."""

    whole_recall: float | None
    """Recall@10 of all segments together, for queries that none was tuned for; None where it was not measured."""

    recall_reached: bool
    target_recall: float
    seconds: Mapping[str, float]
    """Time by stage, in this run, and `wall` for the whole."""

    added: int = 0
    """Documents that an update added. This and the next are 0 for a full build."""

    replaced: int = 0
    """Documents that an update replaced, with all of their passages."""

    unchanged: int = 0
    """Documents that were in the index already as the input has them."""

    removed: int = 0
    """Documents that the caller wanted deleted, and that were there."""

    unknown_deletes: int = 0
    """Those that were not."""

    not_in_input: int | None = None
    """Documents of the index that the input of an update does not mention; None for a full build, or if the index is
    of a time when segments did not count their documents."""

    @property
    def dead(self) -> int:
        """How many records were refused."""
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
    ) -> BuildReport:
        """Return the report on a build from what it left in the store."""
        own = {field.name for field in dataclasses.fields(cls)}
        taken = {name: value for name, value in record.statistics.items() if name in own}
        return cls(**taken | {
            "index": manifest.index,
            "store": store,
            "version": manifest.version,
            "up_to_date": record.status == "unchanged",
            "files": len(files),
            "input_bytes": sum(file.size_bytes for file in files),
            "passages": manifest.rows,
            "dimensions": manifest.dimensions,
            "shards": manifest.shards,
            "index_bytes": manifest.size_bytes,
            "recall": manifest.recall and manifest.recall.measured,
            "whole_recall": manifest.recall and manifest.recall.whole,
            "recall_reached": manifest.recall is None or manifest.recall.reached,
            "target_recall": manifest.spec.target_recall,
            "seconds": dict(seconds),
        })  # fmt: skip
