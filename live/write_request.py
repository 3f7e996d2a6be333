"""What a write asks for, after it was checked: datapoints to write, or ids to delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["Condition", "Conditional", "Deletion", "PartialUpdate", "Upserts"]


@dataclass(frozen=True, slots=True)
class Condition:
    """When a write may happen."""

    revision: int | None
    """Only if the stored one is this; None: only if there is no such datapoint."""


@dataclass(frozen=True, slots=True)
class Conditional:
    """A datapoint that is written only if its condition holds."""

    path: str
    """What it is called in errors."""
    id: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class PartialUpdate:
    """New values for some columns of an existing datapoint."""

    path: str
    """What it is called in errors."""
    id: str
    values: Mapping[str, Any]
    """By column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """The datapoints of one request."""

    rows: pa.Table
    """Those that are replaced whole, as `validate` returns them."""
    numbers: Sequence[int]
    """Where each of them is in the request."""
    partial: tuple[PartialUpdate, ...] = ()
    conditional: tuple[Conditional, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What a request wants deleted."""

    ids: tuple[str, ...]
    document_ids: tuple[str, ...]
    condition: Condition | None
