"""What the supervisor of a server opens once, for its workers to share: libraries, segments, encoders.

Nothing here may run a thread that its users need, or compute with torch: neither survives a fork. So a store in a
bucket, whose client has threads, is opened by each worker, as is an encoder on anything but the CPU.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module

from scannery.indexer import (
    Manifest,
    OpenIndex,
    Store,
    latest_version,
    open_index,
    read_manifest,
)
from scannery.runtime.errors import UnknownIndexError
from scannery.serving.catalog.version_opener import is_stored
from scannery.serving.config import EncoderConfig, ServerConfig
from scannery.serving.encoding.query_encoder import EncoderPool
from scannery.serving.engine import hydrator
from scannery.serving.services.encoder_registry import EncoderRegistry

__all__ = ["Preloaded", "encoder_pool", "preload", "preload_encoders"]

_LOG = logging.getLogger(__name__)

# What is imported when a server begins to listen. An import counts references to names that lie all over the heap, and
# each worker would copy megabytes of it. grpc may call its modules otherwise one day.
_LATE_MODULES = ("encodings.idna", "grpc._interceptor", "grpc._server")


@dataclass(frozen=True)
class Preloaded:
    """Ready before the fork."""

    encoders: EncoderPool
    """Their models are loaded where these survive a fork."""
    indexes: dict[str, OpenIndex] = field(default_factory=dict)


def preload(config: ServerConfig, before: Preloaded | None = None) -> Preloaded:
    """Open what can be shared; `before` keeps what did not change. What cannot be opened is left to the workers.

    Raises:
        NotFoundError, StoreError: there is no such store.
        UnknownIndexError: it has not all of the chosen indexes.

    """
    store = Store.open(config.store)
    preloaded = Preloaded(before.encoders if before else encoder_pool(config))
    manifests = list(_manifests(store, config)) if store.local_root is not None else []
    if before is None and config.indexes and store.local_root is not None:
        _check_named(store, config)
    # Most of opening is reading and hashing, most of loading a model is Python: together they take less time.
    with _without_collector(), ThreadPoolExecutor(1) as background:
        loading = background.submit(_load_encoders, manifests, preloaded.encoders, config)
        for manifest in manifests:
            _open(store, manifest, preloaded, before)
        loading.result()
    # At a start there is next to no garbage, and looking for it takes 0.15 s; what a reload replaces is some.
    if before is not None:
        gc.collect()
    _settle()
    return preloaded


def preload_encoders(config: EncoderConfig, before: EncoderRegistry | None = None) -> EncoderRegistry:
    """Load the encoders of an encoder process, where they survive a fork.

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


def encoder_pool(config: ServerConfig) -> EncoderPool:
    """Return the encoders of a server; nothing is loaded yet."""
    return EncoderPool(
        device=config.device,
        reranker=config.reranker,
        remote=config.encoder,
        cached=config.cached_queries,
    )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Modules and models stay: looking among them for garbage again and again takes 0.3 s, and finds none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _settle() -> None:
    """Spare the workers what would have them copy the pages that are there now."""
    for name in _LATE_MODULES:
        with suppress(ImportError):
            import_module(name)
    # The collector would touch, and so copy, every page.
    gc.freeze()


def _check_named(store: Store, config: ServerConfig) -> None:
    # Every worker would say so, too; here it is the error of the whole. One that cannot be read is there.
    if missing := [name for name in config.indexes if not is_stored(store, name)]:
        raise UnknownIndexError.missing(missing, config.store)


def _manifests(store: Store, config: ServerConfig) -> Iterator[Manifest]:
    for name in store.folders():
        if config.indexes and name not in config.indexes:
            continue
        try:
            found = read_manifest(store, name) if latest_version(store, name) is not None else None
        except Exception as error:  # noqa: BLE001  it is of this index alone
            _log_not_shared(name, error)
        else:
            if found is not None:
                yield found


def _open(store: Store, manifest: Manifest, preloaded: Preloaded, before: Preloaded | None) -> None:
    name = manifest.index
    try:
        reuse = before.indexes.get(name) if before else None
        index = open_index(store, name, manifest.version, reuse=reuse)
        hydrator.warm_up(index.segments, index.spec)
        preloaded.indexes[name] = index
    except Exception as error:  # noqa: BLE001  it is of this index alone
        _log_not_shared(name, error)


def _log_not_shared(name: str, error: Exception) -> None:
    # The workers say the same, keep trying, and serve the other indexes.
    _LOG.debug("index %s is not shared: %s", name, error)


def _load_encoders(manifests: Sequence[Manifest], encoders: EncoderPool, config: ServerConfig) -> None:
    wanted = [manifest for manifest in manifests if manifest.spec.encoder is not None]
    # A connection to another process does not survive a fork; each worker makes its own.
    if config.encoder is not None or not wanted or not _forks_well(config.device):
        return
    for manifest in wanted:
        try:
            encoders.encoder_of(manifest)
        except Exception as error:  # noqa: BLE001  vector queries still work, and the workers report it
            _LOG.debug("%s", error)


def _forks_well(device: str) -> bool:
    if device == "cpu":
        return True
    import torch

    return device == "auto" and not torch.cuda.is_available()
