"""Create an empty index: its first version, which has no segments yet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any

from scannery.indexer.errors import AlreadyExistsError, InvalidSpecError, NotFoundError
from scannery.indexer.lexical.analyser import ANALYSER_VERSION
from scannery.indexer.manifest import Manifest, NamedVectorsInfo
from scannery.indexer.spec.spec import IndexSpec, LexicalSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.aliases import check_no_alias
from scannery.indexer.versions.versions import commit, latest_version, read_manifest

__all__ = ["create_index", "given_vectors", "keeps_compounds", "with_analyser"]


def create_index(
    store: Store,
    spec: IndexSpec,
    *,
    dimensions: int,
    fingerprint: Mapping[str, Any] | None = None,
    named: Mapping[str, NamedVectorsInfo] = MappingProxyType({}),
    request_id: str = "",
) -> Manifest:
    """Publish version 1 of an index without datapoints, and return its manifest.

    Args:
        store: where the index will be.
        spec: of the index; with `shards: auto` it gets one shard.
        dimensions: components of a vector.
        fingerprint: of the encoder, if the index has one for its documents.
        named: what is known of named vectors with an encoder, by name; others have the dimensions of the spec.
        request_id: a repetition with the same one returns the index that the first attempt created.

    Raises:
        InvalidSpecError: `named` lacks a name that has an encoder.
        AlreadyExistsError: there is an index or an alias of this name.
        StoreError: the store cannot be written.

    """
    manifest = Manifest(
        index=spec.index,
        version=1,
        created_at=datetime.now(timezone.utc),
        spec=with_analyser(spec, None),
        encoder=None if fingerprint is None else dict(fingerprint),
        dimensions=dimensions,
        named_vectors={name: named.get(name) or given_vectors(spec, name) for name in spec.named_vectors},
        shards=1 if spec.shards == "auto" else spec.shards,
        segments=(),
        statistics={"mode": "create", "request_id": request_id},
    )
    check_no_alias(store, spec.index)
    try:
        if latest_version(store, spec.index) is None:
            return commit(store, manifest)
    except AlreadyExistsError:  # another process was quicker
        pass
    if (known := _created_before(store, spec.index, request_id)) is not None:
        return known
    raise AlreadyExistsError(f"index: there is an index {spec.index!r} already", field="index")


def given_vectors(spec: IndexSpec, name: str) -> NamedVectorsInfo:
    """Return what is known of named vectors without an encoder; InvalidSpecError if they have one."""
    dimensions = spec.named_vectors[name].dimensions
    if dimensions is None:
        field = f"named_vectors.{name}.encoder"
        raise InvalidSpecError(f"{field}: its dimensions and fingerprint are required", field=field)
    return NamedVectorsInfo(dimensions=dimensions)


def with_analyser(spec: IndexSpec, parent: IndexSpec | None) -> IndexSpec:
    """Return the spec with the analyser of the index before, where it leaves that open; a new index gets the newest.

    The words that compounds are split into are kept likewise, unless the spec has a list of its own or `false`.
    """
    if spec.lexical is None:
        return spec
    old, update = None if parent is None else parent.lexical, dict[str, Any]()
    if spec.lexical.analyser is None:
        update["analyser"] = old.analyser if old else ANALYSER_VERSION
    if old and keeps_compounds(spec.lexical, old):
        update["compounds"] = old.compounds
    return spec.model_copy(update={"lexical": spec.lexical.model_copy(update=update)})


def keeps_compounds(lexical: LexicalSpec, old: LexicalSpec) -> bool:
    """Return whether an update with `lexical` splits compounds as the index does."""
    if lexical.compounds is None:
        return True
    return isinstance(old.compounds, list) and (
        lexical.compounds is True or isinstance(lexical.compounds, str)
    )


def _created_before(store: Store, index: str, request_id: str) -> Manifest | None:
    """Return the version that an earlier attempt of the same request created."""
    if not request_id:
        return None
    try:
        first = read_manifest(store, index, 1)
    except NotFoundError:  # removed by gc, long after the request
        return None
    return first if first.statistics.get("request_id") == request_id else None
