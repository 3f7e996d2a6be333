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
from tests.bridges.vertex.facade_client import PARENT, Caller, MessageT, facade

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

    def ask(
        self, method: str, request: Mapping[str, Any], kind: type[Message], answer: type[MessageT]
    ) -> MessageT:
        """Call a method: `VectorSearchService/GetCollection`."""
        return self.call(f"/{V2}.{method}", ParseDict(dict(request), kind()), answer)

    def operate(
        self, method: str, request: Mapping[str, Any], kind: type[Message]
    ) -> operations_pb2.Operation:
        """Call a method of collections that returns an operation, and return that when it has ended."""
        begun = self.ask(f"VectorSearchService/{method}", request, kind, operations_pb2.Operation)
        return self.ended(begun.name)

    def ended(self, name: str) -> operations_pb2.Operation:
        waiting = operations_pb2.WaitOperationRequest(name=name)
        while True:
            operation = self.call(
                "/google.longrunning.Operations/WaitOperation", waiting, operations_pb2.Operation
            )
            if operation.done:
                return operation

    def create(self, id: str, *, request_id: str = "", **fields: Any) -> operations_pb2.Operation:
        request = {"parent": PARENT, "collection_id": id, "collection": fields, "request_id": request_id}
        return self.operate("CreateCollection", request, collections_pb2.CreateCollectionRequest)

    def delete_collection(self, id: str, **fields: Any) -> operations_pb2.Operation:
        request = {"name": collection_name(id), **fields}
        return self.operate("DeleteCollection", request, collections_pb2.DeleteCollectionRequest)

    def listed(self) -> list[str]:
        answer = self.ask(
            "VectorSearchService/ListCollections",
            {"parent": PARENT},
            collections_pb2.ListCollectionsRequest,
            collections_pb2.ListCollectionsResponse,
        )
        return [each.name.rpartition("/")[2] for each in answer.collections]

    def write(self, id: str, objects: Mapping[str, Mapping[str, Any]]) -> list[data_objects_pb2.DataObject]:
        """Create data objects, at most 1000, by id."""
        request = {
            "parent": collection_name(id),
            "requests": [{"data_object_id": key, "data_object": dict(each)} for key, each in objects.items()],
        }
        return list(
            self.ask(
                "DataObjectService/BatchCreateDataObjects",
                request,
                data_objects_pb2.BatchCreateDataObjectsRequest,
                data_objects_pb2.BatchCreateDataObjectsResponse,
            ).data_objects
        )

    def read(self, id: str, object_id: str) -> data_objects_pb2.DataObject:  # type: ignore[override]
        return self.ask(
            "DataObjectService/GetDataObject",
            {"name": f"{collection_name(id)}/dataObjects/{object_id}"},
            data_objects_pb2.GetDataObjectRequest,
            data_objects_pb2.DataObject,
        )

    def update(self, id: str, object_id: str, **fields: Any) -> data_objects_pb2.DataObject:
        data_object = {"name": f"{collection_name(id)}/dataObjects/{object_id}", **fields}
        return self.ask(
            "DataObjectService/UpdateDataObject",
            {"data_object": data_object},
            data_objects_pb2.UpdateDataObjectRequest,
            data_objects_pb2.DataObject,
        )

    def delete_objects(self, id: str, etags: Mapping[str, str]) -> None:
        from google.protobuf.empty_pb2 import Empty

        requests = [
            {"name": f"{collection_name(id)}/dataObjects/{key}", "etag": etag} for key, etag in etags.items()
        ]
        self.ask(
            "DataObjectService/BatchDeleteDataObjects",
            {"parent": collection_name(id), "requests": requests},
            data_objects_pb2.BatchDeleteDataObjectsRequest,
            Empty,
        )

    def count(self, id: str) -> int:
        answer = self.ask(
            "DataObjectSearchService/AggregateDataObjects",
            {"parent": collection_name(id), "aggregate": "COUNT"},
            search_pb2.AggregateDataObjectsRequest,
            search_pb2.AggregateDataObjectsResponse,
        )
        return int(MessageToDict(answer.aggregate_results[0])["count"])

    def all_objects(self, id: str) -> dict[str, dict[str, Any]]:
        """Return data and vectors of up to 1000 data objects, by id."""
        request = {
            "parent": collection_name(id),
            "page_size": 1000,
            "output_fields": {"data_fields": ["*"], "vector_fields": ["*"]},
        }
        answer = self.ask(
            "DataObjectSearchService/QueryDataObjects",
            request,
            search_pb2.QueryDataObjectsRequest,
            search_pb2.QueryDataObjectsResponse,
        )
        found = {}
        for each in answer.data_objects:
            shown = MessageToDict(each)
            found[each.name.rpartition("/")[2]] = {key: shown.get(key) for key in ("data", "vectors")}
        return found

    def search(self, id: str, **search: Any) -> list[tuple[str, float]]:
        answer = self.ask(
            "DataObjectSearchService/SearchDataObjects",
            {"parent": collection_name(id), **search},
            search_pb2.SearchDataObjectsRequest,
            search_pb2.SearchDataObjectsResponse,
        )
        return [(each.data_object.name.rpartition("/")[2], each.distance) for each in answer.results]

    def operations(self) -> list[str]:
        """Return the operations of the location, as text."""
        answer = self.call(
            "/google.longrunning.Operations/ListOperations",
            operations_pb2.ListOperationsRequest(name=PARENT),
            operations_pb2.ListOperationsResponse,
        )
        return [str(each) for each in answer.operations]

    def import_from(self, id: str, folder: Path, errors: Path, **places: Any) -> operations_pb2.Operation:
        return self.ended(self.begin_import(id, folder, errors, **places))

    def begin_import(self, id: str, folder: Path, errors: Path, **places: Any) -> str:
        """Begin an import, and return the name of its operation."""
        request = {
            "name": collection_name(id),
            "gcs_import": {"contents_uri": str(folder), "error_uri": str(errors), **places},
        }
        method = "VectorSearchService/ImportDataObjects"
        kind = collections_pb2.ImportDataObjectsRequest
        return self.ask(method, request, kind, operations_pb2.Operation).name

    def export_to(self, id: str, folder: Path, **fields: Any) -> operations_pb2.Operation:
        request = {
            "name": collection_name(id),
            "gcs_destination": {"export_uri": str(folder), "format": "JSONL"},
            **fields,
        }
        return self.operate("ExportDataObjects", request, collections_pb2.ExportDataObjectsRequest)


def dense(*values: float) -> dict[str, Any]:
    return {"dense": {"values": list(values)}}


def dimensions(**sizes: int) -> dict[str, Any]:
    """Return the vector schema of dense fields."""
    return {name: {"dense_vector": {"dimensions": size}} for name, size in sizes.items()}


def names(found: Sequence[tuple[str, float]]) -> list[str]:
    return [name for name, _ in found]
