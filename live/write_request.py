"""Validated writes: datapoints to upsert, or ids to delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

__all__ = ["Condition", "Conditional", "Deletion", "PartialUpdate", "Upserts"]


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a write."""

    revision: int | None
    """Required revision of the stored datapoint; None: the datapoint must not exist."""


@dataclass(frozen=True, slots=True)
class Conditional:
    """A datapoint that is written only if its condition holds."""

    path: str
    """Its place in the request, for errors."""
    id: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class PartialUpdate:
    """New values for some columns of an existing datapoint."""

    path: str
    """Its place in the request, for errors; empty for a change by filter."""
    id: str
    values: Mapping[str, Any]
    """New values by column name; a named vector is a float32 array."""
    dynamic: Mapping[str, Any] = field(default_factory=dict)
    """New values of dynamic attributes by name; None removes one."""
    encoded: tuple[str, ...] = ()
    """Names of vectors that their encoders make again from the texts of the datapoint, once it has the new values."""
    encoders: Mapping[str, str] = field(default_factory=dict)
    """Digests of the encoders that made new values, by name of the vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """The datapoints of one request."""

    rows: pa.Table
    """Datapoints that are replaced whole, as `validate` returns them."""
    numbers: Sequence[int]
    """Index of each row in the request's list."""
    partial: tuple[PartialUpdate, ...] = ()
    """Items that change only some fields."""
    conditional: tuple[Conditional, ...] = ()
    """Items with a condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A request to delete datapoints by id and by document."""

    ids: tuple[str, ...]
    document_ids: tuple[str, ...]
    condition: Condition | None
    """Of each datapoint."""
    conditions: tuple[Condition, ...] = ()
    """Of each of `ids`, in their order; empty: none but `condition`."""
