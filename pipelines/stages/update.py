"""Second stage of an update: what a shard has, minus what is replaced or removed, plus what is new.

A segment that loses rows stays, with the rows marked as deleted (indexer/versions/tombstones.py), and what is new goes
into a small segment beside the big one: a small change to a large shard does not train ScaNN on it again. When too many
rows are deleted, or the small segment has become too large, the shard becomes one new segment, which has no trace of
removed rows. A full build does the same where it can, and removes besides what its input leaves out.
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

from scannery.indexer.datapoints.schema import REVISION_COLUMN
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.tombstones import with_deleted
from scannery.pipelines.dead_letters import DeadLetter, count_reasons
from scannery.pipelines.stages.old_rows import newer_rows, read_live_rows, stored_schema, unchanged_documents
from scannery.pipelines.stages.segment import (
    RowGroup,
    finished_shard,
    new_rows,
    record_shard,
    update_key,
    write_segment,
)
from scannery.pipelines.state.counts import Counts, ShardOutcome
from scannery.pipelines.state.job import Job, stage_key
from scannery.pipelines.tuning.synthetic_queries import EncoderSource

__all__ = [
    "MOST_DELETED",
    "SMALL_SHARE",
    "Touch",
    "finished_update",
    "read_deletes",
    "update_shard",
    "write_deletes",
]

SMALL_SHARE = 0.1
"""Rows that the small segment of a shard may have, as a share of the big one's; more are merged with it."""

MOST_DELETED = 0.2
"""Rows of a segment that may be deleted, as a share of all; then it is rewritten. A row that changes so costs the
writing of five at most, and a search looks at a quarter more candidates than without."""

_SHORTEST_KEY = 16


class Touch(NamedTuple):
    """A change to a shard besides new rows; it travels with them."""

    deletes: str = ""
    """Key of the ids of documents to remove (`write_deletes`); empty: none."""

    moved: tuple[str, ...] = ()
    """Ids of rows here that records in other shards replace (resolve.py)."""

    overwritten: tuple[str, ...] = ()
    """Ids of records for here that live updates wrote in other shards while the build ran."""

    @property
    def key(self) -> tuple[object, ...]:
        """What the names of results depend on; as it was before the last field came, where that is empty."""
        return tuple(self) if self.overwritten else tuple(self)[:2]

    def to_json(self) -> str:
        """Return the change as it travels through Beam."""
        return "touch " + json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Touch | None:
        """Return the change that `to_json` wrote; None if the text is something else."""
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


class _Old(NamedTuple):
    """A segment of the parent version."""

    entry: SegmentEntry
    table: pa.Table
    """Its live rows: all columns, or only the ids where no more is needed to see what changes."""

    rows_N: np.ndarray
    """The number of each of them, int64."""

    gone_N: np.ndarray
    """Which of them the update removes, bool."""

    @property
    def worn(self) -> bool:
        """Whether too many rows are deleted for it to stay."""
        return int(np.count_nonzero(~self.gone_N)) < (1 - MOST_DELETED) * self.entry.rows


class _Change(NamedTuple):
    """What an update does to a shard, before anything is built."""

    kept: Sequence[SegmentEntry]
    """Segments that stay, with what is deleted from them."""

    rows: pa.Table
    """What the new segment holds."""

    counts: dict[str, int]


def update_shard(
    shard: int,
    values: Sequence[str],
    parent: Manifest,
    job: Job,
    store: Store,
    *,
    encoder: EncoderSource | None = None,
) -> ShardOutcome:
    """Bring a shard up to date with row groups and touches, unless that was done before.

    Holds the shard in memory: old rows and new ones.

    Raises:
        BuildError: ScaNN failed.
        CorruptError, NotFoundError: a segment of the parent version is damaged or missing.
        StageDamagedError: an embeddings file is damaged; it is made again by the next run.

    """
    update = _Update.of(shard, values, parent, job)
    return finished_shard(update.key, job, store) or _updated(update, job, store, encoder)


def finished_update(
    shard: int, values: Sequence[str], parent: Manifest, job: Job, store: Store
) -> ShardOutcome | None:
    """Return what `update_shard` did with the same arguments before, or None."""
    return finished_shard(_Update.of(shard, values, parent, job).key, job, store)


class _Update(NamedTuple):
    """What comes upon a shard."""

    key: str
    shard: int
    rows: Sequence[RowGroup]
    touches: Sequence[Touch]
    base: Sequence[SegmentEntry]

    @classmethod
    def of(cls, shard: int, values: Sequence[str], parent: Manifest, job: Job) -> _Update:
        touches = sorted({touch for value in values if (touch := Touch.from_json(value))})
        rows = sorted(RowGroup.from_json(value) for value in values if Touch.from_json(value) is None)
        base = [entry for entry in parent.segments if entry.shard == shard]
        return cls(update_key(job, shard, rows, base, _changes(touches, job)), shard, rows, touches, base)


def _changes(touches: Sequence[Touch], job: Job) -> Sequence[object]:
    """Return what besides rows and segments decides on the outcome."""
    keys = [touch.key for touch in touches]
    if job.newer_than is not None:
        return [keys, job.merge, job.mode, "newer than", job.newer_than]
    if job.merge:
        return [keys, True]
    return [keys, "full"] if job.mode == "full" else keys


def _updated(update: _Update, job: Job, store: Store, encoder: EncoderSource | None) -> ShardOutcome:
    key, shard, rows, touches, base = update
    started = time.perf_counter()
    fresh, letters, lost = new_rows(rows, job, store)
    change = _change(fresh, touches, base, job, store)
    merged = time.perf_counter()
    built = write_segment(change.rows, shard, job, store, encoder=encoder) if change.rows.num_rows else None
    outcome = ShardOutcome(
        key=key,
        shard=shard,
        entries=(*change.kept, *([built.entry] if built else ())),
        counts=Counts(
            documents=-len(letters),
            passages=-lost,
            dead_letters=count_reasons(letters),
            changes=change.counts,
            seconds={"merge": merged - started, "segment": time.perf_counter() - merged},
        ),
        statistics=built.statistics if built else {},
    )
    outcome = record_shard(outcome, letters, job, store)
    if job.newer_than is None:  # else a repetition replaces what was newer this time
        _record_repetition(outcome, rows, touches, letters, job, store)
    return outcome


def _record_repetition(
    outcome: ShardOutcome,
    rows: Sequence[RowGroup],
    touches: Sequence[Touch],
    letters: Sequence[DeadLetter],
    job: Job,
    store: Store,
) -> None:
    """Record that the same update on top of its own result changes nothing: the next run need not read the shard."""
    changes = outcome.counts.changes
    unmerged = dataclasses.replace(job, merge=False)
    same = {"unchanged": sum(changes.get(name, 0) for name in ("added", "replaced", "unchanged"))}
    again = ShardOutcome(
        key=update_key(job, outcome.shard, rows, outcome.entries, _changes(touches, unmerged)),
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


def _change(
    fresh: pa.Table, touches: Sequence[Touch], base: Sequence[SegmentEntry], job: Job, store: Store
) -> _Change:
    schema = stored_schema(job)
    moved = {name for touch in touches for name in touch.moved}
    overwritten = {name for touch in touches for name in touch.overwritten}
    fresh = fresh.append_column(REVISION_COLUMN, pa.nulls(fresh.num_rows, pa.int64())).select(schema.names)
    # What only loses rows is not read whole.
    columns = schema.names if fresh.num_rows or job.merge else ["id", "document_id", REVISION_COLUMN]
    olds = [(entry, *read_live_rows(entry, job, store, columns)) for entry in base]
    old_documents = _distinct([table for _, table, _ in olds])
    removed = _removed(fresh, old_documents, touches, job, store)
    # A record takes its id from whatever row had it, and its document the place of what that was, also where it goes
    # itself: whether that row is in this shard or in another one must not matter.
    given = fresh
    fresh = _without(fresh, document_id=removed)
    fresh, kept_documents = _without_overwritten(fresh, [table for _, table, _ in olds], overwritten, job)
    same = set()
    if fresh.num_rows:
        old_rows = pa.concat_tables([schema.empty_table(), *(table for _, table, _ in olds)])
        same = unchanged_documents(old_rows, fresh, job)
    fresh, given = _without(fresh, document_id=same), _without(given, document_id=same)
    new_documents = _distinct([given]) - removed - kept_documents
    counts = {
        "added": len(new_documents - old_documents),
        "replaced": len(new_documents & old_documents),
        "removed": len(removed),
        "unchanged": len(same),
    }
    replaced: dict[str, set[str]] = {
        "document_id": removed | new_documents,
        "id": set(given.column("id").to_pylist()),
    }
    marked = [
        # A row that moved goes in any case: its id would stand twice.
        _Old(
            entry, table, rows_N, (_has(table, **replaced) & ~newer_rows(table, job)) | _has(table, id=moved)
        )
        for entry, table, rows_N in olds
    ]
    kept, rewritten = _arranged(marked, fresh.num_rows, merge=job.merge)
    left = [_left(old, schema, job, store) for old in rewritten]
    rows = pa.concat_tables([schema.empty_table(), *left, fresh])
    if rows.column(REVISION_COLUMN).null_count == rows.num_rows:
        rows = rows.drop_columns([REVISION_COLUMN])
    return _Change([_marked(old, job, store) for old in kept], rows, counts)


def _without_overwritten(
    fresh: pa.Table, olds: Sequence[pa.Table], elsewhere: set[str], job: Job
) -> tuple[pa.Table, set[str]]:
    """Return the new rows without those that live updates wrote while the build ran, and documents that stay whole.

    `elsewhere` are ids that they wrote in other shards. Where a record is a whole document, a live update has written
    all of it.
    """
    newer = [table.filter(pa.array(newer_rows(table, job))) for table in olds]
    documents = _distinct(newer) if job.spec.source.document_id is None else set()
    ids = elsewhere.union(*(table.column("id").to_pylist() for table in newer))
    return _without(fresh, id=ids, document_id=documents), documents


def _removed(
    fresh: pa.Table, old_documents: set[str], touches: Sequence[Touch], job: Job, store: Store
) -> set[str]:
    """Return the documents that go, whether the shard has them or they would have come."""
    if job.mode == "full":
        return old_documents - _distinct([fresh])
    deletes = {
        name for touch in touches if touch.deletes for name in read_deletes(store, job.index, touch.deletes)
    }
    return deletes & (old_documents | _distinct([fresh]))


def _arranged(olds: Sequence[_Old], fresh: int, *, merge: bool) -> tuple[Sequence[_Old], Sequence[_Old]]:
    """Return the segments that stay, and those whose rows go into the new one with so many fresh rows."""
    big = max(olds, key=lambda old: old.entry.rows, default=None)
    if big is None or merge or big.worn:
        return [], olds
    others = [old for old in olds if old is not big]
    if not fresh:
        return [big, *(old for old in others if not old.worn)], [old for old in others if old.worn]
    small = fresh + sum(np.count_nonzero(~old.gone_N) for old in others)
    if big.entry.kind == "scann" and small <= SMALL_SHARE * big.entry.rows:
        return [big], others
    return [], olds


def _marked(old: _Old, job: Job, store: Store) -> SegmentEntry:
    """Return the entry of a segment that stays."""
    if not old.gone_N.any():
        return old.entry
    documents = len(_distinct([old.table.filter(pa.array(~old.gone_N))]))
    return with_deleted(store, job.index, old.entry, old.rows_N[old.gone_N], documents=documents)


def _left(old: _Old, schema: pa.Schema, job: Job, store: Store) -> pa.Table:
    """Return all columns of the rows that stay."""
    table = old.table
    if table.schema.names != schema.names:
        table, _ = read_live_rows(old.entry, job, store)
    return table.filter(pa.array(~old.gone_N)) if old.gone_N.any() else table


def _distinct(tables: Sequence[pa.Table]) -> set[str]:
    return {name for table in tables for name in pc.unique(table.column("document_id")).to_pylist()}


def _without(table: pa.Table, **values: set[str]) -> pa.Table:
    """Return the rows in which no column has one of the values given for it; the table itself if that is all."""
    lost_N = _has(table, **values)
    return table.filter(pa.array(~lost_N)) if lost_N.any() else table


def _has(table: pa.Table, **values: set[str]) -> np.ndarray:
    """Return in which rows a column has one of the values given for it, bool."""
    found_N = np.zeros(table.num_rows, bool)
    for column, names in values.items():
        if names:
            wanted = pa.array(sorted(names), pa.string())
            found_N |= pc.is_in(table.column(column), value_set=wanted).to_numpy(zero_copy_only=False)
    return found_N
