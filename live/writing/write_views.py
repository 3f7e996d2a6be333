"""What a write reads of the index: the state of this process, or rows that other processes have.

A server with all shards resolves a write in its own state. A root of a cluster has no rows: it reads those that a write
names from the leaves, before the transaction, and applies to them what was written since, in the transaction. So each
write sees the state after all earlier ones, wherever the rows are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from scannery.indexer import IndexSpec, Manifest, MemorySegment, OpenIndex, Segment
from scannery.indexer.datapoints.vector_presence import parts_by_vector
from scannery.live.log.records import Mutation
from scannery.live.memtable import LiveState, apply, begin
from scannery.live.writing.group_state import GroupState
from scannery.live.writing.matching_rows import MatchingRows, count_matching
from scannery.runtime.deadline import Deadline

__all__ = [
    "OWN_ROWS",
    "FetchedView",
    "NamedRows",
    "OwnView",
    "RowReader",
    "StateMovedError",
    "WriteView",
    "view_of_matching",
    "view_of_named",
]


class StateMovedError(Exception):
    """The rows that a write has read are not those of the index any more: it must read them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRows:
    """The rows that a write names."""

    ids: tuple[str, ...]
    document_ids: tuple[str, ...]
    """Documents, all rows of which are read."""
    whole: bool
    """Whether all columns are read; else id, document and revision."""


class WriteView(Protocol):
    """What one write reads."""

    @property
    def state(self) -> LiveState:
        """A state from before the transaction, in which the write can be prepared."""

    @property
    def matched(self) -> Collection[Segment]:
        """Segments of the state of which the filter of the write is known to allow all rows."""

    @property
    def complete(self) -> bool:
        """Whether the state has all rows that the write may be about, and not only the first ones."""

    def after(self, own: LiveState) -> int:
        """Return the sequence after which `before` needs all mutations; `own`: the state of this process."""

    def before(self, group: GroupState) -> LiveState:
        """Return the state before the next write of a group; StateMovedError if the rows must be read again."""


class RowReader(Protocol):
    """Finds the rows that writes need. Safe to use from several threads."""

    def named(self, needed: NamedRows, own: LiveState, deadline: Deadline) -> WriteView:
        """Return what a write by ids reads.

        Args:
            needed: the rows.
            own: the newest state of this process.
            deadline: of the request.

        """

    def matching(self, wanted: MatchingRows, own: LiveState, deadline: Deadline) -> WriteView:
        """Return what a write by filter reads; arguments as of `named`."""

    def count(self, wanted: MatchingRows, own: LiveState, deadline: Deadline) -> int:
        """Return how many rows of the newest state the batches of a write by filter would have."""


@dataclass(frozen=True, slots=True)
class OwnView:
    """The state of this process, which has all rows."""

    state: LiveState
    matched: Collection[Segment] = ()
    complete: bool = True

    def after(self, own: LiveState) -> int:
        """As `WriteView.after`."""
        return own.sequence

    def before(self, group: GroupState) -> LiveState:
        """As `WriteView.before`."""
        return group.own


class _OwnRows:
    """The rows of this process: all."""

    def named(self, needed: NamedRows, own: LiveState, deadline: Deadline) -> OwnView:
        """As `RowReader.named`."""
        return OwnView(own)

    def matching(self, wanted: MatchingRows, own: LiveState, deadline: Deadline) -> OwnView:
        """As `RowReader.matching`."""
        return OwnView(own)

    def count(self, wanted: MatchingRows, own: LiveState, deadline: Deadline) -> int:
        """As `RowReader.count`."""
        return count_matching(own.opened(), wanted)


OWN_ROWS: RowReader = _OwnRows()


@dataclass(frozen=True, slots=True, eq=False)
class FetchedView:
    """Rows that other processes have, in a state that this process had."""

    state: LiveState
    """The rows as they were, as the only ones of the index."""
    ids: frozenset[str] | None = None
    """Ids that the write is about, those of the rows among them; None: it is about all rows."""
    documents: frozenset[str] = frozenset()
    """Documents, likewise."""
    complete: bool = True
    matched: Collection[Segment] = field(default=())

    def after(self, own: LiveState) -> int:
        """As `WriteView.after`."""
        return min(self.state.sequence, own.sequence) if self._is_of(own.manifest) else own.sequence

    def before(self, group: GroupState) -> LiveState:
        """As `WriteView.before`."""
        if not self._is_of(group.manifest):
            raise StateMovedError
        later = [pair for pair in group.later if pair[0] > self.state.sequence]
        state = apply(self.state, later if self.ids is None else self._about(later))
        return replace(state, sequence=group.sequence)

    def _is_of(self, manifest: Manifest) -> bool:
        own = self.state.manifest
        return (own.index_id, own.version) == (manifest.index_id, manifest.version)

    def _about(self, later: Sequence[tuple[int, Mutation]]) -> list[tuple[int, Mutation]]:
        """Return the mutations that change rows of this view, or add rows to it.

        What such a mutation adds besides is taken along: later ones may remove a row by another name than it came by.
        """
        ids, documents = set(self.ids or ()), set(self.documents)
        found = []
        for sequence, mutation in later:
            own: list[str] = mutation.rows.column("document_id").to_pylist()
            if (
                ids.isdisjoint(mutation.ids)
                and ids.isdisjoint(mutation.removed_ids)
                and documents.isdisjoint(own)
                and documents.isdisjoint(mutation.removed_documents)
            ):
                continue
            ids.update(mutation.ids)
            documents.update(own)
            found.append((sequence, mutation))
        return found


def view_of_named(
    manifest: Manifest, sequence: int, tables: Sequence[pa.Table], needed: NamedRows
) -> FetchedView:
    """Return the view of a write by ids.

    Args:
        manifest: of the version that the rows were read from.
        sequence: of the last mutation before they were read.
        tables: all rows that the write names, with the columns of `stored_schema`, or the first and the last of them.
        needed: the rows that the write names.

    """
    ids, documents = (
        frozenset(name for table in tables for name in table.column(column).to_pylist())
        for column in ("id", "document_id")
    )
    return FetchedView(
        _state(manifest, sequence, tables), ids | {*needed.ids}, documents | {*needed.document_ids}
    )


def view_of_matching(
    manifest: Manifest, sequence: int, tables: Sequence[pa.Table], *, complete: bool
) -> FetchedView:
    """Return the view of a write by filter; `tables` has rows that the filter allows, all of them if `complete`."""
    state = _state(manifest, sequence, tables)
    return FetchedView(state, complete=complete, matched=state.index.segments)


def _state(manifest: Manifest, sequence: int, tables: Sequence[pa.Table]) -> LiveState:
    # They are looked up by id, and never searched by words.
    spec: IndexSpec = manifest.spec.model_copy(update={"lexical": None})
    parts = [part for table in tables for part in parts_by_vector(table)]
    segments = tuple(MemorySegment.of(part, spec) for part in parts)
    return replace(begin(OpenIndex(manifest, segments, (None,) * len(segments))), sequence=sequence)
