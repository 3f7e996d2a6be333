"""Optional stage for several shards: find ids that occur in two shards, and mark the rows that lose.

Rows are sharded by document, so two rows with one id but different documents can be in different shards. Two records of
the input can be such rows if the source groups records into documents. And a record can replace a row of the index that
belongs to another document, since a live update may name any document.

The ids of all units and of the parent version's segments are shuffled by ranges of their hashes (records/id_blocks.py),
so each range is resolved on its own; what it finds is sent to the shards concerned, and added to their row groups and
changes there. The result does not depend on the number of ranges.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.schema import REVISION_COLUMN
from scannery.indexer.manifest import Manifest
from scannery.indexer.store.object_store import Store
from scannery.pipelines.records.id_blocks import OLD, IdBlock
from scannery.pipelines.stages.old_rows import newer_rows, read_live_rows
from scannery.pipelines.stages.update import ShardChange
from scannery.pipelines.state.job import Job, read_beside
from scannery.pipelines.state.row_groups import RowGroup, read_row_group

__all__ = [
    "ROWS_PER_RANGE",
    "LostRows",
    "may_move",
    "merged_values",
    "needs_resolving",
    "parent_ids",
    "ranges_for",
    "resolve_range",
    "unit_ids",
]

ROWS_PER_RANGE = 2**21
"""About 100 MB for the worker that resolves the range."""

MOST_RANGES = 256

_LOST = "lost "


class LostRows(NamedTuple):
    """Rows of one unit and shard that are duplicates of earlier records."""

    ordinal: int
    """Position of the unit in the input."""

    rows: tuple[int, ...]
    """Among the unit's rows of the shard."""

    def to_json(self) -> str:
        """Return the rows as a string, for Beam."""
        return _LOST + json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> LostRows | None:
        """Return the rows that `to_json` wrote; None for another text."""
        if not text.startswith(_LOST):
            return None
        ordinal, rows = json.loads(text.removeprefix(_LOST))
        return cls(ordinal, tuple(rows))


def needs_resolving(job: Job) -> bool:
    """Return whether two records with one id can end up in different shards."""
    return job.spec.source.document_id is not None and job.shards > 1


def may_move(job: Job) -> bool:
    """Return whether the index can keep a row whose id a record has in another shard."""
    keeps = job.mode == "upsert" or (job.keep_rows and job.newer_than is not None)
    return keeps and job.parent is not None and job.shards > 1


def ranges_for(rows: int) -> int:
    """Return the number of hash ranges for about this number of rows, new and old."""
    return min(max(1, math.ceil(rows / ROWS_PER_RANGE)), MOST_RANGES)


def unit_ids(ordinal: int, unit: str, groups: Mapping[int, RowGroup], job: Job, store: Store) -> IdBlock:
    """Return the ids of a finished unit.

    Args:
        ordinal: position of the unit in the input.
        unit: its key.
        groups: its row groups by shard.
        job: the build.
        store: of the index.

    Raises:
        StageDamagedError: its embeddings file is damaged.

    """
    data = read_beside(store, job.index, unit, "ids")
    if data is not None:
        return IdBlock.from_bytes(data)._replace(ordinal=ordinal)
    # A unit of an earlier release, or of a build with one shard.
    blocks = [_group_ids(shard, group, job, store) for shard, group in sorted(groups.items())]
    return _joined(blocks)._replace(ordinal=ordinal)


def parent_ids(number: int, parent: Manifest, job: Job, store: Store) -> IdBlock:
    """Return the ids of live rows of the parent version's segment with this number.

    Raises:
        CorruptError, NotFoundError: the segment is damaged or missing.

    """
    entry = parent.segments[number]
    table, _ = read_live_rows(entry, job, store, ["id", REVISION_COLUMN])
    return IdBlock.of_rows(OLD, entry.shard, table.column("id"), newer_rows(table, job))


def resolve_range(blocks: Iterable[IdBlock], job: Job) -> Iterator[tuple[int, LostRows | ShardChange]]:
    """Yield, by shard, what the ids of one range mean for it.

    Of records with the same id in different shards the first in input order wins, and the rows of the others are lost.
    An old row with the id of a new one in another shard is removed from its shard; if a live update wrote it during the
    build, it stays and the new row is dropped.

    Args:
        blocks: all blocks of the range, of new and old rows.
        job: the build.

    """
    blocks = sorted(blocks, key=lambda block: (block.ordinal, _first(block.shards_N)))
    old = _Rows.of([block for block in blocks if block.ordinal == OLD])
    new = _Rows.of([block for block in blocks if block.ordinal != OLD])
    if not len(new.ids):
        return
    lost_N = _lost(new) if needs_resolving(job) else np.zeros(len(new.ids), bool)
    yield from _lost_rows(new, lost_N)
    if len(old.ids) and may_move(job):
        yield from _moved(new.kept(~lost_N), old)


def merged_values(values: Iterable[str]) -> list[str]:
    """Return a shard's row groups and changes, with what the ranges found added to them.

    Several ranges send changes to one shard; they become one, so that keys of results do not depend on the ranges.
    """
    lost: dict[int, list[int]] = {}
    groups: list[RowGroup] = []
    changes: list[ShardChange] = []
    for value in values:
        if (rows := LostRows.from_json(value)) is not None:
            lost.setdefault(rows.ordinal, []).extend(rows.rows)
        elif (change := ShardChange.from_json(value)) is not None:
            changes.append(change)
        else:
            groups.append(RowGroup.from_json(value))
    marked = [
        group._replace(lost=tuple(sorted({*group.lost, *lost.get(group.ordinal, ())}))) for group in groups
    ]
    return [*(group.to_json() for group in marked), *(change.to_json() for change in _as_one(changes))]


def _as_one(changes: Sequence[ShardChange]) -> list[ShardChange]:
    resolved = [change for change in changes if change.moved or change.overwritten]
    unmoved = [change for change in changes if not (change.moved or change.overwritten)]
    if not resolved:
        return unmoved
    moved = sorted({name for change in resolved for name in change.moved})
    overwritten = sorted({name for change in resolved for name in change.overwritten})
    return [*unmoved, ShardChange(moved=tuple(moved), overwritten=tuple(overwritten))]


class _Rows(NamedTuple):
    """Rows of several blocks."""

    ids: pa.Array
    ordinals_N: np.ndarray
    shards_N: np.ndarray
    records_N: np.ndarray
    rows_N: np.ndarray

    @classmethod
    def of(cls, blocks: Sequence[IdBlock]) -> _Rows:
        joined = _joined(blocks)
        counts = [len(block.ids) for block in blocks]
        ordinals_N = np.repeat(np.array([block.ordinal for block in blocks], np.int64), counts)
        return cls(joined.ids, ordinals_N, *joined[2:])

    def kept(self, keep_N: np.ndarray) -> _Rows:
        return _Rows(self.ids.filter(pa.array(keep_N)), *(values[keep_N] for values in self[1:]))


def _lost(new: _Rows) -> np.ndarray:
    """Return which rows have the id of an earlier record, bool (N,)."""
    codes_N = new.ids.dictionary_encode().indices.to_numpy()
    lost_N = np.zeros(len(codes_N), bool)
    twice_T = np.flatnonzero(np.bincount(codes_N)[codes_N] > 1)
    if not len(twice_T):
        return lost_N
    order_T = np.lexsort((new.records_N[twice_T], new.ordinals_N[twice_T], codes_N[twice_T]))
    sorted_T = twice_T[order_T]
    codes_T = codes_N[sorted_T]
    winner_T = sorted_T[np.searchsorted(codes_T, codes_T)]
    lost_N[sorted_T] = (new.ordinals_N[sorted_T] != new.ordinals_N[winner_T]) | (
        new.records_N[sorted_T] != new.records_N[winner_T]
    )
    return lost_N


def _lost_rows(new: _Rows, lost_N: np.ndarray) -> Iterator[tuple[int, LostRows]]:
    lost_L = np.flatnonzero(lost_N)
    by_place: dict[tuple[int, int], list[int]] = {}
    locations = (new.shards_N[lost_L].tolist(), new.ordinals_N[lost_L].tolist(), new.rows_N[lost_L].tolist())
    for shard, ordinal, row in zip(*locations, strict=True):
        by_place.setdefault((shard, ordinal), []).append(row)
    for (shard, ordinal), rows in sorted(by_place.items()):
        yield shard, LostRows(ordinal, tuple(sorted(rows)))


def _moved(new: _Rows, old: _Rows) -> Iterator[tuple[int, ShardChange]]:
    """Yield the changes to shards that have old rows with ids of new rows in other shards, or such new rows."""
    found_N = pc.index_in(old.ids, value_set=_last_first(new.ids))
    place_N = found_N.fill_null(-1).to_numpy()
    shard_N = new.shards_N[::-1][place_N] if len(new.ids) else np.zeros(0, np.int32)
    moving_M = np.flatnonzero((place_N >= 0) & (shard_N != old.shards_N))
    moved: dict[int, list[str]] = {}
    overwritten: dict[int, list[str]] = {}
    ids = old.ids.take(pa.array(moving_M)).to_pylist()
    for name, row in zip(ids, moving_M.tolist(), strict=True):
        if old.records_N[row]:
            overwritten.setdefault(int(shard_N[row]), []).append(name)
        else:
            moved.setdefault(int(old.shards_N[row]), []).append(name)
    for shard in sorted(moved.keys() | overwritten.keys()):
        names = (tuple(sorted(side.get(shard, ()))) for side in (moved, overwritten))
        yield shard, ShardChange("", *names)


def _last_first(ids: pa.Array) -> pa.Array:
    """Return ids from the last to the first: `index_in` finds the first of equal ones."""
    return ids.take(pa.array(np.arange(len(ids))[::-1]))


def _group_ids(shard: int, group: RowGroup, job: Job, store: Store) -> IdBlock:
    table = read_row_group(group, job, store, columns=["id", "_record"])
    return IdBlock.of_rows(group.ordinal, shard, table.column("id"), table.column("_record").to_numpy())


def _joined(blocks: Sequence[IdBlock]) -> IdBlock:
    """Return the rows of all blocks as one."""
    if not blocks:
        return IdBlock(0, pa.array([], pa.string()), *(np.zeros(0, np.int32) for _ in range(3)))
    ids = pa.concat_arrays([block.ids for block in blocks])
    numbers = (np.concatenate([block[field] for block in blocks]) for field in (2, 3, 4))
    return IdBlock(blocks[0].ordinal, ids, *numbers)


def _first(values_N: np.ndarray) -> int:
    return int(values_N[0]) if len(values_N) else 0
