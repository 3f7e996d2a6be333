"""The catalog of the embedded client: indexes are opened and refreshed on access, without background threads."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from typing_extensions import Self

from scannery.indexer import Manifest, Store, read_manifest
from scannery.live.live_index import LiveIndex
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.version_opener import is_stored
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["CHECK_EVERY_S", "EmbeddedCatalog"]

CHECK_EVERY_S = 1.0
"""Seconds between two checks. On access, an index is refreshed if its last check was this many seconds ago."""


class EmbeddedCatalog(BaseCatalog):
    """Checks for new versions and follows the log in the thread of the request. Safe to use from several threads."""

    # There is no server to continue it.
    finishes_maintenance = True
    drops_open = False

    @classmethod
    def open(cls, uri: str | Path, *, device: str = "auto", create: bool = False) -> Self:
        """Return the catalog of a store; NotFoundError or StoreError if there is none, and none may be created."""
        return cls(Store.open(uri, create=create), encoders=EncoderPool(device=device))

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of an index without opening it; raises as `read_manifest`."""
        return read_manifest(self._store, name)

    def open_snapshot(self, name: str) -> Snapshot | None:
        """Return the current snapshot of an index that is open, None of another; raises as `snapshot`."""
        entry = self._entries.get(name)
        return None if entry is None or entry.live is None else self.snapshot(name)

    def live(self, name: str) -> LiveIndex[Snapshot]:
        """Return the index with the current mutations of its log; raises as `snapshot`."""
        self.held.expire()
        live = super().live(name)
        # Without waiting for another thread that applies the log.
        live.catch_up(wait_s=0)
        return live

    def written(self) -> None:
        """Start maintenance that is due."""
        self.maintain()

    def _prepare(self, entry: CatalogEntry, snapshot: Snapshot) -> None:
        """Do nothing: the first text loads the encoder."""

    def _look_for_alias(self, name: str) -> None:
        is_known = name in self._entries or name in self._aliases.known
        self._aliases.refresh(older_than_s=CHECK_EVERY_S if is_known else 0)

    def _names(self) -> Collection[str]:
        return [name for name in self._chosen() if is_stored(self._store, name)]

    def _find(self, name: str) -> CatalogEntry | None:
        entry = self._entries.get(name)
        is_open = entry is not None and (entry.live is not None or entry.opening.error is not None)
        if entry is not None and is_open and self._clock() - entry.checked_at_s < CHECK_EVERY_S:
            return entry
        # With a snapshot, a query does not wait for the thread that opens the next version.
        if not self._lock.acquire(blocking=entry is None or entry.snapshot is None):
            return entry
        try:
            self._check_open()
            return self._refresh_entry(name)
        finally:
            self._lock.release()
