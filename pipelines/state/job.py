"""The job that every worker of a build gets, and the store keys of a build's files.

    INDEX/embeddings/<unit>.<hash>.pieces   vectors of one work unit, one piece per shard (row_groups.py)
    INDEX/embeddings/<unit>.parquet      the same of earlier releases
    INDEX/stage/units/<unit>.json        counts and pieces; written last, so it marks the unit as done
    INDEX/stage/units/<unit>.dead.jsonl  its dead letters, if any
    INDEX/stage/units/<unit>.ids         ids and places of its rows, if there are several shards (records/id_blocks.py)
    INDEX/stage/units/<build>.dtype.json number type that the first worker of a build chose (planned_encoder.py)
    INDEX/stage/segments/<input>.json    manifest entry of the segment made from these row groups
    INDEX/stage/segments/<input>.dead.jsonl   the duplicates found while it was built, if any
    INDEX/stage/deletes/<ids>.json       ids of documents that a build removes from one shard
    INDEX/stage/units/<unit>.documents   hashes of its documents, if texts are embedded (embedding_cache.py)
    INDEX/stage/units/<unit>.named       hashes of its texts with named vectors, if they are embedded (likewise)
    INDEX/stage/reuse/<build>.<run>.*    catalogue of documents embedded before (embedding_cache.py)
    INDEX/stage/builds/<build>.json      result of a build, with its units and segments
    INDEX/stage/builds/<build>.<run>.units.jsonl   its units, while a pipeline makes them (work_units.py)
    INDEX/stage/cuts/last.json.z         how the last build cut its input, if that is large (input_parts.py)
    INDEX/queries/<sha256>.npy           a user's tuning queries (tuning/tuning_queries.py)
    INDEX/dead-letters/<build>.jsonl     all dead letters of a build, in input order

Every name is a hash of all that the content depends on, so an existing file need not be made again. Two machines can
encode a unit's texts to slightly different vectors: the name of an embeddings file has the hash of its bytes too, so
that neither writer replaces the other's file, and of their records the first one stays. Records of units and segments
begin with a checksum, and a unit's record has those of its pieces: damaged files are made again.

Counts of the stages: sums that travel as JSON with the work itself.

Read stage output of earlier runs; damaged output is not used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from scannery.indexer.errors import AlreadyExistsError, NotFoundError
from scannery.indexer.local.files import file_sha256
from scannery.indexer.manifest import Manifest, SegmentEntry, VectorsInfo
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.versions import read_manifest
from scannery.pipelines.errors import StageDamagedError

__all__ = [
    "Counts",
    "Job",
    "Mode",
    "Piece",
    "ShardOutcome",
    "UnitOutcome",
    "added",
    "dead_letters_key",
    "embeddings_key",
    "forget_unit",
    "has_hash",
    "has_size",
    "open_checked",
    "read_beside",
    "read_parent",
    "read_stage",
    "read_unit",
    "sealed",
    "stage_key",
    "unsealed",
    "write_beside",
]


Mode = Literal["full", "upsert"]
"""`full`: the input is the whole index. `upsert`: documents that the input does not mention stay."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One build: everything that its workers need."""

    store_uri: str
    """A URI or an absolute path, since workers may run in another folder."""

    spec: IndexSpec
    vectors: Mapping[str, VectorsInfo]
    """Dimensions and encoder of the vectors of each name, as `Manifest.vectors`."""

    shards: int
    """Number of hash partitions."""

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
    """Whether a full build keeps rows of the parent's segments that are equal in the input."""

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
    """Part of the name of the list of units in the store (work_units.py)."""

    units_per_sum: int = 64
    """Outcomes of neighbouring units that are added up as one group."""

    widths: tuple[int, ...] = ()
    """Tokens to which workers on XLA pad the texts of large batches (planning/padded_widths.py)."""

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
    def dimensions(self) -> int:
        """Components of an unnamed vector; 0: the index has none."""
        return self.vectors[""].dimensions

    @property
    def dimensions_by_name(self) -> dict[str, int]:
        """Components of the vectors of each name."""
        return {name: info.dimensions for name, info in self.vectors.items()}

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
    """SHA-256 of the embeddings file."""

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
    """Entries of segments, at most a large one and a small one with later changes; none if the shard is empty."""

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


_SOUND: set[tuple[str, int, int, str]] = set()
"""Files whose hash this process has checked, as (path, size, time, hash): each shard in a file reads it."""

_MOST_SOUND = 100_000


def read_parent(job: Job, store: Store) -> Manifest | None:
    """Return the parent version of a build, or None if there was none.

    Raises:
        AlreadyExistsError: gc has removed it, so there are later versions: the build must start from the current one.

    """
    if job.parent is None:
        return None
    try:
        return read_manifest(store, job.index, job.parent)
    except NotFoundError as error:
        raise AlreadyExistsError(
            f"index {job.index!r}: version {job.parent}, from which this build began, was removed during the build; "
            "run it again"
        ) from error


def read_stage(store: Store, index: str, kind: str, name: str) -> str | None:
    """Return a stage record, or None if it is missing or damaged."""
    try:
        return unsealed(store.read(stage_key(index, kind, f"{name}.json")))
    except NotFoundError:
        return None


def read_unit(store: Store, index: str, unit: str) -> UnitOutcome | None:
    """Return the outcome of a finished unit, or None."""
    text = read_stage(store, index, "units", unit)
    return None if text is None else UnitOutcome.from_json(text)


def write_beside(store: Store, index: str, unit: str, name: str, data: bytes) -> None:
    """Store what later stages and runs need of a unit, so that they need not read its embeddings file.

    `name` is `ids` (records/id_blocks.py), `documents` (embedding_cache.py) or `named` (embedding_cache.py).
    """
    store.write(stage_key(index, "units", f"{unit}.{name}"), sha256(data).digest() + data)


def read_beside(store: Store, index: str, unit: str, name: str) -> bytes | None:
    """Return what `write_beside` stored, or None if it is missing or damaged."""
    try:
        stored = store.read(stage_key(index, "units", f"{unit}.{name}"))
    except NotFoundError:
        return None
    digest, data = stored[:32], stored[32:]
    return data if sha256(data).digest() == digest else None


def has_size(store: Store, key: str, size_bytes: int) -> bool:
    """Return whether an object exists with this size."""
    try:
        return store.size(key) == size_bytes
    except NotFoundError:
        return False


def has_hash(store: Store, key: str, digest: str) -> bool:
    """Return whether an existing object has this SHA-256."""
    with store.open_file(key) as path:
        return _is_sound(path, digest)


def forget_unit(store: Store, index: str, unit: str, file: str) -> None:
    """Remove a unit's record, so that the next run makes the unit again, unless it names another embeddings file.

    Args:
        store: the store.
        index: name of the index.
        unit: key of the unit.
        file: `UnitOutcome.file` of the damaged file.

    """
    outcome = read_unit(store, index, unit)
    if outcome is not None and outcome.file == file:
        store.delete(stage_key(index, "units", f"{unit}.json"))


@contextlib.contextmanager
def open_checked(store: Store, index: str, unit: str) -> Iterator[Path]:
    """Yield the path of a unit's embeddings file of an earlier release, with its hash checked.

    Raises:
        StageDamagedError: the file is missing or damaged; the unit's record is removed.

    """
    key, outcome = embeddings_key(index, unit, ""), read_unit(store, index, unit)
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(store.open_file(key))
            problem = "" if outcome and _is_sound(path, outcome.sha256) else "is damaged"
        except NotFoundError:
            problem = "is missing"
        if problem:
            forget_unit(store, index, unit, "")
            raise StageDamagedError(f"{key} {problem}; run the build again, which makes a new one")
        yield path


def _is_sound(path: Path, digest: str) -> bool:
    status = path.stat()
    token = (str(path), status.st_size, status.st_mtime_ns, digest)
    if token not in _SOUND:
        if file_sha256(path) != digest:
            return False
        if len(_SOUND) >= _MOST_SOUND:
            _SOUND.clear()
        _SOUND.add(token)
    return True
