"""Sealing: publish the newest rows as segments, and rows that they replace or that expired as tombstones, in a version.

Sealing reads the log, not the memory of a server, so any process can do it once for all servers. Of the version it
reads the manifest and the ids of the rows (seal.py): the memory that it takes depends on the new rows, not on the
size of the index. Servers notice the version, open it, and keep in memory only the mutations after it.

Which rows of a version mutations remove: found by the ids of its segments alone, some segments at a time; which have
expired, by the column of their times.

Shapes: N rows of a segment, R rows that die.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer import (
    AlreadyExistsError,
    Manifest,
    SegmentCache,
    SegmentEntry,
    Store,
    build_segment,
    commit,
    conformed,
    next_version,
    open_segment,
    parts_by_vector,
    read_expired,
    read_live_mask,
    read_manifest,
    read_row_ids,
    shards_of_ids,
    store_segment,
)
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.segment.expired_rows import unexpired_rows
from scannery.indexer.versions.leases import WorkLease, read_leases, working
from scannery.indexer.versions.versions import hold_current, list_versions
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogGapError, LogHome, MutationLog
from scannery.live.maintenance.merge_policy import largest_tried, seal_effort
from scannery.live.memtable import UnsealedChange, change_of
from scannery.live.row_tables import stored_schema
from scannery.runtime.times import WALL_SECONDS

__all__ = ["dead_rows", "seal", "shorten_log"]


AT_ONCE = 4
"""Segments whose ids are read at once, since a bucket takes tens of milliseconds for each answer."""


@dataclass(frozen=True, slots=True, eq=False)
class DeadRows:
    """Rows of one segment that mutations replace or delete, or that have expired."""

    rows_R: np.ndarray
    """Their numbers, int64, ascending, without those that are deleted in the version."""
    documents: int
    """Number of distinct documents of the rows that are left."""


def dead_rows(
    store: Store, manifest: Manifest, change: UnsealedChange | None, *, second: int
) -> dict[str, DeadRows]:
    """Return the rows that a version loses, by key of the segment; only segments that lose some.

    A row dies in whichever shard it is: an upsert may give an id to a document of another shard.

    Args:
        store: the store.
        manifest: of the version.
        change: what the log changes in it; None: nothing.
        second: since 1970, by which rows have expired.

    Raises:
        NotFoundError, CorruptError, FormatError, StoreError: the ids of a segment cannot be read.

    """
    if change is None and manifest.spec.live.expire is None:
        return {}
    find = partial(_of_segment, store, manifest, change, second)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        pairs = zip(manifest.segments, pool.map(find, manifest.segments), strict=True)
        return {entry.key: dead for entry, dead in pairs if dead is not None}


def _strings(texts: Sequence[str]) -> pa.Array:
    return pa.array(texts, pa.string())


def _of_segment(
    store: Store, manifest: Manifest, change: UnsealedChange | None, second: int, entry: SegmentEntry
) -> DeadRows | None:
    index, expiry, rows = manifest.index, manifest.spec.live.expire, None
    dead_N = np.zeros(entry.rows, bool)
    if expiry is not None:
        dead_N |= read_expired(store, index, entry, expiry, second)
    if change is not None:
        rows = read_row_ids(store, index, entry)
        dead_N |= _is_in(rows.ids, _strings(change.ids))
        if change.documents:
            dead_N |= _is_in(rows.documents, _strings(change.documents))
    alive_N = read_live_mask(store, index, entry) if dead_N.any() else None
    if alive_N is not None:
        dead_N &= alive_N
    if not dead_N.any():
        return None
    rows = rows or read_row_ids(store, index, entry)
    left_N = ~dead_N if alive_N is None else alive_N & ~dead_N
    remaining = pc.count_distinct(rows.documents.filter(pa.array(left_N))).as_py()
    return DeadRows(np.flatnonzero(dead_N), remaining)


def _is_in(column: pa.ChunkedArray, values: pa.Array) -> np.ndarray:
    matches = pc.is_in(column, value_set=values.cast(column.type))
    mask_N: np.ndarray = matches.to_numpy().copy()
    return mask_N


MAX_ATTEMPTS = 10
"""Attempts to commit, if builds or merges commit versions meanwhile, which takes them minutes each."""


@dataclass(frozen=True, kw_only=True)
class SealReport:
    """Result of `seal`."""

    version: int
    """The new version."""
    mutations: int
    """Sealed batches."""
    rows: int
    """Rows in new segments."""
    deleted: int
    """Rows of older segments that were replaced or deleted, or have expired."""
    segments: int
    """New segments."""


def seal(
    store: Store,
    index: str,
    *,
    log_root: LogRoot | None = None,
    cache: SegmentCache | None = None,
    fill_cache: bool = True,
    threads: int | None = None,
    filling: bool = False,
    seconds: Callable[[], int] = WALL_SECONDS,
) -> SealReport | None:
    """Publish all mutations of the log as a new version, without what has expired; None if there is nothing to change.

    Args:
        store: of the index.
        index: its name.
        log_root: parent folder of all logs, or their database; None: the folder of the store.
        cache: of this machine; None: the default cache.
        fill_cache: whether new segments are unpacked into the cache, for servers on this machine.
        threads: for building segments; None: one per available core.
        filling: whether rows are added quickly: training is left to a merge, within bounds (merge_policy.py).
        seconds: returns the second since 1970, by which rows have expired.

    Raises:
        NotFoundError, CorruptError, FormatError: the index or its log cannot be read.
        WrongLogError: the log found is not the one that the index uses.
        LogReplacedError: it has lost records since it was read.
        BuildError, StoreError: a segment cannot be built or stored.
        AlreadyExistsError: other processes committed versions during all MAX_ATTEMPTS attempts.

    """
    home, manifest = log_home(store, index, log_root), read_manifest(store, index)
    log = checked_log(home, manifest)
    if log is None and manifest.spec.live.expire is None:
        return None
    filled = (cache or SegmentCache()) if fill_cache else None
    with nullcontext() if log is None else closing(log), working(store, index) as lease:
        return _sealed(store, index, home, log, filled, threads, filling, lease, seconds)


def _sealed(
    store: Store,
    index: str,
    home: LogHome,
    log: MutationLog | None,
    cache: SegmentCache | None,
    threads: int | None,
    filling: bool,
    lease: WorkLease,
    seconds: Callable[[], int],
) -> SealReport | None:
    for attempt in range(MAX_ATTEMPTS):
        parent, second = hold_current(store, index, lease) or read_manifest(store, index), seconds()
        change, added = None, []
        if log is not None:
            home.check(log, parent)  # the index may have been replaced since the last attempt
            try:
                change = change_of(log, parent)
            except LogGapError:  # the log goes on in a later version, which has just been published
                if attempt + 1 == MAX_ATTEMPTS:
                    raise
                continue
        if change is not None:
            # A log of an earlier release may not be registered yet: without it, another log could be begun elsewhere.
            home.claim(log, parent)
            added = _build_segments(store, parent, change, threads, filling, second)
        if cache is not None:
            # Opening the segments fills the cache: unpacking and timing their searches would take a server seconds.
            for entry in added:
                open_segment(store, index, entry, cache)
        dead = dead_rows(store, parent, change, second=second)
        if change is None and not dead:
            return None
        mutations, sequence = (
            (0, parent.log_sequence) if change is None else (change.mutations, change.sequence)
        )
        manifest = next_version(
            store,
            parent,
            added=added,
            dead_rows={key: each.rows_R for key, each in dead.items()},
            log_sequence=sequence,
            documents={key: each.documents for key, each in dead.items()},
        )
        statistics = {"mode": "live", "mutations": mutations, "builds": parent.builds}
        if log is not None:
            _check_stands(log, sequence)
        try:
            published = commit(store, manifest.model_copy(update={"statistics": statistics}))
        except AlreadyExistsError:
            if attempt + 1 == MAX_ATTEMPTS:
                raise
            continue
        if log is not None:
            _truncate(log, store, parent)
        return SealReport(
            version=published.version,
            mutations=mutations,
            rows=sum(entry.rows for entry in added),
            deleted=sum(len(each.rows_R) for each in dead.values()),
            segments=len(added),
        )
    return None


def _check_stands(log: MutationLog, sequence: int) -> None:
    """Check that the log still has what was read up to a sequence.

    If a standby without its last records has taken over since, other mutations get their sequences, and would be taken
    for sealed.

    Raises:
        LogReplacedError: it has lost some of it.

    """
    with suppress(LogGapError):  # others have sealed it since, so this version will not be committed
        log.read(sequence, max_bytes=1)


def _truncate(log: MutationLog, store: Store, parent: Manifest) -> None:
    """Truncate the log after the commit of a version whose parent is `parent`."""
    # Leases first: a build that released its lease before has committed its version, which the second line reads.
    leased = read_leases(store, parent.index).log_after
    current = read_manifest(store, parent.index)
    # The mutations after `parent` stay: servers may be opening that version, or roll back to it.
    needed = [parent.log_sequence, current.log_sequence, *([] if leased is None else [leased])]
    log.truncate(min(needed))


def shorten_log(store: Store, index: str, *, log_root: LogRoot | None = None) -> None:
    """Remove the records that no version needs: those of mutations that the oldest version has.

    Args:
        store: of the index.
        index: its name.
        log_root: as of `seal`.

    Raises:
        NotFoundError, CorruptError, FormatError, WrongLogError: as `seal`.

    """
    log = checked_log(log_home(store, index, log_root), read_manifest(store, index))
    if log is None:
        return
    try:
        leased = read_leases(store, index).log_after
        needed = [
            read_manifest(store, index, version).log_sequence for version in list_versions(store, index)
        ]
        log.truncate(min([*needed, *([] if leased is None else [leased])]))
    finally:
        log.close()


def _build_segments(
    store: Store,
    manifest: Manifest,
    change: UnsealedChange,
    threads: int | None,
    filling: bool,
    second: int,
) -> list[SegmentEntry]:
    """Build a segment from the new rows of each shard, or two if only some have vectors, and store them."""
    table = unexpired_rows(conformed(change.rows, stored_schema(manifest)), manifest.spec.live.expire, second)
    if not table.num_rows:
        return []
    effort = seal_effort(manifest, table.num_rows, filling=filling)
    shards_N = shards_of_ids(table.column("document_id"), manifest.shards)
    entries = []
    with scratch_folder("seal") as folder:
        for shard in np.unique(shards_N).tolist():
            for rows in parts_by_vector(table.filter(pa.array(shards_N == shard))):
                built = build_segment(
                    rows,
                    spec=manifest.spec,
                    shard=shard,
                    directory=folder,
                    threads=threads,
                    effort=effort,
                    earlier=largest_tried(manifest.segments),
                )
                store_segment(store, manifest.index, built)
                entries.append(built.entry)
    return entries
