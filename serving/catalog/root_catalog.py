"""The catalog of a root: the manifests of the versions that its leaves serve, without their segments."""

from __future__ import annotations

from typing import Any, Protocol

from scannery.indexer import NO_SHARDS, Manifest, Store, read_manifest
from scannery.runtime.errors import UnavailableError
from scannery.serving.catalog.server_catalog import ServerCatalog
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import At

__all__ = ["NewestStates", "RootCatalog"]


class NewestStates(Protocol):
    """Tells which states all groups of leaves can answer."""

    def newest(self, index: str) -> At | None:
        """Return the newest state of an index that leaves of all groups have; None: there is none."""


class RootCatalog(ServerCatalog):
    """Versions that the leaves of all groups have open. Safe to use from several threads.

    A version is opened here as soon as a query on it has leaves of all groups to ask. One that is open stays open
    while leaves are lost.
    """

    def __init__(self, store: Store, leaves: NewestStates, **options: Any) -> None:
        """Prepare; further arguments are those of `ServerCatalog`."""
        super().__init__(store, sealed=True, shards=NO_SHARDS, **options)
        self._leaves = leaves
        self._whole: dict[str, Manifest] = {}

    def whole_manifest(self, snapshot: Snapshot) -> Manifest:
        """Return the manifest of a snapshot's version with all its segments; raises as `read_manifest`."""
        own = snapshot.manifest
        found = self._whole.get(own.index)
        if found is None or (found.index_id, found.version) != (own.index_id, own.version):
            found = self._whole[own.index] = read_manifest(self._store, own.index, own.version)
        return found

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
