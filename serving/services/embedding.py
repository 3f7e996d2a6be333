"""Handlers of EmbeddingService: texts in, vectors out.

Used by encoder processes, with the encoders of their options (embedding.py), and by servers, with the encoders
of their indexes and the models that their operators name for new ones.

The encoders of an encoder process: those of the indexes of its store, and those of its options.

Only manifests and options name models, never requests. A model that several indexes share is loaded once.

Which models a request may name: a server loads only those that its operator or a served index names.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from scannery.indexer import (
    EncoderSpec,
    IndexerError,
    Manifest,
    Store,
    latest_version,
    leased_versions,
    read_manifest,
)
from scannery.indexer.models.references import located_model
from scannery.runtime.errors import (
    EncoderUnavailableError,
    InvalidRequestError,
    PermissionDeniedError,
    UnknownIndexError,
)
from scannery.runtime.paths import current_folder
from scannery.runtime.retry import Deadline, RetryState
from scannery.serving import limits
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.config import EncoderConfig
from scannery.serving.contract import EMBED, LIST_ENCODERS
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.request.query import check_count, check_text
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.registry import UnaryMethod
from scannery.v1 import embedding_pb2 as pb
from scannery.v1.types_pb2 import Matrix

if TYPE_CHECKING:
    from scannery.embed import Encoder, Fingerprint

__all__ = ["AllowedModels", "Embedding", "EncoderRegistry", "KnownEncoders"]


@dataclass(frozen=True)
class Use:
    """What an index encodes with an encoder."""

    index: str
    vectors: str
    """Name of the vectors; empty: the unnamed ones."""
    kind: pb.TextKind.ValueType
    model: str
    """Model of the documents, by which a request may name the encoder of an index."""


def _uses(index: str, vectors: str, encoder: EncoderSpec) -> list[frozenset[Use]]:
    """Return what each side of an encoder is used for, as `EncoderSpec.sides`."""
    documents, queries = (
        Use(index, vectors, kind, encoder.model) for kind in (pb.TEXT_KIND_DOCUMENT, pb.TEXT_KIND_QUERY)
    )
    if len(encoder.sides) == 1:
        return [frozenset((documents, queries))]
    return [frozenset((documents,)), frozenset((queries,))]


@dataclass(frozen=True, kw_only=True)
class ServedEncoder:
    """An encoder that requests can name."""

    model: str
    fingerprint: dict[str, Any] | None
    dimensions: int
    """Components of a vector; 0 if not known, of a spare one."""
    uses: frozenset[Use]
    """What indexes encode with it."""
    open: Callable[[], QueryEncoder] = field(repr=False)
    """Returns the loaded encoder; raises as `EncoderPool.encoder_of`."""
    is_nested: bool = False
    """Whether leading components of its vectors are vectors themselves: the spec of an index keeps but these."""
    loaded: Encoder | None = None
    """The model, if it is already loaded in this process."""
    is_spare: bool = False
    """Whether no index uses it yet: it is chosen where no other encoder matches a request."""

    @property
    def indexes(self) -> frozenset[str]:
        """Indexes that use it."""
        return frozenset(use.index for use in self.uses)

    @property
    def digest(self) -> str:
        """Fingerprint of everything that determines its vectors; empty if unknown."""
        return str((self.fingerprint or {}).get("digest", ""))


def index_encoders(catalog: Catalog, index: str) -> list[ServedEncoder]:
    """Return the encoders of an index; for an empty name, those of all indexes that the caller can see."""
    encoders: dict[str, ServedEncoder] = {}
    for name in [index] if index else catalog.names():
        try:
            manifest = catalog.manifest(name)
        except (IndexerError, PermissionDeniedError):
            if index:
                raise
            continue  # one that is broken, or that the caller's filter does not fit, must not hide the others
        for side, uses in _sides(manifest):
            assert side.spec.encoder is not None
            key = json.dumps([side.spec.encoder.model, side.encoder, side.dimensions], sort_keys=True)
            earlier = encoders.get(key)
            is_nested = side.spec.encoder.dimensions is not None
            encoders[key] = ServedEncoder(
                model=side.spec.encoder.model,
                fingerprint=side.encoder,
                dimensions=side.dimensions,
                uses=uses if earlier is None else earlier.uses | uses,
                is_nested=is_nested or (earlier is not None and earlier.is_nested),
                open=partial(catalog.encoders.encoder_of, side, field="index"),
            )
    return list(encoders.values())


def _sides(manifest: Manifest) -> Iterator[tuple[Manifest, frozenset[Use]]]:
    """Yield the models of a version, as `Manifest.sides` of the vectors of each name, with what each is used for."""
    for name, each in manifest.encoded.items():
        assert each.spec.encoder is not None
        yield from zip(each.sides, _uses(manifest.index, name, each.spec.encoder), strict=True)


class KnownEncoders:
    """The encoders of a server: those of its indexes, and those that it can use for a new one.

    Safe to use from several threads.
    """

    def __init__(self, catalog: Catalog, models: Collection[str] | None) -> None:
        """Keep both.

        Args:
            catalog: the indexes.
            models: names of the operator's models; None, for any: only those of indexes are known.

        """
        self._catalog, self._models = catalog, tuple(dict.fromkeys(models or ()))
        self._spares: dict[str, ServedEncoder] = {}

    def __call__(self, index: str) -> list[ServedEncoder]:
        """Return the encoders of an index; for an empty name, those of all indexes that the caller can see, and spares.

        A caller that is limited to some indexes sees spares if it may create indexes.
        """
        encoders = index_encoders(self._catalog, index)
        principal = CURRENT.get()
        if index or (principal is not None and not (principal.is_for_all_indexes or principal.may("admin"))):
            return encoders
        keys = {(encoder.model, digest) for encoder in encoders for digest in (encoder.digest, "")}
        spares = [spare for model in self._models if (spare := self._spare(model))]
        return encoders + [spare for spare in spares if (spare.model, spare.digest) not in keys]

    def _spare(self, model: str) -> ServedEncoder | None:
        """Return a model of the operator with the options of a new index; None if this server cannot use it."""
        if model not in self._spares:
            # Once: the files of the model are hashed.
            spec = EncoderSpec(model=model)
            try:
                fingerprint = self._catalog.encoders.known_fingerprint_of(spec, field="model")
            except EncoderUnavailableError:
                return None
            spare = ServedEncoder(
                model=model,
                fingerprint=None,
                dimensions=0,
                uses=frozenset(),
                open=partial(self._opened, spec),
                is_spare=True,
            )
            self._spares[model] = _identified(spare, fingerprint) if fingerprint else spare
        return self._spares[model]

    def _opened(self, spec: EncoderSpec) -> QueryEncoder:
        encoder = self._catalog.encoders.encoder_of_model(spec, field="model")
        spare = self._spares[spec.model]
        if spare.fingerprint is None:
            # Such encoders are in this process, never in another one.
            self._spares[spec.model] = _identified(spare, cast("Encoder", encoder.documents).fingerprint)
        return encoder


def _identified(spare: ServedEncoder, fingerprint: Fingerprint) -> ServedEncoder:
    return replace(spare, fingerprint=fingerprint.to_dict(), dimensions=fingerprint.dimensions)


class Embedding:
    """The methods of EmbeddingService. Safe to use from several threads."""

    def __init__(self, encoders: Callable[[str], Iterable[ServedEncoder]]) -> None:
        """Serve `encoders(index)`, which returns the encoders that the caller can see: of an index, or all (empty)."""
        self._encoders = encoders
        self.methods = {
            EMBED: UnaryMethod(pb.EmbedRequest, self.embed, "read", narrowed=True),
            LIST_ENCODERS: UnaryMethod(pb.ListEncodersRequest, self.list_encoders, "read", narrowed=True),
        }

    def embed(self, request: pb.EmbedRequest, deadline: Deadline) -> pb.EmbedResponse:
        """Encode texts."""
        _check(request)
        chosen = self._chosen(request)
        if not chosen.dimensions:  # a model that this machine has never loaded
            chosen.open()
            chosen = self._chosen(request)
        if request.HasField("dimensions"):
            _check_dimensions(request.dimensions, chosen)
        texts: Sequence[str] = list(request.texts)
        if request.kind == pb.TEXT_KIND_DOCUMENT:
            vectors_ND = chosen.open().encode_documents(texts, deadline, path="texts")
        else:
            vectors_ND = chosen.open().encode(texts, path="texts", deadline=deadline)
        if request.HasField("dimensions"):
            vectors_ND = _leading(vectors_ND, request.dimensions)
        packed = vectors_ND.astype("<f4", copy=False).tobytes()
        return pb.EmbedResponse(
            vectors=Matrix(packed=packed, dimensions=vectors_ND.shape[1]),
            fingerprint=chosen.digest,
            tokens=chosen.open().count_tokens(texts) if request.count_tokens else 0,
        )

    def list_encoders(self, request: pb.ListEncodersRequest, deadline: Deadline) -> pb.ListEncodersResponse:
        """List the encoders."""
        encoders = [encoder for encoder in self._encoders("") if request.fingerprint in ("", encoder.digest)]
        encoders.sort(key=lambda encoder: (encoder.model, encoder.digest))
        return pb.ListEncodersResponse(
            encoders=[_message(encoder, with_tokenizer=request.with_tokenizers) for encoder in encoders]
        )

    def _chosen(self, request: pb.EmbedRequest) -> ServedEncoder:
        """Return the encoder that matches the request; raises if none or several do."""
        visible = list(self._encoders(request.index))
        if request.index and not any(request.index in encoder.indexes for encoder in visible):
            raise UnknownIndexError(
                f"index: there is no index {request.index!r:.100} with an encoder here", field="index"
            )
        matching = [
            encoder
            for encoder in visible
            if (not request.index or request.index in encoder.indexes)
            and (request.model in ("", encoder.model) or _stands_for(encoder, request))
            and request.fingerprint in ("", encoder.digest)
        ]
        # What an index uses comes first: a model that is named for later indexes makes no request ambiguous.
        matching = [encoder for encoder in matching if not encoder.is_spare] or matching
        preferences = [_preference(encoder, request) for encoder in matching]
        matching = [
            encoder
            for encoder, preference in zip(matching, preferences, strict=True)
            if preference == max(preferences)
        ]
        if len(matching) == 1:
            return matching[0]
        criteria = " and ".join(
            f"{name} {value[:64]!r}"
            for name in ("index", "model", "fingerprint")
            if (value := getattr(request, name))
        )
        listing = (
            ", ".join(f"{encoder.model} (fingerprint {encoder.digest[:12]})" for encoder in visible[:20])
            or "none"
        )
        if not matching:
            raise EncoderUnavailableError(
                f"there is no encoder with {criteria or 'any name'}; there is {listing}", field="model"
            )
        raise EncoderUnavailableError(
            f"{criteria or 'the request'} matches several encoders; there is {listing}", field="model"
        )


def _stands_for(encoder: ServedEncoder, request: pb.EmbedRequest) -> bool:
    """Return whether an encoder is that of queries beside the model that a request names with an index."""
    return any((use.index, use.model) == (request.index, request.model) for use in encoder.uses)


def _preference(encoder: ServedEncoder, request: pb.EmbedRequest) -> int:
    """Return how well an encoder that matches a request suits it: more is better.

    Those come first that encode texts of its kind, and of them that of the unnamed vector of its index, as in a search
    that chooses no vectors.
    """
    kind = request.kind or pb.TEXT_KIND_QUERY
    uses = [use for use in encoder.uses if use.kind == kind and request.index in ("", use.index)]
    if not request.index:
        return int(bool(uses) or not encoder.uses)
    return 2 if any(not use.vectors for use in uses) else int(bool(uses))


def _check(request: pb.EmbedRequest) -> None:
    check_count("texts", len(request.texts), limits.MAX_EMBED_TEXTS)
    document = request.kind == pb.TEXT_KIND_DOCUMENT
    for i, text in enumerate(request.texts):
        if not document:
            check_text(text, f"texts[{i}]")
        elif len(text) > limits.MAX_TEXT_BYTES // 4 and len(text.encode()) > limits.MAX_TEXT_BYTES:
            raise InvalidRequestError.at(
                f"texts[{i}]", f"the text must have at most {limits.MAX_TEXT_BYTES} bytes"
            )


def _check_dimensions(dimensions: int, chosen: ServedEncoder) -> None:
    if dimensions == chosen.dimensions or (chosen.is_nested and 1 <= dimensions < chosen.dimensions):
        return
    allowed = f"1 to {chosen.dimensions}" if chosen.is_nested else str(chosen.dimensions)
    raise InvalidRequestError.at("dimensions", f"must be {allowed} for {chosen.model:.200}, got {dimensions}")


def _leading(vectors_ND: np.ndarray, dimensions: int) -> np.ndarray:
    """Return the leading components of vectors; of those of length 1, scaled to that length."""
    if dimensions == vectors_ND.shape[1]:
        return vectors_ND
    leading_ND = vectors_ND[:, :dimensions]
    if not np.allclose(np.linalg.norm(vectors_ND, axis=1), 1, atol=1e-3):
        return leading_ND
    lengths_N1 = np.linalg.norm(leading_ND, axis=1, keepdims=True)
    scaled_ND: np.ndarray = leading_ND / np.where(lengths_N1 > 0, lengths_N1, 1)
    return scaled_ND


def _message(encoder: ServedEncoder, *, with_tokenizer: bool) -> pb.LoadedEncoder:
    message = pb.LoadedEncoder(
        model=encoder.model,
        fingerprint=encoder.digest,
        dimensions=encoder.dimensions,
        fingerprint_json=json.dumps(encoder.fingerprint) if encoder.fingerprint else "",
    )
    if encoder.loaded is not None:
        message.max_tokens, message.device = encoder.loaded.max_tokens, encoder.loaded.device
        if with_tokenizer:
            message.passage_tokens = encoder.loaded.passage_tokens
            tokenizer = encoder.loaded.tokenizer_json
            if tokenizer is not None:
                message.tokenizer_json = tokenizer
    return message


_LOG = logging.getLogger(__name__)


FORMER_S = 60.0
"""Encoders of a version are served for so long after one with other encoders was published, and while a server leases
the version: servers look for versions each second, but open large ones in minutes."""


@dataclass
class _ServedVersions:
    """Versions of an index, one after the other, with the same encoders."""

    first: int
    last: int
    manifest: Manifest
    """Manifest of one of them."""
    uses: Mapping[str, frozenset[Use]]
    """What the index encodes with each encoder, by its key."""
    replaced_at_s: float = math.inf
    """When later versions with other encoders came."""


class EncoderRegistry:
    """Loaded encoders by fingerprint. Safe to use from several threads."""

    def __init__(self, config: EncoderConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; `refresh` loads the encoders that `config` names. `clock` returns seconds."""
        self._config, self._clock = config, clock
        self._folder = current_folder()
        self._pool = EncoderPool(
            device=config.device, store=config.store or None, cached=config.cached_queries, clock=clock
        )
        self.observer = self._pool.observer
        """Gets the batch sizes and cache hits of all encoders."""
        self._served: dict[str, ServedEncoder] = {}
        self._options: dict[str, str] = {}
        """Keys of the encoders of the options, by their models."""
        self._versions: dict[str, list[_ServedVersions]] = {}
        """Those of each index that servers may have open, oldest first."""
        self._retries: dict[str, RetryState] = {}
        self._store: Store | None = None
        self._lock = threading.Lock()

    def encoders(self, index: str) -> list[ServedEncoder]:
        """Return the encoders that the caller can see: of an index, or all (empty name).

        A caller limited to some indexes sees their encoders only.
        """
        principal = CURRENT.get()
        served = list(self._served.values())
        if principal is not None and not principal.is_for_all_indexes:
            served = [
                replace(encoder, uses=frozenset(use for use in encoder.uses if principal.sees(use.index)))
                for encoder in served
                if any(map(principal.sees, encoder.indexes))
            ]
        return [encoder for encoder in served if not index or index in encoder.indexes]

    def refresh(self) -> None:
        """Load new encoders of the options and of the store.

        Raises:
            EncoderUnavailableError: a model of the options cannot be loaded.
            UnknownIndexError: a chosen index is not in the store.
            NotFoundError, StoreError: the store cannot be read.

        """
        with self._lock:
            for model in self._config.models:
                if model not in self._options:
                    self._options[model] = self._add_model(model)
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
        for name in self._versions.keys() - set(names):
            del self._versions[name], self._retries[name]
        self._release()

    def _refresh_index(self, store: Store, name: str) -> None:
        version, versions = latest_version(store, name), self._versions.get(name, [])
        if version is None:
            return
        if not versions or version < versions[-1].last:  # another index of the same name
            versions = self._leased(store, name, version)
        if not versions or version > versions[-1].last:
            versions = self._with_version(versions, read_manifest(store, name, version))
        if len(versions) > 1:
            leased, _ = leased_versions(store, name)
            versions = [each for each in versions if self._may_be_open(each, leased)]
        self._versions[name] = versions

    def _leased(self, store: Store, name: str, version: int) -> list[_ServedVersions]:
        """Return the versions before one that servers have open already, of those whose encoders can be loaded."""
        versions: list[_ServedVersions] = []
        for number in sorted(leased_versions(store, name)[0]):
            if number < version:
                with suppress(IndexerError, EncoderUnavailableError):
                    versions = self._with_version(versions, read_manifest(store, name, number))
        return versions

    def _with_version(self, versions: list[_ServedVersions], manifest: Manifest) -> list[_ServedVersions]:
        """Return versions of an index with a later one, whose encoders are loaded."""
        uses: dict[str, frozenset[Use]] = {}
        for side, new in _sides(manifest):
            key = self._loaded(side)
            uses[key] = uses.get(key, frozenset()) | new
        if versions and versions[-1].uses == uses:
            return [*versions[:-1], replace(versions[-1], last=manifest.version)]
        former = [replace(each, replaced_at_s=min(each.replaced_at_s, self._clock())) for each in versions]
        first = versions[-1].last + 1 if versions else 0
        return [*former, _ServedVersions(first, manifest.version, manifest, uses)]

    def _may_be_open(self, versions: _ServedVersions, leased: Set[int]) -> bool:
        is_recent = self._clock() - versions.replaced_at_s < FORMER_S
        return is_recent or any(versions.first <= version <= versions.last for version in leased)

    def _release(self) -> None:
        """Serve the encoders of the options, and those of versions that may be open for their uses; free the rest."""
        served = [each for versions in self._versions.values() for each in versions]
        uses: dict[str, frozenset[Use]] = dict.fromkeys(self._options.values(), frozenset())
        for each in served:
            for key, new in each.uses.items():
                uses[key] = uses.get(key, frozenset()) | new
        # Replaced at once, since requests read it without the lock.
        self._served = {
            key: replace(encoder, uses=uses[key]) for key, encoder in self._served.items() if key in uses
        }
        self._pool.release(each.manifest for each in served)

    def _loaded(self, manifest: Manifest) -> str:
        """Load the encoder that a version names, and return its key."""
        assert manifest.spec.encoder is not None
        key = str((manifest.encoder or {}).get("digest", "")) or json.dumps(
            manifest.spec.encoder.model_dump(mode="json"), sort_keys=True
        )
        if key not in self._served:
            self._add(key, self._pool.encoder_of(manifest))
        return key

    def _add_model(self, model: str) -> str:
        from scannery.embed import EmbedError, Encoder

        try:
            with located_model(model, self._folder, self._config.store or None) as location:
                encoder = Encoder.load(location, label=model, device=self._config.device)
        except (EmbedError, IndexerError) as error:
            raise EncoderUnavailableError(f"model {model}: {error}", field="models") from error
        key = encoder.fingerprint.digest
        self._add(key, QueryEncoder(encoder, cached=self._config.cached_queries, observer=self.observer))
        return key

    def _add(self, key: str, queries: QueryEncoder) -> None:
        encoder = cast("Encoder", queries.documents)  # not remote: this process loaded it
        self._served[key] = ServedEncoder(
            model=encoder.fingerprint.model,
            fingerprint=encoder.fingerprint.to_dict(),
            dimensions=encoder.dimensions,
            uses=frozenset(),
            open=lambda: queries,
            loaded=encoder,
        )
        _LOG.info("serving %s on %s", encoder.fingerprint, encoder.device)


class AllowedModels:
    """The models of the operator, and those of the indexes that the caller can see."""

    def __init__(self, catalog: Catalog, models: Collection[str] | None) -> None:
        """Keep both.

        Args:
            catalog: the indexes.
            models: names of further models; None: any is allowed.

        """
        self._catalog, self._models = catalog, models

    def check(self, model: str, field: str) -> None:
        """Raise EncoderUnavailableError for a field of the request if it may not name this model."""
        if self._models is None or model in self._models:
            return
        named = {
            part.model
            for manifest in self._catalog.manifests()
            for part in (
                *(side for encoder in manifest.spec.encoders.values() for side in encoder.sides),
                manifest.spec.reranker,
            )
            if part is not None
        }
        if model not in named:
            allowed = ", ".join(sorted({*named, *self._models})) or "none"
            raise EncoderUnavailableError(
                f"{field}: {model!r:.200} is not among the models of this server ({allowed}); its operator can add it "
                "with --model",
                field=field,
            )
