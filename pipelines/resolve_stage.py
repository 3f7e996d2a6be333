"""A stage in between, where the source groups records into documents: duplicates across shards.

Rows are sharded by document, so two records with one id but different documents never meet in a shard. Here all row
groups of a build pass through one worker, which reads their ids and marks the rows that lose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scannery.indexer.store import Store
from scannery.indexer.versions import read_manifest
from scannery.pipelines.job import Job
from scannery.pipelines.old_rows import read_live_rows
from scannery.pipelines.segment_stage import RowGroup, read_row_group

__all__ = ["moved_ids", "needs_resolving", "resolve"]


class _Ids(NamedTuple):
    ids: Sequence[str]
    records_N: np.ndarray


def needs_resolving(job: Job) -> bool:
    """Return whether two records with one id can end up in different shards."""
    return job.spec.source.document_id is not None and job.shards > 1


def resolve(groups: Sequence[tuple[int, RowGroup]], job: Job, store: Store) -> Iterator[tuple[int, RowGroup]]:
    """Yield the (shard, row group) pairs again, each with the rows that lose against an earlier record.

    Reads the ids twice: once as hashes of 8 bytes each, which all fit into memory, and once for the few ids whose
    hash stands twice.
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


def moved_ids(groups: Sequence[tuple[int, RowGroup]], job: Job, store: Store) -> dict[int, list[str]]:
    """Return, by shard, the ids of the parent version whose new records belong to documents in other shards."""
    if job.mode != "upsert":
        return {}
    shard_of_id: dict[str, int] = {}
    for shard, group in groups:
        lost = set(group.lost)
        ids = _ids(group, job, store).ids
        shard_of_id.update((identifier, shard) for row, identifier in enumerate(ids) if row not in lost)
    moved: dict[int, list[str]] = {}
    for entry in read_manifest(store, job.index, job.parent).segments:
        table, _ = read_live_rows(entry, job, store, ["id"])
        for identifier in table.column("id").to_pylist():
            if shard_of_id.get(identifier, entry.shard) != entry.shard:
                moved.setdefault(entry.shard, []).append(identifier)
    return moved


def _repeated(hashes_N: np.ndarray) -> frozenset[int]:
    values, counts = np.unique(hashes_N, return_counts=True)
    return frozenset(values[counts > 1].tolist())


def _hashes(group: RowGroup, job: Job, store: Store) -> np.ndarray:
    return np.fromiter(map(_hash, _ids(group, job, store).ids), np.uint64)


def _suspicious(
    group: RowGroup, suspects: frozenset[int], job: Job, store: Store
) -> Iterator[tuple[str, tuple[int, int], int]]:
    """Yield id, place in the input and row of the rows whose id may stand twice."""
    table = _ids(group, job, store)
    for row, identifier in enumerate(table.ids):
        if _hash(identifier) in suspects:
            yield identifier, (group.ordinal, int(table.records_N[row])), row


def _ids(group: RowGroup, job: Job, store: Store) -> _Ids:
    table: pa.Table = read_row_group(group, job, store, columns=["id", "_record"])
    return _Ids(table.column("id").to_pylist(), table.column("_record").to_numpy())


def _hash(identifier: str) -> int:
    return int.from_bytes(blake2b(identifier.encode(), digest_size=8).digest(), "little")
