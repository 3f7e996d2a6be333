"""A version of a model: one immutable JSON object that says what it is, and what it was worth when made.

An encoder has files beside it, which lie in the store by their SHA-256: `_models/NAME/files/<sha256>`.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from scannery.indexer.errors import CorruptError, FormatError
from scannery.indexer.manifest import Ranker, SearchState
from scannery.indexer.spec.model_reference import STORE_PREFIX

__all__ = [
    "MAX_BYTES",
    "MAX_FILES",
    "MODELS",
    "WEIGHTS",
    "Difference",
    "EncoderVersion",
    "Evaluation",
    "ModelFile",
    "ModelVersion",
    "RankingVersion",
    "file_key",
    "read_version",
]

FORMAT_VERSION = 1
MODELS = "_models"
"""Folder of the models in a store."""
MAX_FILES = 200
"""Limit of the files of a model; sentence-transformers writes about 12."""
MAX_BYTES = 64 << 30
"""Limit of the bytes of a model."""
WEIGHTS = ".safetensors"
"""Suffix of files with weights: others are pickles, which may run code when they are read."""

Kind = Literal["ranking", "query_side", "encoder"]


def _relative(path: str) -> str:
    # Other users may have written the object: a path must stay inside the folder that the files are copied to.
    if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"must be a path inside the folder of the model, got {path!r:.200}")
    return path


FilePath = Annotated[str, Field(max_length=200), AfterValidator(_relative)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Difference(_Record):
    """What a candidate is better by, over the same queries: a mean with its 95 % interval, of a paired bootstrap."""

    queries: Annotated[int, Field(ge=1)]
    """Number of judged queries."""
    current: float
    """Mean nDCG@10 of the version of the index as it was."""
    candidate: float
    """That of the candidate; of the queries that it was fitted to, by cross-validation."""
    low: float
    """Lower bound of the mean difference."""
    high: float
    """Upper bound."""

    @property
    def mean(self) -> float:
        """The mean difference."""
        return self.candidate - self.current


class Evaluation(_Record):
    """What a candidate is worth beside what hits are ordered by today."""

    query_set: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the target's queries and judgements: who asks the same ones often finds what suits them by chance."""
    compared_with: str | None = None
    """Model that ordered the hits that the candidate was compared with; None: the measured weight did."""
    target: Difference
    """The queries that it should be better for."""
    earlier: Annotated[int, Field(ge=0)] = 0
    """Number of versions of the model that were compared on the same queries before, those that are gone included."""
    guards: dict[str, Difference] = {}
    """Queries that it may not be worse for, by name."""
    refused: tuple[str, ...] = ()
    """Reasons for which it may not be promoted; empty: it may."""
    values: Annotated[str, Field(pattern=r"^_models/[^/]+/evaluations/[0-9a-f]{64}\.parquet$")]
    """Key of the values of each query."""


class _Header(_Record):
    """What decides whether this release can read an object."""

    format_version: int
    kind: str


class _Version(_Record):
    """What versions of all kinds have."""

    format_version: int = FORMAT_VERSION
    name: str
    version: Annotated[int, Field(ge=1, lt=1 << 31)]
    kind: Kind
    """What the model changes."""
    created_at: datetime

    @property
    def reference(self) -> str:
        """The name that commands use: `NAME@N`."""
        return f"{self.name}@{self.version}"

    def to_json(self) -> bytes:
        """Return the object."""
        return self.model_dump_json(indent=2).encode()


class RankingVersion(_Version):
    """An order of hybrid hits."""

    kind: Literal["ranking"]
    """The order of hybrid hits."""
    index: str
    """Name of the index that it was trained on."""
    index_id: str | None = None
    """Identity of that index."""
    index_version: Annotated[int, Field(ge=1)]
    """Its version."""
    ranker: Ranker
    """The order that it gives hits."""
    evaluation: Evaluation
    training: dict[str, Any] = {}
    """Settings and measurements of the training."""


class ModelFile(_Record):
    """A file of a model."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=0)]


class EncoderVersion(_Version):
    """A sentence-transformers model: the encoder of an index, or of its queries only."""

    kind: Literal["query_side", "encoder"]
    """The encoder of queries, or that of queries and documents."""
    index: str | None = None
    """Name of the index that it was trained on; None: on none."""
    index_id: str | None = None
    """Identity of that index."""
    index_version: Annotated[int | None, Field(ge=1)] = None
    """Its version."""
    base: str | None = None
    """Model that it was trained from."""
    fingerprint: dict[str, Any] | None = None
    """Fingerprint of the encoder that its files make without options, as `scannery.embed.Fingerprint.to_dict` returns
    it; None: not known."""
    search: SearchState | None = None
    """State of searches with it, for a model for queries alone that was trained on an index."""
    files: Annotated[dict[FilePath, ModelFile], Field(min_length=1, max_length=MAX_FILES)]
    """The files, by their paths in the folder of the model."""
    evaluation: Evaluation | None = None
    training: dict[str, Any] = {}
    """Settings and measurements of the training."""

    @model_validator(mode="after")
    def _is_bounded(self) -> EncoderVersion:
        if self.size_bytes > MAX_BYTES:
            raise ValueError(f"the files have {self.size_bytes} bytes, more than {MAX_BYTES}")
        return self

    @property
    def spec_reference(self) -> str:
        """The name that specs and servers use: `store:NAME@N`."""
        return f"{STORE_PREFIX}{self.reference}"

    @property
    def spec_key(self) -> str:
        """The key of `encoder` in a spec that names it."""
        return "model" if self.kind == "encoder" else "query_model"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files.values())

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(file.size_bytes for path, file in self.files.items() if path.endswith(WEIGHTS))

    @property
    def content_sha256(self) -> str:
        """SHA-256 over paths and files: models with equal ones have equal folders."""
        listing = sorted((path, file.sha256) for path, file in self.files.items())
        return hashlib.sha256(json.dumps(listing).encode()).hexdigest()

    def file_key(self, path: str) -> str:
        """Return the key of a file by its path."""
        return file_key(self.name, self.files[path].sha256)


ModelVersion: TypeAlias = RankingVersion | EncoderVersion


def read_version(key: str, data: bytes) -> ModelVersion:
    """Return the version in an object.

    Raises:
        CorruptError: the object is damaged.
        FormatError: a later release wrote it.

    """
    try:
        header = _Header.model_validate_json(data)
        if header.format_version > FORMAT_VERSION:
            raise FormatError(
                f"{key} has format {header.format_version}; this release reads {FORMAT_VERSION}"
            )
        if header.kind not in get_args(Kind):
            raise FormatError(f"{key}: {header.kind!r:.80} is a kind of model of a later release")
        version = RankingVersion if header.kind == "ranking" else EncoderVersion
        return version.model_validate_json(data)
    except ValidationError as error:
        raise CorruptError(f"{key} is damaged: {error.errors()[0]['msg']}") from error


def file_key(name: str, sha256: str) -> str:
    """Return the key of a file of a model."""
    return f"{MODELS}/{name}/files/{sha256}"
