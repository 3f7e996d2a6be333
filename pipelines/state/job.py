"""What every worker of a build knows, and where a build keeps its files.

    INDEX/embeddings/<unit>.parquet      vectors of one work unit, one row group per shard
    INDEX/stage/units/<unit>.json        the unit is done: counts, row groups (written last, so it is the proof)
    INDEX/stage/units/<unit>.dead.jsonl  its dead letters, if any
    INDEX/stage/segments/<input>.json    the segment made of these row groups exists already: its manifest entry
    INDEX/stage/segments/<input>.dead.jsonl   the duplicates found while it was built, if any
    INDEX/stage/deletes/<ids>.json       ids of documents that a build removes from one shard
    INDEX/stage/reuse/<build>.npy, .json where the vectors of documents seen before are (embedding_cache.py)
    INDEX/stage/builds/<build>.json      what came of a build, and the units and segments it consists of
    INDEX/queries/<sha256>.npy           queries that a user gave to tune for (tuning/tuning_queries.py)
    INDEX/dead-letters/<build>.jsonl     all dead letters of a build, in input order

Every name is a hash of what the content depends on: a file that is there need not be made again, whoever made it
and whenever, and two builds at once can only write the same thing twice. Records of units and segments begin with
a checksum, and a unit's has that of its embeddings file: what was damaged meanwhile is not used but made again.
"""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from typing import Any, Literal

from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store

__all__ = ["Job", "Mode", "dead_letters_key", "embeddings_key", "sealed", "stage_key", "unsealed"]

Mode = Literal["full", "upsert"]
"""`full`: the input is the whole index. `upsert`: what the input does not mention stays."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One build, as its workers see it."""

    store_uri: str
    """Absolute: workers may run in another folder."""

    spec: IndexSpec
    dimensions: int
    shards: int
    fingerprint: dict[str, Any] | None
    """Of the encoder of the index; None where the source has vectors and the spec names no encoder for queries."""

    recipe: dict[str, Any]
    """Everything besides the input that embeddings files depend on; part of their keys."""

    build_id: str
    parent: int | None
    """Version that was current when the build began."""

    index_id: str | None = None
    """Id of the index when the build began: another one of the same name is not built upon."""

    mode: Mode = "full"
    """`upsert` only where there is a parent to keep rows of."""

    keep_rows: bool = False
    """A full build that leaves rows of the parent version where they are, if the input has them as they are."""

    merge: bool = False
    """Make one segment of every shard that is touched, even where nothing changed: the spec did, or this compacts."""

    queries: str | None = None
    """Key of the queries that the user wants the index tuned for (tuning/tuning_queries.py)."""

    newer_than: int | None = None
    """Rows of live updates with a later sequence were written while the build ran, and win over it. None: there are
    none, the version that it goes on from has the log up to where it was when the build began."""

    log_after: int | None = None
    """Live updates with a later sequence are applied upon the version, also those that were sealed while the build ran:
    so deletes win over it, too, and what was written to segments that it makes anew. None: those that the parent does
    not hold."""

    lease: str = ""
    """Key of the lease that keeps the log from being cut there."""

    deletes: int = 0
    """How many documents the caller wants removed."""

    has_catalogue: bool = False
    max_dead_letters: float | None = None
    """Most dead letters allowed: a number from 1, or a share of the records below 1."""

    started_at: float = 0.0
    """When the build began, in seconds since the epoch."""

    plan_seconds: float = 0.0

    @property
    def index(self) -> str:
        """Name of the index."""
        return self.spec.index

    @property
    def embeds(self) -> bool:
        """Whether the vectors are made here, and not brought by the source."""
        return self.spec.source.vector is None

    def open_store(self) -> Store:
        """Return the store, in whatever process this is."""
        return Store.open(self.store_uri, create=True)


def embeddings_key(index: str, unit: str) -> str:
    """Return the store key of a unit's embeddings file."""
    return f"{index}/embeddings/{unit}.parquet"


def stage_key(index: str, kind: str, name: str) -> str:
    """Return the store key of a stage file; `kind` is units, segments, deletes, reuse or builds."""
    return f"{index}/stage/{kind}/{name}"


def dead_letters_key(index: str, build_id: str) -> str:
    """Return the store key of a build's dead letters."""
    return f"{index}/dead-letters/{build_id}.jsonl"


def sealed(text: str) -> bytes:
    """Return a record as it is stored: a line with its SHA-256, then the text."""
    data = text.encode()
    return sha256(data).hexdigest().encode() + b"\n" + data


def unsealed(data: bytes) -> str | None:
    """Return the text of a stored record, or None if it is not what was written."""
    digest, _, body = data.partition(b"\n")
    return body.decode() if sha256(body).hexdigest().encode() == digest else None
