"""Second stage of an update: a shard's rows, minus replaced and removed ones, plus new ones.

A segment that loses rows stays, with the rows marked as deleted (indexer/versions/tombstones.py), and new rows go into
a small segment beside the large one: a small change to a large shard does not train ScaNN again. When too many rows are
deleted, or the small segment grows too large, the shard is rewritten as one segment without removed rows. A full build
does the same where it can, and also removes documents that its input leaves out.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.named_vectors import has_vector
from scannery.indexer.datapoints.schema import REVISION_COLUMN
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.tombstones import with_deleted
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.stages.old_rows import newer_rows, read_live_rows, stored_schema, unchanged_documents
from scannery.pipelines.stages.segment import (
    finished_shard,
    new_rows,
    record_shard,
    update_key,
    write_segments,
)
from scannery.pipelines.state.job import Counts, Job, ShardOutcome, stage_key
from scannery.pipelines.state.row_groups import RowGroup
from scannery.pipelines.tuning.tuning_queries import NO_ENCODERS, EncoderSources

__all__ = [
    "MOST_DELETED",
    "SMALL_SHARE",
    "ShardChange",
    "finished_update",
    "read_deletes",
    "update_shard",
    "write_deletes",
]

SMALL_SHARE = 0.1
"""Most rows of a shard's small segment, as a share of the large one's; above it the two are merged."""

MOST_DELETED = 0.2
"""Most deleted rows of a segment, as a share of all; above it the segment is rewritten. So a changed row costs at most
the writing of five rows, and a search compares at most a quarter more candidates."""

_SHORTEST_KEY = 16


class ShardChange(NamedTuple):
    """A change to a shard besides new rows; it travels through Beam with them."""

    deletes: str = ""
    """Key of the ids of documents to remove (`write_deletes`); empty: none."""

    moved: tuple[str, ...] = ()
    """Ids of this shard's rows that records in other shards replace (resolve.py)."""

    overwritten: tuple[str, ...] = ()
    """Ids of this shard's records that live updates wrote in other shards during the build."""

    @property
    def key(self) -> tuple[object, ...]:
        """The part of result keys for this change; without `overwritten` if empty, as in earlier releases."""
        return tuple(self) if self.overwritten else tuple(self)[:2]

    def to_json(self) -> str:
        """Return the change as a string, for Beam."""
        return "touch " + json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> ShardChange | None:
        """Return the change that `to_json` wrote; None for another text."""
        if not text.startswith("touch "):
            return None
        deletes, moved, overwritten = json.loads(text.removeprefix("touch "))
        return cls(deletes, tuple(moved), tuple(overwritten))


def write_deletes(store: Store, index: str, documents: Iterable[str]) -> str:
    """Store the ids of documents to remove from one shard, and return their key."""
    data = json.dumps(sorted(documents)).encode()
    key = blake2b(data, digest_size=_SHORTEST_KEY).hexdigest()
    store.write(stage_key(index, "deletes", f"{key}.json"), data)
    return key


def read_deletes(store: Store, index: str, key: str) -> list[str]:
    """Return the ids that `write_deletes` stored."""
    deletes: list[str] = json.loads(store.read(stage_key(index, "deletes", f"{key}.json")))
    return deletes


class _ParentSegment(NamedTuple):
    """A segment of the parent version."""

    entry: SegmentEntry
    """Its entry in the parent's manifest."""

    table: pa.Table
    """Its live rows: all columns, or only ids if these suffice to find the changes."""

    rows_N: np.ndarray
    """Row numbers of `table`'s rows, int64 (N,)."""

    gone_N: np.ndarray
    """Which of `table`'s rows the update removes, bool (N,)."""

    @property
    def too_many_deleted(self) -> bool:
        """Whether more than `MOST_DELETED` of its rows are deleted."""
        return int(np.count_nonzero(~self.gone_N)) < (1 - MOST_DELETED) * self.entry.rows


class _Plan(NamedTuple):
    """The changes of an update to a shard, before anything is built."""

    kept: Sequence[SegmentEntry]
    """Segments that stay, with their deleted rows."""

    rows: pa.Table
    """Rows of the new segments."""

    counts: dict[str, int]
    """Documents `added`, `replaced`, `removed` and `unchanged`."""


def update_shard(
    shard: int,
    values: Sequence[str],
    parent: Manifest,
    job: Job,
    store: Store,
    *,
    encoders: EncoderSources = NO_ENCODERS,
) -> ShardOutcome:
    """Apply row groups and changes to a shard, unless an earlier run did.

    Holds the shard's old and new rows in memory.

    Raises:
        BuildError: ScaNN failed.
        CorruptError, NotFoundError: a segment of the parent version is damaged or missing.
        StageDamagedError: an embeddings file is damaged; the next run makes it again.

    """
    update = _Update.of(shard, values, parent, job)
    return finished_shard(update.key, job, store) or _updated(update, job, store, encoders)


def finished_update(
    shard: int, values: Sequence[str], parent: Manifest, job: Job, store: Store
) -> ShardOutcome | None:
    """Return the outcome of an earlier `update_shard` with the same arguments, or None."""
    return finished_shard(_Update.of(shard, values, parent, job).key, job, store)


class _Update(NamedTuple):
    """The input of an update of one shard."""

    key: str
    """Hash of everything that the outcome depends on."""

    shard: int
    rows: Sequence[RowGroup]
    """References to the new rows."""

    shard_changes: Sequence[ShardChange]
    base: Sequence[SegmentEntry]
    """The shard's segments in the parent version."""

    @classmethod
    def of(cls, shard: int, values: Sequence[str], parent: Manifest, job: Job) -> _Update:
        shard_changes = sorted({change for value in values if (change := ShardChange.from_json(value))})
        rows = sorted(RowGroup.from_json(value) for value in values if ShardChange.from_json(value) is None)
        base = [entry for entry in parent.segments if entry.shard == shard]
        return cls(
            update_key(job, shard, rows, base, _changes(shard_changes, job)), shard, rows, shard_changes, base
        )


def _changes(shard_changes: Sequence[ShardChange], job: Job) -> Sequence[object]:
    """Return the parts of the outcome's key besides rows and segments."""
    keys = [change.key for change in shard_changes]
    if job.newer_than is not None:
        return [keys, job.merge, job.mode, "newer than", job.newer_than]
    if job.merge:
        return [keys, True]
    return [keys, "full"] if job.mode == "full" else keys


def _updated(update: _Update, job: Job, store: Store, encoders: EncoderSources) -> ShardOutcome:
    key, shard, rows, shard_changes, base = update
    started = time.perf_counter()
    fresh, letters, counts = new_rows(rows, job, store)
    plan = _plan(fresh, shard_changes, base, job, store)
    merged = time.perf_counter()
    built = write_segments(plan.rows, shard, job, store, encoders=encoders)
    outcome = ShardOutcome(
        key=key,
        shard=shard,
        entries=(*plan.kept, *(each.entry for each in built)),
        counts=dataclasses.replace(
            counts,
            changes=plan.counts,
            seconds={"merge": merged - started, "segment": time.perf_counter() - merged},
        ),
        statistics=built[0].statistics if built else {},
    )
    outcome = record_shard(outcome, letters, job, store)
    if job.newer_than is None:  # otherwise a repetition would replace rows that were newer this time
        _record_repetition(outcome, rows, shard_changes, letters, job, store)
    return outcome


def _record_repetition(
    outcome: ShardOutcome,
    rows: Sequence[RowGroup],
    shard_changes: Sequence[ShardChange],
    letters: Sequence[DeadLetter],
    job: Job,
    store: Store,
) -> None:
    """Record that repeating the update changes nothing, so that the next run need not read the shard."""
    changes = outcome.counts.changes
    unmerged = dataclasses.replace(job, merge=False)
    same = {"unchanged": sum(changes.get(name, 0) for name in ("added", "replaced", "unchanged"))}
    again = ShardOutcome(
        key=update_key(job, outcome.shard, rows, outcome.entries, _changes(shard_changes, unmerged)),
        shard=outcome.shard,
        entries=outcome.entries,
        counts=Counts(
            documents=outcome.counts.documents,
            passages=outcome.counts.passages,
            dead_letters=outcome.counts.dead_letters,
            changes=same,
        ),
        statistics=outcome.statistics,
    )
    if again.key != outcome.key:
        record_shard(again, letters, job, store)


def _plan(
    fresh: pa.Table,
    shard_changes: Sequence[ShardChange],
    base: Sequence[SegmentEntry],
    job: Job,
    store: Store,
) -> _Plan:
    schema = stored_schema(job)
    moved = {name for change in shard_changes for name in change.moved}
    overwritten = {name for change in shard_changes for name in change.overwritten}
    fresh = fresh.append_column(REVISION_COLUMN, pa.nulls(fresh.num_rows, pa.int64())).select(schema.names)
    # Without new rows only ids are read.
    columns = schema.names if fresh.num_rows or job.merge else ["id", "document_id", REVISION_COLUMN]
    olds = [(entry, *read_live_rows(entry, job, store, columns)) for entry in base]
    old_documents = _distinct([table for _, table, _ in olds])
    removed = _removed(fresh, old_documents, shard_changes, job, store)
    # A record replaces any row with its id, and its document replaces the earlier one, even if the record itself is
    # removed: the result must not depend on whether the old row is in this shard or in another.
    input_rows = fresh
    fresh = _without(fresh, document_id=removed)
    fresh, kept_documents = _without_overwritten(fresh, [table for _, table, _ in olds], overwritten, job)
    same = set()
    if fresh.num_rows:
        old_rows = pa.concat_tables([schema.empty_table(), *(table for _, table, _ in olds)])
        same = unchanged_documents(old_rows, fresh, job)
    fresh, input_rows = _without(fresh, document_id=same), _without(input_rows, document_id=same)
    new_documents = _distinct([input_rows]) - removed - kept_documents
    counts = {
        "added": len(new_documents - old_documents),
        "replaced": len(new_documents & old_documents),
        "removed": len(removed),
        "unchanged": len(same),
    }
    replaced: dict[str, set[str]] = {
        "document_id": removed | new_documents,
        "id": set(input_rows.column("id").to_pylist()),
    }
    marked = [
        # A moved row is always removed: otherwise its id would occur twice.
        _ParentSegment(
            entry, table, rows_N, (_has(table, **replaced) & ~newer_rows(table, job)) | _has(table, id=moved)
        )
        for entry, table, rows_N in olds
    ]
    kept, rewritten = _by_kind(marked, fresh, job)
    kept_tables = [_kept_rows(old, schema, job, store) for old in rewritten]
    rows = pa.concat_tables([schema.empty_table(), *kept_tables, fresh])
    if rows.column(REVISION_COLUMN).null_count == rows.num_rows:
        rows = rows.drop_columns([REVISION_COLUMN])
    return _Plan([_entry_of(old, job, store) for old in kept], rows, counts)


def _without_overwritten(
    fresh: pa.Table, olds: Sequence[pa.Table], elsewhere: set[str], job: Job
) -> tuple[pa.Table, set[str]]:
    """Return the new rows without those that live updates wrote during the build, and the documents that stay whole.

    `elsewhere` are ids that live updates wrote in other shards. If a record is a whole document, a live update has
    written the whole document.
    """
    newer = [table.filter(pa.array(newer_rows(table, job))) for table in olds]
    documents = _distinct(newer) if job.spec.source.document_id is None else set()
    ids = elsewhere.union(*(table.column("id").to_pylist() for table in newer))
    return _without(fresh, id=ids, document_id=documents), documents


def _removed(
    fresh: pa.Table, old_documents: set[str], shard_changes: Sequence[ShardChange], job: Job, store: Store
) -> set[str]:
    """Return the documents to remove, from the shard or from the new rows."""
    if job.mode == "full":
        return old_documents - _distinct([fresh])
    deletes = {
        name
        for change in shard_changes
        if change.deletes
        for name in read_deletes(store, job.index, change.deletes)
    }
    return deletes & (old_documents | _distinct([fresh]))


def _by_kind(
    olds: Sequence[_ParentSegment], fresh: pa.Table, job: Job
) -> tuple[list[_ParentSegment], list[_ParentSegment]]:
    """Return what `_kept_and_rewritten` does, for segments with and without vectors apart."""
    present_N = has_vector(fresh)
    kept, rewritten = list[_ParentSegment](), list[_ParentSegment]()
    for vectors in (True, False):
        of_kind = [old for old in olds if old.entry.vectors == vectors]
        parts = _kept_and_rewritten(of_kind, int(np.count_nonzero(present_N == vectors)), job)
        kept += parts[0]
        rewritten += parts[1]
    return kept, rewritten


def _kept_and_rewritten(
    olds: Sequence[_ParentSegment], fresh: int, job: Job
) -> tuple[Sequence[_ParentSegment], Sequence[_ParentSegment]]:
    """Return the segments that stay, and those whose rows join the `fresh` new rows in a new segment."""
    big = max(olds, key=lambda old: old.entry.rows, default=None)
    if big is None or job.merge or big.too_many_deleted:
        return [], olds
    small_ones = [old for old in olds if old is not big]
    if not fresh:
        return [big, *(old for old in small_ones if not old.too_many_deleted)], [
            old for old in small_ones if old.too_many_deleted
        ]
    small = fresh + sum(np.count_nonzero(~old.gone_N) for old in small_ones)
    if _is_large(big.entry, job) and small <= SMALL_SHARE * big.entry.rows:
        return [big], small_ones
    return [], olds


def _is_large(entry: SegmentEntry, job: Job) -> bool:
    """Return whether writing a segment again takes far longer than a search of one more."""
    if entry.vectors:
        return entry.kind == "scann"
    return entry.rows >= job.spec.scann.exact_below_rows


def _entry_of(old: _ParentSegment, job: Job, store: Store) -> SegmentEntry:
    """Return the manifest entry of a segment that stays, with its deleted rows."""
    if not old.gone_N.any():
        return old.entry
    documents = len(_distinct([old.table.filter(pa.array(~old.gone_N))]))
    return with_deleted(store, job.index, old.entry, old.rows_N[old.gone_N], documents=documents)


def _kept_rows(old: _ParentSegment, schema: pa.Schema, job: Job, store: Store) -> pa.Table:
    """Return all columns of a segment's rows that stay."""
    table = old.table
    if table.schema.names != schema.names:
        table, _ = read_live_rows(old.entry, job, store)
    return table.filter(pa.array(~old.gone_N)) if old.gone_N.any() else table


def _distinct(tables: Sequence[pa.Table]) -> set[str]:
    return {name for table in tables for name in pc.unique(table.column("document_id")).to_pylist()}


def _without(table: pa.Table, **values: set[str]) -> pa.Table:
    """Return the rows in which no column has one of its given values; the table itself if those are all rows."""
    lost_N = _has(table, **values)
    return table.filter(pa.array(~lost_N)) if lost_N.any() else table


def _has(table: pa.Table, **values: set[str]) -> np.ndarray:
    """Return in which rows a column has one of its given values, bool (N,)."""
    found_N = np.zeros(table.num_rows, bool)
    for column, names in values.items():
        if names:
            name_array = pa.array(sorted(names), pa.string())
            found_N |= pc.is_in(table.column(column), value_set=name_array).to_numpy(zero_copy_only=False)
    return found_N
