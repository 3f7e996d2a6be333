"""The handler that changes the specs of indexes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from scannery.indexer import (
    IndexerError,
    IndexSpec,
    InvalidSpecError,
    Manifest,
    NamedVectorsInfo,
    alter_index,
    altered_spec,
)
from scannery.indexer.strict_json import strict_json
from scannery.live.attribute_conflicts import (
    attribute_of_other_type,
    dynamic_attribute_counts,
    named_vectors_problem,
)
from scannery.live.live_index import LiveIndex
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import ConditionError, InvalidRequestError, ServingError
from scannery.serving import limits
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.catalog.description import index_info
from scannery.serving.contract import ALTER_INDEX
from scannery.serving.services.allowed_models import AllowedModels
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.services.vector_spaces import VectorSpaces
from scannery.v1 import index_pb2 as pb

__all__ = ["Alteration"]

_LOG = logging.getLogger(__name__)


class Alteration:
    """AlterIndex over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: BaseCatalog, models: Collection[str] | None) -> None:
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
        changes = _parsed(request.changes_json)
        live = self._catalog.live(request.index)
        before = live.state.manifest.version
        named: dict[str, NamedVectorsInfo] = {}

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
            return spec

        manifest = alter_index(self._catalog.store, request.index, changed, named=lambda _, name: named[name])
        self._catalog.altered(request.index)
        if before < manifest.version == manifest.columns_version:
            self._mark_columns(manifest, deadline)
        aliases = self._catalog.aliases_of(request.index)
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
    ) -> dict[str, NamedVectorsInfo]:
        """Return what is known of the named vectors that a spec adds; an error if the log has others of the name."""
        added = spec.named_vectors.keys() - manifest.named_vectors.keys()
        if not added:
            return {}
        found = self._spaces.of_names(spec, added, "changes")
        altered = manifest.model_copy(
            update={"spec": spec, "named_vectors": {**manifest.named_vectors, **found}}
        )
        if problem := named_vectors_problem(live, manifest, altered):
            raise InvalidRequestError.at(
                "changes.named_vectors",
                f"live updates that are not sealed are from before a rollback, and their {problem}: seal them first "
                f"(`scannery index seal {manifest.index}`), or choose another name",
            )
        return found

    def _check_not_dynamic(self, manifest: Manifest, names: Collection[str]) -> None:
        """Refuse to declare names that datapoints have as dynamic attributes: filters would not find their values."""
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
        field = f"changes.{error.field}" if error.field else "changes"
        raise InvalidRequestError(f"changes: {error.message.removeprefix('spec: ')}", field=field) from error


def _parsed(text: str) -> Mapping[str, Any]:
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
