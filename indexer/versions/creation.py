"""Create an empty index: its first version, which has no segments yet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from scannery.indexer.errors import AlreadyExistsError, NotFoundError
from scannery.indexer.lexical.analyser import ANALYSER_VERSION
from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.versions import commit, latest_version, read_manifest

__all__ = ["create_index", "with_analyser"]


def create_index(
    store: Store,
    spec: IndexSpec,
    *,
    dimensions: int,
    fingerprint: Mapping[str, Any] | None = None,
    request_id: str = "",
) -> Manifest:
    """Publish version 1 of an index without datapoints, and return its manifest.

    Args:
        store: where the index will be.
        spec: of the index; with `shards: auto` it gets one shard.
        dimensions: components of a vector.
        fingerprint: of the encoder, if the index has one for its documents.
        request_id: a repetition with the same one returns the index that the first attempt created.

    Raises:
        AlreadyExistsError: there is an index of this name.
        StoreError: the store cannot be written.

    """
    manifest = Manifest(
        index=spec.index,
        version=1,
        created_at=datetime.now(timezone.utc),
        spec=with_analyser(spec, None),
        encoder=None if fingerprint is None else dict(fingerprint),
        dimensions=dimensions,
        shards=1 if spec.shards == "auto" else spec.shards,
        segments=(),
        statistics={"mode": "create", "request_id": request_id},
    )
    try:
        if latest_version(store, spec.index) is None:
            return commit(store, manifest)
    except AlreadyExistsError:  # another process was quicker
        pass
    if (known := _created_before(store, spec.index, request_id)) is not None:
        return known
    raise AlreadyExistsError(f"index: there is an index {spec.index!r} already", field="index")


def with_analyser(spec: IndexSpec, parent: IndexSpec | None) -> IndexSpec:
    """Return the spec with an analyser version: that of the index before, or the newest for a new index."""
    if spec.lexical is None or spec.lexical.analyser is not None:
        return spec
    old = None if parent is None else parent.lexical
    lexical = spec.lexical.model_copy(update={"analyser": old.analyser if old else ANALYSER_VERSION})
    return spec.model_copy(update={"lexical": lexical})


def _created_before(store: Store, index: str, request_id: str) -> Manifest | None:
    """Return the version that an earlier attempt of the same request created."""
    if not request_id:
        return None
    try:
        first = read_manifest(store, index, 1)
    except NotFoundError:  # removed by gc, long after the request
        return None
    return first if first.statistics.get("request_id") == request_id else None
