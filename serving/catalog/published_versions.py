"""Which version of an index a process is to have open, and who looks for it.

The latest of the store, or the latest that leaves have open. Threads beside the requests look for it, or the requests
themselves.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Protocol

from scannery.indexer import IndexerError, Store, latest_version
from scannery.runtime.errors import UnavailableError
from scannery.serving.engine.remote.state_reader import Leaves
from scannery.v1.leaf_pb2 import At

__all__ = ["ON_ACCESS", "WATCHED", "PublishedVersions", "Upkeep", "WatchedLeaves", "is_stored"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Upkeep:
    """When a catalog looks for new versions, and what a request may wait for."""

    watched: bool
    """Whether threads look for versions, follow the logs, start maintenance and load encoders, so that no request waits
    for files. Otherwise a request does so for its index, and closing an index finishes maintenance that is due."""
    every_s: float
    """An index is looked at when it is asked for, if its last look was so long ago."""
    wait_s: float
    """Most seconds that a request waits for its turn to look into the store for an index that is not known here."""
    small_bytes: float
    """Size of the segments, besides those that are open, of a version that a request may open: in milliseconds."""


ON_ACCESS = Upkeep(watched=False, every_s=1.0, wait_s=threading.TIMEOUT_MAX, small_bytes=math.inf)
"""The upkeep of an embedded client."""

WATCHED = Upkeep(watched=True, every_s=math.inf, wait_s=0.25, small_bytes=1 << 20)
"""The upkeep of servers, by a `Watcher`."""


class WatchedLeaves(Leaves, Protocol):
    """Leaves that are asked, and tell which states they have."""

    def newest(self, index: str) -> At | None:
        """Return the newest state of an index that leaves of all groups have; None: there is none."""


class PublishedVersions:
    """The versions of a store that a process may open. Safe to use from several threads.

    A root opens a version as soon as a query on it has leaves of all groups to ask. One that is open stays open while
    leaves are lost.
    """

    def __init__(self, store: Store, leaves: WatchedLeaves | None = None) -> None:
        """Tell the versions of a store; `leaves`: have the rows, None: this process has."""
        self._store, self._leaves = store, leaves
        self.are_of_leaves = leaves is not None
        """Whether a version can be opened only when leaves have it open."""

    def latest(self, index: str, current: int | None) -> int | None:
        """Return the version to be open; None: the store has no such index.

        Args:
            index: its name.
            current: the version that is open; None: none is.

        Raises what `latest_version` does; UnavailableError: no version was open on leaves of all groups yet.
        """
        latest = latest_version(self._store, index)
        if latest is None or self._leaves is None:
            return latest
        newest = self._leaves.newest(index)
        if newest is not None:
            return min(latest, newest.version)
        if current is None:
            raise UnavailableError(f"index {index!r:.100}: no version is open on leaves of all groups yet")
        return current

    def moved(self, index: str, current: int | None) -> bool:
        """Return whether leaves have another version open than this process, perhaps since its manifest came."""
        newest = None if self._leaves is None else self._leaves.newest(index)
        return newest is not None and newest.version != current


def is_stored(store: Store, name: str) -> bool:
    """Return whether a store has an index, readable or not."""
    try:
        return latest_version(store, name) is not None
    except IndexerError:
        return True
