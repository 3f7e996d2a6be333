"""A version of a trained model: one immutable JSON object that says what it is, and what it was worth when made."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scannery.indexer.errors import CorruptError, FormatError
from scannery.indexer.manifest import Ranker

__all__ = ["Difference", "Evaluation", "ModelVersion"]

FORMAT_VERSION = 1


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


class ModelVersion(_Record):
    """A version of a model."""

    format_version: int = FORMAT_VERSION
    name: str
    version: Annotated[int, Field(ge=1, lt=1 << 31)]
    kind: Literal["ranking"]
    """What it changes: the order of hybrid hits."""
    created_at: datetime
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

    @property
    def reference(self) -> str:
        """The name that commands and specs use: `NAME@N`."""
        return f"{self.name}@{self.version}"

    def to_json(self) -> bytes:
        """Return the object."""
        return self.model_dump_json(indent=2).encode()

    @classmethod
    def from_json(cls, key: str, data: bytes) -> ModelVersion:
        """Return the version in an object.

        Raises:
            CorruptError: the object is damaged.
            FormatError: a later release wrote it.

        """
        try:
            model = cls.model_validate_json(data)
        except ValidationError as error:
            kinds = {detail["type"] for detail in error.errors()}
            if kinds == {"literal_error"}:
                raise FormatError(f"{key}: a kind of model of a later release") from error
            raise CorruptError(f"{key} is damaged: {error.errors()[0]['msg']}") from error
        if model.format_version > FORMAT_VERSION:
            raise FormatError(f"{key} has format {model.format_version}; this release reads {FORMAT_VERSION}")
        return model
