"""What Haystack's policies for duplicates mean for writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from haystack.document_stores.errors import DuplicateDocumentError

from scannery.client import BulkWritten, Datapoint, FailedPreconditionError, ScanneryError

__all__ = ["absent_points", "raise_duplicate", "skipping"]

_CONDITION = re.compile(r"\.condition(\.if_absent)?$")


def absent_points(points: Iterable[dict[str, Any]], known: Iterable[Datapoint | None]) -> Iterator[Any]:
    """Yield the points whose id is not known; of equal ids the first one."""
    seen = {each.id for each in known if each is not None}
    for point in points:
        if point["id"] not in seen:
            seen.add(point["id"])
            yield point


def skipping(done: BulkWritten) -> int:
    """Return how many points were written of those that were to be written only if they are absent.

    Raises:
        ScanneryError: another error of the first point that has one.

    """
    for failed in done.failed:
        if not _is_duplicate(failed.error):
            raise failed.error
    return done.written


def raise_duplicate(error: ScanneryError) -> None:
    """Raise DuplicateDocumentError if this is the error of a datapoint that was to be absent."""
    if _is_duplicate(error):
        raise DuplicateDocumentError(error.message) from error


def _is_duplicate(error: ScanneryError) -> bool:
    return isinstance(error, FailedPreconditionError) and bool(_CONDITION.search(error.field or ""))
