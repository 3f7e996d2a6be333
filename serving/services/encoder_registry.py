"""The encoders of an encoder process: those of the indexes of its store, and those of its options.

Only manifests and options name models, never requests. A model that several indexes share is loaded once.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from scannery.indexer import Manifest, Store, latest_version, read_manifest
from scannery.runtime.errors import EncoderUnavailableError, UnknownIndexError
from scannery.runtime.paths import current_folder, placed_model
from scannery.runtime.retry import RetryState
from scannery.serving.config import EncoderConfig
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.embedding import ServedEncoder

if TYPE_CHECKING:
    from scannery.embed import Encoder

__all__ = ["EncoderRegistry"]

_LOG = logging.getLogger(__name__)


class EncoderRegistry:
    """Loaded encoders by fingerprint. Safe to use from several threads."""

    def __init__(self, config: EncoderConfig) -> None:
        """Prepare; `refresh` loads the encoders that `config` names."""
        self._config = config
        self._folder = current_folder()
        self._pool = EncoderPool(device=config.device, cached=config.cached_queries)
        self.observer = self._pool.observer
        """Gets the batch sizes and cache hits of all encoders."""
        self._served: dict[str, ServedEncoder] = {}
        self._versions: dict[str, int] = {}
        self._retries: dict[str, RetryState] = {}
        self._store: Store | None = None
        self._lock = threading.Lock()

    def encoders(self, index: str) -> list[ServedEncoder]:
        """Return the encoders that the caller can see: of an index, or all (empty name).

        A caller limited to some indexes sees their encoders only.
        """
        principal = CURRENT.get()
        served = list(self._served.values())
        if principal is not None and principal.indexes is not None:
            served = [
                replace(one, indexes=one.indexes & principal.indexes)
                for one in served
                if one.indexes & principal.indexes
            ]
        return [one for one in served if not index or index in one.indexes]

    def refresh(self) -> None:
        """Load new encoders of the options and of the store.

        Raises:
            EncoderUnavailableError: a model of the options cannot be loaded.
            UnknownIndexError: a chosen index is not in the store.
            NotFoundError, StoreError: the store cannot be read.

        """
        with self._lock:
            for model in self._config.models:
                if model not in self._versions:
                    self._add_model(model)
                    self._versions[model] = 0
            if self._config.store:
                # Opened once: a relative path must keep its meaning.
                self._store = self._store or Store.open(self._config.store)
                self._refresh_store(self._store)

    def _refresh_store(self, store: Store) -> None:
        names = [name for name in store.folders() if not self._config.indexes or name in self._config.indexes]
        if missing := set(self._config.indexes) - set(names):
            raise UnknownIndexError.missing(missing, self._config.store)
        for name in names:
            retry = self._retries.setdefault(name, RetryState())
            retry.run(f"the encoder of index {name} is not served", partial(self._refresh_index, store, name))

    def _refresh_index(self, store: Store, name: str) -> None:
        version = latest_version(store, name)
        if version is not None and self._versions.get(f"index/{name}") != version:
            self._add_index(read_manifest(store, name, version))
            self._versions[f"index/{name}"] = version

    def _add_index(self, manifest: Manifest) -> None:
        keys = {self._loaded(each) for each in manifest.encoded.values()}
        # A new version may name another encoder; the old one is dropped after the new one is loaded.
        for other, one in list(self._served.items()):
            own = {manifest.index}
            indexes = one.indexes | own if other in keys else one.indexes - own
            self._served[other] = replace(one, indexes=indexes)

    def _loaded(self, manifest: Manifest) -> str:
        """Load the encoder that a version names, and return its key."""
        assert manifest.spec.encoder is not None
        key = str((manifest.encoder or {}).get("digest", "")) or json.dumps(
            manifest.spec.encoder.model_dump(mode="json"), sort_keys=True
        )
        if key not in self._served:
            self._add(key, self._pool.encoder_of(manifest))
        return key

    def _add_model(self, model: str) -> None:
        from scannery.embed import EmbedError, Encoder

        try:
            encoder = Encoder.load(placed_model(model, self._folder), device=self._config.device)
        except EmbedError as error:
            raise EncoderUnavailableError(f"model {model}: {error}", field="models") from error
        self._add(
            encoder.fingerprint.digest,
            QueryEncoder(encoder, cached=self._config.cached_queries, observer=self.observer),
        )

    def _add(self, key: str, queries: QueryEncoder) -> None:
        encoder = cast("Encoder", queries.documents)  # not remote: this process loaded it
        self._served[key] = ServedEncoder(
            model=encoder.fingerprint.model,
            fingerprint=encoder.fingerprint.to_dict(),
            dimensions=encoder.dimensions,
            indexes=frozenset(),
            open=lambda: queries,
            loaded=encoder,
        )
        _LOG.info("serving %s on %s", encoder.fingerprint, encoder.device)
