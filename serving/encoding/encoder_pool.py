"""The encoders of a process: those of its indexes, and those of models that no index has yet."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Set
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from scannery.embed.sided_encoder import SidedEncoder, TextEncoder
from scannery.indexer import EncoderSpec, IndexerError, IndexSpec, Manifest, SourceSpec
from scannery.indexer.models.references import located_model, stored_model
from scannery.runtime.errors import EncoderUnavailableError
from scannery.runtime.memory import ENCODER_COPIES
from scannery.runtime.paths import current_folder, placed_model
from scannery.runtime.retry import RetryState
from scannery.serving.config import CACHED_QUERIES, RemoteConfig
from scannery.serving.encoding.query_encoder import CACHED_BYTES, Observer, QueryEncoder
from scannery.serving.encoding.reranker import RerankerPool

if TYPE_CHECKING:
    from scannery.embed import Encoder, Fingerprint
    from scannery.serving.encoding.remote_encoder import EncoderProcess

__all__ = ["EncoderPool", "load_encoder"]


RELEASED_S = 60.0
"""An encoder is freed if no open version has had it for so long: longer than most requests take."""
RELEASE_EVERY_S = 15.0
"""Time between two looks for such encoders."""


class EncoderPool:
    """The encoders of a process, shared by indexes with equal ones. Safe to use from several threads."""

    def __init__(
        self,
        *,
        device: str = "auto",
        reranker: str | None = None,
        remote: RemoteConfig | None = None,
        store: str | None = None,
        cached: int = CACHED_QUERIES,
        cached_bytes: int = CACHED_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; encoders load on first use.

        Args:
            device: of the models.
            reranker: the cross-encoder of all indexes, in place of those in their specs.
            remote: the encoder process; None: models are loaded in this process.
            store: URI of the store, for models `store:NAME@N`; None: there is none.
            cached: limit of cached queries of each encoder.
            cached_bytes: limit of their texts and vectors.
            clock: returns seconds.

        """
        self._cached, self._cached_bytes = cached, min(cached_bytes, CACHED_BYTES)
        self._clock = clock
        self._folder = current_folder()
        self._device = device
        self._remote = remote
        self._store = store
        self._process: EncoderProcess | None = None
        self.rerankers = RerankerPool(model=reranker, device=device)
        self._encoders: dict[str, QueryEncoder] = {}
        # Also of indexes that share one of two models only.
        self._models: WeakValueDictionary[str, TextEncoder] = WeakValueDictionary()
        self._of_models: dict[str, QueryEncoder] = {}
        self._released_at_s = clock()
        self._idle_since_s: dict[str, float] = {}
        """When `release` first saw encoders without an open version."""
        self._failed: dict[str, RetryState] = {}
        self.observer = Observer()
        """Gets batch sizes and cache hits of all encoders."""
        self._lock = threading.Lock()

    def encoder_of(self, manifest: Manifest, *, field: str = "query") -> QueryEncoder:
        """Return the encoder of an index, loaded at the first call.

        The model comes from the manifest, never from a request. Errors name `field`.

        Raises:
            EncoderUnavailableError: the index has no encoder, or it cannot be loaded, or it did not make its vectors.

        """
        if manifest.spec.encoder is None:
            raise EncoderUnavailableError(
                f"index {manifest.index!r} has no encoder, so it accepts vectors only; send a vector",
                field=field,
            )
        key = _key(manifest)
        # One load at a time: loading a model saturates the memory bandwidth.
        with self._lock:
            if key not in self._encoders:
                self._encoders[key] = self._loaded(key, manifest, field)
            return self._encoders[key]

    def memory_of(self, manifest: Manifest) -> dict[str, int]:
        """Return the memory of the encoders of an index in this process, in bytes, by what they are loaded by.

        Those that are in another process, or cannot be found, have none.
        """
        encoded = [] if self._remote is not None else manifest.encoded.values()
        sides = [side for each in encoded for side in each.sides]
        return {_key(side): self.model_bytes(side.spec.encoder) for side in sides if side.spec.encoder}

    def model_bytes(self, spec: EncoderSpec) -> int:
        """Return the memory that an encoder takes in a process that loads it; 0 if its model is not on this machine."""
        from scannery.embed import EmbedError
        from scannery.embed.models.model_files import find_local_model, weights_bytes

        try:
            if (stored := stored_model(spec.model, self._store)) is not None:
                return int(ENCODER_COPIES * stored.weights_bytes)
            folder = find_local_model(placed_model(spec.model, self._folder))
        except (EmbedError, IndexerError, OSError):  # to load it tells what is wrong
            return 0
        return int(ENCODER_COPIES * weights_bytes(folder)) if folder else 0

    def encoder_of_model(self, spec: EncoderSpec, *, field: str) -> QueryEncoder:
        """Return an encoder that no index has yet, loaded at the first call; raises as `fingerprint_of`."""
        key = spec.model_dump_json()
        if key in self._of_models:  # else its files are hashed
            return self._of_models[key]
        fingerprint = self.fingerprint_of(spec, field=field)
        # As of an index without datapoints: an index that is created with it later shares the loaded model.
        manifest = Manifest(
            index="new",
            version=1,
            created_at=datetime.now(timezone.utc),
            spec=IndexSpec(index="new", source=SourceSpec(text="text"), encoder=spec),
            encoder=fingerprint.to_dict(),
            dimensions=fingerprint.dimensions,
            shards=1,
            segments=(),
        )
        encoder = self._of_models[key] = self.encoder_of(manifest, field=field)
        return encoder

    def known_fingerprint_of(self, spec: EncoderSpec, *, field: str) -> Fingerprint | None:
        """Return the fingerprint of an encoder that no index has yet; None if it must be loaded for that.

        Raises:
            EncoderUnavailableError: there is no such model, or texts are encoded in another process.

        """
        if self._remote is not None:
            raise EncoderUnavailableError(
                f"{field}: this server encodes texts in an encoder process; name the encoder of a served index, with "
                "the same options",
                field=field,
            )
        from scannery.embed import EmbedError, Encoder

        try:
            with located_model(spec.model, self._folder, self._store) as location:
                return Encoder.known_fingerprint(location, label=spec.model, **spec.options)
        except (EmbedError, IndexerError, OSError) as error:
            raise EncoderUnavailableError(f"{field}: {error}", field=field) from error

    def fingerprint_of(self, spec: EncoderSpec, *, field: str) -> Fingerprint:
        """Return the fingerprint of an encoder that no index has yet, from its files or by loading it.

        Raises:
            EncoderUnavailableError: it cannot be loaded, or texts are encoded in another process.

        """
        fingerprint = self.known_fingerprint_of(spec, field=field)
        if fingerprint is not None:
            return fingerprint
        from scannery.embed import EmbedError, Encoder

        try:
            with located_model(spec.model, self._folder, self._store) as location:
                encoder = Encoder.load(location, label=spec.model, device=self._device, **spec.options)
            return encoder.fingerprint
        except (EmbedError, IndexerError, OSError) as error:
            raise EncoderUnavailableError(f"{field}: {error}", field=field) from error

    def release(self, manifests: Iterable[Manifest]) -> frozenset[str] | None:
        """Free the encoders that no open version has had for RELEASED_S; return the keys of `memory_of` of the rest.

        Called again and again; None: it looked less than RELEASE_EVERY_S ago. A request keeps its encoder to its end.

        Args:
            manifests: of the open versions.

        """
        now_s = self._clock()
        if now_s - self._released_at_s < RELEASE_EVERY_S:
            return None
        self._released_at_s = now_s
        used = {
            _key(part)
            for manifest in manifests
            for each in manifest.encoded.values()
            for part in (each, *each.sides)
        }
        # Not while an encoder is loaded, which takes seconds.
        if self._lock.acquire(blocking=False):
            try:
                self._release_idle(self._encoders.keys() - used)
            finally:
                self._lock.release()
        return frozenset(used.union(list(self._encoders)))

    def _release_idle(self, keys: Set[str]) -> None:
        now_s = self._released_at_s
        self._idle_since_s = {key: self._idle_since_s.get(key, now_s) for key in keys}
        for key, since_s in self._idle_since_s.items():
            if now_s - since_s >= RELEASED_S:
                del self._encoders[key]

    def close(self) -> None:
        """Close the connection to the encoder process."""
        if self._process is not None:
            self._process.close()

    def _loaded(self, key: str, manifest: Manifest, field: str) -> QueryEncoder:
        """Load an encoder, unless that failed recently: an attempt takes seconds, during which all texts wait."""
        retry = self._failed.setdefault(key, RetryState(clock=self._clock))
        if retry.error is not None and not retry.due:
            raise EncoderUnavailableError(str(retry.error), field=field)
        try:
            encoder = self._created(manifest)
        except EncoderUnavailableError as error:
            retry.failed(f"the encoder of index {manifest.index}", error)
            raise
        del self._failed[key]
        return encoder

    def _created(self, manifest: Manifest) -> QueryEncoder:
        documents, *queries = map(self._model_of, manifest.sides)
        return QueryEncoder(
            SidedEncoder(queries=queries[0], documents=documents) if queries else documents,
            cached=self._cached,
            cached_bytes=self._cached_bytes,
            observer=self.observer,
            batched=self._remote is None,
        )

    def _model_of(self, side: Manifest) -> TextEncoder:
        """Return the model of one of `Manifest.sides`."""
        key = _key(side)
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = self._new_model(side)
        return model

    def _new_model(self, side: Manifest) -> TextEncoder:
        if self._remote is None:
            return load_encoder(side, self._device, self._folder, self._store)
        from scannery.serving.encoding.remote_encoder import EncoderProcess, RemoteEncoder

        # Connected on first use: connections do not survive a fork.
        self._process = self._process or EncoderProcess(self._remote)
        return RemoteEncoder(self._process, side)


def _key(manifest: Manifest) -> str:
    """Return what indexes with the same encoder share."""
    assert manifest.spec.encoder is not None
    spec = manifest.spec.encoder.model_dump(exclude={"device", "dtype"})
    return json.dumps([spec, manifest.encoder, manifest.query_encoder, manifest.dimensions], sort_keys=True)


def load_encoder(manifest: Manifest, device: str, folder: Path, store: str | None) -> Encoder:
    """Load the encoder of an index with a single one in this process.

    A relative path of a model is resolved in `folder`, and `store:NAME@N` in the store with a URI.

    Raises:
        EncoderUnavailableError: it cannot be loaded, or did not make the vectors of the index.

    """
    # Imported late: takes seconds (torch), and vector queries do not need it.
    from scannery.embed import EmbedError, Encoder, Fingerprint

    spec = manifest.spec.encoder
    if spec is None:
        raise EncoderUnavailableError(f"index {manifest.index!r} has no encoder", field="query")
    try:
        with located_model(spec.model, folder, store) as location:
            encoder = Encoder.load(
                location,
                label=spec.model,
                device=device,
                **spec.options,
                # Checked before loading: write access to the store or the hub must not choose the code that runs.
                expected=None if manifest.encoder is None else Fingerprint.from_dict(manifest.encoder),
            )
    except (EmbedError, IndexerError, OSError) as error:
        raise EncoderUnavailableError(
            f"texts for index {manifest.index!r} cannot be encoded: {error}", field="query"
        ) from error
    if encoder.dimensions != manifest.dimensions:
        raise EncoderUnavailableError(
            f"texts for index {manifest.index!r} cannot be encoded: its vectors have {manifest.dimensions} dimensions, "
            f"those of {spec.model} have {encoder.dimensions}",
            field="query",
        )
    return encoder
