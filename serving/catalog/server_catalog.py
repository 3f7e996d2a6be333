"""The indexes of a store, kept up to date in the background: no request waits for a file."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from scannery.indexer import LeaseHolder, Manifest
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["ServerCatalog"]


class ServerCatalog(BaseCatalog):
    """Has open what the last `refresh` found; a `Watcher` calls it. Safe to use from several threads."""

    finishes_maintenance = False

    @cached_property
    def _leases(self) -> LeaseHolder:
        return LeaseHolder(self._store)

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of the version that is open; raises as `snapshot`."""
        return self.snapshot(name).manifest

    def open_snapshot(self, name: str) -> Snapshot:
        """Return the current snapshot of an index; raises as `snapshot`."""
        return self.snapshot(name)

    def written(self) -> None:
        """Do nothing: the watcher has due maintenance started."""

    def refresh(self) -> None:
        """Open new indexes and versions with their encoders, announce them, and drop indexes that are gone.

        Raises:
            StoreError: the store cannot be listed; everything stays as it is.

        """
        with self._lock:
            self._renew_leases()
            names = self._chosen()
            for name in names:
                if not self._closed:
                    self._refresh_index(name)
                # After each: to open one may take minutes, in which the leases of the others would expire.
                self._renew_leases()
            for name in self._entries.keys() - names:
                self._forget(name)

    def close(self) -> None:
        """Close all indexes; queries that run finish on what they hold."""
        super().close()
        self._leases.release()

    def _names(self) -> Collection[str]:
        return [name for name, entry in list(self._entries.items()) if entry.snapshot]

    def _find(self, name: str) -> CatalogEntry | None:
        return self._entries.get(name)

    def _refresh_index(self, name: str) -> None:
        entry = self._look(name, known=True)
        if entry is not None and entry.snapshot is not None and entry.encoder.failures:
            entry.load_encoder(entry.snapshot)

    def _prepare(self, entry: CatalogEntry, snapshot: Snapshot) -> None:
        entry.load_encoder(snapshot)

    def _renew_leases(self) -> None:
        for entry in self._entries.values():
            entry.hold(self._leases)
