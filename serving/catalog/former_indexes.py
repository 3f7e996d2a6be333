"""The versions that a leaf had open before the newest: roots move to a new one each at its own moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scannery.live.leaf_index import LeafIndex
from scannery.serving.catalog.held_snapshots import Holds
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["FormerIndexes"]

KEPT_S = 30.0
"""Seconds that a former version is kept after the move from it, and after it was last read."""


@dataclass(slots=True, eq=False)
class _Former:
    index: LeafIndex[Snapshot]
    used_at_s: float


class FormerIndexes:
    """Former versions, which follow their logs until they are closed. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: list[_Former] = []
        self._lock = threading.Lock()

    @property
    def live(self) -> Sequence[LeafIndex[Snapshot]]:
        """The versions that are kept."""
        return [each.index for each in self._kept]

    def keep(self, index: LeafIndex[Snapshot]) -> None:
        """Keep a version from now on."""
        with self._lock:
            self._kept = [*self._kept, _Former(index, self._clock())]

    def find(self, name: str, index_id: str | None, version: int) -> LeafIndex[Snapshot] | None:
        """Return a version of an index; None: it is not kept."""
        for each in self._kept:
            manifest = each.index.state.manifest
            if (manifest.index, manifest.index_id, manifest.version) == (name, index_id, version):
                each.used_at_s = self._clock()
                return each.index
        return None

    def of(self, name: str, index_id: str | None) -> list[LeafIndex[Snapshot]]:
        """Return the versions of an index, the latest last; that they are told does not keep them."""
        kept = (each.index for each in self._kept)
        mine = [each for each in kept if _identity(each) == (name, index_id)]
        return sorted(mine, key=lambda index: index.state.manifest.version)

    def holds(self, name: str) -> Holds:
        """Return what the kept versions of an index need of the store; those that were not read lately are closed."""
        self._expire()
        of_name = (each.index.state.manifest for each in self._kept)
        return Holds(frozenset(found.version for found in of_name if found.index == name), None)

    def forget(self, name: str) -> None:
        """Close the versions of an index."""
        self._drop(lambda each: each.index.state.manifest.index == name)

    def _expire(self) -> None:
        now_s = self._clock()
        self._drop(lambda each: now_s - each.used_at_s >= KEPT_S)

    def _drop(self, chosen: Callable[[_Former], bool]) -> None:
        with self._lock:
            dropped = [each for each in self._kept if chosen(each)]
            self._kept = [each for each in self._kept if each not in dropped]
        for each in dropped:
            each.index.close()


def _identity(index: LeafIndex[Snapshot]) -> tuple[str, str | None]:
    manifest = index.state.manifest
    return manifest.index, manifest.index_id
