"""The catalog of a root: the manifests of the versions that its leaves serve, without their segments."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from scannery.indexer import NO_SHARDS, Manifest, Store, read_manifest
from scannery.live.live_index import LiveIndex
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import UnavailableError
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.server_catalog import ServerCatalog
from scannery.serving.engine.remote.state_reader import Leaves
from scannery.serving.engine.remote.write_rows import LeafWriteRows
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import At

__all__ = ["RootCatalog", "WatchedLeaves"]


class WatchedLeaves(Leaves, Protocol):
    """Leaves that are asked, and tell which states they have."""

    def newest(self, index: str) -> At | None:
        """Return the newest state of an index that leaves of all groups have; None: there is none."""


class RootCatalog(ServerCatalog):
    """Versions that the leaves of all groups have open. Safe to use from several threads.

    A version is opened here as soon as a query on it has leaves of all groups to ask. One that is open stays open
    while leaves are lost.
    """

    def __init__(self, store: Store, leaves: WatchedLeaves, **options: Any) -> None:
        """Prepare; further arguments are those of `ServerCatalog`."""
        live = partial(LiveIndex, rows=LeafWriteRows(leaves))
        super().__init__(store, shards=NO_SHARDS, live=live, maintains=False, **options)
        self._leaves = leaves
        self._whole: dict[str, tuple[Manifest, ...]] = {}
        """The last two manifests of each index that were read: requests read two versions while this process moves."""

    def whole_manifest(self, snapshot: Snapshot) -> Manifest:
        """Return the manifest of a snapshot's version with all its segments; raises as `read_manifest`."""
        own = snapshot.manifest
        kept = self._whole.get(own.index, ())
        for found in kept:
            if (found.index_id, found.version) == (own.index_id, own.version):
                return found
        read = read_manifest(self._store, own.index, own.version)
        self._whole[own.index] = (read, *kept[:1])
        return read

    def _prepare(self, entry: CatalogEntry, snapshot: Snapshot) -> None:
        super()._prepare(entry, snapshot)
        # Not by the first request, which would fail if the store is away.
        self.whole_manifest(snapshot)

    def _past(self, name: str, version: int, sequence: int, deadline: Deadline) -> Snapshot:
        """Return any state of an index: there are no rows here, so the log is not needed."""
        live = self.live(name)
        return live.without_rows(self._opener.opened(live.state.index, version), sequence)

    def _is_due(self, name: str) -> bool:
        """Return whether an index is to be looked at; its leaves may have opened a version since its manifest came."""
        entry, newest = self._entries.get(name), self._leaves.newest(name)
        current = None if entry is None else entry.snapshot
        moved = newest is not None and (current is None or current.manifest.version != newest.version)
        return moved or super()._is_due(name)

    def _latest(self, name: str) -> int | None:
        """Return the latest version that leaves of all groups have open; None: the store has no such index.

        Raises UnavailableError if no version was open on all groups yet.
        """
        latest = super()._latest(name)
        if latest is None:
            return None
        newest = self._leaves.newest(name)
        if newest is not None:
            return min(latest, newest.version)
        entry = self._entries.get(name)
        if entry is None or entry.snapshot is None:
            raise UnavailableError(f"index {name!r:.100}: no version is open on leaves of all groups yet")
        return entry.snapshot.manifest.version

    def _forget(self, name: str, *, finish: bool = True, dropped: bool = False) -> None:
        self._whole.pop(name, None)
        super()._forget(name, finish=finish, dropped=dropped)
