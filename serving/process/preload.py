"""Opens what workers share, once, before the fork: libraries, segments, encoders.

Nothing here may depend on a running thread, or compute with torch: neither survives a fork. So each worker by itself
opens a store in a bucket, whose client has threads, and an encoder on a device other than the CPU.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module

from scannery.embed.devices.cuda_devices import has_cuda
from scannery.indexer import (
    Manifest,
    OpenIndex,
    SegmentCache,
    Store,
    latest_version,
    read_manifest,
)
from scannery.live.log.homes import check_log_root
from scannery.live.log.location import log_root_of
from scannery.runtime.errors import UnknownIndexError
from scannery.runtime.tasks import SlowProgress
from scannery.serving.bridging.discovery import load_bridges
from scannery.serving.catalog.memory_budget import MemoryBudget
from scannery.serving.catalog.published_versions import is_stored
from scannery.serving.catalog.version_opener import ColdIndexes, open_within
from scannery.serving.config import EncoderConfig, ServerConfig
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.encoding.query_encoder import CACHED_BYTES
from scannery.serving.engine import hydrator
from scannery.serving.services.embedding import EncoderRegistry

__all__ = ["PreloadedState", "cold_indexes", "encoder_pool", "preload", "preload_encoders"]

_LOG = logging.getLogger(__name__)

# Modules that are otherwise imported when a server begins to listen. An import changes reference counts all over the
# heap, and each worker would copy megabytes of it. grpc may rename its modules.
_LATE_MODULES = ("encodings.idna", "grpc._interceptor", "grpc._server")


@dataclass(frozen=True)
class PreloadedState:
    """State that workers inherit by the fork."""

    encoders: EncoderPool
    """Encoders with models loaded, if these survive a fork."""
    indexes: dict[str, OpenIndex] = field(default_factory=dict)
    cold: ColdIndexes = field(default_factory=ColdIndexes)
    """The indexes whose vectors stay in the store."""
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    """Memory of the indexes and encoders, and its ceiling."""


def preload(
    config: ServerConfig, before: PreloadedState | None = None, *, workers: int = 1
) -> PreloadedState:
    """Open what can be shared; workers open the rest.

    Args:
        config: the options.
        before: of the last generation; what did not change is reused.
        workers: number of workers.

    Raises:
        NotFoundError, StoreError: the store does not exist or cannot be read, or the database of the logs.
        UnknownIndexError: a chosen index is not in the store.

    """
    store = Store.open(config.store)
    load_bridges(config)
    if config.traffic.is_on:
        import scannery.serving.traffic.traffic_log  # noqa: F401  workers share it
    if before is None:
        check_log_root(log_root_of(config.log))
    preloaded = PreloadedState(
        before.encoders if before else encoder_pool(config, workers),
        cold=before.cold if before else cold_indexes(config, workers),
        memory=before.memory if before else MemoryBudget(config.process_memory(workers), workers),
    )
    preloaded.memory.sharing(shared=True)
    manifests = list(_manifests(store, config)) if store.local_root is not None else []
    if before is None and config.indexes and store.local_root is not None:
        _check_named(store, config)
    # In parallel: opening is mostly reading and hashing, loading a model is mostly Python. With a ceiling, encoders of
    # indexes for which there is no room are not loaded.
    is_bounded = preloaded.memory.ceiling_bytes is not None
    with _without_collector(), ThreadPoolExecutor(1) as background:
        if before is None:
            rows = sum(manifest.rows for manifest in manifests)
            _LOG.info("opening %s: indexes %d, datapoints %d", config.store, len(manifests), rows)
        load = partial(_load_encoders, encoders=preloaded.encoders, config=config)
        loading = None if is_bounded else background.submit(load, manifests)
        progress = SlowProgress(_LOG, "indexes opened", len(manifests))
        for manifest in manifests:
            _open(store, manifest, preloaded, before, config)
            progress.step()
        if loading is None:
            loading = background.submit(load, [each for each in manifests if each.index in preloaded.indexes])
        if not loading.done():
            _LOG.info("loading the encoders")
        loading.result()
    preloaded.encoders.release(manifests)
    # A collection takes 0.15 s, and only a reload leaves garbage: what it replaced.
    if before is not None:
        gc.collect()
    _settle()
    return preloaded


def preload_encoders(config: EncoderConfig, before: EncoderRegistry | None = None) -> EncoderRegistry:
    """Load the encoders of an encoder process, if they survive a fork.

    Raises:
        EncoderUnavailableError, UnknownIndexError, NotFoundError, StoreError: as `EncoderRegistry.refresh`.

    """
    encoders = before or EncoderRegistry(config)
    local = not config.store or Store.open(config.store).local_root is not None
    if local and _forks_well(config.device):
        encoders.refresh()
    gc.collect()
    _settle()
    return encoders


def encoder_pool(config: ServerConfig, workers: int) -> EncoderPool:
    """Return the encoder pool of each of some workers; models load on first use."""
    processes = config.process_memory(workers)
    return EncoderPool(
        device=config.device,
        reranker=config.reranker,
        remote=config.encoder,
        store=config.store,
        cached=config.cached_queries,
        cached_bytes=CACHED_BYTES if processes is None else processes.worker_queries_bytes,
    )


def cold_indexes(config: ServerConfig, workers: int) -> ColdIndexes:
    """Return the cold and compact indexes of each of some workers."""
    processes = config.process_memory(workers)
    return ColdIndexes(
        config.cold,
        compact=config.compact,
        max_bytes=None if processes is None else processes.worker_cold_bytes,
    )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable garbage collection: while modules and models load, it takes 0.3 s and finds nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _settle() -> None:
    """Keep workers from copying the memory pages that exist now."""
    for name in _LATE_MODULES:
        with suppress(ImportError):
            import_module(name)
    # The collector would touch, and so copy, every page.
    gc.freeze()


def _check_named(store: Store, config: ServerConfig) -> None:
    # Workers check this as well; here it fails the start. An index that cannot be read counts as present.
    if missing := [name for name in config.indexes if not is_stored(store, name)]:
        raise UnknownIndexError.missing(missing, config.store)


def _manifests(store: Store, config: ServerConfig) -> Iterator[Manifest]:
    for name in sorted(store.folders()):
        if config.indexes and name not in config.indexes:
            continue
        try:
            manifest = read_manifest(store, name) if latest_version(store, name) is not None else None
        except Exception as error:  # noqa: BLE001  it concerns this index only
            _log_not_shared(name, error)
        else:
            if manifest is not None:
                yield manifest


def _open(
    store: Store,
    manifest: Manifest,
    preloaded: PreloadedState,
    before: PreloadedState | None,
    config: ServerConfig,
) -> None:
    name = manifest.index
    try:
        index = open_within(
            preloaded.memory,
            store,
            manifest,
            models=_models(preloaded.encoders, config),
            cache=SegmentCache(),
            reuse=before.indexes.get(name) if before else None,
            shards=config.shards,
            cold=preloaded.cold.reads_of(name),
        )
        hydrator.warm_up(index.segments, index.spec)
        _ = index.words  # the documents of its segments, which each worker would number for itself
        preloaded.indexes[name] = index
    except Exception as error:  # noqa: BLE001  it concerns this index only
        _log_not_shared(name, error)


def _log_not_shared(name: str, error: Exception) -> None:
    # Workers log the same as an error, retry, and serve the other indexes.
    _LOG.debug("index %s is not shared: %s", name, error)


def _encodes(config: ServerConfig) -> bool:
    """Return whether encoders are loaded before the fork.

    A connection to another process does not survive a fork; each worker makes its own. Leaves get vectors.
    """
    return config.encoder is None and config.role != "leaf" and _forks_well(config.device)


def _models(encoders: EncoderPool, config: ServerConfig) -> Callable[[Manifest], Mapping[str, int]]:
    return encoders.memory_of if _encodes(config) else lambda manifest: {}


def _load_encoders(manifests: Sequence[Manifest], encoders: EncoderPool, config: ServerConfig) -> None:
    encoded = [each for manifest in manifests for each in manifest.encoded.values()]
    if not encoded or not _encodes(config):
        return
    for manifest in encoded:
        try:
            encoders.encoder_of(manifest)
        except Exception as error:  # noqa: BLE001  vector queries still work, and workers report it
            _LOG.debug("%s", error)


def _forks_well(device: str) -> bool:
    if device == "cpu":
        return True
    return device == "auto" and not has_cuda()
