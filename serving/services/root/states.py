"""Which state of an index a request reads from all groups, and how much of it they answered for."""

from __future__ import annotations

from dataclasses import dataclass

from scannery.indexer import Manifest, ShardGroup
from scannery.runtime.deadline import Deadline
from scannery.serving.catalog.root_catalog import RootCatalog
from scannery.serving.engine.remote.state_reader import Leaves, StateReader
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import At
from scannery.v1.search_pb2 import Coverage

__all__ = ["State", "States"]


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
        groups, missing = self.reader.groups, self.reader.missing
        lost = [ShardGroup(number, groups) for number in missing]
        every = range(self.manifest.shards)
        shards = {shard for shard in every if not any(group.has(shard) for group in lost)}
        return Coverage(
            shards=self.manifest.shards,
            shards_answered=len(shards),
            rows=self.manifest.rows,
            rows_answered=sum(entry.live_rows for entry in self.manifest.segments if entry.shard in shards),
        )


class States:
    """Makes the readers of requests. Safe to use from several threads."""

    def __init__(self, catalog: RootCatalog, leaves: Leaves) -> None:
        self._catalog, self._leaves = catalog, leaves

    def snapshot(self, index: str, min_sequence: int, deadline: Deadline) -> Snapshot:
        """Return the current snapshot of an index, without segments; raises as `BaseCatalog.snapshot`."""
        return self._catalog.snapshot(index, min_sequence=min_sequence, deadline=deadline)

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
