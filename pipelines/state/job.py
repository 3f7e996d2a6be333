"""The job that every worker of a build gets, and the store keys of a build's files.

    INDEX/embeddings/<unit>.<hash>.pieces   vectors of one work unit, one piece per shard (row_groups.py)
    INDEX/embeddings/<unit>.parquet      the same of earlier releases
    INDEX/stage/units/<unit>.json        counts and pieces; written last, so it marks the unit as done
    INDEX/stage/units/<unit>.dead.jsonl  its dead letters, if any
    INDEX/stage/units/<unit>.ids         ids and places of its rows, if there are several shards (records/id_blocks.py)
    INDEX/stage/units/<build>.dtype.json number type that the first worker of a build chose (planning/agreed_dtype.py)
    INDEX/stage/segments/<input>.json    manifest entry of the segment made from these row groups
    INDEX/stage/segments/<input>.dead.jsonl   the duplicates found while it was built, if any
    INDEX/stage/deletes/<ids>.json       ids of documents that a build removes from one shard
    INDEX/stage/units/<unit>.documents   hashes of its documents, if texts are embedded (embedding_cache.py)
    INDEX/stage/units/<unit>.named       hashes of its texts with named vectors, if they are embedded (named_cache.py)
    INDEX/stage/reuse/<build>.<run>.*    catalogue of documents embedded before (embedding_cache.py)
    INDEX/stage/builds/<build>.json      result of a build, with its units and segments
    INDEX/stage/builds/<build>.<run>.units.jsonl   its units, while a pipeline makes them (unit_list.py)
    INDEX/stage/cuts/last.json.z         how the last build cut its input, if that is large (input_parts.py)
    INDEX/queries/<sha256>.npy           a user's tuning queries (tuning/tuning_queries.py)
    INDEX/dead-letters/<build>.jsonl     all dead letters of a build, in input order

Every name is a hash of all that the content depends on, so an existing file need not be made again. Two machines can
encode a unit's texts to slightly different vectors: the name of an embeddings file has the hash of its bytes too, so
that neither writer replaces the other's file, and of their records the first one stays. Records of units and segments
begin with a checksum, and a unit's record has those of its pieces: damaged files are made again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal

from scannery.indexer.manifest import NamedVectorsInfo
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store

__all__ = ["Job", "Mode", "dead_letters_key", "embeddings_key", "sealed", "stage_key", "unsealed"]

Mode = Literal["full", "upsert"]
"""`full`: the input is the whole index. `upsert`: documents that the input does not mention stay."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One build: everything that its workers need."""

    store_uri: str
    """A URI or an absolute path, since workers may run in another folder."""

    spec: IndexSpec
    dimensions: int
    """Components of a vector."""

    shards: int
    """Number of hash partitions."""

    fingerprint: dict[str, Any] | None
    """Fingerprint of the index's encoder; None if the source has vectors and the spec names no encoder for queries."""

    named_vectors: Mapping[str, NamedVectorsInfo] = dataclasses.field(default_factory=dict)
    """Dimensions and encoder of the vectors of each name."""

    recipe: dict[str, Any]
    """Everything besides the input that decides the content of embeddings files; part of their keys."""

    build_id: str
    """Name of the build; builds that do the same work have the same name."""

    parent: int | None
    """Version that was current when the build began."""

    index_id: str | None = None
    """Id of the index when the build began: a new index of the same name is refused as parent."""

    mode: Mode = "full"
    """`upsert` only if there is a parent whose rows are kept."""

    keep_rows: bool = False
    """For a full build: keep rows of the parent's segments that are equal in the input."""

    merge: bool = False
    """Rewrite every changed shard as one segment, even without new rows: the spec changed, or this is a compaction."""

    queries: str | None = None
    """Key of the user's tuning queries (tuning/tuning_queries.py)."""

    newer_than: int | None = None
    """Rows of live updates with a later sequence were written during the build and win over it. None: the parent
    version has no such rows."""

    log_after: int | None = None
    """The log is applied to the new version from this sequence on (exclusive). That repeats updates sealed during the
    build, so that their deletes, and their rows in rewritten segments, win over it. None: the parent's log position."""

    lease: str = ""
    """Key of the lease that keeps the log after `log_after` from being cut."""

    deletes: int = 0
    """Number of documents that the caller wants removed."""

    catalogue: str = ""
    """Name of the catalogue of documents embedded before, which the launcher has written; empty: none."""

    named_catalogue: str = ""
    """Name of the catalogue of texts embedded to named vectors before; empty: none."""

    max_dead_letters: float | None = None
    """Most dead letters allowed: a number from 1 (or 0), or a share of the records below 1."""

    hash_ranges: int = 1
    """Ranges of id hashes in which duplicates across shards are found; the result does not depend on it."""

    unit_list: str = ""
    """Part of the name of the list of units in the store (unit_list.py)."""

    units_per_sum: int = 64
    """Outcomes of neighbouring units that are added up as one group."""

    widths: tuple[int, ...] = ()
    """To how many tokens workers on XLA pad the texts of large batches (planning/padded_widths.py)."""

    started_at: float = 0.0
    """When the build began, in seconds since the epoch."""

    plan_seconds: float = 0.0
    """Time of planning, for the report."""

    @property
    def index(self) -> str:
        """Name of the index."""
        return self.spec.index

    @property
    def embeds(self) -> bool:
        """Whether the build encodes texts to unnamed vectors, rather than reading these from the source."""
        return self.spec.embeds

    @property
    def named_dimensions(self) -> dict[str, int]:
        """Components of the vectors of each name."""
        return {name: info.dimensions for name, info in self.named_vectors.items()}

    def open_store(self) -> Store:
        """Return the store, opened in this process."""
        return Store.open(self.store_uri, create=True)


def embeddings_key(index: str, unit: str, file: str) -> str:
    """Return the store key of a unit's embeddings file.

    Args:
        index: name of the index.
        unit: key of the unit. It is the part of the name up to the first dot, by which garbage collection finds it.
        file: `UnitOutcome.file`, which is empty for a file of an earlier release.

    """
    return f"{index}/embeddings/{unit}.{file}.pieces" if file else f"{index}/embeddings/{unit}.parquet"


def stage_key(index: str, kind: str, name: str) -> str:
    """Return the store key of a stage file; `kind` is units, segments, deletes, reuse, cuts or builds."""
    return f"{index}/stage/{kind}/{name}"


def dead_letters_key(index: str, build_id: str) -> str:
    """Return the store key of a build's dead letters."""
    return f"{index}/dead-letters/{build_id}.jsonl"


def sealed(text: str) -> bytes:
    """Return a record as it is stored: a line with its SHA-256, then the text."""
    data = text.encode()
    return sha256(data).hexdigest().encode() + b"\n" + data


def unsealed(data: bytes) -> str | None:
    """Return the text of a stored record, or None if its checksum does not match."""
    digest, _, body = data.partition(b"\n")
    return body.decode() if sha256(body).hexdigest().encode() == digest else None
