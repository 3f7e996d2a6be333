"""The birth of a collection: first its index, then its record, so that no collection is seen without an index.

A server that dies in between leaves an index without a record. The index remembers which request has created it: the
same request takes it over. Another one for the same name replaces it if it was never written to, and
is too old for its creation to be still running. The replacing request says so first, in the write that checks that
there is no record: then the request that has created the index cannot record it any more (`Collections.put`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from scannery.indexer import AlreadyExistsError, NotFoundError, latest_version, read_manifest
from scannery.live.log.registry import registered
from scannery.serving.vertex.shared.calls import Call
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.shared.names import is_visible
from scannery.serving.vertex.v2.collections import Collections
from scannery.serving.vertex.v2.resource_names import CollectionName
from scannery.serving.vertex.v2.vector_schema import VectorSchema
from scannery.v1 import index_pb2
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["ABANDONED_AFTER_S", "Births", "birth_mark"]

ABANDONED_AFTER_S = 30.0
"""Age of an index without a record. Between the two there is one write, of milliseconds."""
_MARK = "collection-"
"""Front of the ids of requests that create indexes of collections."""


class Births:
    """Creates the indexes of collections. Safe to use from several threads and processes."""

    def __init__(self, facade: Facade, collections: Collections) -> None:
        """Create indexes in the store of a server."""
        self._facade, self._collections = facade, collections

    def exists(self, index: str) -> bool:
        """Return whether the store has an index, also if this process has not opened it yet."""
        return latest_version(self._facade.catalog.store, index) is not None

    def index(
        self,
        name: CollectionName,
        spec: Mapping[str, Any],
        schema: VectorSchema,
        mark: str,
        record: Mapping[str, Any] | None,
        call: Call,
    ) -> index_pb2.IndexInfo:
        """Create the index of a collection, and return its description.

        Args:
            name: of the collection.
            spec: of the index.
            schema: its vectors.
            mark: of the request.
            record: of a collection of that name; its index may be gone.
            call: with the deadline.

        Raises:
            AlreadyExistsError: there is a collection or an index of that name.

        """
        error = AlreadyExistsError(
            f"collection_id: there is a collection or an index {name.id!r}; names are unique in a server",
            field="collection_id",
        )
        # Who may not see the name learns nothing: the engine refuses it below.
        taken = record is not None and self.exists(name.id) and is_visible(name.id)
        if taken:
            raise error
        unnamed = sum(field.dimensions for field in schema.dense.values() if not field.space)

        def create() -> index_pb2.IndexInfo:
            return self._facade.engine.create_index(
                spec, dimensions=unnamed, deadline=call.deadline, request_id=mark
            )

        try:
            return create()
        except AlreadyExistsError as taken_error:
            if record is not None or not self._is_abandoned(name.id):
                raise error from taken_error
        self._collections.claim(name, mark)
        self._facade.engine.drop_index(name.id, call.deadline, missing_ok=True)
        return create()

    def _is_abandoned(self, index: str) -> bool:
        """Return whether an index was created for a collection that was never recorded, long ago, and never written."""
        store = self._facade.catalog.store
        try:
            first = read_manifest(store, index, 1)
        except NotFoundError:
            return False
        age_s = (datetime.now(timezone.utc) - first.created_at).total_seconds()
        return (
            str(first.statistics.get("request_id", "")).startswith(_MARK)
            and age_s > ABANDONED_AFTER_S
            # In the store: what another process has written may not be visible here yet.
            and registered(store, index) is None
            and latest_version(store, index) == 1
        )


def birth_mark(name: CollectionName, message: pb.Collection) -> str:
    """Return what an index remembers of the request that creates it, from the collection as the request has it."""
    content = str(name).encode() + message.SerializeToString(deterministic=True)
    return f"{_MARK}{hashlib.blake2b(content, digest_size=16).hexdigest()}"
