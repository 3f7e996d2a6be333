"""The handler that creates indexes.

What the vectors of a new index or of a new name will be: dimensions, and the fingerprint of the encoder.

The handler that changes the specs of indexes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from scannery.indexer import (
    NO_SHARDS,
    AlreadyExistsError,
    EncoderSpec,
    IndexerError,
    IndexSpec,
    InvalidSpecError,
    Manifest,
    VectorsInfo,
    alter_index,
    altered_spec,
    create_index,
    latest_version,
    parse_spec,
    read_manifest,
)
from scannery.indexer.strict_json import strict_json
from scannery.indexer.versions.creation import given_vectors
from scannery.indexer.versions.declared_models import spec_problem
from scannery.live.attribute_conflicts import (
    attribute_of_other_type,
    dynamic_attribute_counts,
    named_vectors_problem,
)
from scannery.live.live_index import LiveIndex
from scannery.runtime.errors import (
    ConditionError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    ServingError,
    UnsupportedError,
)
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.description import index_info
from scannery.serving.contract import ALTER_INDEX, CREATE_INDEX
from scannery.serving.security.principal import is_visible
from scannery.serving.services.embedding import AllowedModels
from scannery.serving.services.registry import UnaryMethod
from scannery.v1 import index_pb2 as pb

__all__ = [
    "Alteration",
    "Creation",
    "VectorSpaces",
    "check_may_create",
    "check_no_path",
    "check_request_id",
    "check_room",
    "invalid_spec",
    "parsed_changes",
]


class VectorSpaces:
    """Finds the vectors of encoders for one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, models: Collection[str] | None) -> None:
        """Look in a catalog.

        Args:
            catalog: the indexes.
            models: as of `AllowedModels`.

        """
        self._catalog, self._models = catalog, AllowedModels(catalog, models)

    def of_encoder(self, spec: EncoderSpec, field: str) -> VectorsInfo:
        """Return the vectors of an encoder.

        Args:
            spec: its options.
            field: of the encoder, in errors.

        Raises:
            EncoderUnavailableError: one of its models cannot be used here.
            InvalidRequestError: its models have different dimensions.

        """
        info = self._of_side(spec.documents, f"{field}.model")
        queries = self.of_queries(spec, info.dimensions, field)
        return info.model_copy(update={"query_encoder": queries})

    def of_queries(self, spec: EncoderSpec, dimensions: int, field: str) -> dict[str, Any] | None:
        """Return the fingerprint of the model for queries alone; None without one.

        Arguments and errors are those of `of_encoder`; `dimensions` are those of the documents' vectors.
        """
        if spec.query_model is None:
            return None
        field = f"{field}.query_model"
        info = self._of_side(spec.queries, field)
        if info.dimensions != dimensions:
            raise InvalidRequestError.at(
                field,
                f"must have vectors of {dimensions} dimensions, as those that it is to find, got "
                f"{spec.query_model!r:.200}, whose have {info.dimensions}",
            )
        return info.encoder

    def _of_side(self, spec: EncoderSpec, field: str) -> VectorsInfo:
        return self._of_served(spec) or self._of_model(spec, field)

    def of_names(self, spec: IndexSpec, names: Collection[str], front: str) -> dict[str, VectorsInfo]:
        """Return what is known of named vectors, by name.

        Args:
            spec: of the index.
            names: of which vectors.
            front: of the fields in errors.

        Raises:
            EncoderUnavailableError: the encoder of a name cannot be used here.

        """
        encoders = spec.named_encoders
        return {
            name: self.of_encoder(encoders[name], f"{front}.named_vectors.{name}.encoder")
            if name in encoders
            else given_vectors(spec, name)
            for name in names
        }

    def _of_served(self, spec: EncoderSpec) -> VectorsInfo | None:
        """Return the vectors of an index that the caller can see with the same encoder, so that no model is loaded."""
        options = encoder_options(spec)
        for manifest in self._catalog.manifests():
            for side in (side for each in manifest.encoded.values() for side in each.sides):
                if side.encoder is not None and encoder_options(side.spec.encoder) == options:
                    return VectorsInfo(dimensions=side.dimensions, encoder=side.encoder)
        return None

    def _of_model(self, spec: EncoderSpec, field: str) -> VectorsInfo:
        self._models.check(spec.model, field)
        self._catalog.memory.check_opening(field, {}, {field: self._catalog.encoders.model_bytes(spec)})
        fingerprint = self._catalog.encoders.fingerprint_of(spec, field=field)
        return VectorsInfo(dimensions=fingerprint.dimensions, encoder=fingerprint.to_dict())


def encoder_options(spec: EncoderSpec | None) -> dict[str, Any] | None:
    """Return what determines the vectors of documents; None without an encoder."""
    return None if spec is None else spec.documents.model_dump(exclude={"device", "dtype"})


def check_request_id(request_id: str) -> None:
    """Raise InvalidRequestError if the id of a request is too long."""
    size = len(request_id.encode())
    if size > limits.MAX_REQUEST_ID_BYTES:
        raise InvalidRequestError.at(
            "request_id", f"must have at most {limits.MAX_REQUEST_ID_BYTES} bytes, got {size}"
        )


def check_may_create(catalog: Catalog, name: str, field: str) -> None:
    """Raise PermissionDeniedError if the caller may not create an index of a name here; `field` has the name."""
    if not (is_visible(name) and catalog.serves(name)):
        what = f"index {name!r:.100} is not among those that these credentials and this server are for"
        raise PermissionDeniedError(f"{field}: {what}", field=field)


def check_room(catalog: Catalog) -> None:
    """Raise OverloadedError if the store has as many indexes as it may have."""
    if len(catalog.store.folders()) >= limits.MAX_INDEXES:
        raise OverloadedError(f"the store has {limits.MAX_INDEXES} indexes, which is the limit")


class Creation:
    """CreateIndex over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, models: Collection[str] | None) -> None:
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
        spec = _parsed_spec(request.spec_json)
        check_no_path(spec, "spec")
        check_request_id(request.request_id)
        check_may_create(self._catalog, spec.index, "spec.index")
        if request.keep_existing and (kept := self._kept(spec, request.dimensions)) is not None:
            return kept
        if spec.reranker is not None:
            self._models.check(spec.reranker.model, "spec.reranker.model")
        unnamed = self._unnamed(spec, request.dimensions)
        if problem := spec_problem(spec, unnamed):
            raise InvalidRequestError.at("spec.vector_model", problem)
        named = self._spaces.of_names(spec, spec.named_vectors.keys(), "spec")
        deadline.check()
        check_room(self._catalog)
        try:
            manifest = create_index(
                self._catalog.store,
                spec,
                vectors={"": unnamed, **named},
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
        for field, value, existing in (
            ("spec.encoder", encoder_options(spec.encoder), encoder_options(manifest.spec.encoder)),
            ("spec.distance", spec.distance, manifest.spec.distance),
            (
                "spec.vector_model",
                spec.vector_model or manifest.spec.vector_model,
                manifest.spec.vector_model,
            ),
            ("dimensions", dimensions or manifest.dimensions, manifest.dimensions),
            ("spec.named_vectors", _named(spec), _named(manifest.spec)),
        ):
            if value != existing:
                raise AlreadyExistsError(
                    f"{field}: index {spec.index!r} exists with {_shown(existing)}, got {_shown(value)}",
                    field=field,
                )
        self._catalog.open_created(spec.index)
        aliases = self._catalog.aliases.of(spec.index)
        return pb.CreateIndexResponse(index=index_info(manifest, details=True, aliases=aliases))

    def _unnamed(self, spec: IndexSpec, dimensions: int) -> VectorsInfo:
        """Return what is known of the unnamed vectors; the encoder tells their dimensions, or the request."""
        if spec.encoder is None:
            if dimensions == 0 and spec.vectors == "optional" and spec.source.vector is None:
                return VectorsInfo(dimensions=0)
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
            return VectorsInfo(dimensions=dimensions)
        info = self._spaces.of_encoder(spec.encoder, "spec.encoder")
        if dimensions not in (0, info.dimensions):
            raise InvalidRequestError.at(
                "dimensions", f"must be those of {spec.encoder.model}, {info.dimensions}, got {dimensions}"
            )
        return info


def _parsed_spec(text: str) -> IndexSpec:
    if len(text.encode()) > limits.MAX_SPEC_BYTES:
        raise InvalidRequestError.at("spec_json", f"must have at most {limits.MAX_SPEC_BYTES} bytes")
    try:
        return parse_spec(strict_json(text))
    except InvalidSpecError as error:
        raise invalid_spec(error, "spec") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.at("spec_json", f"is not JSON: {error}") from error


def invalid_spec(error: InvalidSpecError, part: str) -> InvalidRequestError:
    """Return the error of a request one of whose parts makes a wrong spec."""
    field = f"{part}.{error.field}" if error.field else part
    return InvalidRequestError(f"{part}: {error.message.removeprefix('spec: ')}", field=field)


def _named(spec: IndexSpec) -> dict[str, object]:
    """Return what determines the named vectors, by name."""
    return {
        name: (
            vectors.model_dump(include={"dimensions", "distance"})
            | {
                "encoder": encoder_options(vectors.encoder),
                "from": spec.text_field(name) if vectors.encoder else None,
            }
        )
        for name, vectors in spec.named_vectors.items()
    }


def check_no_path(spec: IndexSpec, field: str) -> None:
    """Refuse a word list by its path: no file that a request names is read. Models are checked by `AllowedModels`.

    `field` has the spec in errors.
    """
    if spec.lexical is not None and isinstance(spec.lexical.compounds, str):
        raise InvalidRequestError.at(
            f"{field}.lexical.compounds",
            "must be true, false or a list of words: no file that a request names is read, got the path "
            f"{spec.lexical.compounds!r:.80}",
        )


def _shown(value: object) -> str:
    """Return the model of an encoder's options, and others as they are."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items() if part is not None)
    return "none" if value is None else str(value)


_LOG = logging.getLogger(__name__)


class Alteration:
    """AlterIndex over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, models: Collection[str] | None) -> None:
        """Change indexes in the store of a catalog.

        Args:
            catalog: the indexes.
            models: as of `AllowedModels`.

        """
        self._catalog, self._models = catalog, AllowedModels(catalog, models)
        self._spaces = VectorSpaces(catalog, models)
        self.methods = {ALTER_INDEX: UnaryMethod(pb.AlterIndexRequest, self.alter, "admin")}

    def alter(self, request: pb.AlterIndexRequest, deadline: Deadline) -> pb.AlterIndexResponse:
        """Publish a version with the changed spec, and open it here; other servers open it within a second."""
        changes = parsed_changes(request.changes_json)
        live = self._catalog.live(request.index)
        live.check_changeable()
        before = live.state.manifest.version
        named: dict[str, VectorsInfo] = {}
        query_models: dict[str, dict[str, Any] | None] = {}

        def changed(manifest: Manifest) -> IndexSpec:
            deadline.check()
            if request.if_version not in (0, manifest.version):
                raise ConditionError(
                    f"if_version: index {request.index!r} is at version {manifest.version}, not {request.if_version}",
                    field="if_version",
                )
            spec = _altered(manifest.spec, changes)
            if spec.reranker is not None and spec.reranker != manifest.spec.reranker:
                self._models.check(spec.reranker.model, "changes.reranker.model")
            added = spec.attributes.keys() - manifest.spec.attributes.keys()
            if added and (name := attribute_of_other_type(live, manifest, spec, added)) is not None:
                raise InvalidRequestError.at(
                    f"changes.attributes.{name}",
                    "live updates that are not sealed have values of another type, from before a rollback: seal them "
                    f"first (`scannery index seal {request.index}`), or choose another name",
                )
            if manifest.spec.dynamic:
                self._check_not_dynamic(manifest, added)
            named.clear()
            named.update(self._added_vectors(manifest, spec, live))
            query_models.clear()
            query_models.update(self._query_models(manifest, spec))
            return spec

        manifest = alter_index(
            self._catalog.store,
            request.index,
            changed,
            named=lambda _, name: named[name],
            queries=lambda _, name: query_models[name],
        )
        self._catalog.altered(request.index)
        if before < manifest.version == manifest.columns_version:
            self._mark_columns(manifest, deadline)
        aliases = self._catalog.aliases.of(request.index)
        return pb.AlterIndexResponse(index=index_info(manifest, details=True, aliases=aliases))

    def _mark_columns(self, manifest: Manifest, deadline: Deadline) -> None:
        # The index is altered without it, too; others open the version within a second.
        try:
            live = self._catalog.live(manifest.index)
            if live.state.manifest.version == manifest.version:
                live.mark_columns(deadline)
        except (IndexerError, ServingError) as error:
            _LOG.warning(
                "index %s: its log does not tell of version %d: %s", manifest.index, manifest.version, error
            )

    def _added_vectors(
        self, manifest: Manifest, spec: IndexSpec, live: LiveIndex[Any]
    ) -> dict[str, VectorsInfo]:
        """Return what is known of the named vectors that a spec adds; an error if the log has others of the name."""
        added = spec.named_vectors.keys() - manifest.named_vectors.keys()
        if not added:
            return {}
        new_vectors = self._spaces.of_names(spec, added, "changes")
        altered = manifest.model_copy(
            update={"spec": spec, "named_vectors": {**manifest.named_vectors, **new_vectors}}
        )
        if problem := named_vectors_problem(live, manifest, altered):
            raise InvalidRequestError.at(
                "changes.named_vectors",
                f"live updates that are not sealed are from before a rollback, and their {problem}: seal them first "
                f"(`scannery index seal {manifest.index}`), or choose another name",
            )
        return new_vectors

    def _query_models(self, manifest: Manifest, spec: IndexSpec) -> dict[str, dict[str, Any] | None]:
        """Return the fingerprints of the models for queries that a spec changes, by name; they can be used here."""
        encoders, before = spec.encoders, manifest.spec.encoders
        return {
            name: self._spaces.of_queries(
                encoders[name],
                manifest.vectors[name].dimensions,
                f"changes.named_vectors.{name}.encoder" if name else "changes.encoder",
            )
            for name in encoders.keys() & before.keys()
            if encoders[name].query_model != before[name].query_model
        }

    def _check_not_dynamic(self, manifest: Manifest, names: Collection[str]) -> None:
        """Refuse to declare names that datapoints have as dynamic attributes: filters would not find their values."""
        if names and self._catalog.live(manifest.index).state.shards is NO_SHARDS:
            [name, *_] = sorted(names)
            raise UnsupportedError(
                f"changes.attributes.{name}: index {manifest.index!r} is dynamic, and a root of a cluster cannot tell "
                f"whether datapoints have {name!r} as a dynamic attribute. Start `scannery serve` with the --store and "
                f"the --log of this root, without --role, and call that (`scannery index alter {manifest.index} "
                f"--attribute {name}=TYPE --target HOST:PORT`)",
                field=f"changes.attributes.{name}",
            )
        live = self._catalog.live(manifest.index)
        if live.state.manifest.version != manifest.version:  # another process has just published it
            self._catalog.open_created(manifest.index)
            live = self._catalog.live(manifest.index)
        for name, count in sorted(dynamic_attribute_counts(live, names).items()):
            raise ConditionError(
                f"changes.attributes.{name}: {count} datapoints have it as a dynamic attribute. A build with it in the "
                "spec moves their values (`scannery build`); or remove it from them first (`update` with None), or "
                "choose another name",
                field=f"changes.attributes.{name}",
            )


def _altered(spec: IndexSpec, changes: Mapping[str, Any]) -> IndexSpec:
    try:
        return altered_spec(spec, changes)
    except InvalidSpecError as error:
        raise invalid_spec(error, "changes") from error


def parsed_changes(text: str) -> Mapping[str, Any]:
    """Return changed keys of a spec from JSON; InvalidRequestError if it is none."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limits.MAX_SPEC_BYTES:
        raise InvalidRequestError.at(
            "changes_json", f"must have at most {limits.MAX_SPEC_BYTES} bytes, got {size}"
        )
    try:
        changes = strict_json(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.at("changes_json", f"is not JSON: {error}") from error
    if not isinstance(changes, Mapping) or not changes:
        raise InvalidRequestError.at(
            "changes_json", f"must be a mapping with keys of SPEC.yaml, got {text!r:.80}"
        )
    return changes
