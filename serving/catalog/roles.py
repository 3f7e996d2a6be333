"""The catalogs that there are: of servers, of the embedded client, and of the processes of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scannery.indexer import NO_SHARDS, LeaseHolder, Shards, Store
from scannery.live.leaf_index import LeafIndex
from scannery.live.live_index import LiveIndex
from scannery.live.maintenance.scheduler import Maintenance, TaskResult
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.published_versions import ON_ACCESS, WatchedLeaves
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.engine.remote.leaf_scan import LeafWriteRows

__all__ = [
    "embedded_catalog",
    "leaf_catalog",
    "maintenance_catalog",
    "open_embedded_catalog",
    "root_catalog",
    "server_catalog",
]


def server_catalog(store: Store, **options: Any) -> Catalog:
    """Return the catalog of a server of whole indexes; options as of `Catalog`."""
    return Catalog(store, leases=LeaseHolder(store), encodes=True, **options)


def embedded_catalog(store: Store, **options: Any) -> Catalog:
    """Return the catalog of a process without threads beside its requests; options as of `Catalog`."""
    return Catalog(store, upkeep=ON_ACCESS, **options)


def open_embedded_catalog(uri: str | Path, *, device: str = "auto", create: bool = False) -> Catalog:
    """Return the embedded catalog of a store; NotFoundError or StoreError if there is none, and none may be created."""
    store = Store.open(uri, create=create)
    return embedded_catalog(store, encoders=EncoderPool(device=device, store=store.uri))


def root_catalog(store: Store, leaves: WatchedLeaves, **options: Any) -> Catalog:
    """Return the catalog of a root: manifests of the versions that its leaves serve, and writes to the logs.

    Args:
        store: with the indexes.
        leaves: have the rows, and tell their versions.
        options: as of `Catalog`.

    """
    return Catalog(
        store,
        leases=LeaseHolder(store),
        leaves=leaves,
        encodes=True,
        shards=NO_SHARDS,
        live=partial(LiveIndex, rows=LeafWriteRows(leaves)),
        maintenance=None,
        **options,
    )


def leaf_catalog(store: Store, shards: Shards, **options: Any) -> Catalog:
    """Return the catalog of a leaf: some shards, in the states that roots ask for; queries come as vectors.

    Args:
        store: with the indexes.
        shards: those of its group.
        options: as of `Catalog`.

    """
    leases = LeaseHolder(store)
    return Catalog(store, leases=leases, shards=shards, live=LeafIndex, maintenance=None, **options)


def maintenance_catalog(
    store: Store, *, fill_cache: bool, on_end: Callable[[TaskResult], object], **options: Any
) -> Catalog:
    """Return the catalog of a process that maintains indexes: manifests, and logs whose rows are only counted.

    It reads no file of a version that a lease would protect, and its tasks have leases of their own.

    Args:
        store: with the indexes.
        fill_cache: whether tasks unpack new segments into the cache of this machine, for servers.
        on_end: called with each task that has ended.
        options: as of `Catalog`.

    """
    maintenance = partial(Maintenance, fill_cache=fill_cache, on_end=on_end)
    return Catalog(store, shards=NO_SHARDS, maintenance=maintenance, **options)
