"""Forget the rows that a filter allows: take them out of every file of an index, and count what remains where.

A deleted row stays in segments, older versions and the log until these are written anew or removed. Each step reads
what it needs from these files, deleted rows included, and what later steps need is removed last. So a run that was
killed at any step is repeated as it is.

Shapes: R rows of a segment.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    DYNAMIC_COLUMN,
    REVISION_COLUMN,
    WORD_COLUMNS,
    IndexerError,
    Manifest,
    MemorySegment,
    NotFoundError,
    Segment,
    SegmentCache,
    SegmentEntry,
    Store,
    attribute_columns,
    collect_garbage,
    conformed,
    list_indexes,
    list_versions,
    open_segment,
    read_manifest,
    segment_key,
    without_vectors,
    written_schema,
)
from scannery.indexer.datapoints.declaring import rows_with_dynamic, with_declared
from scannery.indexer.datapoints.named_vectors import is_vector_column
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.traffic.forgetting import forget_client, forget_documents
from scannery.indexer.traffic.keys import read_keys
from scannery.indexer.versions.leases import read_leases
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogGapError
from scannery.live.log.records import decode
from scannery.live.maintenance.locks import lock_root_of, locked
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal, shorten_log
from scannery.live.writing.write_views import RowFilter
from scannery.runtime.errors import ReadOnlyError, ServingError

__all__ = ["FilterOf", "ForgettingReport", "Location", "allowed_ids", "forget"]

FilterOf: TypeAlias = Callable[[Manifest], RowFilter]
"""Function that returns the filter as a version reads it; InvalidRequestError: it names what the version lacks."""

WAIT_S = 70.0
"""Default of the seconds for which servers are waited for: they write the queries that they log once a minute."""
LOCK_S = 60.0
"""Seconds for which a seal or a merge of another process is waited for."""
LOOK_S = 0.5
MAX_ATTEMPTS = 10
"""Attempts beyond the number of segments, if other processes change them meanwhile."""

_CACHED = (
    "a process has them open: when it has ended, remove the folder ($SCANNERY_CACHE_DIR): no other run does"
)
_READ = "a server, a scan, a build or a migration may use it: run this again when it has let go"


@dataclass(frozen=True, kw_only=True)
class Location:
    """Files that had rows, or have them."""

    name: str
    """Name of a version, of the log, or of another index; or what the files are."""
    rows: int
    """Rows that the filter allows before the run, deleted ones included; of a log of queries, its rows with them."""
    remaining: int | None
    """Rows after it; None: they cannot be counted."""
    advice: str = ""
    """Text on what removes the remaining ones."""


@dataclass(frozen=True, kw_only=True)
class ForgettingReport:
    """What was removed, and what remains."""

    index: str
    version: int
    """Current version."""
    deleted: int
    """Datapoints that were deleted."""
    locations: tuple[Location, ...]

    @property
    def complete(self) -> bool:
        """Whether no file of the store and of the cache of this machine has such rows."""
        return all(location.remaining == 0 for location in self.locations)


def forget(
    store: Store,
    index: str,
    filter_of: FilterOf,
    delete: Callable[[], int],
    *,
    clients: Collection[str] = (),
    log_root: LogRoot | None = None,
    wait_s: float = WAIT_S,
    dry_run: bool = False,
) -> ForgettingReport:
    """Delete the rows that a filter allows, and remove them from versions, log and logged queries of an index.

    Rows that are written after the beginning are left alone. All older versions that nothing reads are removed, as by
    `collect_garbage` with `keep=1` and no minimum age. Other indexes of the store are only looked at.

    Args:
        store: of the index.
        index: its name.
        filter_of: the filter.
        delete: deletes the rows that it allows, all that were written before, and returns how many.
        clients: whose logged queries are forgotten too, as of `forget_client`.
        log_root: parent folder of all logs, or their database; None: the folder of the store.
        wait_s: how long servers are waited for: until they have written what they log, at most WAIT_S, and again until
            they have let go of older versions.
        dry_run: only count.

    Raises:
        InvalidRequestError: the filter names what the index lacks.
        ReadOnlyError: there is no place for a log.
        OverloadedError: another process seals or merges all the time.
        NotFoundError, CorruptError, FormatError, WrongLogError, StoreError, BuildError: as `seal` and `merge`.

    """
    rows = _IndexRows(store, index, filter_of, log_root, {})
    rows.until = rows.position()
    before, elsewhere = rows.locate(), list(_elsewhere(rows, filter_of, log_root))
    after, deleted, unnamed, cached = before, 0, 0, 0
    logged = still_logged = _forget_queries(store, index, rows.names, clients, dry_run=True)
    if not dry_run:
        root = log_root or store.local_root
        if root is None:
            raise ReadOnlyError(f"index {index!r} takes no writes: name the place of its log (--log)")
        locks, deleted = lock_root_of(store, root), delete()
        logged_s = time.monotonic() + min(wait_s, WAIT_S)
        with locked(locks, index, "seal", wait_s=LOCK_S):
            seal(store, index, log_root=log_root, fill_cache=False)
        if _may_log(store, index):
            time.sleep(max(0.0, logged_s - time.monotonic()))
        _forget_queries(store, index, rows.names, clients, dry_run=False)
        still_logged = _forget_queries(store, index, rows.names, clients, dry_run=True)
        with locked(locks, index, "merge", wait_s=LOCK_S):
            settled_at = datetime.now(timezone.utc)  # what a merge has stored since then lacks the rows
            _write_anew(store, rows)
        end_s = time.monotonic() + wait_s
        while True:
            collect_garbage(store, index, keep=1, min_age=timedelta(0))
            shorten_log(store, index, log_root=log_root)
            after, unnamed = rows.locate(), _unnamed(rows, settled_at)
            gc.collect()  # of this process, clients that are closed: they hold segments
            cached = sum([not SegmentCache().discard(sha256) for sha256 in rows.sha256s])
            if not (unnamed or cached or any(after.values())) or time.monotonic() >= end_s:
                break
            time.sleep(LOOK_S)
    locations = [
        *(
            Location(name=name, rows=before.get(name, 0), remaining=after.get(name, 0), advice=_READ)
            for name in before | after
        ),
        Location(name="segments of no version", rows=0, remaining=unnamed, advice=_READ),
        Location(name="segments in the cache of this machine", rows=0, remaining=cached, advice=_CACHED),
        Location(name="logged queries and feedback", rows=logged, remaining=still_logged, advice=_READ),
        *elsewhere,
    ]
    return ForgettingReport(
        index=index,
        version=read_manifest(store, index).version,
        deleted=deleted,
        locations=tuple(each for each in locations if each.rows or each.remaining != 0),
    )


_FileRows: TypeAlias = dict[tuple[str, ...], list[tuple[str, int]]]
"""Ids and revisions of the rows of each segment that the filter allows, by `SegmentEntry.content`."""


class _IndexRows:
    """The rows of one index that a filter allows, deleted ones included, wherever its files have them."""

    def __init__(
        self,
        store: Store,
        index: str,
        filter_of: FilterOf,
        log_root: LogRoot | None,
        files: _FileRows,
    ) -> None:
        self.store, self.index, self._log_root, self.files = store, index, log_root, files
        self.until = sys.maxsize
        """Sequence after which rows do not count."""
        self.manifest = read_manifest(store, index)
        self.where = filter_of(self.manifest)
        self.names: set[str] = set()
        """Ids of all rows that were located."""
        self.sha256s: set[str] = set()
        """Hashes of the segment files that had them."""

    def position(self) -> int:
        """Return the sequence of the last mutation."""
        log = checked_log(log_home(self.store, self.index, self._log_root), self.manifest)
        if log is None:
            return self.manifest.log_sequence
        with closing(log):
            return max(log.position(), self.manifest.log_sequence)

    def locate(self) -> dict[str, int]:
        """Return the number of rows in each version and in the log; raises as `seal`."""
        counts = {}
        for version in self.versions():
            counts[f"version {version.version}"] = sum(len(self.of(entry)) for entry in version.segments)
        counts["log"] = self._in_log()
        return counts

    def versions(self) -> Iterator[Manifest]:
        """Yield the versions, which a garbage collection may remove meanwhile."""
        for number in list_versions(self.store, self.index):
            with suppress(NotFoundError):
                yield read_manifest(self.store, self.index, number)

    def of(self, entry: SegmentEntry) -> list[str]:
        """Return the ids of the rows of a segment."""
        if entry.content not in self.files:
            # Not through the cache of this machine, which would keep them.
            with scratch_folder("forget") as folder:
                self.files[entry.content] = self._read(entry, SegmentCache(folder))
        names = [name for name, revision in self.files[entry.content] if revision <= self.until]
        self.names.update(names)
        if names:
            self.sha256s |= {file.sha256 for file in (entry, *entry.named.values())}
        return names

    def _read(self, entry: SegmentEntry, cache: SegmentCache) -> list[tuple[str, int]]:
        segment = open_segment(self.store, self.index, entry, cache)
        segment = segment.with_entry(entry)
        undeclared_R = self._undeclared(segment)
        segment = segment.with_columns(attribute_columns(self.manifest.spec))
        rows = pa.array(np.union1d(self.where.allowed(segment).rows, undeclared_R))
        names, revisions = segment.ids.take(rows).to_pylist(), [0] * len(rows)
        if REVISION_COLUMN in segment.table.column_names:  # rows of a build have none
            revisions = segment.column(REVISION_COLUMN).take(rows).fill_null(0).to_pylist()
        return list(zip(names, revisions, strict=True))

    def _undeclared(self, segment: Segment) -> np.ndarray:
        """Return rows that it allows by attributes that were dynamic ones when the segment was written, int64 (R,).

        Only deleted rows still have such: an attribute that others have is not declared.
        """
        new = self.manifest.spec.attributes.keys() - set(segment.table.column_names)
        if not new or DYNAMIC_COLUMN not in segment.table.column_names:
            return np.empty(0, np.int64)
        rows_of_name = rows_with_dynamic(segment.column(DYNAMIC_COLUMN), new)
        rows_R = np.unique(np.concatenate([np.empty(0, np.int64), *rows_of_name.values()]))
        names = allowed_ids(segment.take(rows_R), self.manifest, self.where)
        return rows_R[np.isin(segment.ids_of(rows_R), names)]

    def _in_log(self) -> int:
        """Return the number of rows in the records of the log, and of their ids in those of deletions."""
        log = checked_log(log_home(self.store, self.index, self._log_root), self.manifest)
        if log is None:
            return 0
        count, removed, after = 0, list[str](), log.truncated()
        with closing(log):
            while True:
                try:
                    entries = log.read(after)
                except LogGapError:  # it was cut meanwhile
                    after = log.truncated()
                    continue
                if not entries:
                    break
                after = entries[-1].sequence
                for entry in entries:
                    mutation = decode(entry.data, sequence=entry.sequence)
                    removed += mutation.removed_ids
                    names = (
                        []
                        if entry.sequence > self.until
                        else allowed_ids(mutation.rows, self.manifest, self.where)
                    )
                    self.names.update(names)
                    count += len(names)
        return count + sum(name in self.names for name in removed)


def allowed_ids(table: pa.Table, manifest: Manifest, where: RowFilter) -> list[str]:
    """Return the ids of rows that a filter allows.

    Args:
        table: rows, of which other columns than those of an index are ignored.
        manifest: of the index.
        where: as it reads the filter.

    Raises:
        pa.ArrowException: an attribute has another type.

    """
    if not table.num_rows:
        return []
    rows, _ = with_declared(without_vectors(table), manifest.spec.attributes)
    schema = without_vectors(written_schema(manifest.spec, manifest.dimensions).empty_table()).schema
    fields = [field for field in schema if not is_vector_column(field.name)]
    words = [rows.schema.field(name) for name in WORD_COLUMNS if name in rows.column_names]
    segment = MemorySegment.of(conformed(rows, pa.schema([*fields, *words])), manifest.spec)
    ids: list[str] = segment.ids.take(pa.array(where.allowed(segment).rows)).to_pylist()
    return ids


def _elsewhere(rows: _IndexRows, filter_of: FilterOf, log_root: LogRoot | None) -> Iterator[Location]:
    """Yield the other indexes of the store with such rows, and those related to the index that cannot be read."""
    keys = {entry.key for version in rows.versions() for entry in version.segments}
    for name in list_indexes(rows.store):
        if name == rows.index:
            continue
        kind, advice = "index", f"forget there too, or drop it: scannery index forget {name}"
        related = True
        try:
            manifest = read_manifest(rows.store, name)
            related = any(entry.key in keys for entry in manifest.segments)
            if manifest.mirror is not None and manifest.mirror.index == rows.index:
                kind, related = "mirror", True
                advice = f"finish or abandon the migration: scannery index migrate {rows.index}"
            elif related:
                kind = "branch"
            sibling = _IndexRows(rows.store, name, filter_of, log_root, rows.files)
            sibling.locate()
        except (IndexerError, ServingError) as error:
            if related:
                yield Location(
                    name=f"{kind} {name}", rows=0, remaining=None, advice=f"{error.message}; {advice}"
                )
        else:
            count = len(sibling.names)
            yield Location(name=f"{kind} {name}", rows=count, remaining=count, advice=advice)


def _forget_queries(
    store: Store, index: str, ids: Collection[str], clients: Collection[str], *, dry_run: bool
) -> int:
    """Forget the queries of clients, and hits and feedback by their ids; return how many rows of the log that are."""
    reports = [forget_client(store, index, client, dry_run=dry_run) for client in clients]
    reports.append(forget_documents(store, index, ids, dry_run=dry_run))
    return sum(report.queries + report.events for report in reports)


def _may_log(store: Store, index: str) -> bool:
    """Return whether a server that logs queries may have the index open."""
    return bool(read_keys(store)) and bool(read_leases(store, index).versions)


def _write_anew(store: Store, rows: _IndexRows) -> None:
    """Write the segments with such rows without them, each as a version."""
    # Rows that came back meanwhile, as by a rollback, are in each new segment: the report has them.
    for _ in range(MAX_ATTEMPTS + len(read_manifest(store, rows.index).segments)):
        segments = read_manifest(store, rows.index).segments
        if not (keys := {entry.key for entry in segments if rows.of(entry)}):
            return
        merge(store, rows.index, fill_cache=False, rewritten=keys)


def _unnamed(rows: _IndexRows, before: datetime) -> int:
    """Return the number of segments from before a time that no version names: work that may use them keeps them."""
    named = {segment_key(rows.index, file.key) for version in rows.versions() for file in version.files}
    stored = rows.store.list(f"{rows.index}/segments")
    return sum(item.key not in named and item.modified < before for item in stored)
