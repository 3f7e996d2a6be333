"""Which indexes are served cold: their vectors stay in the store, and are read when a search needs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from functools import cached_property

from scannery.indexer import ColdReads
from scannery.runtime.errors import DeadlineError
from scannery.serving.config import ALL_COLD
from scannery.serving.scheduling.permits import current_permit, waiting

__all__ = ["ColdIndexes"]

PATIENCE_S = 60.0
"""Most seconds of a wait outside of requests, as when an index is opened."""


class ColdIndexes:
    """The names of the indexes that are cold, and the reads of their vectors in this process."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Keep the names; ALL_COLD stand for all indexes."""
        self._names = frozenset(names)
        self._all = not self._names.isdisjoint(ALL_COLD)

    def has(self, name: str) -> bool:
        """Return whether an index is cold."""
        return self._all or name in self._names

    def reads_of(self, name: str) -> ColdReads | None:
        """Return by what the vectors of an index are read; None if it is not cold."""
        return self._reads if self.has(name) else None

    @cached_property
    def _reads(self) -> ColdReads:
        return ColdReads(patience=_patience)


@contextmanager
def _patience() -> Iterator[float]:
    """Wait until the deadline of the request, without its permit: other requests run meanwhile."""
    permit = current_permit()
    seconds = PATIENCE_S if permit is None else permit.deadline.remaining_s
    try:
        with waiting():
            yield seconds
    except FutureTimeoutError as error:
        raise DeadlineError("the deadline passed while vectors were read from the store") from error
