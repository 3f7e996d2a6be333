"""The indexes of a store, open, and their move to new versions.

A snapshot is replaced as a whole, by one assignment; queries that hold the old one finish on it, and its memory goes
with the last of them. A version that cannot be opened changes nothing: the one before keeps answering.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from scannery.indexer import (
    IndexerError,
    LeaseHolder,
    Manifest,
    OpenIndex,
    SegmentCache,
    Store,
    latest_version,
    manifest_key,
    open_index,
    read_manifest,
)
from scannery.live.live_index import LiveIndex
from scannery.live.log.database import check_sqlite
from scannery.live.log.home import LogPlace
from scannery.live.log.mutation_log import LogGapError
from scannery.live.maintenance.scheduler import Maintenance
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import (
    ClosedError,
    InvalidRequestError,
    UnknownIndexError,
)
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.encoding.query_encoder import EncoderPool
from scannery.serving.engine import hydrator
from scannery.serving.scheduling.permits import waiting
from scannery.serving.security.principal import CURRENT
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["CHECK_EVERY_S", "Catalog"]

_LOG = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
# A version that is replaced while it is being opened is no trouble, unless that never ends.
MAX_GAPS = 5


class Catalog:
    """Snapshots by the name of the index. Safe to use from several threads.

    As it is, an index is opened when it is first asked for, and looked after when it is asked for again. A `Watcher`
    does both in the background instead, and then no request ever waits for a file.
    """

    def __init__(
        self,
        store: Store,
        *,
        only: Iterable[str] | None = None,
        encoders: EncoderPool | None = None,
        cache: SegmentCache | None = None,
        opened: Callable[[str], OpenIndex | None] = lambda name: None,
        log: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a store.

        Args:
            store: with the indexes.
            only: the only ones to serve.
            encoders: shared with others.
            cache: where segments are unpacked.
            opened: gives an index that is open already, in some version.
            log: local folder for the logs of live updates: by default that of the store, if it is one.
            clock: seconds.

        Raises:
            ConfigError: the SQLite of the logs may lose commits.

        """
        check_sqlite()
        self._store = store
        self.uri = store.uri
        """Of the store; what opens it again."""
        self._opened = opened
        # What is given as a relative path stays what it is now, whatever folder the process goes to.
        self._log_root = log.absolute() if log else store.local_root
        self._only = None if only is None else frozenset(only)
        self.encoders = encoders or EncoderPool()
        self._cache = cache or SegmentCache()
        self._clock = clock
        self._entries: dict[str, CatalogEntry] = {}
        self._lock = threading.Lock()
        self._leases = LeaseHolder(store)
        self._closed = False
        self.watched = False
        """Whether somebody calls `refresh` all the time."""
        self.failed: Callable[[str], object] = lambda task: None
        """Is told the name of each task in the background that fails."""

    @classmethod
    def open(cls, uri: str | Path, *, device: str = "auto") -> Catalog:
        """Return the catalog of a store; NotFoundError or StoreError if there is none."""
        return cls(Store.open(uri), encoders=EncoderPool(device=device))

    def names(self) -> list[str]:
        """Return the names of the indexes that the caller can ask for, sorted."""
        self._check_open()
        if not self.watched:
            names = self._stored()
        else:
            names = [name for name, entry in list(self._entries.items()) if entry.snapshot]
        return sorted(name for name in names if _visible(name))

    def states(self) -> dict[str, bool]:
        """Return for each index whether it answers."""
        return {name: entry.snapshot is not None for name, entry in list(self._entries.items())}

    def problem(self, name: str) -> str:
        """Return what is wrong with an index, which may still answer; empty if nothing is."""
        entry = self._entries.get(name)
        return entry.problem if entry is not None else ""

    def failures(self) -> dict[str, int]:
        """Return for each index how often in a row it failed to open its current version, or to load its encoder."""
        return {name: entry.failures for name, entry in list(self._entries.items())}

    def snapshots(self) -> list[Snapshot]:
        """Return the current snapshots of the indexes that are open."""
        return [snapshot for entry in list(self._entries.values()) if (snapshot := entry.snapshot)]

    def snapshot(self, name: str, *, min_sequence: int = 0, deadline: Deadline | None = None) -> Snapshot:
        """Return the current snapshot of an index, or wait until there is one with all mutations up to a sequence.

        Raises:
            UnknownIndexError: there is no such index; the message names those that there are.
            CorruptError, FormatError, StoreError: it is there and cannot be opened.
            InvalidRequestError: there is no mutation with this sequence.
            DeadlineError: it did not become visible in time.

        """
        snapshot = self._current(name)
        if snapshot.sequence < min_sequence:
            return self.live(name).wait_for(min_sequence, deadline or Deadline.after(0))
        return snapshot

    def _current(self, name: str) -> Snapshot:
        self._check_open()
        if not name:
            raise InvalidRequestError.at("index", "must not be empty")
        if not _visible(name):
            raise self._unknown(name)
        entry = self._entries.get(name) if self.watched else self._looked_after(name)
        if entry is None:
            raise self._unknown(name)
        if entry.live is None:
            # Without the frames of those who were told before.
            raise (entry.opening.error or self._unknown(name)).with_traceback(None)
        if not self.watched:
            # Nobody follows the log; whoever finds it busy takes what there is.
            entry.live.catch_up(wait_s=0)
        return entry.live.snapshot

    def live(self, name: str) -> LiveIndex[Snapshot]:
        """Return the index as what takes writes; raises as `snapshot`."""
        self._current(name)
        live = self._entries[name].live if name in self._entries else None
        if live is None:
            raise self._unknown(name)
        return live

    def written(self) -> None:
        """Take note that something was written; without a watcher, this is when maintenance is thought of."""
        if not self.watched:
            self.maintain()

    def maintain(self) -> None:
        """Have sealed and merged what is due; costs little where nothing is."""
        for entry in list(self._entries.values()):
            # An error is of no other index, and of no write, which is acknowledged by now.
            entry.maintain()

    def note_failure(self, task: str) -> None:
        """Count a failure of a task in the background."""
        self.failed(task)

    def live_indexes(self) -> list[LiveIndex[Snapshot]]:
        """Return all indexes that are open."""
        return [entry.live for entry in list(self._entries.values()) if entry.live is not None]

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of an index; without a watcher, the index is not opened for it.

        Raises:
            UnknownIndexError, CorruptError, FormatError, StoreError

        """
        if self.watched:
            return self.snapshot(name).manifest
        return read_manifest(self._store, name)

    def refresh(self, *, encoders: bool = False) -> None:
        """Open new indexes and versions, and drop indexes that are gone. With `encoders`, load theirs first.

        Raises:
            StoreError: the store cannot be listed; everything stays as it is.

        """
        with self._lock:
            self._renew_leases()
            names = self._chosen()
            for name in names:
                if not self._closed:
                    self._look(name, encoders=encoders, known=True)
                # After each: to open one may take minutes, in which the leases of the others would expire.
                self._renew_leases()
            for name in self._entries.keys() - names:
                self._forget(name)

    def close(self) -> None:
        """Let go of all indexes; queries that run finish on what they hold."""
        self._closed = True
        with self._lock:
            for name in list(self._entries):
                self._forget(name)
            self._leases.release()

    def _renew_leases(self) -> None:
        for entry in self._entries.values():
            entry.hold(self._leases)

    def _forget(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            # Embedded: no server goes on with what is due.
            entry.close(finish=not self.watched)
            if not self._closed:
                _LOG.info("index %s is gone", name)

    def _chosen(self) -> set[str]:
        return {name for name in self._store.folders() if self._only is None or name in self._only}

    def _stored(self) -> list[str]:
        return [name for name in self._chosen() if self._is_stored(name)]

    def _is_stored(self, name: str) -> bool:
        try:
            return latest_version(self._store, name) is not None
        except IndexerError:  # it is there, and cannot be read
            return True

    def _looked_after(self, name: str) -> CatalogEntry | None:
        entry = self._entries.get(name)
        is_open = entry is not None and (entry.live is not None or entry.opening.error is not None)
        if entry is not None and is_open and self._clock() - entry.checked_at_s < CHECK_EVERY_S:
            return entry
        # Whoever has a snapshot does not wait while somebody else opens one.
        if not self._lock.acquire(blocking=entry is None or entry.snapshot is None):
            return entry
        try:
            self._check_open()
            return self._look(name)
        finally:
            self._lock.release()

    def _look(self, name: str, *, encoders: bool = False, known: bool = False) -> CatalogEntry | None:
        """Open the current version of an index if it is another one. An error changes nothing, and is kept.

        `known`: it is there, so what is wrong with it is kept even if it was never open.
        """
        entry = self._entries.get(name)
        if entry is not None:
            entry.checked_at_s = self._clock()
            if not entry.opening.due:
                return entry
        try:
            version = self._version_of(name)
        except Exception as error:
            if entry is None and not known:
                raise
            entry = self._entry(name)
            entry.opening.failed(f"index {name}: its versions cannot be listed", error)
            return entry
        return self._refresh_one(name, version, encoders=encoders)

    def _version_of(self, name: str) -> int | None:
        return latest_version(self._store, name) if self._only is None or name in self._only else None

    def _entry(self, name: str) -> CatalogEntry:
        # Not kept before it is known to exist: asking for nonsense must not cost memory.
        if name not in self._entries:
            self._entries[name] = CatalogEntry(name, self.note_failure, self._clock)
        return self._entries[name]

    def _refresh_one(self, name: str, version: int | None, *, encoders: bool = False) -> CatalogEntry | None:
        if version is None:
            self._forget(name)
            return None
        entry = self._entry(name)
        entry.checked_at_s = self._clock()
        current = entry.snapshot
        if current is None or current.manifest.version != version or self._is_other(entry, name, version):
            self._open(entry, name, version, encoders=encoders)
        else:
            entry.opening.succeeded()
            if encoders and entry.encoder.failures:
                entry.load_encoder(current)
        return entry

    def _is_other(self, entry: CatalogEntry, name: str, version: int) -> bool:
        """Return whether the index was made anew or restored: a version of the same number is another one then."""
        if entry.live is not None and entry.live.replaced:
            return True
        try:
            return self._store.stamp(manifest_key(name, version)) != entry.stamp
        except IndexerError:
            return False  # removed, or not to be reached this moment; the next look tells

    def _open(self, entry: CatalogEntry, name: str, version: int, *, encoders: bool) -> None:
        try:
            stamp = self._store.stamp(manifest_key(name, version))
            index = self._moved(entry, name, version, encoders=encoders)
        except Exception as error:  # noqa: BLE001  whatever it is: what is open goes on, and so do other indexes
            entry.opening.failed(f"index {name}: version {version} cannot be opened", error)
            return
        entry.stamp = stamp
        entry.opening.succeeded()
        _LOG.info("index %s: version %d, %d datapoints", name, index.manifest.version, index.manifest.rows)

    def _moved(self, entry: CatalogEntry, name: str, version: int, *, encoders: bool) -> OpenIndex:
        """Open a version and go over to it; a later one, if the log has no longer what this one needs."""
        live = entry.live
        for _ in range(MAX_GAPS):
            reuse = live.state.index if live else self._opened(name)
            index = open_index(self._store, name, version, cache=self._cache, reuse=reuse)
            hydrator.warm_up(index.segments, index.spec)
            if encoders:
                entry.load_encoder(Snapshot(index, self.encoders))
            try:
                if live is not None and live.is_of(index.manifest):
                    live.move(index)
                else:
                    if live is not None:  # also where what is there now cannot be opened
                        live.retire()
                    home = LogPlace(self._store, name, self._log_root)
                    entry.live = LiveIndex(
                        index, self._snapshots(), home=home, waiting=waiting, on_gap=entry.look_again
                    )
                    if live is not None:  # of an index, or on a log, that is gone
                        live.close()
                    if self._log_root is not None and entry.maintenance is None:
                        entry.maintenance = Maintenance(self._store, name, self._log_root)
                return index
            except LogGapError as error:
                version, gap = latest_version(self._store, name) or version, error
        raise gap

    def _snapshots(self) -> Callable[[OpenIndex, int], Snapshot]:
        """Return what makes the snapshots of one index, which share a cache of filters."""
        encoders, filters = self.encoders, FilterCache()
        return lambda index, sequence: Snapshot(index, encoders, filters, sequence)

    def _unknown(self, name: str) -> UnknownIndexError:
        names = self.names()
        known = f"there are: {', '.join(names[:20])}" if names else "there are none"
        return UnknownIndexError(f"index: there is no index {name!r:.100}; {known}", field="index")

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed")


def _visible(name: str) -> bool:
    # Every way to an index leads through the catalog, so this is where callers are kept to theirs.
    principal = CURRENT.get()
    return principal is None or principal.sees(name)
