"""The handler that creates indexes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from scannery.indexer import (
    AlreadyExistsError,
    IndexSpec,
    InvalidSpecError,
    create_index,
    latest_version,
    parse_spec,
    read_manifest,
)
from scannery.indexer.strict_json import strict_json
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import (
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
)
from scannery.serving import limits
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.catalog.description import index_info
from scannery.serving.contract import CREATE_INDEX
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.allowed_models import AllowedModels
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.services.vector_spaces import VectorSpaces, encoder_options
from scannery.v1 import index_pb2 as pb

__all__ = ["Creation"]


class Creation:
    """CreateIndex over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: BaseCatalog, models: Collection[str] | None) -> None:
        """Create indexes in the store of a catalog.

        Args:
            catalog: the indexes.
            models: as of `AllowedModels`; None: any (embedded, where the caller owns the process).

        """
        self._catalog, self._models = catalog, AllowedModels(catalog, models)
        self._spaces = VectorSpaces(catalog, models)
        self.methods = {CREATE_INDEX: UnaryMethod(pb.CreateIndexRequest, self.create, "admin")}

    def create(self, request: pb.CreateIndexRequest, deadline: Deadline) -> pb.CreateIndexResponse:
        """Create an empty index and open it here; other processes open it within a second."""
        spec = _parsed(request.spec_json)
        _check_no_path(spec)
        size = len(request.request_id.encode())
        if size > limits.MAX_REQUEST_ID_BYTES:
            raise InvalidRequestError.at(
                "request_id", f"must have at most {limits.MAX_REQUEST_ID_BYTES} bytes, got {size}"
            )
        self._check_name(spec.index)
        if request.keep_existing and (kept := self._kept(spec, request.dimensions)) is not None:
            return kept
        if spec.reranker is not None:
            self._models.check(spec.reranker.model, "spec.reranker.model")
        dimensions, fingerprint = self._unnamed(spec, request.dimensions)
        named = self._spaces.of_names(spec, spec.named_vectors.keys(), "spec")
        deadline.check()
        if self._catalog.stored_count() >= limits.MAX_INDEXES:
            raise OverloadedError(f"the store has {limits.MAX_INDEXES} indexes, which is the limit")
        try:
            manifest = create_index(
                self._catalog.store,
                spec,
                dimensions=dimensions,
                fingerprint=fingerprint,
                named=named,
                request_id=request.request_id,
            )
        except AlreadyExistsError:
            if request.keep_existing and (kept := self._kept(spec, request.dimensions)) is not None:
                return kept
            raise
        self._catalog.open_created(spec.index)
        return pb.CreateIndexResponse(index=index_info(manifest, details=True))

    def _kept(self, spec: IndexSpec, dimensions: int) -> pb.CreateIndexResponse | None:
        """Return the index of this name, None if there is none; AlreadyExistsError if it stores other vectors."""
        if latest_version(self._catalog.store, spec.index) is None:
            return None
        manifest = read_manifest(self._catalog.store, spec.index)
        for field, given, existing in (
            ("spec.encoder", encoder_options(spec.encoder), encoder_options(manifest.spec.encoder)),
            ("spec.distance", spec.distance, manifest.spec.distance),
            ("dimensions", dimensions or manifest.dimensions, manifest.dimensions),
            ("spec.named_vectors", _named(spec), _named(manifest.spec)),
        ):
            if given != existing:
                raise AlreadyExistsError(
                    f"{field}: index {spec.index!r} exists with {_shown(existing)}, got {_shown(given)}",
                    field=field,
                )
        self._catalog.open_created(spec.index)
        aliases = self._catalog.aliases_of(spec.index)
        return pb.CreateIndexResponse(index=index_info(manifest, details=True, aliases=aliases))

    def _check_name(self, name: str) -> None:
        principal = CURRENT.get()
        if (principal is not None and not principal.sees(name)) or not self._catalog.serves(name):
            what = f"index {name!r} is not among those that these credentials and this server are for"
            raise PermissionDeniedError(f"spec.index: {what}", field="spec.index")

    def _unnamed(self, spec: IndexSpec, dimensions: int) -> tuple[int, dict[str, Any] | None]:
        """Return dimensions and fingerprint of the unnamed vectors; the encoder tells them, or the request."""
        if spec.encoder is None:
            if dimensions == 0 and spec.vectors == "optional" and spec.source.vector is None:
                return 0, None
            if dimensions == 0:
                raise InvalidRequestError.at(
                    "dimensions",
                    "is required for an index without an encoder, unless it has only named vectors, words (lexical) or "
                    "sparse vectors",
                )
            if not 1 <= dimensions <= limits.MAX_DIMENSIONS:
                raise InvalidRequestError.at(
                    "dimensions",
                    f"must be 1 to {limits.MAX_DIMENSIONS} for an index without an encoder, got {dimensions}",
                )
            return dimensions, None
        found = self._spaces.of_encoder(spec.encoder, "spec.encoder.model")
        if dimensions not in (0, found.dimensions):
            raise InvalidRequestError.at(
                "dimensions", f"must be those of {spec.encoder.model}, {found.dimensions}, got {dimensions}"
            )
        return found.dimensions, found.encoder


def _parsed(text: str) -> IndexSpec:
    if len(text.encode()) > limits.MAX_SPEC_BYTES:
        raise InvalidRequestError.at("spec_json", f"must have at most {limits.MAX_SPEC_BYTES} bytes")
    try:
        return parse_spec(strict_json(text))
    except InvalidSpecError as error:
        raise InvalidRequestError(
            f"spec: {error.message.removeprefix('spec: ')}",
            field=f"spec.{error.field}" if error.field else "spec",
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.at("spec_json", f"is not JSON: {error}") from error


def _named(spec: IndexSpec) -> dict[str, object]:
    """Return what determines the named vectors, by name."""
    return {
        name: (
            own.model_dump(include={"dimensions", "distance"})
            | {
                "encoder": encoder_options(own.encoder),
                "from": spec.text_field(name) if own.encoder else None,
            }
        )
        for name, own in spec.named_vectors.items()
    }


def _check_no_path(spec: IndexSpec) -> None:
    """Refuse a word list by its path: no file that a request names is read. Models are checked by `AllowedModels`."""
    if spec.lexical is not None and isinstance(spec.lexical.compounds, str):
        raise InvalidRequestError.at(
            "spec.lexical.compounds",
            "must be true, false or a list of words: no file that a request names is read, got the path "
            f"{spec.lexical.compounds!r:.80}",
        )


def _shown(value: object) -> str:
    """Return the model of an encoder's options, and others as they are."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items() if part is not None)
    return "none" if value is None else str(value)
