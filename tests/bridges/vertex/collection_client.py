"""Calls of the managed service's API v2 with our own messages: what its clients send, without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from scannery.pipelines.sources.managed.managed_contents import read_contents, read_json_lines
from scannery.serving import Server
from scannery.serving.config import VertexConfig
from scannery.vertex.v1 import operations_pb2
from scannery.vertex.v2 import collections_pb2, data_objects_pb2, search_pb2
from tests.bridges.vertex.facade_client import PARENT, Caller, facade

V2 = "google.cloud.vectorsearch.v1"


def collections_served(folder: Path, **options: Any) -> AbstractContextManager[Server]:
    """Serve the store `folder/store` with API v2; transfers are below `folder/contents`."""
    return facade(folder, vertex=vertex_config(folder), **options)


def vertex_config(folder: Path) -> VertexConfig:
    root = str(folder / "contents")
    return VertexConfig(contents=(root,), reader=read_contents, object_reader=read_json_lines)


def collection_name(id: str) -> str:
    return f"{PARENT}/collections/{id}"


class CollectionCaller(Caller):
    """Calls one server; requests are dicts."""

    def ask(self, kind: type[Message], request: Mapping[str, Any]) -> Any:
        """Send a request of a kind."""
        return self.send(ParseDict(dict(request), kind()))

    def operate(self, kind: type[Message], request: Mapping[str, Any]) -> operations_pb2.Operation:
        """Send a request whose answer is an operation, and return that when it has ended."""
        return self.ended(self.ask(kind, request).name)

    def ended(self, name: str) -> operations_pb2.Operation:
        waiting = operations_pb2.WaitOperationRequest(name=name)
        while True:
            operation = self.send(waiting)
            if operation.done:
                return operation

    def create(self, id: str, *, request_id: str = "", **fields: Any) -> operations_pb2.Operation:
        request = {"parent": PARENT, "collection_id": id, "collection": fields, "request_id": request_id}
        return self.operate(collections_pb2.CreateCollectionRequest, request)

    def delete_collection(self, id: str, **fields: Any) -> operations_pb2.Operation:
        request = {"name": collection_name(id), **fields}
        return self.operate(collections_pb2.DeleteCollectionRequest, request)

    def listed(self) -> list[str]:
        answer = self.ask(collections_pb2.ListCollectionsRequest, {"parent": PARENT})
        return [each.name.rpartition("/")[2] for each in answer.collections]

    def write(self, id: str, objects: Mapping[str, Mapping[str, Any]]) -> list[data_objects_pb2.DataObject]:
        """Create data objects, at most 1000, by id."""
        request = {
            "parent": collection_name(id),
            "requests": [{"data_object_id": key, "data_object": dict(each)} for key, each in objects.items()],
        }
        return list(self.ask(data_objects_pb2.BatchCreateDataObjectsRequest, request).data_objects)

    def read(self, id: str, object_id: str) -> data_objects_pb2.DataObject:  # type: ignore[override]
        return self.ask(
            data_objects_pb2.GetDataObjectRequest, {"name": f"{collection_name(id)}/dataObjects/{object_id}"}
        )

    def update(self, id: str, object_id: str, **fields: Any) -> data_objects_pb2.DataObject:
        data_object = {"name": f"{collection_name(id)}/dataObjects/{object_id}", **fields}
        return self.ask(data_objects_pb2.UpdateDataObjectRequest, {"data_object": data_object})

    def delete_objects(self, id: str, etags: Mapping[str, str]) -> None:

        requests = [
            {"name": f"{collection_name(id)}/dataObjects/{key}", "etag": etag} for key, etag in etags.items()
        ]
        self.ask(
            data_objects_pb2.BatchDeleteDataObjectsRequest,
            {"parent": collection_name(id), "requests": requests},
        )

    def count(self, id: str) -> int:
        answer = self.ask(
            search_pb2.AggregateDataObjectsRequest, {"parent": collection_name(id), "aggregate": "COUNT"}
        )
        return int(MessageToDict(answer.aggregate_results[0])["count"])

    def all_objects(self, id: str) -> dict[str, dict[str, Any]]:
        """Return data and vectors of up to 1000 data objects, by id."""
        request = {
            "parent": collection_name(id),
            "page_size": 1000,
            "output_fields": {"data_fields": ["*"], "vector_fields": ["*"]},
        }
        answer = self.ask(search_pb2.QueryDataObjectsRequest, request)
        found = {}
        for each in answer.data_objects:
            shown = MessageToDict(each)
            found[each.name.rpartition("/")[2]] = {key: shown.get(key) for key in ("data", "vectors")}
        return found

    def search(self, id: str, **search: Any) -> list[tuple[str, float]]:
        answer = self.ask(search_pb2.SearchDataObjectsRequest, {"parent": collection_name(id), **search})
        return [(each.data_object.name.rpartition("/")[2], each.distance) for each in answer.results]

    def operations(self) -> list[str]:
        """Return the operations of the location, as text."""
        answer = self.send(operations_pb2.ListOperationsRequest(name=PARENT))
        return [str(each) for each in answer.operations]

    def import_from(self, id: str, folder: Path, errors: Path, **places: Any) -> operations_pb2.Operation:
        return self.ended(self.begin_import(id, folder, errors, **places))

    def begin_import(self, id: str, folder: Path, errors: Path, **places: Any) -> str:
        """Begin an import, and return the name of its operation."""
        request = {
            "name": collection_name(id),
            "gcs_import": {"contents_uri": str(folder), "error_uri": str(errors), **places},
        }
        kind = collections_pb2.ImportDataObjectsRequest
        return self.ask(kind, request).name

    def export_to(self, id: str, folder: Path, **fields: Any) -> operations_pb2.Operation:
        request = {
            "name": collection_name(id),
            "gcs_destination": {"export_uri": str(folder), "format": "JSONL"},
            **fields,
        }
        return self.operate(collections_pb2.ExportDataObjectsRequest, request)


def dense(*values: float) -> dict[str, Any]:
    return {"dense": {"values": list(values)}}


def dimensions(**sizes: int) -> dict[str, Any]:
    """Return the vector schema of dense fields."""
    return {name: {"dense_vector": {"dimensions": size}} for name, size in sizes.items()}


def names(found: Sequence[tuple[str, float]]) -> list[str]:
    return [name for name, _ in found]
