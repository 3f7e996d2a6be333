"""The catalog of servers, refreshed in the background, so that no request waits for files.

Threads that keep a server's catalog up to date.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cached_property, partial
from threading import Lock
from typing import Any

from scannery.indexer import IndexerError, LeaseHolder, Manifest, Store, latest_version, read_manifest
from scannery.live.log_follower import LogFollower
from scannery.live.maintenance.scheduler import SWEEP_S
from scannery.runtime.errors import OverloadedError
from scannery.runtime.retry import Deadline, RetryState
from scannery.runtime.sharing import SharedMarks
from scannery.runtime.tasks import PeriodicTask, SlowProgress
from scannery.serving.catalog.base_catalog import OPEN_S, BaseCatalog
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.held_snapshots import Holds
from scannery.serving.security.principal import CURRENT
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["ServerCatalog", "Watcher"]


_LOG = logging.getLogger(__name__)

LOOK_WAIT_S = 0.25
"""Most seconds that a request waits for its turn to look into the store for an index that is not known here."""
LEASES_EVERY_S = 10.0
"""Seconds between two renewals of leases while indexes are opened; a lease that is not renewed lasts for minutes."""
SMALL_BYTES = 1 << 20
"""Size of the segments, besides those that are open, of a version that opens in milliseconds."""


class ServerCatalog(BaseCatalog):
    """Indexes as of the last `refresh`, which a `Watcher` calls. Safe to use from several threads."""

    finishes_maintenance = False
    drops_open = True

    def __init__(
        self,
        store: Store,
        *,
        drops: SharedMarks | None = None,
        alters: SharedMarks | None = None,
        **options: Any,
    ) -> None:
        """Prepare; further arguments are those of `BaseCatalog`.

        Args:
            store: with the indexes.
            drops: marks of dropped indexes that the workers of this server share; None: it has no others.
            alters: likewise of altered indexes.
            options: of `BaseCatalog`.

        """
        super().__init__(store, **options)
        self._drops, self._alters = drops or SharedMarks(), alters or SharedMarks()
        self._changes = store.changes()
        self._leased_at_s = float("-inf")
        """When all leases were last looked at."""
        self._looks = Lock()
        """Held by the one request that looks for an unknown index: requests for such must not load the store."""

    @cached_property
    def _leases(self) -> LeaseHolder:
        return LeaseHolder(self._store)

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of the open version; raises as `snapshot`."""
        return self.snapshot(name).manifest

    def open_snapshot(self, name: str) -> Snapshot | None:
        """Return the current snapshot of an index; None if it is not known here, or not for this caller."""
        entry = self._entries.get(name)
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
        return live.snapshot

    def drop(self, name: str, deadline: Deadline) -> None:
        """As `BaseCatalog.drop`; after it, no worker of this server answers from the index."""
        try:
            super().drop(name, deadline)
        finally:  # also if it fails after the index has become invisible
            self._drops.change(name)

    def altered(self, name: str) -> None:
        """As `BaseCatalog.altered`; the other workers of this server open the version before they use the index."""
        self._alters.change(name)
        super().altered(name)

    def open_later(self, name: str) -> None:
        """As `BaseCatalog.open_later`; a version with more than SMALL_BYTES that are not open is left to `refresh`."""
        self._open_if_small(name)

    def written(self) -> None:
        """Do nothing: the watcher starts maintenance."""

    def refresh(self) -> None:
        """Open new indexes and versions with their encoders, renew leases, and drop removed indexes.

        Raises:
            StoreError: the store cannot be listed; nothing changes.

        """
        with self._lock:
            # Before the store is read: what changes from now on is noted for the next time.
            changed = self._changes.changed()
            names = self._chosen()
            progress = SlowProgress(_LOG, "indexes looked at", len(names))
            for name in names:
                progress.step()
                if self._closed:
                    return
                if (changed is not None and name in changed) or self._is_due(name):
                    self._refresh_index(name)
                    # Opening an index may take minutes, and the other leases would expire.
                    self._renew_leases(every_s=LEASES_EVERY_S)
            self._renew_leases()
            for name in self._entries.keys() - names:
                self._forget(name, dropped=True)

    def _is_due(self, name: str) -> bool:
        """Return whether an index is to be looked at although no change of it was noted."""
        entry = self._entries.get(name)
        return entry is None or self._clock() - entry.checked_at_s >= SWEEP_S or entry.failures > 0

    def close(self) -> None:
        """Close all indexes; running queries finish on their snapshots."""
        super().close()
        with self._lock:
            self._changes.close()
        self._leases.release()

    def _look_for_alias(self, name: str) -> None:
        # The watcher looks for changes of the others.
        if name in self._entries or name in self._aliases.known:
            return
        # Another worker may have set it, and its caller may use it at once.
        if self._looks.acquire(timeout=LOOK_WAIT_S):
            try:
                self._aliases.refresh()
            finally:
                self._looks.release()

    def _names(self) -> Collection[str]:
        return list(self._entries)

    def _find(self, name: str) -> CatalogEntry | None:
        entry = self._entries.get(name)
        if entry is not None and self._may_be_dropped(entry):
            entry = self._checked(entry)
        if entry is not None and self._may_be_altered(entry):
            # Once: if another index is being opened, `refresh` opens this version after it.
            entry.alter_mark = self._alters.of(name)
            self._open_if_small(name, wait_s=LOOK_WAIT_S)
            entry = self._entries.get(name)
        if entry is None and self.serves(name):
            entry = self._looked_for(name)
        if entry is not None and entry.live is None and entry.opening.error is None:
            # It is being opened now by `refresh`, which holds the lock.
            if self._lock.acquire(timeout=LOOK_WAIT_S):
                self._lock.release()
            entry = self._entries.get(name)
        return entry

    def _looked_for(self, name: str) -> CatalogEntry | None:
        """Return the entry of an index that another worker may have created, whose caller may use it at once."""
        if not self._looks.acquire(timeout=LOOK_WAIT_S):
            # Whether there is such an index was not found out.
            raise _busy(name, "other requests look for such indexes")
        try:
            is_there = self._open_if_small(name)
        finally:
            self._looks.release()
        entry = self._entries.get(name)
        if entry is None and is_there:
            raise _busy(name, "another index is being opened")
        return entry

    def _may_be_dropped(self, entry: CatalogEntry) -> bool:
        return entry.drop_mark != self._drops.of(entry.name)

    def _may_be_altered(self, entry: CatalogEntry) -> bool:
        return entry.alter_mark != self._alters.of(entry.name)

    def _checked(self, entry: CatalogEntry) -> CatalogEntry | None:
        """Return the entry that an index has after a drop by another worker; None if it is gone."""
        # If another index is being opened, `refresh` checks this one after it.
        if self._lock.acquire(timeout=LOOK_WAIT_S):
            try:
                self._check_open()
                if self._may_be_dropped(entry):
                    self._refresh_entry(entry.name)
            finally:
                self._lock.release()
        return self._entries.get(entry.name)

    def _refresh_entry(self, name: str, *, known: bool = False) -> CatalogEntry | None:
        marks = self._drops.of(name), self._alters.of(name)  # before the store is read
        entry = super()._refresh_entry(name, known=known)
        if entry is not None:
            entry.drop_mark, entry.alter_mark = marks
        return entry

    def _open_if_small(self, name: str, *, wait_s: float = OPEN_S) -> bool:
        """Open an index or a version that may just have been made, and return whether there is one.

        What takes longer to open is left to `refresh`; so is this index if another one is being opened for
        `wait_s` seconds.
        """
        with suppress(IndexerError):
            version = latest_version(self._store, name)
            if version is not None and self._new_bytes(name, version) <= SMALL_BYTES:
                self.open_created(name, wait_s=wait_s)
                return True
        return False

    def _new_bytes(self, name: str, version: int) -> int:
        """Return the size of the files of a version that are not open here."""
        entry = self._entries.get(name)
        snapshot = None if entry is None else entry.snapshot
        known = set() if snapshot is None else {file.key for file in snapshot.manifest.files}
        files = read_manifest(self._store, name, version).files
        return sum(file.size_bytes for file in files if file.key not in known)

    def _refresh_index(self, name: str) -> None:
        entry = self._refresh_entry(name, known=True)
        if entry is not None and entry.snapshot is not None and entry.encoder.failures:
            entry.load_encoder(entry.snapshot)

    def _prepare(self, entry: CatalogEntry, snapshot: Snapshot) -> None:
        entry.load_encoder(snapshot)

    def _renew_leases(self, *, every_s: float = 0.0) -> None:
        """Renew the leases that need it, unless that was done less than `every_s` ago."""
        now_s = self._clock()
        if now_s - self._leased_at_s < every_s:
            return
        self._leased_at_s = now_s
        for entry in self._entries.values():
            entry.hold(self._leases, self._holds(entry.name))

    def _holds(self, name: str) -> Holds:
        """Return what the store must keep of an index besides its open version."""
        return self.held.holds(name)


def _busy(name: str, why: str) -> OverloadedError:
    message = f"index: {name!r:.100} is not open here, and {why}; try again"
    return OverloadedError(message, field="index", retry_after_s=LOOK_WAIT_S)


CHECK_EVERY_S = 1.0
ALIASES_EVERY_S = 0.5
"""Apart from versions, which may take minutes to open."""


class Watcher:
    """Opens new versions, starts maintenance, and follows the logs; each continues if another fails."""

    def __init__(
        self,
        catalog: ServerCatalog,
        *,
        every_s: float = CHECK_EVERY_S,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; `start` runs the threads.

        Args:
            catalog: to keep up to date.
            every_s: seconds between checks for new versions.
            after: called after each check.

        """
        self._catalog = catalog
        self._after = after
        failed = catalog.note_failure
        self._tasks = [
            (what, run, RetryState(on_failure=partial(failed, name)))
            for name, what, run in (
                ("look", "cannot check for new versions", catalog.refresh),
                ("maintain", "cannot start maintenance", catalog.maintain),
                ("report", "cannot report the health of indexes", after),
            )
        ]
        self._follower = LogFollower(
            catalog.live_indexes, catalog.log_changes(), on_failure=partial(failed, "tail")
        )
        self._refreshing = PeriodicTask("watcher", self._refresh, every_s=every_s)
        self._renaming = PeriodicTask(
            "aliases",
            catalog.refresh_aliases,
            every_s=min(every_s, ALIASES_EVERY_S),
            on_failure=partial(failed, "aliases"),
        )

    def start(self) -> None:
        """Open all indexes that can be opened, then start the threads.

        Raises:
            StoreError: the store cannot be read.

        """
        self._catalog.refresh()
        with suppress(IndexerError):  # the task tells it
            self._catalog.refresh_aliases()
        self._after()
        self._follower.start()
        self._refreshing.start()
        self._renaming.start()

    def stop(self) -> None:
        """Stop the threads; waits for a version that is being opened."""
        self._refreshing.stop()
        self._renaming.stop()
        self._follower.stop()

    def _refresh(self) -> None:
        for what, run, retry in self._tasks:
            retry.run(what, run)
