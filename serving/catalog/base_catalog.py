"""The open indexes of a store and the switch to new versions, for servers and embedded use.

A snapshot is replaced by one assignment. Queries on the old one finish, and its memory is freed with the last of them.
If a version cannot be opened, the one before keeps serving.

The aliases of a store as a process knows them.
"""

from __future__ import annotations

import difflib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar

from scannery.indexer import (
    ALIASES_KEY,
    Aliases,
    IndexerError,
    Manifest,
    NotFoundError,
    OpenIndex,
    SegmentCache,
    Shards,
    Store,
    StoreError,
    latest_version,
    read_aliases,
)
from scannery.indexer.store.changes import Changes
from scannery.live.live_index import LiveIndex
from scannery.live.log.database import check_sqlite
from scannery.live.log.homes import log_changes
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogGapError
from scannery.live.maintenance.drop import drop
from scannery.live.maintenance.replacement import Replacement
from scannery.runtime.errors import (
    ClosedError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    SnapshotGoneError,
    UnknownIndexError,
)
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.held_snapshots import HeldSnapshot, HeldSnapshots
from scannery.serving.catalog.version_opener import ColdIndexes, VersionOpener
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.recall.controller import RecallController
from scannery.serving.scheduling.permits import waiting
from scannery.serving.security.principal import CURRENT
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["OPEN_S", "BaseCatalog"]


class AliasTable:
    """A copy of the aliases, read again when their object changed. Safe to use from several threads."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        """Begin with none; `refresh` reads them.

        Args:
            store: with the aliases.
            clock: returns seconds.

        """
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._stamp: str | None = None
        """Stamp of the object that was read; None: none was read, empty: there was none."""
        self.known: Aliases = {}
        """Names as of the last `refresh`."""
        self._checked_at_s = float("-inf")

    def refresh(self, *, older_than_s: float = 0.0) -> None:
        """Read the aliases if they changed; look for that only if the last look was more than `older_than_s` ago.

        Raises:
            StoreError, CorruptError, FormatError: they cannot be read; those known before stay.

        """
        if self._clock() - self._checked_at_s <= older_than_s:
            return
        with self._lock:  # or an older copy could replace a newer one
            self._checked_at_s = self._clock()
            stamp = self._current_stamp()
            if stamp != self._stamp:
                self.known, self._stamp = read_aliases(self._store), stamp

    def of(self, index: str) -> list[str]:
        """Return the aliases of an index, sorted."""
        return sorted(alias for alias, target in self.known.items() if target == index)

    def _current_stamp(self) -> str:
        try:
            return self._store.stamp(ALIASES_KEY)
        except NotFoundError:
            return ""


_LOG = logging.getLogger(__name__)

OPEN_S = 5.0
"""Most seconds that a request waits until other indexes are open."""


class BaseCatalog(ABC):
    """Snapshots by the name of the index. Safe to use from several threads."""

    finishes_maintenance: ClassVar[bool]
    """Whether closing an index finishes maintenance that is due."""

    drops_open: ClassVar[bool]
    """Whether an index can be dropped while processes have leases on it: those of a server are its own workers'."""

    def __init__(
        self,
        store: Store,
        *,
        only: Iterable[str] | None = None,
        encoders: EncoderPool | None = None,
        cache: SegmentCache | None = None,
        preloaded: Callable[[str], OpenIndex | None] = lambda name: None,
        log: LogRoot | None = None,
        recall: RecallController | None = None,
        shards: Shards | None = None,
        live: Callable[..., LiveIndex[Snapshot]] = LiveIndex,
        maintains: bool = True,
        cold: ColdIndexes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; indexes are opened later.

        Args:
            store: with the indexes.
            only: names of the indexes to serve; None: all.
            encoders: shared pool; None: a new one.
            cache: where segments are unpacked.
            preloaded: returns an already open index, in any version.
            log: local folder for the mutation logs, or their database; None: inside the store, if it is a local folder.
            recall: holds the recall of the indexes by live queries; None: the curves do.
            shards: whose segments are opened; None: all.
            live: makes the open indexes; arguments as of `LiveIndex`.
            maintains: whether this process seals, merges, and collects garbage.
            cold: the indexes whose vectors stay in the store; None: none.
            clock: returns seconds.

        Raises:
            ConfigError: the SQLite of the logs may lose commits.

        """
        check_sqlite()
        self.store = self._store = store
        self.uri = store.uri
        """URI of the store."""
        self._only = None if only is None else frozenset(only)
        self.encoders = encoders or EncoderPool()
        self._clock = clock
        # A relative path is resolved now: the process may change its working folder.
        log_root = log.absolute() if isinstance(log, Path) else log or store.local_root
        self._opener = VersionOpener(
            store,
            self.encoders,
            cache or SegmentCache(),
            preloaded,
            log_root,
            recall,
            shards,
            live,
            maintains,
            cold or ColdIndexes(),
        )
        self._entries: dict[str, CatalogEntry] = {}
        self._lock = threading.Lock()
        """Held while entries change."""
        self.held = HeldSnapshots(clock)
        """Snapshots of running scans."""
        self._past_lock = threading.Lock()
        """Held while a snapshot of the past is opened: several pages of a scan may need the same one."""
        self._closed = False
        self._aliases = AliasTable(store, clock)
        self.on_failure: Callable[[str], object] = lambda task: None
        """Called with the name of each background task that fails."""
        self.on_gone: Callable[[str], object] = lambda name: None
        """Called with the name of each index that is closed, or replaced by another one of its name."""

    @abstractmethod
    def _names(self) -> Collection[str]:
        """Return the names of all indexes."""

    @abstractmethod
    def _find(self, name: str) -> CatalogEntry | None:
        """Return the entry of an index, as recent as queries need; None if there is no such index."""

    @abstractmethod
    def manifest(self, name: str) -> Manifest:
        """Return the manifest of an index.

        Raises:
            UnknownIndexError, CorruptError, FormatError, StoreError

        """

    @abstractmethod
    def open_snapshot(self, name: str) -> Snapshot | None:
        """Return the snapshot of an index without file access; None if it needs that, or is not for this caller."""

    @abstractmethod
    def written(self) -> None:
        """Record a write: maintenance may be due."""

    @abstractmethod
    def _look_for_alias(self, name: str) -> None:
        """Refresh the aliases if a name may be a new one, or if they may be old."""

    @abstractmethod
    def _prepare(self, entry: CatalogEntry, snapshot: Snapshot) -> None:
        """Prepare an opened version before queries see it."""

    def names(self) -> list[str]:
        """Return the names of the indexes that the caller can see, sorted."""
        self._check_open()
        return sorted(name for name in self._names() if _visible(name))

    def states(self) -> dict[str, bool]:
        """Return whether each index is open, by name."""
        return {name: entry.snapshot is not None for name, entry in list(self._entries.items())}

    def resolve(self, name: str, *, look: bool = True) -> str:
        """Return the index that a name stands for: that of an alias, or the name itself.

        An alias of an index that the caller cannot see is not known to it.

        Args:
            name: of an index, or an alias.
            look: whether the store may be read; False: the aliases of the last look are used.

        """
        if look:
            # If the store cannot be read, the names that are known keep working.
            with suppress(IndexerError):
                self._look_for_alias(name)
        index = self._aliases.known.get(name)
        return index if index is not None and self.serves(index) and _visible(index) else name

    def aliases(self) -> dict[str, str]:
        """Return the index of each alias, of indexes that the caller can see; raises as `refresh_aliases`."""
        self.refresh_aliases()
        known = sorted(self._aliases.known.items())
        return {alias: index for alias, index in known if self.serves(index) and _visible(index)}

    def aliases_of(self, index: str) -> list[str]:
        """Return the aliases of an index, sorted, as of the last look."""
        return self._aliases.of(index)

    def refresh_aliases(self) -> None:
        """Read the aliases if they changed.

        Raises:
            StoreError, CorruptError, FormatError: they cannot be read.

        """
        self._aliases.refresh()

    def drop(self, name: str, deadline: Deadline) -> None:
        """Remove an index from the store, and close it here; queries that run finish on their snapshots.

        Raises:
            NotFoundError: the store has nothing of this name.
            InUseError: another process removes it, or (embedded) a server has it open or a build is running.
            OverloadedError: another index was being opened until the deadline; nothing was removed.

        """
        if not self._lock.acquire(timeout=max(0.0, min(deadline.remaining_s, threading.TIMEOUT_MAX))):
            raise OverloadedError(
                "another index is being opened; nothing was removed, try again", retry_after_s=OPEN_S
            )
        # Held until the index is invisible in the store: otherwise it could be opened again.
        with ExitStack() as held:
            held.callback(self._lock.release)
            self._check_open()
            self._forget(name, finish=False, dropped=self.drops_open)
            root, force = self._opener.log_root, self.drops_open
            drop(self._store, name, log_root=root, force=force, hidden=held.close)

    def replacement(self, name: str) -> Replacement:
        """Begin to replace all datapoints of an index; raises as `snapshot`, and as `Replacement`."""
        self.live(name)  # which the caller must be allowed to see
        opener = self._opener
        return Replacement(self._store, name, log_root=opener.log_root, cache=opener.cache)

    def serves(self, name: str) -> bool:
        """Return whether an index of this name would be served: all are, unless some were chosen."""
        return self._only is None or name in self._only

    def stored_count(self) -> int:
        """Return the number of indexes of the store, served or not."""
        return len(self._store.folders())

    def manifests(self) -> Iterator[Manifest]:
        """Yield the manifests of the indexes that the caller can see; without those that cannot be read."""
        for name in self.names():
            with suppress(IndexerError, UnknownIndexError):
                yield self.manifest(name)

    def open_created(self, name: str, *, wait_s: float = OPEN_S) -> None:
        """Open the latest version of an index that was just made; an error is kept in its entry.

        Opening another index may take minutes: after `wait_s` seconds, this one is left to be opened later.
        """
        if not self._lock.acquire(timeout=wait_s):
            return
        try:
            self._check_open()
            self._refresh_entry(name, known=True)
        finally:
            self._lock.release()

    def altered(self, name: str) -> None:
        """Open the version of an index whose spec was just changed here."""
        self.open_created(name)

    def open_later(self, name: str) -> None:
        """Open a later version of an index than the open one, if that takes milliseconds: the log goes on in it."""
        self.open_created(name)

    def problem(self, name: str) -> str:
        """Return the current error of an index, which may still serve; empty: none."""
        entry = self._entries.get(name)
        return entry.problem if entry is not None else ""

    def failures(self) -> dict[str, int]:
        """Return the consecutive failures to open the current version or its encoder, by index name."""
        return {name: entry.failures for name, entry in list(self._entries.items())}

    def snapshots(self) -> list[Snapshot]:
        """Return the current snapshots of all open indexes."""
        return [snapshot for entry in list(self._entries.values()) if (snapshot := entry.snapshot)]

    def live_indexes(self) -> list[LiveIndex[Snapshot]]:
        """Return all open indexes."""
        return [entry.live for entry in list(self._entries.values()) if entry.live is not None]

    def snapshot(self, name: str, *, min_sequence: int = 0, deadline: Deadline | None = None) -> Snapshot:
        """Return the current snapshot of an index; wait until it has all mutations up to `min_sequence`.

        Raises:
            UnknownIndexError: there is no such index; the message names the existing ones.
            CorruptError, FormatError, StoreError: the index cannot be opened.
            InvalidRequestError: there is no mutation with this sequence.
            DeadlineError: the mutation did not become visible in time.

        """
        live = self.live(name)
        snapshot = live.snapshot
        if snapshot.sequence >= min_sequence:
            return snapshot
        deadline = deadline or Deadline.after(0)
        while (found := live.wait_for(min_sequence, deadline)) is None:
            if live.superseded:
                self.open_later(name)
            # The mutation may be in a later version, which an embedded catalog looks for only when it is asked.
            live = self.live(name)
        return found

    def held_snapshot(self, name: str, version: int, sequence: int, *, deadline: Deadline) -> HeldSnapshot:
        """Return the snapshot of an index with this version and sequence, kept for scans; opened again if it is not.

        Raises:
            SnapshotGoneError: the version or the mutations are gone.
            DeadlineError: the deadline passed.
            UnknownIndexError, CorruptError, FormatError, StoreError: as `snapshot`.

        """
        manifest = self.live(name).state.manifest
        held = self.held.find(manifest, version, sequence)
        if held is not None:
            return held
        with waiting():
            if not self._past_lock.acquire(timeout=min(deadline.remaining_s, threading.TIMEOUT_MAX)):
                raise DeadlineError("the deadline passed while another scan's snapshot was opened")
        try:
            held = self.held.find(manifest, version, sequence)
            return held or self.held.hold(self._past(name, version, sequence, deadline))
        except (NotFoundError, LogGapError) as error:
            raise SnapshotGoneError(
                f"page_token: the snapshot of the scan (version {version}, sequence {sequence}) is gone; start again "
                "without a token",
                field="page_token",
            ) from error
        finally:
            self._past_lock.release()

    def _past(self, name: str, version: int, sequence: int, deadline: Deadline) -> Snapshot:
        live = self.live(name)
        snapshot = live.snapshot
        if (snapshot.manifest.version, snapshot.sequence) == (version, sequence):
            return snapshot
        return live.past(self._opener.opened(live.state.index, version), sequence, deadline)

    def live(self, name: str) -> LiveIndex[Snapshot]:
        """Return the live index, which takes writes; raises as `snapshot`."""
        self._check_open()
        if not name:
            raise InvalidRequestError.at("index", "must not be empty")
        entry = self._find(name) if _visible(name) else None
        if entry is None:
            raise self._unknown(name)
        if entry.live is None:
            # Without the traceback of earlier requests that got this error.
            error = entry.opening.error or self._unknown(name)
            # The text of an OSError names paths of this machine.
            error = StoreError(entry.opening.problem) if isinstance(error, OSError) else error
            raise error.with_traceback(None)
        return entry.live

    def maintain(self) -> None:
        """Start sealing and merging that is due; cheap if none is."""
        now_s = self._clock()
        for entry in list(self._entries.values()):
            # Errors stay in the entry: other indexes and the acknowledged write must not fail.
            if entry.may_need_maintenance(now_s):
                entry.maintain(regularly=not self.finishes_maintenance)  # servers do so without writes

    def log_changes(self) -> Changes:
        """Return a reader of which logs have changed."""
        return log_changes(self._opener.log_root)

    def note_failure(self, task: str) -> None:
        """Count a failure of a background task."""
        self.on_failure(task)

    def close(self) -> None:
        """Close all indexes; running queries finish on their snapshots."""
        self._closed = True
        self.held.forget()
        with self._lock:
            for name in list(self._entries):
                self._forget(name)

    def _forget(self, name: str, *, finish: bool = True, dropped: bool = False) -> None:
        entry = self._entries.pop(name, None)
        self.held.forget(name)
        if entry is not None:
            if entry.live is not None:
                entry.live.dropped = dropped
            entry.close(finish=finish and self.finishes_maintenance)
            self.on_gone(name)
            if not self._closed:  # after a reload, other processes have it open
                self._opener.closed(name)
                _LOG.info("index %s is gone", name)

    def _chosen(self) -> set[str]:
        return set(filter(self.serves, self._store.folders()))

    def _refresh_entry(self, name: str, *, known: bool = False) -> CatalogEntry | None:
        """Open the latest version of an index unless it is open. Errors are kept in the entry.

        `known`: the index is in the store, so that its error is kept even if it was never open.
        """
        entry = self._entries.get(name)
        if entry is not None:
            entry.checked_at_s = self._clock()
            if not entry.opening.due:
                return entry
        try:
            version = self._latest(name) if self.serves(name) else None
        except Exception as error:
            if entry is None and not known:
                raise
            entry = self._entry(name)
            entry.opening.failed(f"index {name}: its versions cannot be listed", error)
            return entry
        if version is None:
            self._forget(name, dropped=True)
            return None
        entry = self._entry(name)
        self._move(entry, version)
        return entry

    def _latest(self, name: str) -> int | None:
        """Return the version to be open; None: the store has no such index."""
        return latest_version(self._store, name)

    def _entry(self, name: str) -> CatalogEntry:
        # Only for indexes that exist: requests for other names must not take memory.
        if name not in self._entries:
            self._entries[name] = CatalogEntry(name, self.note_failure, self._clock)
        entry = self._entries[name]
        entry.checked_at_s = self._clock()
        return entry

    def _move(self, entry: CatalogEntry, version: int) -> None:
        before = entry.snapshot
        try:
            if not self._opener.is_open(entry, version):
                index = self._opener.move(entry, version, lambda snapshot: self._prepare(entry, snapshot))
                manifest = index.manifest
                if before is not None and before.manifest.index_id != manifest.index_id:
                    self.on_gone(entry.name)
                self._tell_move(manifest)
        except Exception as error:  # noqa: BLE001  the open version and other indexes keep serving
            entry.opening.failed(f"index {entry.name}: version {version} cannot be opened", error)
        else:
            entry.opening.succeeded()

    def _tell_move(self, manifest: Manifest) -> None:
        _LOG.info("index %s: version %d, %d datapoints", manifest.index, manifest.version, manifest.rows)

    def _unknown(self, name: str) -> UnknownIndexError:
        names = self.names()
        known = f"there are: {', '.join(names[:20])}" if names else "there are none"
        near = difflib.get_close_matches(name[:80], names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return UnknownIndexError(f"index: there is no index {name!r:.100}; {known}{hint}", field="index")

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed")


def _visible(name: str) -> bool:
    # All access to indexes goes through the catalog, so a caller's permissions are checked here.
    principal = CURRENT.get()
    return principal is None or principal.sees(name)
