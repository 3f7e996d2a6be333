"""Open a version of an index, and move queries and writes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scannery.indexer import (
    IndexerError,
    OpenIndex,
    SegmentCache,
    Store,
    latest_version,
    manifest_key,
    open_index,
)
from scannery.live.live_index import LiveIndex
from scannery.live.log.home import LogPlace
from scannery.live.log.mutation_log import LogGapError
from scannery.live.maintenance.scheduler import Maintenance
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.encoding.query_encoder import EncoderPool
from scannery.serving.engine import hydrator
from scannery.serving.scheduling.permits import waiting
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["VersionOpener", "is_stored"]

MAX_GAPS = 5
"""Versions that may be replaced one after the other while they are being opened."""


@dataclass(frozen=True)
class VersionOpener:
    """What the indexes of a catalog are opened with."""

    store: Store
    encoders: EncoderPool
    cache: SegmentCache
    preloaded: Callable[[str], OpenIndex | None]
    """Returns an index that is open already, in any version."""
    log_root: Path | None
    """Folder of the logs of live updates; None: there are no live updates."""

    def is_open(self, entry: CatalogEntry, version: int) -> bool:
        """Return whether an entry has this version open, and not one of the same number of a former index."""
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
            return True  # removed, or the store does not answer now; the next look tells

    def move(self, entry: CatalogEntry, version: int, prepare: Callable[[Snapshot], object]) -> OpenIndex:
        """Open a version and move to it; to a later one, if the log no longer has what this one needs.

        Raises what `open_index` and `LiveIndex` do; then the entry stays as it was.
        """
        stamp = self.store.stamp(manifest_key(entry.name, version))
        for _ in range(MAX_GAPS):
            reuse = entry.live.state.index if entry.live else self.preloaded(entry.name)
            index = open_index(self.store, entry.name, version, cache=self.cache, reuse=reuse)
            hydrator.warm_up(index.segments, index.spec)
            prepare(Snapshot(index, self.encoders))
            try:
                self._replace(entry, index)
            except LogGapError as error:
                version, gap = latest_version(self.store, entry.name) or version, error
            else:
                entry.stamp = stamp
                return index
        raise gap

    def _replace(self, entry: CatalogEntry, index: OpenIndex) -> None:
        before = entry.live
        if before is not None and before.is_of(index.manifest):
            before.move(index)
            return
        if before is not None:  # also if what is there now cannot be opened
            before.retire()
        home = LogPlace(self.store, entry.name, self.log_root)
        entry.live = LiveIndex(index, self._snapshots(), home=home, waiting=waiting, on_gap=entry.look_again)
        if before is not None:
            before.close()
        if self.log_root is not None and entry.maintenance is None:
            entry.maintenance = Maintenance(self.store, entry.name, self.log_root)

    def _snapshots(self) -> Callable[[OpenIndex, int], Snapshot]:
        """Return what makes the snapshots of one index, which share a cache of filters."""
        filters = FilterCache()
        return lambda index, sequence: Snapshot(index, self.encoders, filters, sequence)


def is_stored(store: Store, name: str) -> bool:
    """Return whether a store has an index, readable or not."""
    try:
        return latest_version(store, name) is not None
    except IndexerError:
        return True
