"""`VectorSearchService`: indexes of collections.

A collection can be searched at once, and its index is built by this server as it grows. So an index of the managed
service is a name here, for a field and a distance; searches that name it use the tuned plan, others compare exactly.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict

from scannery.indexer import AlreadyExistsError
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.vertex.shared.calls import Call, ForeignMethod
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.shared.ownership import check_kept
from scannery.serving.vertex.shared.pages import page_of
from scannery.serving.vertex.v2.collection_methods import check_list, finished
from scannery.serving.vertex.v2.collections import Collection, Collections, Once, stored_index
from scannery.serving.vertex.v2.resource_names import checked_id, parsed_collection, parsed_index
from scannery.vertex.v1 import operations_pb2
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["IndexMethods"]

_CHANGEABLE = ("display_name", "description", "labels", "dedicated_infrastructure")
MAX_INDEXES = 100
MAX_KEPT_BYTES = 1 << 13
"""Of an index: they are kept with their collection."""
MAX_ALL_BYTES = 1 << 16
"""Of all indexes of a collection, as JSON: every change of any resource writes all of them."""


class IndexMethods:
    """Create, get, list, update and delete the indexes of collections."""

    def __init__(self, facade: Facade, collections: Collections) -> None:
        """Work with the collections of a server."""
        self._facade, self._collections = facade, collections
        service = "VectorSearchService"
        self.methods = (
            ForeignMethod(service, "CreateIndex", pb.CreateIndexRequest, self.create, "admin"),
            ForeignMethod(service, "GetIndex", pb.GetIndexRequest, self.get, "read"),
            ForeignMethod(service, "ListIndexes", pb.ListIndexesRequest, self.list, "read"),
            ForeignMethod(service, "UpdateIndex", pb.UpdateIndexRequest, self.update, "admin"),
            ForeignMethod(service, "DeleteIndex", pb.DeleteIndexRequest, self.delete, "admin"),
        )

    def create(self, request: pb.CreateIndexRequest, call: Call) -> operations_pb2.Operation:
        """Record an index."""
        name = parsed_collection(request.parent, "parent")
        collection = self._collections.get(name, "parent")
        identifier = checked_id(request.index_id, "index_id", strict=True)
        target = name.index_name(identifier)
        once = Once.of(request)
        if self._collections.answered(once):
            return finished(self._facade, call, "create", name, target, stored_index(collection, identifier))
        if identifier in collection.indexes:
            raise AlreadyExistsError(f"index_id: there is an index {target!r:.300}", field="index_id")
        if len(collection.indexes) >= MAX_INDEXES:
            raise InvalidRequestError.at("parent", f"has {MAX_INDEXES} indexes, which is the limit")
        _check(request.index, collection)
        now = self._collections.now_us()
        entry = {"index": _kept(request.index), "created_us": now, "updated_us": now}
        after = self._put_one(collection, identifier, entry, once)
        return finished(self._facade, call, "create", name, target, stored_index(after, identifier))

    def get(self, request: pb.GetIndexRequest, call: Call) -> pb.Index:
        """Return an index."""
        name, identifier = parsed_index(request.name, "name")
        return stored_index(self._collections.get(name, "name"), identifier)

    def list(self, request: pb.ListIndexesRequest, call: Call) -> pb.ListIndexesResponse:
        """Return the indexes of a collection."""
        collection = self._collections.get(parsed_collection(request.parent, "parent"), "parent")
        check_list(request.filter, request.order_by)
        found = [(each, stored_index(collection, each)) for each in sorted(collection.indexes)]
        page, token = page_of(found, size=request.page_size, token=request.page_token, asked=request.parent)
        return pb.ListIndexesResponse(indexes=page, next_page_token=token)

    def update(self, request: pb.UpdateIndexRequest, call: Call) -> operations_pb2.Operation:
        """Change the description of an index."""
        name, identifier = parsed_index(request.index.name, "index.name")
        collection = self._collections.get(name, "index.name")
        once, after = Once.of(request), stored_index(collection, identifier)
        target = name.index_name(identifier)
        if self._collections.answered(once):
            return finished(self._facade, call, "update", name, target, after)
        given = [field.name for field, _ in request.index.ListFields() if field.name in _CHANGEABLE]
        for path in list(request.update_mask.paths) or given:
            if path not in _CHANGEABLE:
                raise InvalidRequestError.at(
                    "update_mask", f"must have paths of {', '.join(_CHANGEABLE)}, got {path!r:.80}"
                )
            after.ClearField(path)  # type: ignore[arg-type]  # one of the names above
            part = pb.Index(
                **{field.name: value for field, value in request.index.ListFields() if field.name == path}
            )
            after.MergeFrom(part)
        entry = {
            **collection.record["indexes"][identifier],
            "index": _kept(after),
            "updated_us": self._collections.now_us(),
        }
        changed = self._put_one(collection, identifier, entry, once)
        return finished(self._facade, call, "update", name, target, stored_index(changed, identifier))

    def delete(self, request: pb.DeleteIndexRequest, call: Call) -> operations_pb2.Operation:
        """Forget an index: searches of its field are exact then."""
        name, identifier = parsed_index(request.name, "name")
        target = name.index_name(identifier)
        once = Once.of(request)
        if not self._collections.answered(once):
            collection = self._collections.get(name, "name")
            stored_index(collection, identifier)
            rest = {key: each for key, each in collection.record["indexes"].items() if key != identifier}
            self._put(collection, rest, once)
        return finished(self._facade, call, "delete", name, target, Empty())

    def _put_one(
        self, collection: Collection, identifier: str, entry: dict[str, Any], once: Once
    ) -> Collection:
        indexes = {**collection.record["indexes"], identifier: entry}
        check_kept(indexes, MAX_ALL_BYTES, "all indexes of the collection", "index")
        return self._put(collection, indexes, once)

    def _put(self, collection: Collection, indexes: dict[str, Any], once: Once) -> Collection:
        record = {**collection.record, "indexes": indexes}
        return self._collections.put(collection.name, record, instead_of=collection.record, once=once)


def _check(index: pb.Index, collection: Collection) -> None:
    """Raise InvalidRequestError for an index that does not fit its collection."""
    schema = collection.schema
    if index.index_field not in (*schema.dense, *filter(None, [schema.sparse])):
        known = ", ".join(sorted(filter(None, [*schema.dense, schema.sparse]))) or "it has none"
        raise InvalidRequestError.at(
            "index.index_field",
            f"must be a vector field of the collection ({known}), got {index.index_field!r:.80}",
        )
    if index.index_field == schema.sparse and index.distance_metric == pb.COSINE_DISTANCE:
        raise InvalidRequestError.at(
            "index.distance_metric", "must be DOT_PRODUCT: sparse vectors are compared by it"
        )
    if index.distance_metric not in pb.DistanceMetric.values():
        raise InvalidRequestError.at("index.distance_metric", f"is unknown: {index.distance_metric}")


def _kept(index: pb.Index) -> dict[str, Any]:
    """Return the JSON of an index without what the server sets."""
    if index.ByteSize() > MAX_KEPT_BYTES:
        raise InvalidRequestError.at(
            "index", f"must have at most {MAX_KEPT_BYTES} bytes, got {index.ByteSize()}"
        )
    kept = pb.Index()
    kept.CopyFrom(index)
    for field in ("name", "create_time", "update_time"):
        kept.ClearField(field)
    return MessageToDict(kept, preserving_proto_field_name=True)
