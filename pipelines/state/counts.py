"""What stages count and hand on: plain sums that travel as JSON with the work itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from scannery.indexer.manifest import SegmentEntry

__all__ = ["Counts", "ShardOutcome", "UnitOutcome"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Sums over a part of a build."""

    documents: int = 0
    """Records that passed validation."""

    passages: int = 0
    """Datapoints made of them."""

    embedded: int = 0
    """Passages that went through the encoder."""

    tokens: int = 0
    padding_tokens: int = 0
    input_bytes: int = 0
    embeddings_bytes: int = 0
    dead_letters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Refused records by reason."""

    changes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Documents that an update `added`, `replaced`, `removed` or found `unchanged`."""

    record_errors: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The same by the category of the managed service, for records of its layout."""

    ignored: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Records that have something under a name which the spec leaves out, by name (managed layout)."""

    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Time by stage, summed over workers."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            documents=self.documents + other.documents,
            passages=self.passages + other.passages,
            embedded=self.embedded + other.embedded,
            tokens=self.tokens + other.tokens,
            padding_tokens=self.padding_tokens + other.padding_tokens,
            input_bytes=self.input_bytes + other.input_bytes,
            embeddings_bytes=self.embeddings_bytes + other.embeddings_bytes,
            dead_letters=_added(self.dead_letters, other.dead_letters),
            changes=_added(self.changes, other.changes),
            record_errors=_added(self.record_errors, other.record_errors),
            ignored=_added(self.ignored, other.ignored),
            seconds=_added(self.seconds, other.seconds),
        )

    def without_work(self) -> Counts:
        """Return the same content with no time and no embedding: what a unit that was done before adds."""
        return dataclasses.replace(self, embedded=0, tokens=0, padding_tokens=0, seconds={})


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitOutcome:
    """A unit is done."""

    key: str
    ordinal: int
    counts: Counts
    row_groups: Mapping[int, int]
    """Row group of the embeddings file that holds the rows of a shard; shards without rows are left out."""

    sha256: str = ""
    """Of the embeddings file."""

    device: str | None = None
    dtype: str | None = None

    def to_json(self) -> str:
        """Return the outcome as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> UnitOutcome:
        """Return the outcome that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["counts"] = Counts(**data["counts"])
        data["row_groups"] = {int(shard): group for shard, group in data["row_groups"].items()}
        return cls(**data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardOutcome:
    """The segments of a shard are in the store."""

    key: str
    """Hash of what it was made of."""

    shard: int
    entries: tuple[SegmentEntry, ...]
    """The big one and a small one of later changes, at most; none if the shard turned out to be empty."""

    counts: Counts
    """Duplicates among the documents, and time."""

    statistics: Mapping[str, Any] = dataclasses.field(default_factory=dict)

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


def _added(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    return {key: left.get(key, 0) + right.get(key, 0) for key in sorted({*left, *right})}
