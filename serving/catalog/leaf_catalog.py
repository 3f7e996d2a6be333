"""The catalog of a leaf: the shards of one group, in the states that roots ask for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from threading import Condition
from time import monotonic
from typing import Any

from scannery.indexer import IndexerError, Store, latest_version
from scannery.live.leaf_index import LeafIndex
from scannery.live.live_index import LiveIndex
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import SnapshotGoneError, StateUnavailableError, UnknownIndexError
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.former_indexes import FormerIndexes
from scannery.serving.catalog.held_snapshots import HeldSnapshot, Holds
from scannery.serving.catalog.server_catalog import ServerCatalog
from scannery.serving.scheduling.permits import waiting
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["LeafCatalog"]

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
