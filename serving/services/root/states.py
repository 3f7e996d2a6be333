"""Which state of an index a request reads from all groups, and how much of it they answered for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from scannery.indexer import Manifest, ShardGroup
from scannery.runtime.errors import StateGoneError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.published_versions import WatchedLeaves
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
    """Manifest with all segments."""
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
        """Return the datapoints of a group: as it was searched, as it told last, or else those of the version.

        Of a caller who sees a part, those that a group did not tell are not counted.
        """
        rows = self.reader.rows.get(group.number)
        if rows is None:
            rows = 0 if self.reader.narrowed else self.reader.told_rows(group.number)
        if rows is None:
            rows = sum(entry.live_rows for entry in self.manifest.segments if group.has(entry.shard))
        return rows


class States:
    """Makes the readers of requests. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, leaves: WatchedLeaves) -> None:
        self._catalog, self._leaves = catalog, leaves
        self._older: dict[str, tuple[Snapshot, Snapshot]] = {}
        """The current snapshot of an index, and the older one that is read until there is a newer one."""
        self._answered: dict[str, Snapshot] = {}
        """The newest snapshot of an index that all groups have answered."""

    def read(
        self,
        index: str,
        min_sequence: int,
        deadline: Deadline,
        answer: Callable[[Snapshot], AnswerT],
        *,
        partial: Callable[[Snapshot], AnswerT] | None = None,
    ) -> AnswerT:
        """Return what is read from the newest state of an index.

        If leaves do not have it, others are tried: a newer one, if this process did not know of it; or else the newest
        that all groups have answered or told, since they may be unable to read the log now.

        Args:
            index: its name.
            min_sequence: the state has the mutations up to this one.
            deadline: of the request.
            answer: reads a state, which `of` and `reader` take.
            partial: reads the newest state from the groups that have it, if there is none that all have; None: that is
                an error.

        Raises:
            StateGoneError: there is no state that all groups have.
            ServingError: as `snapshot`, and as `answer` raises.

        """
        snapshot = self.snapshot(index, min_sequence, deadline)
        try:
            return self._noted(index, snapshot, answer(snapshot))
        except StateGoneError as error:
            gone = error
        newer = self._newer(snapshot)
        for candidate in [newer] if newer else self._before(snapshot):
            if candidate.sequence < min_sequence:
                break
            try:
                result = self._noted(index, candidate, answer(candidate))
            except StateGoneError as error:
                gone = error
                continue
            if candidate.sequence < snapshot.sequence:
                self._older[index] = snapshot, candidate
            return result
        if partial is not None:
            return partial(newer or snapshot)
        raise gone

    def _noted(self, index: str, snapshot: Snapshot, answer: AnswerT) -> AnswerT:
        """Note that all groups have answered from a snapshot, and return the answer."""
        newest = self._answered.get(index)
        if (
            newest is None
            or _version_of(newest) != _version_of(snapshot)
            or newest.sequence < snapshot.sequence
        ):
            self._answered[index] = snapshot
        return answer

    def _newer(self, snapshot: Snapshot) -> Snapshot | None:
        """Return the current snapshot of an index, after a look at its log; None: it is the same."""
        live = self._catalog.live(snapshot.manifest.index)
        live.catch_up(now=True)
        newer = live.snapshot.at(snapshot.index.second)
        same = (_version_of(newer), newer.sequence) == (_version_of(snapshot), snapshot.sequence)
        return None if same else newer

    def _before(self, snapshot: Snapshot) -> list[Snapshot]:
        """Return older states of the same version, the newest first: what was answered last, and what leaves have told.

        Leaves tell twice a second: without the former, callers would see what they saw before disappear.
        """
        manifest, index = snapshot.manifest, snapshot.manifest.index
        sequences = set()
        answered, reported = self._answered.get(index), self._leaves.newest(index)
        if answered is not None and _version_of(answered) == _version_of(snapshot):
            sequences.add(answered.sequence)
        if reported is not None and (reported.index_id, reported.version) == (
            manifest.index_id or "",
            manifest.version,
        ):
            sequences.add(reported.sequence)
        live = self._catalog.live(index)
        return [
            live.without_rows(snapshot.index, sequence)
            for sequence in sorted(sequences, reverse=True)
            if manifest.log_sequence <= sequence < snapshot.sequence
        ]

    def snapshot(self, index: str, min_sequence: int, deadline: Deadline) -> Snapshot:
        """Return the snapshot of all of an index, without segments; raises as `Catalog.whole_snapshot`."""
        current = self._catalog.whole_snapshot(index, min_sequence=min_sequence, deadline=deadline)
        replaced, older = self._older.get(index, (None, current))
        if replaced is not current:
            self._older.pop(index, None)
            return current
        return older if older.sequence >= min_sequence else current

    def of(
        self,
        snapshot: Snapshot,
        deadline: Deadline,
        *,
        allow_partial: bool = False,
        allow_gone: bool = False,
    ) -> State:
        """Return the state of a snapshot, to be read from the leaves; options as of `StateReader`."""
        reader = self.reader(snapshot, deadline, allow_partial=allow_partial, allow_gone=allow_gone)
        return State(reader, snapshot.index.whole_manifest, allow_partial)

    def reader(self, snapshot: Snapshot, deadline: Deadline, **options: bool) -> StateReader:
        """Return what reads the state of a snapshot from the leaves."""
        manifest = snapshot.manifest
        at = At(
            index=manifest.index,
            index_id=manifest.index_id or "",
            version=manifest.version,
            sequence=snapshot.sequence,
            second=snapshot.index.second,
        )
        return StateReader(self._leaves, at, deadline, seen=snapshot.seen, **options)


def _version_of(snapshot: Snapshot) -> tuple[str | None, int]:
    return snapshot.manifest.index_id, snapshot.manifest.version
