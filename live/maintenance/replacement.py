"""Replacing: publish rows that were built aside as the whole content of an index, in one new version.

Until then, queries see the old content. Mutations after the beginning win: the log keeps them, and they are applied on
top of the new rows, as on top of those of a build (`Manifest.log_sequence`).

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from typing_extensions import Self

from scannery.indexer import (
    DYNAMIC_COLUMN,
    AlreadyExistsError,
    InvalidSpecError,
    Manifest,
    NotFoundError,
    SegmentCache,
    SegmentEntry,
    Store,
    StoreError,
    altered_spec,
    build_segment,
    commit,
    conformed,
    expected_recall,
    id_hashes,
    open_segment,
    parts_by_vector,
    read_manifest,
    shards_of_ids,
    store_segment,
)
from scannery.indexer.datapoints.declaring import rows_with_dynamic
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.manifest import marked_builds
from scannery.indexer.versions.leases import WorkLease, keeps_log, working
from scannery.indexer.versions.versions import hold_current, no_such_index
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogHome
from scannery.live.maintenance.merge_policy import largest_tried
from scannery.live.maintenance.scheduler import task_threads
from scannery.live.row_tables import stored_schema
from scannery.runtime.errors import InvalidRequestError

__all__ = ["Replacement"]

MAX_ATTEMPTS = 10
"""Attempts to begin or to commit, if other processes commit versions meanwhile."""


class Replacement:
    """The future content of an index, from the beginning on; used in one thread at a time."""

    def __init__(
        self,
        store: Store,
        index: str,
        *,
        log_root: LogRoot | None = None,
        cache: SegmentCache | None = None,
        threads: int | None = None,
    ) -> None:
        """Begin: mutations that are acknowledged from now on are not replaced.

        Args:
            store: of the index.
            index: its name.
            log_root: parent folder of all logs, or their database; None: the folder of the store.
            cache: for opening segments; None: the default cache.
            threads: for building segments; None: as other maintenance.

        Raises:
            NotFoundError, CorruptError, FormatError: the index or its log cannot be read.
            ReadOnlyError: the index takes no writes.
            WrongLogError: the log found is not the one that the index uses.
            StoreError: the store cannot be written.

        """
        self._store, self._index = store, index
        self._cache, self._threads = cache or SegmentCache(), threads or task_threads()
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._entries: list[SegmentEntry] = []
        self._hashes: list[np.ndarray] = []
        with ExitStack() as stack:
            self._lease = stack.enter_context(working(store, index))
            self.manifest, self._after = _begun(store, index, log_home(store, index, log_root), self._lease)
            self._held = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End. What was built and not published is removed by garbage collection."""
        self._held.close()

    def add(self, rows: pa.Table) -> None:
        """Take rows, and build a segment when there are enough.

        Args:
            rows: the columns of `stored_schema` for `manifest`, others are ignored.

        Raises:
            InvalidRequestError: two rows have one id.
            BuildError, StoreError: a segment cannot be built or stored.

        """
        table = conformed(rows, stored_schema(self.manifest))
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self._waiting_bytes += table.nbytes
        live = self.manifest.spec.live
        if self._waiting_rows >= live.max_rows or self._waiting_bytes >= live.seal_bytes:
            self._build()

    def publish(self, change: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> Manifest:
        """Commit a version with the new rows alone, and return its manifest.

        Args:
            change: makes the manifest that is committed of the one with the new rows.

        Raises:
            InvalidRequestError: two rows have one id.
            AlreadyExistsError: the index was built with another spec or encoder meanwhile, an attribute was declared
                that rows have as a dynamic one, or versions were committed during all MAX_ATTEMPTS attempts.
            BuildError, StoreError: a segment cannot be built or stored, or mutations since the beginning may be lost.

        """
        self._build()
        for attempt in range(MAX_ATTEMPTS):
            manifest = change(self._next(read_manifest(self._store, self._index)))
            try:
                return commit(self._store, manifest)
            except AlreadyExistsError:
                if attempt + 1 == MAX_ATTEMPTS:
                    raise
        raise AssertionError

    def _build(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0
        self._hashes.append(id_hashes(table.column("id").to_pylist()))
        self._check_distinct()
        shards_N = shards_of_ids(table.column("document_id"), self.manifest.shards)
        with scratch_folder("replace") as folder:
            for shard in np.unique(shards_N).tolist():
                for rows in parts_by_vector(table.filter(pa.array(shards_N == shard))):
                    self._entries.append(self._stored(rows, shard, folder))

    def _stored(self, rows: pa.Table, shard: int, folder: Path) -> SegmentEntry:
        built = build_segment(
            rows,
            spec=self.manifest.spec,
            shard=shard,
            directory=folder,
            threads=self._threads,
            earlier=largest_tried(self._entries),
        )
        store_segment(self._store, self._index, built)
        # Opening the segment here fills the cache: unpacking and timing its searches would take a server seconds.
        open_segment(self._store, self._index, built.entry, self._cache)
        return built.entry

    def _check_distinct(self) -> None:
        hashes_N = np.concatenate(self._hashes)
        if len(np.unique(hashes_N)) < len(hashes_N):
            raise InvalidRequestError.at(
                "id", "two of the new datapoints have the same one; nothing was replaced"
            )

    def _next(self, parent: Manifest) -> Manifest:
        """Return the manifest to commit after a version: a seal, a merge or a change of the spec may have made it."""
        if not _fits(self.manifest, parent):
            raise AlreadyExistsError(
                f"index {self._index!r} was built or created again meanwhile; nothing was replaced, begin again"
            )
        self._check_declared(parent.spec.attributes.keys() - self.manifest.spec.attributes.keys())
        if parent.log_sequence > self._after and not keeps_log(self._store, self._lease.key, self._after):
            raise StoreError(
                f"index {self._index!r}: the lease on the log could not be renewed in time, so live updates since the "
                "beginning could be lost; nothing was replaced, begin again"
            )
        # A build or a rollback that was committed meanwhile has undone the mutations up to its floor.
        position = max(self._after, parent.log_floor)
        entries = tuple(self._entries)
        return parent.model_copy(
            update={
                "parent": parent.version,
                "segments": entries,
                "log_sequence": position,
                "log_floor": position,
                "recall": expected_recall(entries, parent.spec.target_recall),
                "statistics": {"mode": "replace", "builds": marked_builds((), parent.version + 1)},
            }
        )

    def _check_declared(self, names: Collection[str]) -> None:
        """Refuse names that new rows have as dynamic attributes: filters would not find their values."""
        for entry in self._entries if names else ():
            segment = open_segment(self._store, self._index, entry, self._cache)
            if DYNAMIC_COLUMN not in segment.table.column_names:
                continue
            if conflicts := rows_with_dynamic(segment.column(DYNAMIC_COLUMN), names):
                raise AlreadyExistsError(
                    f"attributes {sorted(conflicts)} of index {self._index!r}, which new rows have, were declared "
                    "meanwhile; nothing was replaced, begin again"
                )


def _fits(before: Manifest, now: Manifest) -> bool:
    """Return whether rows that were made for a version can be in a later one: only its spec was altered."""
    if any(getattr(now, name) != getattr(before, name) for name in ("index_id", "shards")):
        return False
    vectors = {name: info.stored for name, info in now.vectors.items()}
    if any(vectors.get(name) != info.stored for name, info in before.vectors.items()):
        return False
    spec = now.spec.model_dump(mode="json")
    try:
        return altered_spec(before.spec, spec).model_dump(mode="json") == spec
    except InvalidSpecError:
        return False


def _begun(store: Store, index: str, home: LogHome, lease: WorkLease) -> tuple[Manifest, int]:
    """Return the current version, and the last acknowledged mutation, with leases on it and on the log after that."""
    for _ in range(MAX_ATTEMPTS):
        manifest = hold_current(store, index, lease)
        if manifest is None:
            raise NotFoundError(no_such_index(store, index), field="index")
        # Created if there is none: without one, servers do not merge the new segments.
        log = home.claim(checked_log(home, manifest), manifest)
        try:
            after = log.position()
        finally:
            log.close()
        after = max(after, manifest.log_sequence)
        lease.keep_log(after)
        # A seal that read the leases before this one was written cuts the log at most up to the version that was then
        # current: the lease is safe if that does not reach beyond it.
        if read_manifest(store, index).log_sequence <= after:
            return manifest, after
    raise AlreadyExistsError(
        f"index {index!r}: new versions were committed in each of {MAX_ATTEMPTS} attempts; try again"
    )
