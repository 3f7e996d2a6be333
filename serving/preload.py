"""What the supervisor of a server opens once, for its workers to share: libraries, segments, encoders.

Nothing here may run a thread that its users need, or compute with torch: neither survives a fork. So a store in a
bucket, whose client has threads, is opened by each worker, as is an encoder on anything but the CPU.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass, field

from scannery.indexer import IndexerError, OpenIndex, Store, latest_version, open_index
from scannery.serving import hydrate
from scannery.serving.config import EncoderConfig, ServerConfig
from scannery.serving.encoding import EncoderPool
from scannery.serving.errors import EncoderUnavailableError
from scannery.serving.shelf import Shelf

__all__ = ["Preloaded", "encoder_pool", "preload", "preload_encoders"]

_LOG = logging.getLogger(__name__)


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

    """
    store = Store.open(config.store)
    preloaded = Preloaded(before.encoders if before else encoder_pool(config))
    if store.local_root is not None:
        for name in store.folders():
            if not config.indexes or name in config.indexes:
                _open(store, name, preloaded, before)
    # A connection to another process does not survive a fork; each worker makes its own.
    here = config.encoder is None and any(index.spec.encoder for index in preloaded.indexes.values())
    if here and _forks_well(config.device):
        for index in preloaded.indexes.values():
            _load_encoder(index, preloaded.encoders)
    # The collector would touch, and so copy, every page of it in every worker.
    gc.collect()
    gc.freeze()
    return preloaded


def preload_encoders(config: EncoderConfig, before: Shelf | None = None) -> Shelf:
    """Load the encoders of an encoder process, where they survive a fork.

    Raises:
        EncoderUnavailableError, UnknownIndexError, NotFoundError, StoreError: as `Shelf.refresh`.

    """
    shelf = before or Shelf(config)
    local = not config.store or Store.open(config.store).local_root is not None
    if local and _forks_well(config.device):
        shelf.refresh()
    gc.collect()
    gc.freeze()
    return shelf


def encoder_pool(config: ServerConfig) -> EncoderPool:
    """Return the encoders of a server; nothing is loaded yet."""
    return EncoderPool(device=config.device, reranker=config.reranker, remote=config.encoder)


def _open(store: Store, name: str, preloaded: Preloaded, before: Preloaded | None) -> None:
    try:
        if latest_version(store, name) is not None:
            reuse = before.indexes.get(name) if before else None
            index = open_index(store, name, reuse=reuse)
            hydrate.warm_up(index.segments, index.spec)
            preloaded.indexes[name] = index
    except IndexerError as error:
        # The workers say the same, keep trying, and serve the other indexes.
        _LOG.debug("index %s is not shared: %s", name, error)


def _load_encoder(index: OpenIndex, encoders: EncoderPool) -> None:
    if index.spec.encoder is None:
        return
    try:
        encoders.encoder_of(index.manifest)
    except EncoderUnavailableError as error:
        _LOG.debug("%s", error)


def _forks_well(device: str) -> bool:
    if device == "cpu":
        return True
    import torch

    return device == "auto" and not torch.cuda.is_available()
