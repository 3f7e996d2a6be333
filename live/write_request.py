"""Validated writes: datapoints to upsert, or ids to delete.

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
    """Condition of a write."""

    revision: int | None
    """Required revision of the stored datapoint; None: the datapoint must not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertItem:
    """One datapoint of a request."""

    path: str
    """Its place in the request, for errors."""
    id: str
    document_id: str
    title: str | None
    text: str | None
    payload: str | None
    """JSON text."""
    attributes: Mapping[str, Any]
    """All attributes of the index, typed; None: not set."""
    span: tuple[int | None, int | None, float | None, float | None] | None
    """Place of the text in its document: text_start, text_end, time_start_s, time_end_s."""
    vector: np.ndarray | None
    """float32 (D,)."""
    sparse: tuple[np.ndarray, np.ndarray] | None = None
    """Indices and values of a sparse vector."""
    mask: tuple[str, ...] = ()
    """Fields of an existing datapoint to change; empty: replace the datapoint."""
    condition: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A request to delete datapoints by id and by document."""

    ids: tuple[str, ...]
    document_ids: tuple[str, ...]
    condition: Condition | None
