"""The states of the indexes of a leaf, as roots name them: of the newest version that is open, or of a former one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

from scannery.indexer import IndexerError, latest_version
from scannery.live.leaf_index import LeafIndex
from scannery.runtime.errors import (
    InvalidRequestError,
    SnapshotGoneError,
    StateUnavailableError,
    UnknownIndexError,
)
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.held_snapshots import HeldSnapshot
from scannery.serving.scheduling.permits import waiting
from scannery.serving.security.access import Seen
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import At

__all__ = ["LeafStates", "seen_of"]

NEWER_WAIT_S = 5.0
"""Most seconds that a request waits for a version that is not open yet; the root may have another leaf to ask."""


class LeafStates:
    """Reads states of a catalog whose indexes are `LeafIndex`. Safe to use from several threads."""

    def __init__(self, catalog: Catalog) -> None:
        """Read from a catalog."""
        self._catalog = catalog

    def snapshot(self, at: At, deadline: Deadline) -> Snapshot:
        """Return one state of an index; wait a little for a version that is published and not open yet.

        Raises:
            InvalidRequestError: the state names no index.
            StateUnavailableError: this process does not have the state.
            UnknownIndexError, CorruptError, FormatError, StoreError: as `Catalog.snapshot`.

        """
        if not at.index:
            raise InvalidRequestError.at("at.index", "must not be empty")
        whole = self._whole(_of_all(at), deadline)
        return whole.at(at.second or self._catalog.seconds()).as_seen(seen_of(at))

    def _whole(self, at: At, deadline: Deadline) -> Snapshot:
        index = self._open_index(at)
        if index is None and self._is_published(at):
            index = self._awaited(at, deadline)
        snapshot = None if index is None else index.at(at.sequence, deadline)
        if snapshot is not None:
            return snapshot
        current = self._newest(at.index)
        manifest = current.state.manifest
        raise StateUnavailableError(
            f"at: index {at.index!r:.100} is not at version {at.version}, sequence {at.sequence} here, but at version "
            f"{manifest.version}, sequence {current.position}"
            + ("" if manifest.index_id == _id(at) else ", of another index of this name")
            + (f"; {current.problem}" if current.problem else ""),
            field="at",
        )

    def held(self, at: At, deadline: Deadline) -> HeldSnapshot:
        """Return one state of all of an index, kept for scans; a former version is opened if the store has it.

        Raises as `snapshot`.
        """
        catalog, at = self._catalog, _of_all(at)
        held = catalog.held.find(at.index, _id(at), at.version, at.sequence, at.second)
        if held is not None:
            return held
        try:
            return catalog.held.hold(self.snapshot(at, deadline), at.second)
        except StateUnavailableError:
            current = catalog.snapshot(at.index).manifest
            if current.index_id != _id(at) or current.version < at.version:
                raise
        try:
            return catalog.held_snapshot(at.index, at.version, at.sequence, at.second, deadline=deadline)
        except SnapshotGoneError as error:
            # Another leaf of the group may have it.
            raise StateUnavailableError(str(error), field="at") from error

    def open_indexes(self) -> Iterator[tuple[LeafIndex[Snapshot], bool]]:
        """Yield the open versions of all visible indexes, each with whether it is a former one.

        A root that starts while leaves move to a new version reads the former one, which all of them still have.
        """
        for name in self._catalog.names():  # those that the caller can see
            with suppress(UnknownIndexError, IndexerError):  # it was removed a moment ago
                newest = self._newest(name)
                former = self._catalog.former.of(name, newest.state.manifest.index_id)
                yield newest, False
                yield from ((index, True) for index in former)

    def _newest(self, name: str) -> LeafIndex[Snapshot]:
        index = self._catalog.live(name)
        assert isinstance(index, LeafIndex)
        return index

    def _open_index(self, at: At) -> LeafIndex[Snapshot] | None:
        """Return the version of a state; None if it is not open."""
        newest = self._newest(at.index)
        manifest = newest.state.manifest
        if (manifest.index_id, manifest.version) == (_id(at), at.version):
            return newest
        return self._catalog.former.find(at.index, _id(at), at.version)

    def _is_published(self, at: At) -> bool:
        """Return whether the store has a later version than the open one, up to this one at least."""
        if at.version <= self._newest(at.index).state.manifest.version:
            return False
        try:
            return at.version <= (latest_version(self._catalog.store, at.index) or 0)
        except IndexerError:
            return False

    def _awaited(self, at: At, deadline: Deadline) -> LeafIndex[Snapshot] | None:
        """Return a published version as soon as the watcher, or this request, has opened it."""
        wait_s = min(deadline.remaining_s, NEWER_WAIT_S)
        until_s = monotonic() + wait_s
        with waiting():
            self._catalog.open_later(at.index, wait_s=wait_s)
            with self._catalog.moved:
                while (index := self._open_index(at)) is None:
                    left_s = until_s - monotonic()
                    if left_s <= 0:
                        break
                    self._catalog.moved.wait(left_s)
        return index


def _id(at: At) -> str | None:
    """Return the identity of the index; None: it is of a release without any."""
    return at.index_id or None


def _of_all(at: At) -> At:
    """Return the state of all of an index of which a part is read."""
    if not at.HasField("seen"):
        return at
    whole = At()
    whole.CopyFrom(at)
    seen = at.seen
    whole.index_id = seen.sharing_index_id if seen.HasField("sharing_index_id") else seen.index_id
    whole.ClearField("seen")
    return whole


def seen_of(at: At) -> Seen | None:
    """Return the part of an index that the caller of a root sees; None: all of it."""
    if not at.HasField("seen"):
        return None
    message = at.seen
    where = message.where.SerializeToString(deterministic=True) if message.HasField("where") else b""
    return Seen(
        where,
        frozenset(message.fields) if message.some_fields else None,
        message.HasField("sharing_index_id"),
    )
