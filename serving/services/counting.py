"""Counts of the datapoints of a snapshot, and of the values of their attributes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.engine.value_counts import FieldCounts, counted
from scannery.serving.request.filter import Node, dynamic_name, field_name, unknown_name
from scannery.serving.snapshot.attribute_index import Field
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["count_rows", "count_values", "field_of"]


def count_rows(snapshot: Snapshot, where: Node | None, deadline: Deadline) -> int:
    """Return the number of datapoints that a filter allows."""
    if where is None:
        return snapshot.rows
    count = 0
    for segment, alive in zip(snapshot.segments, snapshot.alive, strict=True):
        deadline.check()
        count += snapshot.masks.allowed(segment, where, alive, deadline=deadline).count
    return count


def count_values(snapshot: Snapshot, name: str, where: Node | None, deadline: Deadline) -> FieldCounts:
    """Return the values of an attribute among the datapoints that a filter allows.

    Raises:
        InvalidRequestError: the index has no attribute of this name.
        DeadlineError: the deadline passed.

    """
    field = field_of(name, snapshot)
    return counted(_rows(snapshot, field, where, deadline), declared=dynamic_name(field) is None)


def _rows(
    snapshot: Snapshot, field: str, where: Node | None, deadline: Deadline
) -> Iterator[tuple[Field, int, np.ndarray | None]]:
    """Yield the arguments of `counted`; segments without an allowed row are left out."""
    for segment, alive in zip(snapshot.segments, snapshot.alive, strict=True):
        deadline.check()
        allowed = alive if where is None else snapshot.masks.allowed(segment, where, alive, deadline=deadline)
        if allowed is None or allowed.count:
            mask_N = None if allowed is None else allowed.mask_N
            yield snapshot.masks.field(segment, field, deadline), segment.rows, mask_N


def field_of(name: str, snapshot: Snapshot) -> str:
    """Return the name by which the snapshot's indexes know an attribute."""
    spec = snapshot.manifest.spec
    if name == "id":
        raise InvalidRequestError.at(
            "attribute", "must not be id, which each datapoint has for itself; use Count"
        )
    if not name:
        raise InvalidRequestError.at("attribute", "must not be empty")
    field = field_name(name, spec)
    if field is None:
        fields = {"document_id": "string", **spec.attributes}
        raise InvalidRequestError.at("attribute", f"{name!r:.80}: {unknown_name(name, fields, 'attribute')}")
    return field
