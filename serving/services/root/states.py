"""Which state of an index a request reads from all groups, and how much of it they answered for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from scannery.indexer import Manifest, ShardGroup
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import StateGoneError
from scannery.serving.catalog.root_catalog import RootCatalog, WatchedLeaves
from scannery.serving.engine.remote.state_reader import StateReader
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import At
from scannery.v1.search_pb2 import Coverage

__all__ = ["State", "States"]

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class State:
    """One state of an index, for one request."""

    reader: StateReader
    manifest: Manifest
    """With all segments."""
    partial: bool
    """Whether groups may be missing."""

    def coverage(self) -> Coverage | None:
        """Return what was read until now; None: all, since nothing may be missing."""
        if not self.partial:
            return None
        reader, shards = self.reader, range(self.manifest.shards)
        groups = [ShardGroup(number, reader.groups) for number in range(reader.groups)]
        answered = [group for group in groups if group.number not in reader.missing]
        rows = {group.number: self._rows_of(group) for group in groups}
        return Coverage(
            shards=self.manifest.shards,
            shards_answered=sum(group.has(shard) for group in answered for shard in shards),
            rows=sum(rows.values()),
            rows_answered=sum(rows[group.number] for group in answered),
        )

    def _rows_of(self, group: ShardGroup) -> int:
        """Return the datapoints of a group: as it was searched, as it told last, or else those of the version."""
        found = self.reader.rows.get(group.number)
        if found is None:
            found = self.reader.told_rows(group.number)
        if found is None:
            found = sum(entry.live_rows for entry in self.manifest.segments if group.has(entry.shard))
        return found


class States:
    """Makes the readers of requests. Safe to use from several threads."""

    def __init__(self, catalog: RootCatalog, leaves: WatchedLeaves) -> None:
        self._catalog, self._leaves = catalog, leaves
        self._older: dict[str, tuple[Snapshot, Snapshot]] = {}
        """The current snapshot of an index, and the older one that is read until there is a newer one."""

    def read(
        self, index: str, min_sequence: int, deadline: Deadline, answer: Callable[[Snapshot], AnswerT]
    ) -> AnswerT:
        """Return what is read from the newest state of an index.

        If leaves do not have it, another one is tried once: a newer one, if this process did not know of it; or else
        the one before that all groups have told, since they may be unable to read the log now.

        Args:
            index: its name.
            min_sequence: the state has the mutations up to this one.
            deadline: of the request.
            answer: reads a state, which `of` and `reader` take.

        Raises:
            StateGoneError: there is no state that all groups have.
            ServingError: as `snapshot`, and as `answer` raises.

        """
        snapshot = self.snapshot(index, min_sequence, deadline)
        try:
            return answer(snapshot)
        except StateGoneError:
            other = self._newer(snapshot) or self._before(snapshot)
            if other is None or other.sequence < min_sequence:
                raise
        found = answer(other)
        if other.sequence < snapshot.sequence:
            self._older[index] = snapshot, other
        return found

    def _newer(self, snapshot: Snapshot) -> Snapshot | None:
        """Return the current snapshot of an index, after a look at its log; None: it is the same."""
        live = self._catalog.live(snapshot.manifest.index)
        live.catch_up(now=True)
        return None if live.snapshot is snapshot else live.snapshot

    def _before(self, snapshot: Snapshot) -> Snapshot | None:
        """Return the newest state of the same version that the leaves have told; None: it is not an older one."""
        manifest = snapshot.manifest
        told = self._leaves.newest(manifest.index)
        if told is None or (told.index_id, told.version) != (manifest.index_id or "", manifest.version):
            return None
        if not manifest.log_sequence <= told.sequence < snapshot.sequence:
            return None
        return self._catalog.live(manifest.index).without_rows(snapshot.index, told.sequence)

    def snapshot(self, index: str, min_sequence: int, deadline: Deadline) -> Snapshot:
        """Return the snapshot of an index to be read, without segments; raises as `BaseCatalog.snapshot`."""
        current = self._catalog.snapshot(index, min_sequence=min_sequence, deadline=deadline)
        replaced, older = self._older.get(index, (None, current))
        if replaced is not current:
            self._older.pop(index, None)
            return current
        return older if older.sequence >= min_sequence else current

    def of(self, snapshot: Snapshot, deadline: Deadline, *, allow_partial: bool = False) -> State:
        """Return the state of a snapshot, to be read from the leaves."""
        reader = self.reader(snapshot, deadline, allow_partial=allow_partial)
        return State(reader, self._catalog.whole_manifest(snapshot), allow_partial)

    def reader(self, snapshot: Snapshot, deadline: Deadline, *, allow_partial: bool = False) -> StateReader:
        """Return what reads the state of a snapshot from the leaves."""
        manifest = snapshot.manifest
        at = At(
            index=manifest.index,
            index_id=manifest.index_id or "",
            version=manifest.version,
            sequence=snapshot.sequence,
        )
        return StateReader(self._leaves, at, deadline, allow_partial=allow_partial)
