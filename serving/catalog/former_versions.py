"""The versions that a leaf had open before the newest: roots move to a new one each at its own moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from scannery.live.leaf_index import LeafIndex
from scannery.serving.catalog.held_snapshots import NOTHING, Holds
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["FormerVersions"]

KEPT_S = 30.0
"""Seconds that a former version is kept after the move from it, and after it was last read."""


class FormerVersions:
    """Former versions, which follow their logs until they are closed. Safe to use from several threads.

    Only of indexes that stay at their version (`LeafIndex`): the others move, and leave none behind.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep none yet; `clock` returns seconds."""
        self._clock = clock
        self._used_at_s: dict[LeafIndex[Snapshot], float] = {}
        """When each was read last; under the lock, replaced as a whole where one comes or goes."""
        self._lock = threading.Lock()

    @property
    def live(self) -> Collection[LeafIndex[Snapshot]]:
        """The versions that are kept."""
        return self._used_at_s.keys()

    def keep(self, index: LeafIndex[Snapshot]) -> None:
        """Keep a version from now on."""
        with self._lock:
            self._used_at_s = {**self._used_at_s, index: self._clock()}

    def find(self, name: str, index_id: str | None, version: int) -> LeafIndex[Snapshot] | None:
        """Return a version of an index; None: it is not kept."""
        for index in self.of(name, index_id):
            if index.state.manifest.version == version:
                with self._lock:
                    if index in self._used_at_s:  # not closed meanwhile
                        self._used_at_s[index] = self._clock()
                return index
        return None

    def of(self, name: str, index_id: str | None) -> list[LeafIndex[Snapshot]]:
        """Return the versions of an index, the latest last; that they are told does not keep them."""
        manifests = {each: each.state.manifest for each in self.live}
        versions = [each for each, of in manifests.items() if (of.index, of.index_id) == (name, index_id)]
        return sorted(versions, key=lambda each: manifests[each].version)

    def holds(self, name: str) -> Holds:
        """Return what the kept versions of an index need of the store; those that were not read lately are closed."""
        if not self._used_at_s:
            return NOTHING
        now_s = self._clock()
        self._drop(lambda each: now_s - self._used_at_s[each] >= KEPT_S)
        manifests = [each.state.manifest for each in self.live]
        return Holds(frozenset(each.version for each in manifests if each.index == name), None)

    def forget(self, name: str) -> None:
        """Close the versions of an index."""
        self._drop(lambda each: each.state.manifest.index == name)

    def _drop(self, chosen: Callable[[LeafIndex[Snapshot]], bool]) -> None:
        with self._lock:
            dropped = set(filter(chosen, self.live))
            self._used_at_s = {each: at_s for each, at_s in self._used_at_s.items() if each not in dropped}
        for each in dropped:
            each.close()
