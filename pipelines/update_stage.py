"""Second stage of an update: what a shard has, minus what is replaced or removed, plus what is new.

A shard has at most two segments: a big one, and a small one with what came later. A change that leaves every row of
the big one in place touches the small one alone, so that a small addition to a large shard does not train ScaNN on
it again. Otherwise the shard becomes one new segment, which has no trace of removed rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints import datapoint_schema
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.store import Store
from scannery.pipelines.counts import Counts, ShardOutcome
from scannery.pipelines.deadletters import DeadLetter, count_reasons
from scannery.pipelines.job import Job, stage_key
from scannery.pipelines.old_rows import read_segment, unchanged_documents
from scannery.pipelines.segment_stage import (
    EncoderSource,
    RowGroup,
    finished_shard,
    new_rows,
    record_shard,
    update_key,
    write_segment,
)

__all__ = ["SMALL_SHARE", "Touch", "read_deletes", "update_shard", "write_deletes"]

SMALL_SHARE = 0.1
"""Rows that the small segment of a shard may have, as a share of the big one's; more are merged with it."""

_SHORTEST_KEY = 16


class Touch(NamedTuple):
    """A change to a shard besides new rows; it travels with them."""

    deletes: str = ""
    """Key of the ids of documents to remove (`write_deletes`); empty: none."""

    moved: tuple[str, ...] = ()
    """Ids of rows here that records in other shards replace (resolve_stage.py)."""

    def to_json(self) -> str:
        """Return the change as it travels through Beam."""
        return "touch " + json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Touch | None:
        """Return the change that `to_json` wrote; None if the text is something else."""
        if not text.startswith("touch "):
            return None
        deletes, moved = json.loads(text.removeprefix("touch "))
        return cls(deletes, tuple(moved))


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


class _Change(NamedTuple):
    """What an update does to a shard, before anything is built."""

    kept: Sequence[SegmentEntry]
    """Segments that stay as they are."""

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
    touches = sorted({touch for value in values if (touch := Touch.from_json(value))})
    rows = sorted(RowGroup.from_json(value) for value in values if Touch.from_json(value) is None)
    base = [entry for entry in parent.segments if entry.shard == shard]
    key = update_key(job, shard, rows, base, [touches, True] if job.merge else touches)
    return finished_shard(key, job, store) or _updated(key, shard, rows, touches, base, job, store, encoder)


def _updated(
    key: str,
    shard: int,
    rows: Sequence[RowGroup],
    touches: Sequence[Touch],
    base: Sequence[SegmentEntry],
    job: Job,
    store: Store,
    encoder: EncoderSource | None,
) -> ShardOutcome:
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
    same = {"unchanged": sum(changes.get(name, 0) for name in ("added", "replaced", "unchanged"))}
    again = ShardOutcome(
        key=update_key(job, outcome.shard, rows, outcome.entries, touches),
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
    schema = datapoint_schema(job.spec, job.dimensions)
    deletes = {
        name for touch in touches if touch.deletes for name in read_deletes(store, job.index, touch.deletes)
    }
    moved = {name for touch in touches for name in touch.moved}
    fresh = fresh.select(schema.names)
    olds = [read_segment(entry, job, store) for entry in base]
    old_documents = _distinct(olds)
    removed = deletes & (old_documents | _distinct([fresh]))
    fresh = _without(fresh, document_id=removed)
    same = unchanged_documents(pa.concat_tables([schema.empty_table(), *olds]), fresh, job)
    fresh = _without(fresh, document_id=same)
    new_documents = _distinct([fresh])
    counts = {
        "added": len(new_documents - old_documents),
        "replaced": len(new_documents & old_documents),
        "removed": len(removed),
        "unchanged": len(same),
    }
    gone_ids = moved | set(fresh.column("id").to_pylist())
    left = [_without(old, document_id=removed | new_documents, id=gone_ids) for old in olds]
    kept, rows = _arranged(base, olds, left, fresh, merge=job.merge)
    return _Change(kept, rows, counts)


def _arranged(
    base: Sequence[SegmentEntry],
    olds: Sequence[pa.Table],
    left: Sequence[pa.Table],
    fresh: pa.Table,
    *,
    merge: bool,
) -> tuple[Sequence[SegmentEntry], pa.Table]:
    """Return the segments that stay, and the rows of the new one."""
    whole = [len(rows) == len(old) for rows, old in zip(left, olds, strict=True)]
    if all(whole) and not fresh.num_rows and not merge:
        return base, fresh
    big = max(range(len(base)), key=lambda i: base[i].rows, default=None)
    if big is not None and whole[big] and base[big].kind == "scann" and not merge:
        rows = pa.concat_tables([fresh.schema.empty_table(), *left[:big], *left[big + 1 :], fresh])
        if rows.num_rows <= SMALL_SHARE * base[big].rows:
            return [base[big]], rows
    return [], pa.concat_tables([fresh.schema.empty_table(), *left, fresh])


def _distinct(tables: Sequence[pa.Table]) -> set[str]:
    return {name for table in tables for name in pc.unique(table.column("document_id")).to_pylist()}


def _without(table: pa.Table, **values: set[str]) -> pa.Table:
    """Return the rows in which no column has one of the values given for it; the table itself if that is all."""
    lost_N = np.zeros(table.num_rows, bool)
    for column, names in values.items():
        if names:
            wanted = pa.array(sorted(names), pa.string())
            lost_N |= pc.is_in(table.column(column), value_set=wanted).to_numpy(zero_copy_only=False)
    return table.filter(pa.array(~lost_N)) if lost_N.any() else table
