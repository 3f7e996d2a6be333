"""Optional stage for several shards: find ids that occur in two shards, and mark the rows that lose.

Rows are sharded by document, so two rows with one id but different documents can be in different shards. Two records of
the input can be such rows if the source groups records into documents. And a record can replace a row of the index that
belongs to another document, since a live update may name any document. All row groups of a build pass through one
worker, which reads their ids and the ids of the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.schema import REVISION_COLUMN
from scannery.indexer.hashes import id_hashes, text_hash
from scannery.indexer.store.object_store import Store
from scannery.pipelines.stages.old_rows import newer_rows, read_live_rows
from scannery.pipelines.stages.update import ShardChange
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.row_groups import RowGroup, read_row_group
from scannery.pipelines.state.stage_outputs import read_parent

__all__ = ["may_move", "moved_ids", "needs_resolving", "resolve"]


class _Ids(NamedTuple):
    ids: Sequence[str]
    records_N: np.ndarray


def needs_resolving(job: Job) -> bool:
    """Return whether two records with one id can end up in different shards."""
    return job.spec.source.document_id is not None and job.shards > 1


def may_move(job: Job) -> bool:
    """Return whether the index can keep a row whose id a record has in another shard."""
    keeps = job.mode == "upsert" or (job.keep_rows and job.newer_than is not None)
    return keeps and job.parent is not None and job.shards > 1


def resolve(groups: Sequence[tuple[int, RowGroup]], job: Job, store: Store) -> Iterator[tuple[int, RowGroup]]:
    """Yield the (shard, row group) pairs, each with its rows that are duplicates of an earlier record.

    Reads the ids twice: first as hashes of 8 bytes each, which all fit into memory, then the few ids whose hash occurs
    twice.
    """
    suspects = _repeated(np.concatenate([_hashes(group, job, store) for _, group in groups]))
    winners: dict[str, tuple[int, int]] = {}
    if suspects:
        for _, group in groups:
            for identifier, place, _ in _suspicious(group, suspects, job, store):
                winners[identifier] = min(place, winners.get(identifier, place))
    for shard, group in groups:
        lost = [
            row
            for identifier, place, row in (_suspicious(group, suspects, job, store) if suspects else ())
            if place != winners[identifier]
        ]
        yield shard, group._replace(lost=tuple(lost))


def moved_ids(groups: Sequence[tuple[int, RowGroup]], job: Job, store: Store) -> dict[int, ShardChange]:
    """Return the changes to shards of the parent version that have ids of new records in other shards.

    The old row is removed and the record added; if a live update wrote the row during the build, the row stays and the
    record is dropped. Holds 12 bytes per new row, and the ids of one segment at a time.
    """
    parent = read_parent(job, store) if may_move(job) and groups else None
    if parent is None:
        return {}
    places_2N = _places(groups, job, store)
    suspects: dict[int, list[str]] = {}
    newer: set[str] = set()
    for entry in parent.segments:
        table, _ = read_live_rows(entry, job, store, ["id", REVISION_COLUMN])
        newer.update(table.filter(pa.array(newer_rows(table, job))).column("id").to_pylist())
        if found := _elsewhere(table.column("id").to_pylist(), entry.shard, places_2N):
            suspects.setdefault(entry.shard, []).extend(found)
    return _confirmed(suspects, newer, groups, job, store)


def _places(groups: Sequence[tuple[int, RowGroup]], job: Job, store: Store) -> np.ndarray:
    """Return the hash of each new id that is not lost, ascending, and its shard: uint64 (2, N)."""
    parts = []
    for shard, group in groups:
        hashes_N = np.delete(_hashes(group, job, store), list(group.lost))
        parts.append(np.stack([hashes_N, np.full(len(hashes_N), shard, np.uint64)]))
    places_2N = np.concatenate(parts, axis=1)
    return places_2N[:, np.argsort(places_2N[0], kind="stable")]


def _elsewhere(ids: Sequence[str], shard: int, places_2N: np.ndarray) -> list[str]:
    """Return the ids of a shard whose hashes are among the new ones of another shard."""
    hashes_N = id_hashes(ids)
    first_N, end_N = (np.searchsorted(places_2N[0], hashes_N, side) for side in ("left", "right"))
    return [
        ids[row]
        for row in np.flatnonzero(end_N > first_N).tolist()
        if (places_2N[1, first_N[row] : end_N[row]] != shard).any()
    ]


def _confirmed(
    suspects: dict[int, list[str]],
    newer: set[str],
    groups: Sequence[tuple[int, RowGroup]],
    job: Job,
    store: Store,
) -> dict[int, ShardChange]:
    """Return the changes for suspects that are new ids of another shard, not other ids with an equal hash."""
    wanted = {identifier for ids in suspects.values() for identifier in ids}
    shard_of_id: dict[str, int] = {}
    for shard, group in groups if wanted else ():
        lost = set(group.lost)
        ids = _ids(group, job, store).ids
        shard_of_id |= {name: shard for row, name in enumerate(ids) if row not in lost and name in wanted}
    moved: dict[int, list[str]] = {}
    overwritten: dict[int, list[str]] = {}
    for shard, ids in suspects.items():
        for name in ids:
            if (wanted_in := shard_of_id.get(name, shard)) != shard:
                side, place = (overwritten, wanted_in) if name in newer else (moved, shard)
                side.setdefault(place, []).append(name)
    return {
        shard: ShardChange(moved=tuple(moved.get(shard, ())), overwritten=tuple(overwritten.get(shard, ())))
        for shard in moved.keys() | overwritten.keys()
    }


def _repeated(hashes_N: np.ndarray) -> frozenset[int]:
    values, counts = np.unique(hashes_N, return_counts=True)
    return frozenset(values[counts > 1].tolist())


def _hashes(group: RowGroup, job: Job, store: Store) -> np.ndarray:
    return id_hashes(_ids(group, job, store).ids)


def _suspicious(
    group: RowGroup, suspects: frozenset[int], job: Job, store: Store
) -> Iterator[tuple[str, tuple[int, int], int]]:
    """Yield id, position in the input and row of the rows whose id hash occurs twice."""
    table = _ids(group, job, store)
    for row, identifier in enumerate(table.ids):
        if int(text_hash(identifier)) in suspects:
            yield identifier, (group.ordinal, int(table.records_N[row])), row


def _ids(group: RowGroup, job: Job, store: Store) -> _Ids:
    table: pa.Table = read_row_group(group, job, store, columns=["id", "_record"])
    return _Ids(table.column("id").to_pylist(), table.column("_record").to_numpy())
