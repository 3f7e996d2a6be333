"""Delete or change the datapoints that a filter allows, one batch of them at a time.

A batch is chosen in the transaction of the log, from the state at that moment. What takes long is done before, on a
state that may be older (`WriteView`): the filter is evaluated in each segment, and the rows are copied with their new
values. The transaction uses the copies if it chooses the same rows, and makes them again if it does not.

Each batch has only rows that were written up to the sequence at which the first batch began. Rows that were changed, by
an earlier batch or by others, have later ones; so the batches come to an end.

Shapes: R chosen rows.

Writes as they are queued: prepared in what they read, and resolved in it when their turn has come.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from scannery.indexer import KnownTerms, Manifest, Segment, written_schema
from scannery.indexer.datapoints.dynamic import canonical_json
from scannery.live.log.mutation_log import Request
from scannery.live.log.records import Mutation, encode
from scannery.live.memtable import LiveState
from scannery.live.prepare import Deletion, PartialUpdate, PreparedUpsert
from scannery.live.row_tables import fitting_rows
from scannery.live.writing.group_commit import Resolved, Write
from scannery.live.writing.resolve import (
    RowsBySegment,
    changed_rows,
    look_ahead,
    resolve_deletion,
    resolve_upsert,
)
from scannery.live.writing.totals import RowTotal
from scannery.live.writing.write_views import (
    GroupState,
    MatchingRows,
    RowFilter,
    StateMovedError,
    WriteView,
    matching_rows,
)
from scannery.runtime.retry import Deadline

__all__ = [
    "MAX_BATCH_BYTES",
    "FilteredWrite",
    "blind_upsert",
    "columns_mark",
    "deletion_in",
    "filtered_in",
    "upsert_in",
]


MAX_BATCH_BYTES = 16 << 20
"""Most bytes of the changed rows of a batch, of which each may have several MiB; one row is always taken."""
COPIED_ROWS = 128
"""Most rows that are copied at a time; their words come on top of the sizes that are known before."""


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """A chosen batch and what is written for it."""

    manifest: Manifest
    chosen: RowsBySegment
    """All chosen rows, also those that the limit in bytes leaves to the next batch."""
    resolved: Resolved

    def is_of(self, manifest: Manifest, chosen: RowsBySegment) -> bool:
        """Return whether the batch is what would be written for these rows."""
        return (
            self.manifest is manifest
            and len(self.chosen) == len(chosen)
            and all(
                segment is other_segment and np.array_equal(own_R, other_R)
                for (segment, own_R), (other_segment, other_R) in zip(self.chosen, chosen, strict=True)
            )
        )


class FilteredWrite:
    """One batch of a deletion or a change by filter. For one request, and not for several threads at once."""

    def __init__(
        self,
        where: RowFilter | None,
        *,
        columns_version: int,
        limit: int,
        until_sequence: int | None = None,
        change: PartialUpdate | None = None,
    ) -> None:
        """Describe the batch.

        Args:
            where: the filter; None: all rows.
            columns_version: `Manifest.columns_version` for which filter and change were parsed.
            limit: most datapoints of the batch.
            until_sequence: only rows that were written up to this sequence, 0 for those of a build; None: all rows.
            change: new values, of which path and id are not used; None: delete the datapoints.

        """
        self._where, self._limit, self._change = where, limit, change
        self.columns_version = columns_version
        self.until_sequence = until_sequence
        """The sequence for all batches after this one, once it is known."""
        self._matched: Collection[Segment] = ()
        self._complete = True
        self._terms: KnownTerms = {}
        self._batch: _Batch | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the record that was prepared."""
        return 0 if self._batch is None else len(self._batch.resolved[1])

    @property
    def selection(self) -> MatchingRows:
        """The rows that the batch is chosen from."""
        return MatchingRows(
            where=self._where,
            limit=self._limit,
            until_sequence=self.until_sequence,
            whole=self._change is not None,
        )

    def look_ahead(self, view: WriteView, deadline: Deadline) -> None:
        """Evaluate the filter in the segments of a view, and prepare the batch that its state would have."""
        state, self._matched, self._complete = view.state, view.matched, view.complete
        for segment in state.opened().segments:
            deadline.check()
            if self._where is not None and segment not in self._matched:
                self._where.allowed(segment)
        chosen = self._chosen(state)
        if chosen:
            deadline.check()
            self._batch = self._prepared(state.manifest, chosen)

    def resolve(self, state: LiveState) -> Resolved | None:
        """Return what is written in a state; None if no row is left.

        Raises:
            StateMovedError: none is left of those that were read, and there may be others.

        """
        chosen = self._chosen(state)
        if not chosen and not self._complete:
            raise StateMovedError
        if self.until_sequence is None:
            self.until_sequence = state.sequence
        if not chosen:
            return None
        if self._batch is None or not self._batch.is_of(state.manifest, chosen):
            self._batch = self._prepared(state.manifest, chosen)
        return self._batch.resolved

    def answered(self, sequence: int) -> None:
        """Take the sequence of the batch: one that was written by an earlier attempt was not resolved here."""
        if self.until_sequence is None:
            self.until_sequence = sequence - 1

    def _chosen(self, state: LiveState) -> RowsBySegment:
        """Return the first rows, as many as the batch may have."""
        chosen: RowsBySegment = []
        remaining = self._limit
        rows = matching_rows(state.opened(), self._where, self.until_sequence, matched=self._matched)
        for segment, rows_R in rows:
            chosen.append((segment, rows_R[:remaining]))
            remaining -= len(rows_R)
            if remaining <= 0:
                break
        return chosen

    def _prepared(self, manifest: Manifest, chosen: RowsBySegment) -> _Batch:
        if self._change is None:
            ids = [
                name for segment, rows_R in chosen for name in segment.ids.take(pa.array(rows_R)).to_pylist()
            ]
            nothing = written_schema(manifest.spec, manifest.dimensions).empty_table()
            mutation, count = Mutation(nothing, tuple(ids)), len(ids)
        else:
            lexical = manifest.spec.lexical
            rows = self._changed(manifest, chosen, self._change)
            mutation = Mutation.of(rows, manifest, words=None if lexical is None else lexical.rules)
            count = rows.num_rows
        return _Batch(manifest, chosen, (mutation, encode(mutation), count))

    def _changed(self, manifest: Manifest, chosen: RowsBySegment, change: PartialUpdate) -> pa.Table:
        """Return the changed rows, at least one, as many as fit in MAX_BATCH_BYTES."""
        tables: list[pa.Table] = []
        left_bytes, new_bytes = MAX_BATCH_BYTES, _size_bytes(change)
        for segment, rows_R in chosen:
            for start in range(0, len(rows_R), COPIED_ROWS):
                some_R = rows_R[start : start + COPIED_ROWS]
                fitting_R = fitting_rows(segment, some_R, left_bytes, new_bytes=new_bytes)
                if not (tables or len(fitting_R)):
                    fitting_R = some_R[:1]
                if len(fitting_R):
                    tables.append(changed_rows([(segment, fitting_R)], change, manifest, self._terms))
                    left_bytes -= tables[-1].nbytes
                if len(fitting_R) < len(some_R):
                    return pa.concat_tables(tables)
        return pa.concat_tables(tables)


def _size_bytes(change: PartialUpdate) -> int:
    """Return the bytes that new values take in each row; of an undeclared one, its JSON."""
    declared: int = sum(pa.array([value]).nbytes for value in change.values.values() if value is not None)
    return declared + (len(canonical_json(change.dynamic).encode()) if change.dynamic else 0)


def blind_upsert(prepared: PreparedUpsert, request: Request) -> Write:
    """Return the write of a batch that is the same in every state."""
    resolved = prepared.mutation, prepared.encoded, prepared.mutation.rows.num_rows
    columns = prepared.mutation.columns_version
    return Write(request, len(prepared.encoded), None, columns, lambda group: resolved)


def columns_mark(manifest: Manifest) -> Write:
    """Return the write of a record without rows for the columns of a version."""
    nothing = written_schema(manifest.spec, manifest.dimensions).empty_table()
    mutation = Mutation.of(nothing, manifest)
    resolved = mutation, encode(mutation), 0
    return Write(Request(""), 0, None, manifest.columns_version, lambda group: resolved)


def upsert_in(
    view: WriteView, prepared: PreparedUpsert, request: Request, total: RowTotal | None = None
) -> Write:
    """Return the write of a batch that depends on what is there; `total`: of the writer's rows, which is kept to."""

    def resolve(group: GroupState) -> Resolved:
        mutation = resolve_upsert(prepared, view.before(group))
        if total is not None:
            total.check(mutation, view, group)
        data = prepared.encoded if mutation is prepared.mutation else encode(mutation)
        return mutation, data, mutation.rows.num_rows

    look_ahead(prepared, view.state)
    # What is there is encoded now: others wait for the transaction.
    size_bytes = prepared.mutation.rows.nbytes if prepared.partial else len(prepared.encoded)
    return Write(request, size_bytes, view, prepared.mutation.columns_version, resolve)


def deletion_in(view: WriteView, deletion: Deletion, request: Request) -> Write:
    """Return the write of a deletion."""

    def resolve(group: GroupState) -> Resolved:
        mutation, count = resolve_deletion(deletion, view.before(group))
        return mutation, encode(mutation), count

    return Write(request, 0, view, None, resolve)


def filtered_in(view: WriteView, write: FilteredWrite, request: Request, deadline: Deadline) -> Write:
    """Return the write of a batch of what a filter allows."""
    write.look_ahead(view, deadline)
    return Write(
        request,
        write.size_bytes,
        view,
        write.columns_version,
        lambda group: write.resolve(view.before(group)),
    )
