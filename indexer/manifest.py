"""The manifest: one immutable JSON file that names everything a version of an index consists of."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scannery.indexer.errors import CorruptError, FormatError
from scannery.indexer.spec.spec import IndexSpec

__all__ = ["FORMAT_VERSION", "CurvePoint", "DeletedRows", "DepthCurve", "Manifest", "Recall", "SegmentEntry"]

FORMAT_VERSION = 1
"""Version of manifests and segments that this code writes; it reads all from 1 up to it."""


_SEAL = b',\n  "sha256": "'
"""Last key of a manifest: the SHA-256 of all bytes before it. Manifests of early days have none."""

_UNKNOWN = frozenset({"extra_forbidden", "literal_error"})
"""What is wrong with the spec of a later release: an unknown key, or an unknown value of a known one."""


class _Record(BaseModel):
    # Unknown keys of a later minor addition are ignored, so that an older reader keeps working.
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
    """Time of one query in a batch on one core, in microseconds, when it was measured."""


class DepthCurve(_Record):
    """The settings of a ScaNN segment for another number of hits than ten."""

    k: Annotated[int, Field(ge=1)]
    """Hits per query."""
    curve: tuple[CurvePoint, ...]
    """Recall against cost, cheapest first, with candidates for k hits."""


class DeletedRows(_Record):
    """The file that names the rows of a segment which are no longer part of the index (versions/tombstones.py)."""

    key: Annotated[str, Field(pattern=r"^deletes/[0-9a-f]{64}\.parquet$")]
    """Object key relative to the index folder."""
    rows: Annotated[int, Field(ge=1)]
    """How many rows it names."""
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SegmentEntry(_Record):
    """One segment file as the manifest knows it."""

    key: Annotated[str, Field(pattern=r"^segments/[0-9a-f]{64}\.parquet$")]
    """Object key relative to the index folder."""
    shard: Annotated[int, Field(ge=0)]
    rows: Annotated[int, Field(ge=0)]
    """Rows of the file, deleted ones included."""
    documents: Annotated[int, Field(ge=0)] | None = None
    """Distinct `document_id` values of the rows that are not deleted; None where nobody counted them."""
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    kind: Literal["exact", "scann"]
    """`exact` segments carry no ScaNN data and are scanned."""
    curve: tuple[CurvePoint, ...] = ()
    """Recall@10 against cost, cheapest first; empty for `exact`."""
    depth_curves: tuple[DepthCurve, ...] = ()
    """The same for other numbers of hits, ascending; empty for `exact`, and in manifests of early days."""
    deleted: DeletedRows | None = None
    """Rows of the file that are not part of the index any more; None: all of them are part of it."""

    @property
    def live_rows(self) -> int:
        """Datapoints that the segment has in this version."""
        return self.rows - (self.deleted.rows if self.deleted else 0)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all files of the segment; two entries with the same keys are the same rows."""
        return (self.key, self.deleted.key) if self.deleted else (self.key,)


class Recall(_Record):
    """What was measured of a version: by the tuner, segment by segment, and of all segments together."""

    k: int
    target: float
    measured: float
    """Expected recall@k at the default settings: that of each segment, weighted by its rows."""
    queries: int
    """Held-out queries per segment."""
    reached: bool
    """False: there is a segment where no setting reaches the target. It is searched exactly."""
    whole: float | None = None
    """Recall@k of all segments together, merged as a search merges them, at the default settings; for queries that no
    segment was tuned for. None where nobody measured it."""
    whole_queries: int = 0
    """With how many queries it was measured; 0 where all segments are searched exactly."""
    given_queries: Annotated[str, Field(pattern=r"^queries/[0-9a-f]{64}\.npy$")] | None = None
    """Key, relative to the index folder, of the queries that a user had the index tuned for."""


class Manifest(_Record):
    """A version of an index."""

    format_version: int = FORMAT_VERSION
    index: str
    index_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    """Random, made with the first version and the same in all that follow: an index that is made anew under the same
    name has another one. None in manifests of early days."""
    version: Annotated[int, Field(ge=1)]
    parent: int | None = None
    """The version this one was made from."""
    parent_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the parent's manifest file; None without a parent, and in manifests of before."""
    created_at: datetime
    spec: IndexSpec
    encoder: dict[str, Any] | None = None
    """Fingerprint of the encoder that made the vectors; None where the source had vectors."""
    dimensions: Annotated[int, Field(ge=1)]
    shards: Annotated[int, Field(ge=1)]
    segments: tuple[SegmentEntry, ...]
    log_sequence: Annotated[int, Field(ge=0)] = 0
    """Mutations up to this sequence are in the segments, and all later ones are applied upon them. After a build that
    others overtook it is where the log was when the build began, so that what was written since wins over the build."""
    log_reached: Annotated[int, Field(ge=0)] = 0
    """The highest `log_sequence` of this version and of all before it: the segments may have rows of mutations up to
    this one, and no other mutation gets their numbers."""
    log_floor: Annotated[int, Field(ge=0)] = 0
    """Mutations up to this one are not applied again, since a build has replaced what they wrote, or a rollback has
    undone it: the least `log_sequence` of versions to come."""
    recall: Recall | None = None
    statistics: dict[str, Any] = {}
    """What the build counted and measured."""

    @property
    def rows(self) -> int:
        """Datapoints in all segments; deleted rows do not count."""
        return sum(segment.live_rows for segment in self.segments)

    @property
    def builds(self) -> tuple[str, ...]:
        """Names of the builds that its documents come from, as far as it is known."""
        known = self.statistics.get("builds") or [self.statistics.get("build_id")]
        return tuple(build for build in known if build)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segment files, and of the files that name deleted rows."""
        files = [file for entry in self.segments for file in (entry, entry.deleted) if file]
        return sum(file.size_bytes for file in files)

    def to_json(self) -> bytes:
        """Return the manifest as UTF-8 JSON, stable and indented: people read it."""
        body = self.model_dump_json(indent=2).removesuffix("\n}").encode()
        return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'

    @classmethod
    def from_json(cls, data: bytes, *, origin: str) -> Manifest:
        """Return the manifest in `data`; `origin` names the file in errors.

        Raises:
            FormatError: it was written by a later format version, or has settings that this release does not know.
            CorruptError: it is not a manifest.

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
                    f"{origin} was made by a later Scannery: {where} is not known here; upgrade this one"
                ) from error
            raise CorruptError(f"{origin} is damaged: {where}: {first['msg']}") from error


class _Header(_Record):
    format_version: int
