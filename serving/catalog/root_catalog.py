"""The catalog of a root: the manifests of the versions that its leaves serve, without their segments.

The versions that a leaf had open before the newest: roots move to a new one each at its own moment.

The catalog of a leaf: the shards of one group, in the states that roots ask for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition
from time import monotonic
from typing import Any, Protocol

from scannery.indexer import NO_SHARDS, IndexerError, Manifest, Store, latest_version, read_manifest
from scannery.live.leaf_index import LeafIndex
from scannery.live.live_index import LiveIndex
from scannery.runtime.errors import (
    SnapshotGoneError,
    StateUnavailableError,
    UnavailableError,
    UnknownIndexError,
)
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.held_snapshots import HeldSnapshot, Holds
from scannery.serving.catalog.server_catalog import ServerCatalog
from scannery.serving.engine.remote.leaf_scan import LeafWriteRows
from scannery.serving.engine.remote.state_reader import Leaves
from scannery.serving.scheduling.permits import waiting
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import At

__all__ = ["LeafCatalog", "RootCatalog", "WatchedLeaves"]


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


NEWER_WAIT_S = 5.0
"""Most seconds that a request waits for a version that is not open yet; the root may have another leaf to ask."""


class LeafCatalog(ServerCatalog):
    """Versions with the mutations after them; former ones are kept for a while. Safe to use from several threads."""

    def __init__(self, store: Store, **options: Any) -> None:
        """Prepare; the arguments are those of `ServerCatalog`."""
        super().__init__(store, live=LeafIndex, maintains=False, **options)
        self._former = FormerIndexes(self._clock)
        # Before the next version takes its place: no moment is without one of the two.
        self._opener = replace(self._opener, replacing=self._keep_former)
        self._moved = Condition()
        """Notified when an index was opened, or moved to another version."""

    def snapshot_at(
        self, name: str, index_id: str | None, version: int, sequence: int, deadline: Deadline
    ) -> Snapshot:
        """Return one state of an index; wait a little for a version that is published and not open yet.

        Args:
            name: of the index.
            index_id: its identity; None: it is of a release without any.
            version: of the index.
            sequence: of the last mutation.
            deadline: of the request.

        Raises:
            StateUnavailableError: this process does not have the state.
            UnknownIndexError, CorruptError, FormatError, StoreError: as `snapshot`.

        """
        index = self._found(name, index_id, version)
        if index is None and self._is_published(name, version):
            index = self._awaited(name, index_id, version, deadline)
        found = None if index is None else index.at(sequence, deadline)
        if found is not None:
            return found
        current = self.leaf_index(name)
        manifest = current.state.manifest
        raise StateUnavailableError(
            f"at: index {name!r:.100} is not at version {version}, sequence {sequence} here, but at version "
            f"{manifest.version}, sequence {current.position}"
            + ("" if manifest.index_id == index_id else ", of another index of this name")
            + (f"; {current.problem}" if current.problem else ""),
            field="at",
        )

    def held_at(
        self, name: str, index_id: str | None, version: int, sequence: int, deadline: Deadline
    ) -> HeldSnapshot:
        """Return one state of an index, kept for scans; a former version is opened again if the store has it.

        Arguments and errors are those of `snapshot_at`.
        """
        held = self.held.find_by_id(name, index_id, version, sequence)
        if held is not None:
            return held
        try:
            return self.held.hold(self.snapshot_at(name, index_id, version, sequence, deadline))
        except StateUnavailableError:
            current = self.snapshot(name).manifest
            if current.index_id != index_id or current.version < version:
                raise
        try:
            return self.held_snapshot(name, version, sequence, deadline=deadline)
        except SnapshotGoneError as error:
            # Another leaf of the group may have it.
            raise StateUnavailableError(str(error), field="at") from error

    def leaf_index(self, name: str) -> LeafIndex[Snapshot]:
        """Return the newest version of an index that is open; raises as `snapshot`."""
        found = self.live(name)
        assert isinstance(found, LeafIndex)
        return found

    def open_indexes(self) -> list[tuple[LeafIndex[Snapshot], bool]]:
        """Return the open versions of all visible indexes, each with whether it is a former one.

        A root that starts while leaves move to a new version reads the former one, which all of them still have.
        """
        found: list[tuple[LeafIndex[Snapshot], bool]] = []
        for name in self.names():  # those that the caller can see
            with suppress(UnknownIndexError, IndexerError):  # it was removed a moment ago
                newest = self.leaf_index(name)
                former = self._former.of(name, newest.state.manifest.index_id)
                found += [(newest, False), *((index, True) for index in former)]
        return found

    def live_indexes(self) -> list[LiveIndex[Snapshot]]:
        """Return all open indexes, and their former versions."""
        return [*super().live_indexes(), *self._former.live]

    def _found(self, name: str, index_id: str | None, version: int) -> LeafIndex[Snapshot] | None:
        """Return a version that is open; None if it is not."""
        current = self.leaf_index(name)
        if _version_of(current) == (index_id, version):
            return current
        return self._former.find(name, index_id, version)

    def _is_published(self, name: str, version: int) -> bool:
        """Return whether the store has a later version than the open one, up to this one at least."""
        if version <= self.snapshot(name).manifest.version:
            return False
        try:
            return version <= (latest_version(self._store, name) or 0)
        except IndexerError:
            return False

    def _awaited(
        self, name: str, index_id: str | None, version: int, deadline: Deadline
    ) -> LeafIndex[Snapshot] | None:
        """Return a published version as soon as the watcher, or this request, has opened it."""
        wait_s = min(deadline.remaining_s, NEWER_WAIT_S)
        until_s = monotonic() + wait_s
        with waiting():
            self._open_if_small(name, wait_s=wait_s)
            with self._moved:
                while (found := self._found(name, index_id, version)) is None:
                    left_s = until_s - monotonic()
                    if left_s <= 0:
                        break
                    self._moved.wait(left_s)
        return found

    def _move(self, entry: CatalogEntry, version: int) -> None:
        super()._move(entry, version)
        with self._moved:
            self._moved.notify_all()

    def _keep_former(self, before: LiveIndex[Snapshot], now: LiveIndex[Snapshot]) -> None:
        if isinstance(before, LeafIndex) and _version_of(before) != _version_of(now):
            self._former.keep(before)

    def _forget(self, name: str, *, finish: bool = True, dropped: bool = False) -> None:
        self._former.forget(name)
        super()._forget(name, finish=finish, dropped=dropped)

    def _holds(self, name: str) -> Holds:
        return super()._holds(name).joined(self._former.holds(name))

    def _prepare(self, entry: CatalogEntry, snapshot: Snapshot) -> None:
        """Do nothing: queries come as vectors, so no encoder is needed."""


def _version_of(index: LiveIndex[Snapshot]) -> tuple[str | None, int]:
    """Return identity and version; they are the same after a log was replaced, whose states are not kept."""
    manifest = index.state.manifest
    return manifest.index_id, manifest.version
