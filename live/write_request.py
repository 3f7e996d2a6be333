"""What a write asks for, after it was checked: datapoints to write, or ids to delete.

Shape: D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Condition", "Deletion", "UpsertItem"]


@dataclass(frozen=True, slots=True)
class Condition:
    """When a write may happen."""

    revision: int | None
    """Only if the stored one is this; None: only if there is no such datapoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertItem:
    """One datapoint to write, as the request has it."""

    path: str
    """What it is called in errors."""
    id: str
    document_id: str
    title: str | None
    text: str | None
    payload: str | None
    """JSON text."""
    attributes: Mapping[str, Any]
    """Typed; those that are not set are None."""
    span: tuple[int | None, int | None, float | None, float | None] | None
    """Where the text stands in its document: text_start, text_end, time_start_s, time_end_s."""
    vector: np.ndarray | None
    """float32 (D,)."""
    sparse: tuple[np.ndarray, np.ndarray] | None = None
    """Indices and values of a sparse vector."""
    mask: tuple[str, ...] = ()
    """Fields to change of an existing datapoint; none: replace it whole."""
    condition: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What a request wants deleted."""

    ids: tuple[str, ...]
    document_ids: tuple[str, ...]
    condition: Condition | None
