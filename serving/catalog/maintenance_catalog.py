"""The catalog of a process that maintains indexes and serves none of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from scannery.indexer import NO_SHARDS, Manifest, Store
from scannery.live.maintenance.locks import Task
from scannery.live.maintenance.scheduler import Maintenance, TaskResult
from scannery.serving.catalog.entry import CatalogEntry
from scannery.serving.catalog.server_catalog import ServerCatalog
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["MaintenanceCatalog"]

_LOG = logging.getLogger(__name__)


class MaintenanceCatalog(ServerCatalog):
    """Versions without their segments, and logs whose rows are only counted. Safe to use from several threads."""

    def __init__(
        self, store: Store, *, fill_cache: bool, on_end: Callable[[TaskResult], object], **options: Any
    ) -> None:
        """Prepare; further arguments are those of `ServerCatalog`.

        Args:
            store: with the indexes.
            fill_cache: whether tasks unpack new segments into the cache of this machine, for servers.
            on_end: called with each task that has ended.
            options: of `ServerCatalog`.

        """
        super().__init__(store, shards=NO_SHARDS, **options)
        maintenance = partial(Maintenance, fill_cache=fill_cache, on_end=on_end)
        self._opener = replace(self._opener, maintenance=maintenance)

    def running(self) -> list[tuple[str, Task]]:
        """Return the index and the name of each task that runs."""
        entries = list(self._entries.values())
        return [
            (entry.name, task) for entry in entries if entry.maintenance for task in entry.maintenance.running
        ]

    def _prepare(self, entry: CatalogEntry, snapshot: Snapshot) -> None:
        """Do nothing: no text is encoded."""

    def _tell_move(self, manifest: Manifest) -> None:
        _LOG.info("index %s: version %d", manifest.index, manifest.version)  # its rows are not opened here

    def _renew_leases(self, *, every_s: float = 0.0) -> None:
        """Do nothing: no file of a version is read here, and tasks have leases of their own."""
