"""`DataObjectService`: data objects of collections, each a datapoint of our index."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.empty_pb2 import Empty

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.v2.collections import Collection, Collections
from scannery.bridges.vertex.v2.data_objects.messages import given_change, given_object, message_of
from scannery.bridges.vertex.v2.data_objects.store import Objects, unknown_object
from scannery.bridges.vertex.v2.resource_names import parsed_collection, parsed_object
from scannery.runtime.errors import InvalidRequestError
from scannery.vertex.v2 import data_objects_pb2 as pb

__all__ = ["ObjectMethods"]

MAX_BATCH = 1000


class ObjectMethods:
    """Create, get, update and delete data objects."""

    def __init__(self, facade: Facade, collections: Collections) -> None:
        """Work with the collections of a server."""
        self._collections, self._objects = collections, Objects(facade)
        service = "DataObjectService"
        self.methods = (
            ForeignMethod(
                service, "CreateDataObject", pb.CreateDataObjectRequest, self.create, "write", narrowed=True
            ),
            ForeignMethod(
                service,
                "BatchCreateDataObjects",
                pb.BatchCreateDataObjectsRequest,
                self.create_batch,
                "write",
                narrowed=True,
            ),
            ForeignMethod(service, "GetDataObject", pb.GetDataObjectRequest, self.get, "read", narrowed=True),
            ForeignMethod(
                service, "UpdateDataObject", pb.UpdateDataObjectRequest, self.update, "write", narrowed=True
            ),
            ForeignMethod(
                service,
                "BatchUpdateDataObjects",
                pb.BatchUpdateDataObjectsRequest,
                self.update_batch,
                "write",
                narrowed=True,
            ),
            ForeignMethod(
                service, "DeleteDataObject", pb.DeleteDataObjectRequest, self.delete, "write", narrowed=True
            ),
            ForeignMethod(
                service,
                "BatchDeleteDataObjects",
                pb.BatchDeleteDataObjectsRequest,
                self.delete_batch,
                "write",
                narrowed=True,
            ),
        )

    def create(self, request: pb.CreateDataObjectRequest, call: Call) -> pb.DataObject:
        """Create a data object."""
        collection = self._collection(request.parent, "parent")
        return self._created(collection, [request], [""], call)[0]

    def create_batch(
        self, request: pb.BatchCreateDataObjectsRequest, call: Call
    ) -> pb.BatchCreateDataObjectsResponse:
        """Create data objects, all or none."""
        collection = self._collection(request.parent, "parent")
        paths = _paths(len(request.requests))
        for each, path in zip(request.requests, paths, strict=True):
            _check_parent(each.parent, request.parent, f"{path}parent")
        return pb.BatchCreateDataObjectsResponse(
            data_objects=self._created(collection, request.requests, paths, call)
        )

    def get(self, request: pb.GetDataObjectRequest, call: Call) -> pb.DataObject:
        """Return a data object."""
        name, identifier = parsed_object(request.name, "name")
        collection = self._collections.get(name, "name", recent=True)
        [stored] = self._objects.read(collection, [identifier], call)
        if stored is None:
            raise unknown_object(name, identifier, "name")
        return message_of(stored, name, collection.schema)

    def update(self, request: pb.UpdateDataObjectRequest, call: Call) -> pb.DataObject:
        """Change a data object that exists."""
        name, _ = parsed_object(request.data_object.name, "data_object.name")
        collection = self._collections.get(name, "data_object.name", recent=True)
        [changed] = self._objects.change(collection, [given_change(request, collection, "")], call)
        return message_of(changed, name, collection.schema)

    def update_batch(
        self, request: pb.BatchUpdateDataObjectsRequest, call: Call
    ) -> pb.BatchUpdateDataObjectsResponse:
        """Change data objects, all or none."""
        collection = self._collection(request.parent, "parent")
        paths = _paths(len(request.requests))
        changes = []
        for each, path in zip(request.requests, paths, strict=True):
            name, _ = parsed_object(each.data_object.name, f"{path}data_object.name")
            _check_parent(str(name), request.parent, f"{path}data_object.name")
            changes.append(given_change(each, collection, path))
        self._objects.change(collection, changes, call)
        return pb.BatchUpdateDataObjectsResponse()

    def delete(self, request: pb.DeleteDataObjectRequest, call: Call) -> Empty:
        """Remove a data object."""
        name, identifier = parsed_object(request.name, "name")
        collection = self._collections.get(name, "name", recent=True)
        self._objects.delete(collection, {identifier: request.etag}, call)
        return Empty()

    def delete_batch(self, request: pb.BatchDeleteDataObjectsRequest, call: Call) -> Empty:
        """Remove data objects, all or none."""
        collection = self._collection(request.parent, "parent")
        etags: dict[str, str] = {}
        for each, path in zip(request.requests, _paths(len(request.requests)), strict=True):
            name, identifier = parsed_object(each.name, f"{path}name")
            _check_parent(str(name), request.parent, f"{path}name")
            if identifier in etags:
                raise InvalidRequestError.at(f"{path}name", f"{identifier!r:.200} is there twice")
            etags[identifier] = each.etag
        self._objects.delete(collection, etags, call)
        return Empty()

    def _collection(self, parent: str, field: str) -> Collection:
        return self._collections.get(parsed_collection(parent, field), field, recent=True)

    def _created(
        self,
        collection: Collection,
        requests: Sequence[pb.CreateDataObjectRequest],
        paths: Sequence[str],
        call: Call,
    ) -> list[pb.DataObject]:
        values = self._objects.common_values(collection)
        objects = [
            given_object(each.data_object, collection, each.data_object_id, path, values=values)
            for each, path in zip(requests, paths, strict=True)
        ]
        created = self._objects.create(collection, objects, call)
        return [message_of(each, collection.name, collection.schema) for each in created]


def _check_parent(value: str, parent: str, field: str) -> None:
    """Check the collection of one request of a batch; it may be left out."""
    if value and value != parent:
        raise InvalidRequestError.at(
            field, f"must be in {parent!r:.200}, as the batch is, got {value!r:.200}"
        )


def _paths(count: int) -> list[str]:
    """Return the front of fields in errors for each request of a batch; InvalidRequestError for a wrong number."""
    if not 1 <= count <= MAX_BATCH:
        raise InvalidRequestError.at("requests", f"must be 1 to {MAX_BATCH}, got {count}")
    return [f"requests[{number}]." for number in range(count)]
