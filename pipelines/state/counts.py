"""Counts of the stages: sums that travel as JSON with the work itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from scannery.indexer.manifest import SegmentEntry

__all__ = ["Counts", "Piece", "ShardOutcome", "UnitOutcome", "added"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Sums over a part of a build."""

    documents: int = 0
    """Records that passed validation."""

    passages: int = 0
    """Datapoints made from them."""

    embedded: int = 0
    """Passages that went through the encoder."""

    named_embedded: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Texts that went through the encoder of a named vector, by name."""

    tokens: int = 0
    """Tokens encoded, without padding."""

    padding_tokens: int = 0
    """Tokens encoded only to fill up batches."""

    input_bytes: int = 0
    """Uncompressed size of the parts read."""

    embeddings_bytes: int = 0
    """Size of the embeddings files."""

    dead_letters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Refused records by reason."""

    changes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Documents that an update `added`, `replaced`, `removed` or found `unchanged`."""

    record_errors: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Refused records by the managed service's category, for records in its layout."""

    ignored: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Records by namespace that the spec does not name (managed layout)."""

    cut_texts: int = 0
    """Datapoints whose text was cut off at the encoder's limit."""

    cut_tokens: int = 0
    """Tokens that these texts lost, about."""

    fields: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Records with a value, by field that the spec names; empty for layouts with fixed names, which are not counted."""

    other_fields: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Records of a sample by field that the spec does not name."""

    converted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Values that were converted in a way that could be wrong, by attribute or field and what was done."""

    sampled_texts: int = 0
    """Texts whose language was looked at."""

    foreign_texts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Those of them by language, of languages that the encoder is not made for."""

    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Seconds by stage, summed over workers."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            documents=self.documents + other.documents,
            passages=self.passages + other.passages,
            embedded=self.embedded + other.embedded,
            named_embedded=added(self.named_embedded, other.named_embedded),
            tokens=self.tokens + other.tokens,
            padding_tokens=self.padding_tokens + other.padding_tokens,
            input_bytes=self.input_bytes + other.input_bytes,
            embeddings_bytes=self.embeddings_bytes + other.embeddings_bytes,
            dead_letters=added(self.dead_letters, other.dead_letters),
            changes=added(self.changes, other.changes),
            record_errors=added(self.record_errors, other.record_errors),
            ignored=added(self.ignored, other.ignored),
            cut_texts=self.cut_texts + other.cut_texts,
            cut_tokens=self.cut_tokens + other.cut_tokens,
            fields=added(self.fields, other.fields),
            other_fields=added(self.other_fields, other.other_fields),
            converted=added(self.converted, other.converted),
            sampled_texts=self.sampled_texts + other.sampled_texts,
            foreign_texts=added(self.foreign_texts, other.foreign_texts),
            seconds=added(self.seconds, other.seconds),
        )

    def without_work(self) -> Counts:
        """Return the counts without times and embeddings: those of a unit that an earlier run finished."""
        return dataclasses.replace(
            self, embedded=0, named_embedded={}, tokens=0, padding_tokens=0, seconds={}
        )


class Piece(NamedTuple):
    """Place of the rows of one shard in an embeddings file."""

    offset: int
    """First byte."""

    length: int
    """Number of bytes."""

    digest: str
    """First 32 hex digits of the SHA-256 of these bytes: enough to find damage, and half as many bytes to shuffle."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitOutcome:
    """Outcome of a finished unit."""

    key: str
    """Key of the unit."""

    ordinal: int
    """Position of the unit in the input."""

    counts: Counts
    row_groups: Mapping[int, int]
    """Shard → number of its row group in the embeddings file; shards without rows are left out."""

    pieces: Mapping[int, Piece] = dataclasses.field(default_factory=dict)
    """Shard → place of its row group in the embeddings file; empty for a file of an earlier release."""

    sha256: str = ""
    """Of the embeddings file."""

    device: str | None = None
    """Device of the encoder; None without one."""

    dtype: str | None = None
    """Number type of the encoder's weights; None without one."""

    hardware_dtype: str | None = None
    """Number type that the worker's device computes fastest in."""

    @property
    def file(self) -> str:
        """Part of the embeddings file's key: 32 hex digits of its SHA-256; empty for a file of an earlier release."""
        return "" if self.row_groups and not self.pieces else self.sha256[:32]

    def to_json(self) -> str:
        """Return the outcome as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> UnitOutcome:
        """Return the outcome that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["counts"] = Counts(**data["counts"])
        data["row_groups"] = {int(shard): group for shard, group in data["row_groups"].items()}
        data["pieces"] = {int(shard): Piece(*piece) for shard, piece in data.get("pieces", {}).items()}
        return cls(**data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardOutcome:
    """Outcome of a shard whose segments are in the store."""

    key: str
    """Hash of the inputs that it was made from."""

    shard: int
    entries: tuple[SegmentEntry, ...]
    """At most a large segment and a small one with later changes; none if the shard is empty."""

    counts: Counts
    """Duplicates among the documents, and time."""

    statistics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Times and parameters of the segment's build; empty if none was built."""

    def to_json(self) -> str:
        """Return the outcome as one line of JSON."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["entries"] = [entry.model_dump(mode="json") for entry in self.entries]
        data["counts"] = dataclasses.asdict(self.counts)
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str | bytes) -> ShardOutcome:
        """Return the outcome that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["counts"] = Counts(**data["counts"])
        data["entries"] = tuple(SegmentEntry.model_validate(entry) for entry in data["entries"])
        return cls(**data)


def added(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums of two mappings of numbers by name, sorted by name."""
    return {key: left.get(key, 0) + right.get(key, 0) for key in sorted({*left, *right})}
