"""Opens a version of an index, and switches queries and writes to it.

Which indexes are served cold, or compact: their vectors stay in the store. Searches read those of cold indexes from
there, and of compact ones they use vectors in 8 bits a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from scannery.indexer import (
    ColdReads,
    IndexerError,
    Manifest,
    OpenIndex,
    SegmentCache,
    Shards,
    Store,
    latest_version,
    manifest_key,
    memory_of_opening,
    read_manifest,
)
from scannery.indexer.reader import open_manifest
from scannery.live.leaf_index import LeafIndex
from scannery.live.live_index import LiveIndex
from scannery.live.log.homes import log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogGapError
from scannery.live.maintenance.scheduler import Maintenance, seal_bytes_after
from scannery.runtime.errors import DeadlineError
from scannery.runtime.times import WALL_SECONDS
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.former_versions import FormerVersions
from scannery.serving.catalog.memory_budget import MemoryBudget
from scannery.serving.config import ALL_INDEXES
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.engine import hydrator
from scannery.serving.recall.controller import RecallController, no_step
from scannery.serving.scheduling.permits import current_permit, waiting
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.snapshot.vector_checks import VectorChecks

__all__ = ["ColdIndexes", "VersionOpener", "open_within"]

PATIENCE_S = 60.0
"""Most seconds of a wait outside of requests, as when an index is opened."""


class ColdIndexes:
    """The names of the indexes that are cold or compact, and the reads of their vectors in this process."""

    def __init__(
        self, names: Iterable[str] = (), *, compact: Iterable[str] = (), max_bytes: int | None = None
    ) -> None:
        """Keep the names; ALL_INDEXES stand for all others, for `compact` for those that are not cold.

        Args:
            names: of the cold indexes.
            compact: names of compact ones.
            max_bytes: of the pages that are kept; None: as of `ColdReads`.

        """
        self._cold, self._compact, self._max_bytes = frozenset(names), frozenset(compact), max_bytes

    def has(self, name: str) -> bool:
        """Return whether an index is cold."""
        return name in self._cold or (name not in self._compact and _includes(self._cold, name))

    def reads_of(self, name: str) -> ColdReads | None:
        """Return by what the vectors of an index are read; None if it is neither cold nor compact."""
        if self.has(name):
            return self._cold_reads
        return self._compact_reads if _includes(self._compact, name) else None

    @cached_property
    def _cold_reads(self) -> ColdReads:
        return ColdReads(max_bytes=self._max_bytes, patience=_patience)

    @cached_property
    def _compact_reads(self) -> ColdReads:
        return ColdReads(max_bytes=0, patience=_patience, compact=True)


def _includes(names: frozenset[str], name: str) -> bool:
    return name in names or not names.isdisjoint(ALL_INDEXES)


@contextmanager
def _patience() -> Iterator[float]:
    """Wait until the deadline of the request, without its permit: other requests run meanwhile."""
    permit = current_permit()
    seconds = PATIENCE_S if permit is None else permit.deadline.remaining_s
    try:
        with waiting():
            yield seconds
    except FutureTimeoutError as error:
        raise DeadlineError("the deadline passed while vectors were read from the store") from error


MAX_GAPS = 5
"""Limit of retries when versions are replaced while they are opened."""


@dataclass(frozen=True)
class VersionOpener:
    """Opens the indexes of a catalog."""

    store: Store
    log_root: LogRoot | None
    """Folder of the mutation logs, or their database; None: no live updates."""
    encoders: EncoderPool = field(default_factory=EncoderPool)
    """Shared by all indexes."""
    encodes: bool = False
    """Whether encoders are loaded with a version; otherwise by the first text."""
    cache: SegmentCache = field(default_factory=SegmentCache)
    """Where segments are unpacked."""
    preloaded: Callable[[str], OpenIndex | None] = lambda name: None
    """Returns an already open index, in any version."""
    open_indexes: Callable[[], Iterable[OpenIndex]] = lambda: ()
    """Returns all open indexes of the catalog: branches have segments of their origin."""
    recall: RecallController | None = None
    """Holds the recall of the indexes by live queries; None: the curves do."""
    shards: Shards | None = None
    """Whose segments are opened; None: all."""
    cold: ColdIndexes = field(default_factory=ColdIndexes)
    """Those whose vectors stay in the store."""
    live: Callable[..., LiveIndex[Snapshot]] = LiveIndex
    """Makes an open index; arguments as of `LiveIndex`. A `LeafIndex` stays at its version: the next version is another
    one, beside it."""
    seconds: Callable[[], int] = WALL_SECONDS
    """Returns the second since 1970, at which datapoints expire."""
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    """Counts what is open, and tells whether there is room."""
    filters: FilterCache | None = None
    """Cache whose memory the filters of all indexes share; None: each index has a bound of its own."""
    former: FormerVersions = field(default_factory=FormerVersions)
    """Keeps those that stay at their version, when the next one takes their place."""
    maintenance: Callable[..., Maintenance] | None = Maintenance
    """Makes what seals, merges, and collects garbage of an index; None: other processes do that."""

    def is_open(self, entry: CatalogEntry, version: int) -> bool:
        """Return whether an entry has this version open, and not that of a deleted index with the same name."""
        current = entry.snapshot
        if (
            entry.live is None
            or current is None
            or current.manifest.version != version
            or entry.live.replaced
        ):
            return False
        try:
            return self.store.stamp(manifest_key(entry.name, version)) == entry.stamp
        except IndexerError:
            return True  # removed, or the store is unavailable; checked again at the next refresh

    def new_bytes(self, name: str, version: int, entry: CatalogEntry | None) -> int:
        """Return the size of the files of a version that an entry does not have open; raises as `read_manifest`."""
        manifest = read_manifest(self.store, name, version)
        reuse = self._reusable(manifest, entry)
        open_keys = set() if reuse is None else {file.key for file in reuse.manifest.files}
        return sum(file.size_bytes for file in manifest.files if file.key not in open_keys)

    def move(self, entry: CatalogEntry, version: int) -> OpenIndex:
        """Open a version and switch to it, or to a later one if the log has been truncated beyond this one.

        Raises as `open_index`, `CatalogEntry.load_encoders` and `LiveIndex`; the entry is then unchanged.
        """
        stamp = self.store.stamp(manifest_key(entry.name, version))
        for _ in range(MAX_GAPS):
            manifest = read_manifest(self.store, entry.name, version)
            index = self._open(manifest, self._reusable(manifest, entry))
            hydrator.warm_up(index.segments, index.spec)
            _ = index.words  # numbers the documents of new segments, for which the first query would wait
            if self.encodes:
                entry.load_encoders(Snapshot(index, self.encoders))
            if self.recall is not None:
                self.recall.opened(index)
            try:
                self._replace(entry, index)
            except LogGapError as error:
                version, gap = latest_version(self.store, entry.name) or version, error
            else:
                entry.stamp = stamp
                return index
        raise gap

    def closed(self, name: str) -> None:
        """Stop to hold the recall of an index that is gone."""
        if self.recall is not None:
            self.recall.closed(name)

    def opened(self, current: OpenIndex, version: int) -> OpenIndex:
        """Return any version of the index of an open one, open; raises as `open_index`."""
        if version == current.manifest.version:
            return current
        return self._open(read_manifest(self.store, current.manifest.index, version), current)

    def _reusable(self, manifest: Manifest, entry: CatalogEntry | None) -> OpenIndex | None:
        """Return an open index whose segments a version may have; None: there is none.

        It is one of the same name or, before that is open, the one of all indexes that has the most of the version.
        """
        if entry is not None and entry.live is not None:
            return entry.live.state.index
        if (preloaded := self.preloaded(manifest.index)) is not None:
            return preloaded
        if self.cold.reads_of(manifest.index) is not None:
            return None  # pages are read by the name of the index, which may be dropped
        sizes = {segment.content: segment.size_bytes for segment in manifest.segments}

        def shared_bytes(index: OpenIndex) -> int:
            return sum(sizes.get(segment.content, 0) for segment in index.manifest.segments)

        warm = (index for index in self.open_indexes() if self.cold.reads_of(index.manifest.index) is None)
        best = max(warm, key=shared_bytes, default=None)
        return best if best is not None and shared_bytes(best) else None

    def _open(self, manifest: Manifest, reuse: OpenIndex | None) -> OpenIndex:
        return open_within(
            self.memory,
            self.store,
            manifest,
            models=self.encoders.memory_of if self.encodes else lambda manifest: {},
            cache=self.cache,
            reuse=reuse,
            shards=self.shards,
            cold=self.cold.reads_of(manifest.index),
        )

    def _replace(self, entry: CatalogEntry, index: OpenIndex) -> None:
        before = entry.live
        stale = before is not None and not before.is_of(index.manifest)
        if before is not None and before.moves and not stale:
            before.move(index)
            return
        if before is not None and stale:  # also if the new index cannot be opened
            before.retire()
        home = log_home(self.store, entry.name, self.log_root)
        live = self.live(
            index,
            self._snapshots(),
            home=home,
            shards=self.shards,
            waiting=waiting,
            on_gap=entry.look_again,
            room=lambda state, size_bytes: self.memory.check_write(
                size_bytes, seal_bytes_after(state, size_bytes)
            ),
            seconds=self.seconds,
        )
        if isinstance(before, LeafIndex) and _version_of(before) != _version_of(live):
            # Before the next version takes its place: no moment is without one of the two.
            self.former.keep(before)
        entry.live = live
        if before is not None and stale:
            before.close()
        if self.maintenance is not None and self.log_root is not None and entry.maintenance is None:
            entry.maintenance = self.maintenance(
                self.store,
                entry.name,
                self.log_root,
                reserve=self.memory.reserve,
                pressed=lambda: self.memory.is_pressed,
                seconds=self.seconds,
            )

    def _snapshots(self) -> Callable[[OpenIndex, int], Snapshot]:
        """Return the snapshot factory of one index; its snapshots share a filter cache and comparisons of vectors."""
        filters, recall = FilterCache(shared=self.filters), self.recall
        checks = VectorChecks()

        def make(index: OpenIndex, sequence: int) -> Snapshot:
            step = no_step if recall is None else recall.reader(index.manifest)
            return Snapshot(index, self.encoders, filters, sequence, checks, step)

        return make


def open_within(
    memory: MemoryBudget,
    store: Store,
    manifest: Manifest,
    *,
    models: Callable[[Manifest], Mapping[str, int]],
    cache: SegmentCache,
    reuse: OpenIndex | None,
    shards: Shards | None,
    cold: ColdReads | None,
) -> OpenIndex:
    """Return the index of a manifest, open and counted, if there is room for it.

    Args:
        memory: counts it.
        store: with the index.
        manifest: of the version.
        models: returns the memory of the encoders of an index that are loaded with it.
        cache: as of `open_manifest`.
        reuse: likewise.
        shards: likewise.
        cold: likewise.

    Raises:
        MemoryCeilingError: there is no room; nothing was opened.
        IndexerError: as `open_manifest`.

    """
    encoders = models(manifest)
    if memory.ceiling_bytes is not None:
        local = manifest if shards is None else manifest.of_shards(shards)
        needed = memory_of_opening(store, local, cache, cold=cold, reuse=reuse)
        memory.check_opening(f"index {manifest.index}", needed, encoders)
    index = open_manifest(store, manifest, cache=cache, reuse=reuse, shards=shards, cold=cold)
    memory.opened(index, encoders)
    return index


def _version_of(index: LiveIndex[Snapshot]) -> tuple[str | None, int]:
    """Return identity and version; they are the same after a log was replaced, whose states are not kept."""
    manifest = index.state.manifest
    return manifest.index_id, manifest.version
