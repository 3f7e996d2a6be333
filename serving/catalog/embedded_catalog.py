"""The indexes of a store, opened and looked after when they are asked for: for an engine without a server."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from typing_extensions import Self

from scannery.indexer import Manifest, Store, read_manifest
from scannery.live.live_index import LiveIndex
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.version_opener import is_stored
from scannery.serving.encoding.query_encoder import EncoderPool
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["CHECK_EVERY_S", "EmbeddedCatalog"]

CHECK_EVERY_S = 1.0
"""An index that is asked for is looked at again after this many seconds."""


class EmbeddedCatalog(BaseCatalog):
    """Looks for new versions and follows the log in the thread of the request. Safe to use from several threads."""

    # No server goes on with it.
    finishes_maintenance = True

    @classmethod
    def open(cls, uri: str | Path, *, device: str = "auto") -> Self:
        """Return the catalog of a store; NotFoundError or StoreError if there is none."""
        return cls(Store.open(uri), encoders=EncoderPool(device=device))

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of an index, which is not opened for it; raises as `read_manifest`."""
        return read_manifest(self._store, name)

    def open_snapshot(self, name: str) -> None:
        """Return None: what is open may be old."""

    def live(self, name: str) -> LiveIndex[Snapshot]:
        """Return the index with what its log has now; raises as `snapshot`."""
        live = super().live(name)
        # Another thread that is applying the log is not awaited.
        live.catch_up(wait_s=0)
        return live

    def written(self) -> None:
        """Have sealed and merged what is due."""
        self.maintain()

    def _prepare(self, entry: CatalogEntry, snapshot: Snapshot) -> None:
        """Do nothing: the encoder is loaded with the first text."""

    def _names(self) -> Collection[str]:
        return [name for name in self._chosen() if is_stored(self._store, name)]

    def _find(self, name: str) -> CatalogEntry | None:
        entry = self._entries.get(name)
        is_open = entry is not None and (entry.live is not None or entry.opening.error is not None)
        if entry is not None and is_open and self._clock() - entry.checked_at_s < CHECK_EVERY_S:
            return entry
        # A thread that has a snapshot does not wait while another one opens the next.
        if not self._lock.acquire(blocking=entry is None or entry.snapshot is None):
            return entry
        try:
            self._check_open()
            return self._look(name)
        finally:
            self._lock.release()
