"""The open indexes of a store and the switch to new versions, in servers, clusters and embedded use.

A snapshot is replaced by one assignment. Queries on the old one finish, and its memory is freed with the last of them.
If a version cannot be opened, the one before keeps serving.
"""

from __future__ import annotations

import difflib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from scannery.indexer import (
    IndexerError,
    InUseError,
    LeaseHolder,
    Manifest,
    NotFoundError,
    Store,
    StoreError,
    latest_version,
    read_manifest,
)
from scannery.indexer.store.changes import Changes
from scannery.live.live_index import LiveIndex
from scannery.live.log.database import check_sqlite
from scannery.live.log.homes import log_changes
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogGapError
from scannery.live.maintenance import copies
from scannery.live.maintenance.drop import drop
from scannery.live.maintenance.locks import Task
from scannery.live.maintenance.replacement import Replacement
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.scheduler import SWEEP_S
from scannery.live.migration.mirrors import VectorsOfSpec, begin_mirror, mirror_of
from scannery.runtime.errors import (
    ClosedError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    SnapshotGoneError,
    UnavailableError,
    UnknownIndexError,
)
from scannery.runtime.retry import Deadline
from scannery.runtime.sharing import SharedMarks
from scannery.runtime.tasks import SlowProgress
from scannery.runtime.times import WALL_SECONDS
from scannery.serving.catalog.aliases import Aliases
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.former_versions import FormerVersions
from scannery.serving.catalog.held_snapshots import HeldSnapshot, HeldSnapshots
from scannery.serving.catalog.published_versions import (
    WATCHED,
    PublishedVersions,
    Upkeep,
    WatchedLeaves,
    is_stored,
)
from scannery.serving.catalog.version_opener import VersionOpener
from scannery.serving.scheduling.permits import waiting
from scannery.serving.security.principal import CURRENT, current_seen, is_visible
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["OPEN_S", "Catalog"]

_LOG = logging.getLogger(__name__)

OPEN_S = 5.0
"""Most seconds that a request waits until other indexes are open."""
LEASES_EVERY_S = 10.0
"""Seconds between two renewals of leases while indexes are opened; a lease that is not renewed lasts for minutes."""


class Catalog:
    """Snapshots by the name of the index. Safe to use from several threads.

    What a process opens of a version, who keeps it up to date, and who holds leases are given: see `roles.py`.
    """

    def __init__(
        self,
        store: Store,
        *,
        upkeep: Upkeep = WATCHED,
        leases: LeaseHolder | None = None,
        leaves: WatchedLeaves | None = None,
        log: LogRoot | None = None,
        only: Iterable[str] | None = None,
        drops: SharedMarks | None = None,
        alters: SharedMarks | None = None,
        clock: Callable[[], float] = time.monotonic,
        seconds: Callable[[], int] = WALL_SECONDS,
        **opening: Any,
    ) -> None:
        """Prepare; indexes are opened later.

        Args:
            store: with the indexes.
            upkeep: who looks for new versions.
            leases: protects the open ones from removal; None: nothing does.
            leaves: of which all groups must have a version before it is opened; None: this process has the rows.
            log: local folder for the mutation logs, or their database; None: inside the store, if it is a local folder.
            only: names of the indexes to serve; None: all.
            drops: marks of dropped indexes that the workers of this server share; None: it has no others.
            alters: likewise of altered indexes.
            clock: returns seconds.
            seconds: returns the second since 1970, at which datapoints expire.
            opening: how versions are opened, as of `VersionOpener`.

        Raises:
            ConfigError: the SQLite of the logs may lose commits.

        """
        check_sqlite()
        self._upkeep, self._leases, self._clock = upkeep, leases, clock
        self.seconds = seconds
        """Returns the second at which requests see the indexes."""
        self.store = store
        # A relative path is resolved now: the process may change its working folder.
        log_root = log.absolute() if isinstance(log, Path) else log or store.local_root
        self._opener = VersionOpener(
            store,
            log_root,
            open_indexes=lambda: [live.state.index for live in self.live_indexes()],
            former=FormerVersions(clock),
            seconds=seconds,
            **opening,
        )
        self.encoders = self._opener.encoders
        self.former = self._opener.former
        """Versions that were open before the newest, where these stay open for a while."""
        self.memory = self._opener.memory
        """Memory of the open indexes."""
        self.memory.snapshots = lambda: [snapshot.index for snapshot in self.snapshots()]
        processes = self.memory.processes
        self.held = (
            HeldSnapshots(clock)
            if processes is None
            else HeldSnapshots(clock, max_bytes=processes.worker_scans_bytes)
        )
        """Snapshots of running scans."""
        self._versions = PublishedVersions(store, leaves)
        self._only = None if only is None else frozenset(only)
        self._drops, self._alters = drops or SharedMarks(), alters or SharedMarks()
        self._entries: dict[str, CatalogEntry] = {}
        self._lock = threading.Lock()
        """Held while entries change."""
        self._looks = threading.Lock()
        """Held by the one request that looks for an unknown index: requests for such must not load the store."""
        self.moved = threading.Condition()
        """Notified when an index was opened, or moved to another version."""
        self._changes: Changes | None = store.changes() if upkeep.watched else None
        self._leased_at_s = float("-inf")
        """When all leases were last looked at."""
        self._closed = False
        self.aliases = Aliases(store, upkeep, clock, serves=self.serves, is_open=self._entries.__contains__)
        self.on_failure: Callable[[str], object] = lambda task: None
        """Called with the name of each background task that fails."""
        self.on_gone: Callable[[str], object] = lambda name: None
        """Called with the name of each index that is closed, or replaced by another one of its name."""

    def names(self) -> list[str]:
        """Return the names of the indexes that the caller can see, sorted."""
        self._check_open()
        names = (
            list(self._entries)
            if self._upkeep.watched
            else [name for name in self._chosen() if is_stored(self.store, name)]
        )
        return sorted(filter(is_visible, names))

    def states(self) -> dict[str, bool]:
        """Return whether each index is open, by name."""
        return {name: entry.snapshot is not None for name, entry in list(self._entries.items())}

    def drop(self, name: str, deadline: Deadline) -> None:
        """Remove an index from the store, and close it here; queries that run finish on their snapshots.

        After it, no worker of this server answers from the index.

        Raises:
            NotFoundError: the store has nothing of this name.
            InUseError: it is being migrated, another process removes it, or (embedded) a server has it open or a build
                is running.
            OverloadedError: another index was being opened until the deadline; nothing was removed.

        """
        if self._is_migrated(name):
            raise InUseError(f"index {name!r} is being migrated: abandon the migration first", field="index")
        # The leases of a server are those of its own workers, too.
        force = self._upkeep.watched
        # The turn is kept until the index is invisible in the store: otherwise it could be opened again.
        with ExitStack() as turn:
            if not turn.enter_context(self._turn(deadline.remaining_s)):
                raise OverloadedError(
                    "another index is being opened; nothing was removed, try again", retry_after_s=OPEN_S
                )
            self._forget(name, finish=False, dropped=force)
            try:
                drop(self.store, name, log_root=self._opener.log_root, force=force, hidden=turn.close)
            finally:  # also if it fails after the index has become invisible
                self._drops.change(name)

    def _is_migrated(self, name: str) -> bool:
        """Return whether an index has a mirror, which would be of no use without it."""
        with suppress(IndexerError):  # a mirror that cannot be read
            return bool(mirror_of(self.store, name))
        return False

    def branch(
        self, name: str, branch: str, *, version: int | None, time: datetime | None, request_id: str
    ) -> None:
        """Make an index of its own with the content of another one; arguments and errors are those of `branch`."""
        report = copies.branch(
            self.store,
            name,
            branch,
            version=version,
            time=time,
            log_root=self._opener.log_root,
            request_id=request_id,
        )
        _LOG.info("index %s is a branch of %s, of version %d", branch, name, report.version)

    def roll_back(self, name: str, version: int, *, if_version: int) -> Manifest:
        """Publish an earlier version again and open it here; arguments and errors are those of `rollback`."""
        manifest = rollback(self.store, name, version, if_version=if_version, log_root=self._opener.log_root)
        _LOG.info("index %s: version %d has the content of version %d", name, manifest.version, version)
        self.altered(name)
        return manifest

    def begin_migration(self, name: str, changes: Mapping[str, Any], vectors_of: VectorsOfSpec) -> None:
        """Begin to migrate an index, and open its mirror; arguments and errors are those of `begin_mirror`."""
        mirror = begin_mirror(self.store, name, changes, vectors_of, log_root=self._opener.log_root)
        _LOG.info("index %s: its migration begins, with mirror %s", name, mirror.index)
        self.open_created(mirror.index)

    def replacement(self, name: str) -> Replacement:
        """Begin to replace all datapoints of an index; raises as `snapshot`, and as `Replacement`."""
        self.live(name).check_changeable()  # which the caller must be allowed to see
        opener = self._opener
        return Replacement(self.store, name, log_root=opener.log_root, cache=opener.cache)

    def serves(self, name: str) -> bool:
        """Return whether an index of this name would be served: all are, unless some were chosen."""
        return self._only is None or name in self._only

    def manifests(self) -> Iterator[Manifest]:
        """Yield the manifests of the indexes that the caller can see.

        Without those that cannot be read, or of which it sees nothing, since its filter does not fit them.
        """
        for name in self.names():
            with suppress(IndexerError, UnknownIndexError, PermissionDeniedError):
                yield self.manifest(name)

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of the open version; embedded, that of the store, without opening the index.

        Raises as `snapshot`, or as `read_manifest`.
        """
        return self.snapshot(name).manifest if self._upkeep.watched else read_manifest(self.store, name)

    def open_snapshot(self, name: str) -> Snapshot | None:
        """Return the current snapshot of an index without waiting; None if it needs that, or is not for this caller.

        Embedded, an index that is open is looked at as by `snapshot`, whose errors it raises.
        """
        entry = self._entries.get(name)
        if not self._upkeep.watched:
            return None if entry is None or entry.live is None else self.snapshot(name)
        # With few function calls: every search comes here.
        if (
            entry is None
            or entry.drop_mark != self._drops.words[entry.mark_slot]
            or entry.alter_mark != self._alters.words[entry.mark_slot]
        ):
            return None
        live, principal = entry.live, CURRENT.get()
        # What is wrong is said in one place, so that an index that the caller cannot see is as one that is not there.
        if live is None or self._closed or not (principal is None or principal.sees(name)):
            return None
        snapshot = live.snapshot
        if snapshot.until is not None:
            snapshot = snapshot.at(self.seconds())
        if principal is None or not principal.access:
            return snapshot
        return snapshot.as_seen(current_seen(name))

    def open_created(self, name: str, *, wait_s: float = OPEN_S) -> None:
        """Open the latest version of an index that was just made; an error is kept in its entry.

        Opening another index may take minutes: after `wait_s` seconds, this one is left to be opened later. So is one
        that leaves do not have by then.
        """
        if self._versions.are_of_leaves:
            self._await_leaves(name, wait_s)
        else:
            self._open_latest(name, wait_s)

    def _open_latest(self, name: str, wait_s: float) -> None:
        with self._turn(wait_s) as held:
            if held:
                self._refresh_entry(name, is_stored=True)

    def _await_leaves(self, name: str, wait_s: float) -> None:
        """Wait until the watcher has opened the latest version of an index, which it does when leaves have."""
        version = latest_version(self.store, name)

        def is_open() -> bool:
            entry = self._entries.get(name)
            return version is None or (entry is not None and (entry.version or 0) >= version)

        with waiting(), self.moved:
            self.moved.wait_for(is_open, wait_s)

    def altered(self, name: str) -> None:
        """Open the version of an index whose spec was just changed here.

        The other workers of this server open it before they use the index.
        """
        self._alters.change(name)
        self.open_created(name)

    def open_later(self, name: str, *, wait_s: float = OPEN_S) -> bool:
        """Open an index or a version that may just have been made, and return whether there is one.

        What takes longer than milliseconds is left to `refresh`; so is this index if another one is being opened for
        `wait_s` seconds.
        """
        with suppress(IndexerError):
            version = latest_version(self.store, name)
            if version is None:
                return False
            if self._opener.new_bytes(name, version, self._entries.get(name)) <= self._upkeep.small_bytes:
                self._open_latest(name, wait_s)
            return True
        return False

    def note_write(self) -> None:
        """Record a write: maintenance may be due."""
        if not self._upkeep.watched:
            self.maintain()

    def note_goal(self, mirror: str) -> None:
        """Record that a migration may have something to do; servers look by themselves."""
        if not self._upkeep.watched and (entry := self._find(mirror)) is not None:
            entry.maintain(regularly=False)

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
        """Return all open indexes, and their former versions."""
        return [
            *(entry.live for entry in list(self._entries.values()) if entry.live is not None),
            *self.former.live,
        ]

    def running(self) -> list[tuple[str, Task]]:
        """Return the index and the name of each task of maintenance that runs."""
        entries = list(self._entries.values())
        return [
            (entry.name, task) for entry in entries if entry.maintenance for task in entry.maintenance.running
        ]

    def snapshot(self, name: str, *, min_sequence: int = 0, deadline: Deadline | None = None) -> Snapshot:
        """Return the current snapshot of an index as the caller sees it; arguments and errors as of `whole_snapshot`.

        Raises:
            PermissionDeniedError: the filter of the caller does not fit the index.

        """
        snapshot = self.whole_snapshot(name, min_sequence=min_sequence, deadline=deadline)
        return snapshot.as_seen(current_seen(name))

    def whole_snapshot(
        self, name: str, *, min_sequence: int = 0, deadline: Deadline | None = None
    ) -> Snapshot:
        """Return the current snapshot of an index; wait until it has all mutations up to `min_sequence`.

        What is read from it, and is not of the rows that the caller sees, must not reach the caller.

        Raises:
            UnknownIndexError: there is no such index; the message names the existing ones.
            CorruptError, FormatError, StoreError: the index cannot be opened.
            InvalidRequestError: there is no mutation with this sequence.
            DeadlineError: the mutation did not become visible in time.

        """
        live = self.live(name)
        snapshot = live.snapshot
        if snapshot.sequence >= min_sequence:
            return snapshot.at(self.seconds())
        deadline = deadline or Deadline.after(0)
        while (reached := live.wait_for(min_sequence, deadline)) is None:
            if live.superseded:
                self.open_later(name)
            # The mutation may be in a later version, which an embedded catalog looks for only when it is asked.
            live = self.live(name)
        return reached.at(self.seconds())

    def held_snapshot(
        self, name: str, version: int, sequence: int, second: int, *, deadline: Deadline
    ) -> HeldSnapshot:
        """Return the snapshot of all of an index at a version, sequence and second, kept for scans, or opened again.

        Raises:
            SnapshotGoneError: the version or the mutations are gone.
            DeadlineError: the deadline passed.
            UnknownIndexError, CorruptError, FormatError, StoreError: as `snapshot`.

        """
        index_id = self.live(name).state.manifest.index_id

        def past() -> Snapshot:
            return self._past(name, version, sequence, deadline).at(second)

        try:
            return self.held.opened(name, index_id, version, sequence, second, past, deadline)
        except (NotFoundError, LogGapError) as error:
            raise SnapshotGoneError(
                f"page_token: the snapshot of the scan (version {version}, sequence {sequence}) is gone; start again "
                "without a token",
                field="page_token",
            ) from error

    def _past(self, name: str, version: int, sequence: int, deadline: Deadline) -> Snapshot:
        live = self.live(name)
        snapshot = live.snapshot
        if (snapshot.manifest.version, snapshot.sequence) == (version, sequence):
            return snapshot
        return live.past(self._opener.opened(live.state.index, version), sequence, deadline)

    def live(self, name: str) -> LiveIndex[Snapshot]:
        """Return the live index, which takes writes; raises as `snapshot`."""
        self._check_open()
        watched = self._upkeep.watched
        if not watched:
            self.held.expire()
        if not name:
            raise InvalidRequestError.at("index", "must not be empty")
        # All access to indexes goes through the catalog, so a caller's permissions are checked here.
        entry = self._find(name) if is_visible(name) else None
        if entry is None:
            raise self._unknown(name)
        if entry.live is None:
            # Without the traceback of earlier requests that got this error.
            error = entry.opening.error or _busy(name, "it is being opened", self._upkeep.wait_s)
            # The text of an OSError names paths of this machine.
            error = StoreError(entry.opening.problem) if isinstance(error, OSError) else error
            raise error.with_traceback(None)
        if not watched:
            # Without waiting for another thread that applies the log.
            entry.live.catch_up(wait_s=0)
        return entry.live

    def maintain(self) -> None:
        """Start sealing and merging that is due; cheap if none is."""
        now_s = self._clock()
        for entry in list(self._entries.values()):
            # Errors stay in the entry: other indexes and the acknowledged write must not fail.
            if entry.may_need_maintenance(now_s):
                entry.maintain(regularly=self._upkeep.watched)  # servers do so without writes

    def log_changes(self) -> Changes:
        """Return a reader of which logs have changed."""
        return log_changes(self._opener.log_root)

    def note_failure(self, task: str) -> None:
        """Count a failure of a background task."""
        self.on_failure(task)

    def refresh(self) -> None:
        """Open new indexes and versions with their encoders, renew leases, and drop removed indexes.

        Raises:
            StoreError: the store cannot be listed; nothing changes.

        """
        with self._lock:
            # Before the store is read: what changes from now on is noted for the next time.
            changed = None if self._changes is None else self._changes.changed()
            names = self._chosen()
            progress = SlowProgress(_LOG, "indexes looked at", len(names))
            # Sorted: if there is no room for all of them, it is the same ones at each start.
            for name in sorted(names):
                progress.step()
                if self._closed:
                    return
                if (changed is not None and name in changed) or self._is_due(name):
                    entry = self._refresh_entry(name, is_stored=True)
                    if entry is not None and entry.snapshot is not None and entry.encoder.failures:
                        entry.load_encoders(entry.snapshot)
                    # Opening an index may take minutes, and the other leases would expire.
                    self._renew_leases(every_s=LEASES_EVERY_S)
            self._renew_leases()
            for name in self._entries.keys() - names:
                self._forget(name, dropped=True)
            self._release_encoders()

    def _release_encoders(self) -> None:
        """Free the encoders that no open version has had for a while."""
        models = self.encoders.release(live.state.manifest for live in self.live_indexes())
        if models is not None:
            self.memory.keep_models(models)

    def _is_due(self, name: str) -> bool:
        """Return whether an index is to be looked at although no change of it was noted."""
        entry = self._entries.get(name)
        return (
            entry is None
            or self._clock() - entry.checked_at_s >= SWEEP_S
            or entry.failures > 0
            or self._versions.moved(name, entry.version)
        )

    def _renew_leases(self, *, every_s: float = 0.0) -> None:
        """Renew the leases that need it, unless that was done less than `every_s` ago."""
        now_s = self._clock()
        if self._leases is not None and now_s - self._leased_at_s >= every_s:
            self._leased_at_s = now_s
            for name, entry in self._entries.items():
                entry.hold(self._leases, self.held.holds(name).joined(self.former.holds(name)))

    def close(self) -> None:
        """Close all indexes; running queries finish on their snapshots."""
        self._closed = True
        self.held.forget()
        with self._lock:
            for name in list(self._entries):
                self._forget(name)
            if self._changes is not None:
                self._changes.close()
        if self._leases is not None:
            self._leases.release()

    def _find(self, name: str) -> CatalogEntry | None:
        """Return the entry of an index, as recent as queries need; None if there is no such index."""
        entry = self._entries.get(name)
        if entry is not None and self._is_old(entry):
            entry = self._checked(entry)
        if entry is not None and entry.alter_mark != self._alters.of(name):
            # Once: if another index is being opened, `refresh` opens this version after it.
            entry.alter_mark = self._alters.of(name)
            self.open_later(name, wait_s=self._upkeep.wait_s)
            entry = self._entries.get(name)
        if entry is None and self.serves(name):
            entry = self._looked_for(name)
        if entry is not None and entry.live is None and entry.opening.error is None:
            # It is being opened now by a thread that holds the lock.
            if self._lock.acquire(timeout=self._upkeep.wait_s):
                self._lock.release()
            entry = self._entries.get(name)
        return entry

    def _is_old(self, entry: CatalogEntry) -> bool:
        """Return whether an index may have been dropped or, without a watcher, moved to another version."""
        age_s = self._clock() - entry.checked_at_s
        return entry.drop_mark != self._drops.of(entry.name) or (
            not self._upkeep.watched and age_s >= self._upkeep.every_s
        )

    def _checked(self, entry: CatalogEntry) -> CatalogEntry | None:
        """Return the entry that an index has now; None if it is gone."""
        dropped = entry.drop_mark != self._drops.of(entry.name)
        # With a snapshot, a query does not wait for the thread that opens the next version. If another index is being
        # opened, `refresh` checks this one after it.
        with self._turn(self._upkeep.wait_s if dropped or entry.snapshot is None else 0) as held:
            if held and self._is_old(entry):
                self._refresh_entry(entry.name)
        return self._entries.get(entry.name)

    def _looked_for(self, name: str) -> CatalogEntry | None:
        """Return the entry of an index that another process may have created, whose caller may use it at once."""
        if not self._upkeep.watched:
            with self._turn(self._upkeep.wait_s):
                return self._refresh_entry(name)
        if not self._looks.acquire(timeout=self._upkeep.wait_s):
            # Whether there is such an index was not found out.
            raise _busy(name, "other requests look for such indexes", self._upkeep.wait_s)
        try:
            is_there = self.open_later(name)
        finally:
            self._looks.release()
        entry = self._entries.get(name)
        if entry is None and is_there:
            raise _busy(name, "it or another index is being opened", self._upkeep.wait_s)
        return entry

    def _forget(self, name: str, *, finish: bool = True, dropped: bool = False) -> None:
        entry = self._entries.pop(name, None)
        self.held.forget(name)
        self.former.forget(name)
        if entry is not None:
            if entry.live is not None:
                entry.live.dropped = dropped
            entry.close(finish=finish and not self._upkeep.watched)
            self.on_gone(name)
            if not self._closed:  # after a reload, other processes have it open
                self._opener.closed(name)
                _LOG.info("index %s is gone", name)

    def _chosen(self) -> set[str]:
        return set(filter(self.serves, self.store.folders()))

    def _refresh_entry(self, name: str, *, is_stored: bool = False) -> CatalogEntry | None:
        """Open the latest version of an index unless it is open. Errors are kept in the entry.

        `is_stored`: the index is in the store, so that its error is kept even if it was never open.
        """
        marks = self._drops.of(name), self._alters.of(name)  # before the store is read
        entry = self._moved_entry(name, is_stored=is_stored)
        if entry is not None:
            entry.drop_mark, entry.alter_mark = marks
        return entry

    def _moved_entry(self, name: str, *, is_stored: bool) -> CatalogEntry | None:
        entry = self._entries.get(name)
        if entry is not None:
            entry.checked_at_s = self._clock()
            if not entry.opening.due:
                return entry
        try:
            current = None if entry is None else entry.version
            version = self._versions.latest(name, current) if self.serves(name) else None
        except Exception as error:
            if entry is None and not is_stored:
                raise
            entry = self._entry(name)
            # Leaves may open it at any moment.
            leaves_lack_it = isinstance(error, UnavailableError)
            entry.opening.failed(
                f"index {name}: its versions cannot be listed", error, put_off=not leaves_lack_it
            )
            return entry
        if version is None:
            self._forget(name, dropped=True)
            return None
        entry = self._entry(name)
        self._move(entry, version)
        return entry

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
                manifest = self._opener.move(entry, version).whole_manifest
                if before is not None and before.manifest.index_id != manifest.index_id:
                    self.on_gone(entry.name)
                _LOG.info("index %s: version %d, %d datapoints", entry.name, manifest.version, manifest.rows)
            if not self._upkeep.watched:  # nothing else looks
                self._release_encoders()
        except Exception as error:  # noqa: BLE001  the open version and other indexes keep serving
            entry.opening.failed(f"index {entry.name}: version {version} cannot be opened", error)
        else:
            entry.opening.succeeded()
        with self.moved:
            self.moved.notify_all()

    def _unknown(self, name: str) -> UnknownIndexError:
        names = self.names()
        listing = f"there are: {', '.join(names[:20])}" if names else "there are none"
        near = difflib.get_close_matches(name[:80], names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return UnknownIndexError(f"index: there is no index {name!r:.100}; {listing}{hint}", field="index")

    @contextmanager
    def _turn(self, wait_s: float) -> Iterator[bool]:
        """Hold the lock, unless others do for some seconds; gives whether it is held. Raises ClosedError."""
        held = self._lock.acquire(timeout=max(0.0, min(wait_s, threading.TIMEOUT_MAX)))
        try:
            if held:
                self._check_open()
            yield held
        finally:
            if held:
                self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed")


def _busy(name: str, why: str, retry_after_s: float) -> OverloadedError:
    message = f"index: {name!r:.100} is not open here, and {why}; try again"
    return OverloadedError(message, field="index", retry_after_s=retry_after_s)
