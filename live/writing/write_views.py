"""What a write reads of the index: the state of this process, or rows that other processes have.

A server with all shards resolves a write in its own state. A root of a cluster has no rows: it reads those that a write
names from the leaves, before the transaction, and applies to them what was written since, in the transaction. So each
write sees the state after all earlier ones, wherever the rows are.

The rows of an index that a filter allows, up to the revision at which a write by filter began.

Shapes: N rows of a segment, R chosen rows.

The index while the writes of a group are appended, one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    REVISION_COLUMN,
    AllowedRows,
    IndexSpec,
    Manifest,
    MemorySegment,
    OpenIndex,
    Segment,
)
from scannery.indexer.datapoints.named_vectors import parts_by_vector
from scannery.live.log.mutation_log import LogEntry
from scannery.live.log.records import Mutation
from scannery.live.memtable import LiveState, apply, begin, mutations_of
from scannery.runtime.retry import Deadline

__all__ = [
    "OWN_ROWS",
    "FetchedView",
    "GroupState",
    "MatchingRows",
    "NamedRows",
    "RowFilter",
    "RowReader",
    "StateMovedError",
    "WriteView",
    "count_rows",
    "matching_rows",
    "view_of_matching",
    "view_of_named",
]


class Allows(Protocol):
    """How a process evaluates a filter."""

    def __call__(self, segment: Segment, *, alive: AllowedRows | None = None) -> AllowedRows:
        """Return the rows of a segment that the filter allows; quick for arguments that it was given before.

        Args:
            segment: the segment.
            alive: the live rows, of which those are returned that it allows; None: all rows.

        """


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter, as this process evaluates it, and as others read it."""

    allowed: Allows
    message: bytes
    """The serialised message of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingRows:
    """The rows that one batch of a write by filter is chosen from."""

    where: RowFilter | None
    """None: all rows."""
    limit: int
    """Most rows of the batch."""
    until_sequence: int | None
    """Only rows that were written up to this sequence, 0 for those of a build; None: all rows."""
    whole: bool
    """Whether all columns are read; else ids alone."""


def matching_rows(
    index: OpenIndex,
    where: RowFilter | None,
    until_sequence: int | None,
    *,
    matched: Collection[Segment] = (),
) -> Iterator[tuple[Segment, np.ndarray]]:
    """Yield the rows of each segment that are allowed, alive and not too new, int64 (R,), ascending; no empty ones.

    Args:
        index: the rows.
        where: None: all rows.
        until_sequence: as of `MatchingRows`.
        matched: segments of which the filter is known to allow all rows.

    """
    for segment, alive in zip(index.segments, index.alive, strict=True):
        allowed = None if where is None or segment in matched else where.allowed(segment)
        rows_R = _both(allowed, alive, segment.rows)
        if until_sequence is not None and REVISION_COLUMN in segment.table.column_names:
            # Rows of a build have no revision.
            revisions_N = segment.column(REVISION_COLUMN).fill_null(0).to_numpy()
            rows_R = rows_R[revisions_N[rows_R] <= until_sequence]
        if len(rows_R):
            yield segment, rows_R


def count_matching(index: OpenIndex, selection: MatchingRows) -> int:
    """Return the number of rows that a batch and those after it would have."""
    if selection.until_sequence is None:
        return count_rows(index, selection.where)
    return sum(len(rows_R) for _, rows_R in matching_rows(index, selection.where, selection.until_sequence))


def count_rows(index: OpenIndex, where: RowFilter | None) -> int:
    """Return the number of live rows that a filter allows; `where`: None: all rows."""
    if where is None:
        return index.rows
    pairs = zip(index.segments, index.alive, strict=True)
    counts: list[int] = [where.allowed(segment, alive=alive).count for segment, alive in pairs]
    return sum(counts)


def _both(allowed: AllowedRows | None, alive: AllowedRows | None, total: int) -> np.ndarray:
    """Return the rows that are in both sets, int64, ascending; None: all rows."""
    if allowed is None:
        return np.arange(total) if alive is None else alive.rows
    return allowed.rows if alive is None else allowed.rows[alive.mask_N[allowed.rows]]


class GroupState:
    """The state of this process after all earlier writes, and the mutations that led to it. For one thread."""

    def __init__(self, local: LiveState, entries: Sequence[LogEntry]) -> None:
        """Begin after the entries of the log.

        Args:
            local: the state that readers see.
            entries: all entries after it; further ones before these, if a write needs their mutations.

        Raises:
            CorruptError, FormatError: as `state_after`.

        """
        self.later = mutations_of(entries, local.manifest)
        """Mutations with their sequences, in order, up to the write that is next."""
        self.sequence = max(local.sequence, entries[-1].sequence if entries else 0)
        """Sequence of the last one."""
        self._pending = [
            (sequence, mutation) for sequence, mutation in self.later if sequence > local.sequence
        ]
        self._local = local.logged(
            sum(len(entry.data) for entry in entries if entry.sequence > local.sequence)
        )

    @property
    def local(self) -> LiveState:
        """The state of this process before the next write."""
        if self._pending:
            self._local, self._pending = apply(self._local, self._pending), []
        return self._local

    @property
    def written_rows(self) -> int:
        """`LiveState.written_rows` before the next write."""
        pending: int = sum(mutation.rows.num_rows for _, mutation in self._pending)
        return self._local.written_rows + pending

    @property
    def manifest(self) -> Manifest:
        """The manifest of the version."""
        return self._local.manifest

    @property
    def second(self) -> int:
        """Second since 1970 at which the group sees the index."""
        return self._local.second

    def add(self, sequence: int, mutation: Mutation, size_bytes: int) -> None:
        """Add a write; `size_bytes` are those of its record."""
        self.sequence = sequence
        self.later.append((sequence, mutation))
        self._pending.append((sequence, mutation))
        self._local = self._local.logged(size_bytes)


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
    counted: bool = False
    """Whether rows are counted: then all that is written after these rows were read belongs to what the write reads."""


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

    def after(self, local: LiveState) -> int:
        """Return the sequence after which `before` needs all mutations; `local`: the state of this process."""

    def before(self, group: GroupState) -> LiveState:
        """Return the state before the next write of a group; StateMovedError if the rows must be read again."""


class RowReader(Protocol):
    """Finds the rows that writes need. Safe to use from several threads."""

    def named(self, needed: NamedRows, local: LiveState, deadline: Deadline) -> WriteView:
        """Return what a write by ids reads.

        Args:
            needed: the rows.
            local: the newest state of this process.
            deadline: of the request.

        """

    def matching(self, selection: MatchingRows, local: LiveState, deadline: Deadline) -> WriteView:
        """Return what a write by filter reads; arguments as of `named`."""

    def count(self, selection: MatchingRows, local: LiveState, deadline: Deadline) -> int:
        """Return how many rows of the newest state the batches of a write by filter would have."""


@dataclass(frozen=True, slots=True)
class OwnView:
    """The state of this process, which has all rows."""

    state: LiveState
    matched: Collection[Segment] = ()
    complete: bool = True

    def after(self, local: LiveState) -> int:
        """As `WriteView.after`."""
        return local.sequence

    def before(self, group: GroupState) -> LiveState:
        """As `WriteView.before`."""
        return group.local


class _OwnRows:
    """The rows of this process: all."""

    def named(self, needed: NamedRows, local: LiveState, deadline: Deadline) -> OwnView:
        """As `RowReader.named`."""
        return OwnView(local)

    def matching(self, selection: MatchingRows, local: LiveState, deadline: Deadline) -> OwnView:
        """As `RowReader.matching`."""
        return OwnView(local)

    def count(self, selection: MatchingRows, local: LiveState, deadline: Deadline) -> int:
        """As `RowReader.count`."""
        return count_matching(local.opened(), selection)


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

    def after(self, local: LiveState) -> int:
        """As `WriteView.after`."""
        return min(self.state.sequence, local.sequence) if self._is_of(local.manifest) else local.sequence

    def before(self, group: GroupState) -> LiveState:
        """As `WriteView.before`."""
        if not self._is_of(group.manifest):
            raise StateMovedError
        later = [pair for pair in group.later if pair[0] > self.state.sequence]
        state = apply(self.state, later if self.ids is None else self._about(later))
        return replace(state, sequence=group.sequence, second=group.second)

    def _is_of(self, manifest: Manifest) -> bool:
        view_manifest = self.state.manifest
        return (view_manifest.index_id, view_manifest.version) == (manifest.index_id, manifest.version)

    def _about(self, later: Sequence[tuple[int, Mutation]]) -> list[tuple[int, Mutation]]:
        """Return the mutations that change rows of this view, or add rows to it.

        What such a mutation adds besides is taken along: later ones may remove a row by another name than it came by.
        """
        ids, documents = set(self.ids or ()), set(self.documents)
        mutations = []
        for sequence, mutation in later:
            row_documents: list[str] = mutation.rows.column("document_id").to_pylist()
            if (
                ids.isdisjoint(mutation.ids)
                and ids.isdisjoint(mutation.removed_ids)
                and documents.isdisjoint(row_documents)
                and documents.isdisjoint(mutation.removed_documents)
            ):
                continue
            ids.update(mutation.ids)
            documents.update(row_documents)
            mutations.append((sequence, mutation))
        return mutations


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
        _state(manifest, sequence, tables),
        None if needed.counted else ids | {*needed.ids},
        documents | {*needed.document_ids},
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
