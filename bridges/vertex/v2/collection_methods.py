"""`VectorSearchService`: collections. Each is an index of this server.

`VectorSearchService`: indexes of collections.

A collection can be searched at once, and its index is built by this server as it grows. So an index of the managed
service is a name here, for a field and a distance; searches that name it use the tuned plan, others compare exactly.

The handlers of API v2 by path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod, registered
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.names import check_kept, page_of, parse_parent
from scannery.bridges.vertex.v2.callers import readable_description
from scannery.bridges.vertex.v2.collections import (
    Births,
    Collection,
    Collections,
    Once,
    birth_mark,
    record_of,
    stored_index,
)
from scannery.bridges.vertex.v2.data_objects.methods import ObjectMethods
from scannery.bridges.vertex.v2.data_schema import DataSchema
from scannery.bridges.vertex.v2.resource_names import (
    CollectionName,
    checked_id,
    parsed_collection,
    parsed_index,
)
from scannery.bridges.vertex.v2.search_methods import SearchMethods
from scannery.bridges.vertex.v2.transfers.methods import TransferMethods
from scannery.bridges.vertex.v2.values import struct_of
from scannery.bridges.vertex.v2.vector_schema import (
    VectorSchema,
    check_field_names,
    index_spec,
    named_vector,
    parsed_schema,
)
from scannery.indexer import AlreadyExistsError
from scannery.runtime.errors import ConditionError, InvalidRequestError, UnsupportedError
from scannery.serving.bridging import UnaryMethod
from scannery.v1 import index_pb2, search_pb2
from scannery.vertex.v1 import operations_pb2
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["PACKAGES", "IndexMethods", "finished", "v2_methods"]


DISTANCE_LABEL = "scannery-distance"
"""Label of a new collection: how its vectors are kept, `cosine` (default) or `dot`.

Vectors that are kept for cosine can be compared by dot product, too: by ScaNN where all of a segment have length 1,
exactly where not. `dot` makes ScaNN search vectors of any length by dot product, without cosine."""
_TEXTS = ("display_name", "description", "labels")
_SCHEMAS = ("data_schema", "vector_schema")
MAX_TEXT = 4096
MAX_COLLECTION_BYTES = 1 << 16
"""Bytes of a collection without its indexes. All of them are in one object, which every change writes anew."""


class CollectionMethods:
    """Create, get, list, update and delete collections."""

    def __init__(self, facade: Facade, collections: Collections) -> None:
        """Work with the indexes of a server."""
        self._facade, self._collections = facade, collections
        self._births = Births(facade, collections)
        service = "VectorSearchService"
        self.methods = (
            ForeignMethod(service, "CreateCollection", pb.CreateCollectionRequest, self.create, "admin"),
            ForeignMethod(service, "GetCollection", pb.GetCollectionRequest, self.get, "read", narrowed=True),
            ForeignMethod(
                service, "ListCollections", pb.ListCollectionsRequest, self.list, "read", narrowed=True
            ),
            ForeignMethod(service, "UpdateCollection", pb.UpdateCollectionRequest, self.update, "admin"),
            ForeignMethod(service, "DeleteCollection", pb.DeleteCollectionRequest, self.delete, "admin"),
        )

    def create(self, request: pb.CreateCollectionRequest, call: Call) -> operations_pb2.Operation:
        """Create an empty collection, which takes data objects at once."""
        location = parse_parent(request.parent)
        name = CollectionName(location, checked_id(request.collection_id, "collection_id", strict=True))
        once = Once.of(request)
        if not self._collections.answered(once):
            try:
                self._create(name, request.collection, once, call)
            except AlreadyExistsError:
                if not self._collections.answered(once):  # the same request, sent twice at once
                    raise
        created = self._collections.get(name, "collection_id").message
        return finished(self._facade, call, "create", name, name, created)

    def get(self, request: pb.GetCollectionRequest, call: Call) -> pb.Collection:
        """Return a collection."""
        collection = self._collections.get(parsed_collection(request.name, "name"), "name")
        self._facade.engine.index_info(collection.index, call.deadline)
        return readable_description(collection)

    def list(self, request: pb.ListCollectionsRequest, call: Call) -> pb.ListCollectionsResponse:
        """Return the collections of a location."""
        location = parse_parent(request.parent)
        check_list(request.filter, request.order_by)
        collections = [
            (each.name.id, readable_description(each)) for each in self._collections.below(location)
        ]
        page, token = page_of(
            collections, size=request.page_size, token=request.page_token, query_key=location
        )
        return pb.ListCollectionsResponse(collections=page, next_page_token=token)

    def update(self, request: pb.UpdateCollectionRequest, call: Call) -> operations_pb2.Operation:
        """Change descriptions, and add fields to schemas."""
        name = parsed_collection(request.collection.name, "collection.name")
        before = self._collections.get(name, "collection.name")
        once = Once.of(request)
        if self._collections.answered(once):
            return finished(self._facade, call, "update", name, name, before.message)
        message = merged(before.message, request.collection, list(request.update_mask.paths))
        _check_texts(message)
        models = {**before.record["models"], **self._facade.config.models}
        spaces = before.schema.spaces
        schema = parsed_schema(message.vector_schema, models, spaces=spaces)
        _check_grown(before, message, schema)
        self._add_vectors(before, message, schema, call)
        distance = before.message.labels.get(DISTANCE_LABEL, "cosine")
        record = record_of(
            name.location,
            message,
            schema,
            distances={**dict.fromkeys(schema.dense, distance), **before.distances},
            created_us=before.record["created_us"],
            updated_us=self._collections.now_us(),
            indexes=before.record["indexes"],
        )
        after = self._collections.put(name, record, instead_of=before.record, once=once)
        return finished(self._facade, call, "update", name, name, after.message)

    def delete(self, request: pb.DeleteCollectionRequest, call: Call) -> operations_pb2.Operation:
        """Remove a collection; FAILED_PRECONDITION if it has data objects or indexes, unless `force` is set."""
        name = parsed_collection(request.name, "name")
        once = Once.of(request)
        if self._collections.answered(once):
            return finished(self._facade, call, "delete", name, name, Empty())
        collection = self._collections.get(name, "name")
        if not request.force:
            self._check_empty(collection, call)
        self._facade.engine.drop_index(collection.index, call.deadline, missing_ok=True)
        self._collections.remove(collection, once=once)
        return finished(self._facade, call, "delete", name, name, Empty())

    def _create(self, name: CollectionName, collection: pb.Collection, once: Once, call: Call) -> None:
        message, schema = self._checked(collection)
        distance = message.labels.get(DISTANCE_LABEL, "cosine")
        if distance not in ("dot", "cosine"):
            raise InvalidRequestError.at(
                f"collection.labels.{DISTANCE_LABEL}", f"must be dot or cosine, got {distance!r:.80}"
            )
        distances = dict.fromkeys(schema.dense, distance)
        replaced, mark = self._collections.record(name.id), birth_mark(name, message)
        info = self._births.index(name, index_spec(name.id, schema, distances), schema, mark, replaced, call)
        try:
            _set_dimensions(message, schema, info)
        except InvalidRequestError:
            self._facade.engine.drop_index(name.id, call.deadline, missing_ok=True)
            raise
        now = self._collections.now_us()
        record = record_of(
            name.location, message, schema, distances=distances, created_us=now, updated_us=now
        )
        self._collections.put(name, record, instead_of=replaced, once=once, mark=mark)

    def _checked(self, original: pb.Collection) -> tuple[pb.Collection, VectorSchema]:
        """Return a new collection that was checked, and its vectors."""
        if original.HasField("encryption_spec"):
            raise UnsupportedError(
                "collection.encryption_spec: keys of the caller are not supported",
                field="collection.encryption_spec",
            )
        message = pb.Collection()
        message.CopyFrom(original)
        _check_texts(message)
        if message.HasField("schema") and not message.HasField("data_schema"):
            message.data_schema.CopyFrom(message.schema)
        message.ClearField("schema")
        DataSchema(struct_of(message.data_schema, "collection.data_schema"))
        check_field_names(message.vector_schema)
        return message, parsed_schema(message.vector_schema, self._facade.config.models)

    def _add_vectors(
        self, before: Collection, message: pb.Collection, schema: VectorSchema, call: Call
    ) -> None:
        """Add the vectors of new fields to the index."""
        distance = before.message.labels.get(DISTANCE_LABEL, "cosine")
        added = {
            field.space: named_vector(field, distance)
            for name, field in schema.dense.items()
            if name not in before.schema.dense
        }
        if added:
            info = self._facade.engine.alter_index(before.index, {"named_vectors": added}, call.deadline)
            _set_dimensions(message, schema, info)

    def _check_empty(self, collection: Collection, call: Call) -> None:
        count, rows = search_pb2.CountRequest(index=collection.index), 0
        if self._births.exists(collection.index):  # else a deletion was cut short
            # With what other workers have acknowledged.
            self._facade.catalog.live(collection.index).catch_up()
            rows = self._facade.engine.count(count, call.deadline).count
        if rows or collection.indexes:
            raise ConditionError(
                f"name: the collection has {rows} data objects and {len(collection.indexes)} indexes; delete them "
                "first, or set `force` (v1beta)",
                field="name",
            )


def finished(
    facade: Facade, call: Call, verb: str, collection: CollectionName, target: object, response: Message
) -> operations_pb2.Operation:
    """Return an operation that has ended.

    Args:
        facade: of the server.
        call: that began it.
        verb: what it did.
        collection: which the caller sees.
        target: name of the resource.
        response: its result.

    """
    metadata = pb.OperationMetadata(target=str(target), verb=verb, api_version=call.api.rpartition(".")[2])
    metadata.create_time.GetCurrentTime()
    metadata.end_time.CopyFrom(metadata.create_time)
    return facade.operations.finished(
        call, collection.location, index=collection.id, metadata=metadata, response=response
    )


def check_list(given_filter: str, order_by: str) -> None:
    """Raise UnsupportedError for what lists do not support."""
    if given_filter:
        raise UnsupportedError("filter: lists have no filter", field="filter")
    if order_by not in ("", "name"):
        raise UnsupportedError("order_by: lists are ordered by name", field="order_by")


def merged(before: pb.Collection, changes: pb.Collection, mask: list[str]) -> pb.Collection:
    """Return a collection with the fields of a mask, or those that are given where the mask is empty."""
    after = pb.Collection()
    after.CopyFrom(before)
    if changes.HasField("schema") and not changes.HasField("data_schema"):
        changes = pb.Collection(
            **{field.name: value for field, value in changes.ListFields()}, data_schema=changes.schema
        )
    paths = mask or [field.name for field, _ in changes.ListFields() if field.name in (*_TEXTS, *_SCHEMAS)]
    for path in [*_TEXTS, *_SCHEMAS] if paths == ["*"] else paths:
        first, _, tail = path.partition(".")
        if first not in (*_TEXTS, *_SCHEMAS):
            raise InvalidRequestError.at(
                "update_mask",
                f"must have paths of {', '.join((*_TEXTS, *_SCHEMAS))}, or be *, got {path!r:.80}",
            )
        if tail:
            _merge_field(after, changes, first, tail)
        else:
            after.ClearField(first)  # type: ignore[arg-type]  # one of the names above
            part = pb.Collection()
            part.CopyFrom(changes)
            for field, _ in changes.ListFields():
                if field.name != first:
                    part.ClearField(field.name)  # type: ignore[arg-type]  # the name of a field
            after.MergeFrom(part)
    return after


def _merge_field(after: pb.Collection, changes: pb.Collection, first: str, tail: str) -> None:
    """Set a field of one of the schemas, or one label."""
    if first == "vector_schema" and tail in changes.vector_schema:
        after.vector_schema[tail].CopyFrom(changes.vector_schema[tail])
        return
    if first == "labels" and tail in changes.labels:
        after.labels[tail] = changes.labels[tail]
        return
    name = tail.removeprefix("properties.")
    properties = changes.data_schema.fields["properties"].struct_value.fields
    if first == "data_schema" and name != tail and name in properties:
        kept = after.data_schema.fields["properties"].struct_value.fields
        kept[name].CopyFrom(properties[name])
        return
    raise InvalidRequestError.at("update_mask", f"{first}.{tail:.80} is not in the collection given")


def _check_grown(before: Collection, after: pb.Collection, schema: VectorSchema) -> None:
    """Raise for a field that is gone or has changed, for a new sparse field, and for the name of a new field."""
    check_field_names(after.vector_schema.keys() - before.message.vector_schema.keys())
    for name, field in before.message.vector_schema.items():
        if name not in after.vector_schema:
            raise InvalidRequestError.at(f"collection.vector_schema.{name}", "cannot be removed")
        if after.vector_schema[name] != field:
            raise UnsupportedError(
                f"collection.vector_schema.{name}: fields cannot be changed; add one with another name",
                field=f"collection.vector_schema.{name}",
            )
    if schema.sparse != before.schema.sparse:
        raise UnsupportedError(
            f"collection.vector_schema.{schema.sparse}: a sparse field cannot be added later",
            field=f"collection.vector_schema.{schema.sparse}",
        )
    _check_properties(
        struct_of(before.message.data_schema, ""), struct_of(after.data_schema, "collection.data_schema")
    )


def _check_properties(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    DataSchema(after)
    properties = after.get("properties", {})
    for name in before.get("properties", {}):
        if name not in properties:
            raise InvalidRequestError.at(f"collection.data_schema.properties.{name}", "cannot be removed")


def _set_dimensions(message: pb.Collection, schema: VectorSchema, info: index_pb2.IndexInfo) -> None:
    """Set the dimensions of fields with a model; InvalidRequestError if the request wants others."""
    for name, field in schema.dense.items():
        if not field.model:
            continue
        made = info.named_vectors[field.space].dimensions
        if field.dimensions not in (0, made):
            raise InvalidRequestError.at(
                f"collection.vector_schema.{name}.dense_vector.dimensions",
                f"must be {made}, as the model {field.model_id!r} of this server has, got {field.dimensions}",
            )
        message.vector_schema[name].dense_vector.dimensions = made


def _check_texts(message: pb.Collection) -> None:
    if message.ByteSize() > MAX_COLLECTION_BYTES:
        raise InvalidRequestError.at(
            "collection", f"must have at most {MAX_COLLECTION_BYTES} bytes, got {message.ByteSize()}"
        )
    for name, text in (("display_name", message.display_name), ("description", message.description)):
        if len(text) > MAX_TEXT:
            raise InvalidRequestError.at(f"collection.{name}", f"must have at most {MAX_TEXT} characters")
    if len(message.labels) > 64:
        raise InvalidRequestError.at("collection.labels", f"must be at most 64, got {len(message.labels)}")


_CHANGEABLE = ("display_name", "description", "labels", "dedicated_infrastructure")
MAX_INDEXES = 100
MAX_INDEX_BYTES = 1 << 13
"""Bytes of an index: they are kept with their collection."""
MAX_ALL_BYTES = 1 << 16
"""Bytes of all indexes of a collection, as JSON: every change of any resource writes all of them."""


class IndexMethods:
    """Create, get, list, update and delete the indexes of collections."""

    def __init__(self, facade: Facade, collections: Collections) -> None:
        """Work with the collections of a server."""
        self._facade, self._collections = facade, collections
        service = "VectorSearchService"
        self.methods = (
            ForeignMethod(service, "CreateIndex", pb.CreateIndexRequest, self.create, "admin"),
            ForeignMethod(service, "GetIndex", pb.GetIndexRequest, self.get, "read", narrowed=True),
            ForeignMethod(service, "ListIndexes", pb.ListIndexesRequest, self.list, "read", narrowed=True),
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
        listed = [(each, stored_index(collection, each)) for each in sorted(collection.indexes)]
        page, token = page_of(
            listed, size=request.page_size, token=request.page_token, query_key=request.parent
        )
        return pb.ListIndexesResponse(indexes=page, next_page_token=token)

    def update(self, request: pb.UpdateIndexRequest, call: Call) -> operations_pb2.Operation:
        """Change the description of an index."""
        name, identifier = parsed_index(request.index.name, "index.name")
        collection = self._collections.get(name, "index.name")
        once, after = Once.of(request), stored_index(collection, identifier)
        target = name.index_name(identifier)
        if self._collections.answered(once):
            return finished(self._facade, call, "update", name, target, after)
        changed_fields = [field.name for field, _ in request.index.ListFields() if field.name in _CHANGEABLE]
        for path in list(request.update_mask.paths) or changed_fields:
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
            remaining = {key: each for key, each in collection.record["indexes"].items() if key != identifier}
            self._put(collection, remaining, once)
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
        names = ", ".join(sorted(filter(None, [*schema.dense, schema.sparse]))) or "it has none"
        raise InvalidRequestError.at(
            "index.index_field",
            f"must be a vector field of the collection ({names}), got {index.index_field!r:.80}",
        )
    if index.index_field == schema.sparse and index.distance_metric == pb.COSINE_DISTANCE:
        raise InvalidRequestError.at(
            "index.distance_metric", "must be DOT_PRODUCT: sparse vectors are compared by it"
        )
    if index.distance_metric not in pb.DistanceMetric.values():
        raise InvalidRequestError.at("index.distance_metric", f"is unknown: {index.distance_metric}")


def _kept(index: pb.Index) -> dict[str, Any]:
    """Return the JSON of an index without what the server sets."""
    if index.ByteSize() > MAX_INDEX_BYTES:
        raise InvalidRequestError.at(
            "index", f"must have at most {MAX_INDEX_BYTES} bytes, got {index.ByteSize()}"
        )
    kept = pb.Index()
    kept.CopyFrom(index)
    for field in ("name", "create_time", "update_time"):
        kept.ClearField(field)
    return MessageToDict(kept, preserving_proto_field_name=True)


PACKAGES = ("google.cloud.vectorsearch.v1", "google.cloud.vectorsearch.v1beta")
"""Versions of the API under which the methods are registered; the second one has a few fields more."""


def v2_methods(facade: Facade) -> dict[str, UnaryMethod]:
    """Return the handlers of API v2 by path."""
    collections = Collections(facade.state)
    methods = (
        *CollectionMethods(facade, collections).methods,
        *IndexMethods(facade, collections).methods,
        *ObjectMethods(facade, collections).methods,
        *SearchMethods(facade, collections).methods,
        *TransferMethods(facade, collections).methods,
    )
    return registered(methods, PACKAGES)
