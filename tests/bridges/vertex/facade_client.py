"""Calls of the managed service's API with our own messages: what its clients send, without them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Value
from typing_extensions import Self

from scannery.indexer import Store
from scannery.pipelines.sources.managed.managed_contents import read_contents
from scannery.serving import Server, ServerConfig
from scannery.serving.config import VertexConfig
from scannery.vertex.v1 import endpoint_pb2, index_pb2, match_pb2, operations_pb2, private_pb2
from scannery.vertex.v2 import collections_pb2, data_objects_pb2, search_pb2

PARENT = "projects/p/locations/l"
V1 = "google.cloud.aiplatform.v1"
V2 = "google.cloud.vectorsearch.v1"
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
EXHAUSTED, UNSUPPORTED = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED
DENIED, UNAUTHENTICATED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
ABORTED, EXISTS = grpc.StatusCode.ABORTED, grpc.StatusCode.ALREADY_EXISTS
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
MessageT = TypeVar("MessageT", bound=Message)


SERVICES = {
    index_pb2: f"{V1}.IndexService",
    endpoint_pb2: f"{V1}.IndexEndpointService",
    match_pb2: f"{V1}.MatchService",
    private_pb2: "google.cloud.aiplatform.container.v1.MatchService",
    operations_pb2: "google.longrunning.Operations",
    collections_pb2: f"{V2}.VectorSearchService",
    data_objects_pb2: f"{V2}.DataObjectService",
    search_pb2: f"{V2}.DataObjectSearchService",
}
"""The service whose requests a module has."""
BEGINS = re.compile(r"(Create|Update(?!IndexEndpoint)|Delete|Deploy|Undeploy|Mutate|Import|Export)")
"""Methods of indexes, endpoints and collections that return an operation."""


def method_of(request: type[Message]) -> tuple[str, type[Message]]:
    """Return the path of a request's method, and the type of its answer: Operation also if that is empty."""
    module, method = sys.modules[request.__module__], request.__name__.removesuffix("Request")
    names = f"{method}Response", re.sub("^(Get|Create|Update)", "", method)
    if module in (index_pb2, endpoint_pb2, collections_pb2) and BEGINS.match(method):
        names = ("", "")
    answers = (getattr(module, name, None) for name in names)
    return f"/{SERVICES[module]}/{method}", next(filter(None, answers), operations_pb2.Operation)


@contextmanager
def facade(folder: Path, *, vertex: VertexConfig | None = None, **options: Any) -> Iterator[Server]:
    """Serve the store `folder/store` with the managed service's API; contents are read from `folder/contents`."""
    Store.open(folder / "store", create=True)
    (folder / "contents").mkdir(exist_ok=True)
    vertex = vertex or VertexConfig(contents=(str(folder / "contents"),), reader=read_contents)
    config = ServerConfig(
        store=str(folder / "store"),
        listen="127.0.0.1:0",
        vertex=vertex,
        drain_s=5,
        **{"http": "off", **options},
    )
    with Server(config) as server:
        yield server


class Caller:
    """Calls one server."""

    def __init__(
        self,
        address: str,
        *,
        metadata: tuple[tuple[str, str], ...] = (),
        options: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self.channel = grpc.insecure_channel(address, options=options)
        self.metadata = metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.channel.close()

    def send(self, request: Message) -> Any:
        """Call the method that a request is of, and return its answer."""
        path, answer = method_of(type(request))
        call = self.channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        return call(request, metadata=self.metadata, timeout=60)

    def end(self, operation: operations_pb2.Operation, answer: type[MessageT]) -> MessageT:
        """Return the result of an operation, once it has ended."""
        request = operations_pb2.WaitOperationRequest(name=operation.name)
        while not operation.done:
            operation = self.send(request)
        assert not operation.HasField("error"), operation.error
        return answer.FromString(operation.response.value)

    def create_index(
        self, dimensions: int = 4, *, stream: bool = True, contents: Path | str = "", **config: Any
    ) -> index_pb2.Index:
        metadata: dict[str, Any] = {"config": {"dimensions": dimensions, **config}}
        if contents:
            metadata["contentsDeltaUri"] = str(contents)
        index = index_pb2.Index(
            display_name="an index",
            metadata=ParseDict(metadata, Value()),
            index_update_method=index_pb2.STREAM_UPDATE if stream else index_pb2.BATCH_UPDATE,
        )
        request = index_pb2.CreateIndexRequest(parent=PARENT, index=index)
        return self.end(self.send(request), index_pb2.Index)

    def update_contents(self, index: str, folder: Path | str, *, overwrite: bool = False) -> Any:
        metadata = {"contentsDeltaUri": str(folder), "isCompleteOverwrite": overwrite}
        request = index_pb2.UpdateIndexRequest(
            index=index_pb2.Index(name=index, metadata=ParseDict(metadata, Value()))
        )
        request.update_mask.paths.append("metadata")
        operation = self.send(request)
        return self.send(operations_pb2.WaitOperationRequest(name=operation.name))

    def deploy(self, index: str, id: str = "deployed") -> str:
        """Deploy an index at a new endpoint, and return the endpoint's name."""
        request = endpoint_pb2.CreateIndexEndpointRequest(
            parent=PARENT,
            index_endpoint=endpoint_pb2.IndexEndpoint(display_name="e", public_endpoint_enabled=True),
        )
        endpoint = self.end(self.send(request), endpoint_pb2.IndexEndpoint)
        deployed = endpoint_pb2.DeployedIndex(id=id, index=index)
        self.send(endpoint_pb2.DeployIndexRequest(index_endpoint=endpoint.name, deployed_index=deployed))
        return endpoint.name

    def upsert(self, index: str, points: list[dict[str, Any]], *mask: str) -> None:
        request = index_pb2.UpsertDatapointsRequest(index=index)
        for point in points:
            ParseDict(point, request.datapoints.add())
        request.update_mask.paths.extend(mask)
        self.send(request)

    def remove(self, index: str, ids: list[str]) -> None:
        request = index_pb2.RemoveDatapointsRequest(index=index, datapoint_ids=ids)
        self.send(request)

    def find(
        self, endpoint: str, *queries: dict[str, Any], full: bool = False, id: str = "deployed"
    ) -> list[list[Any]]:
        """Return the neighbours of each query."""
        request = match_pb2.FindNeighborsRequest(
            index_endpoint=endpoint, deployed_index_id=id, return_full_datapoint=full
        )
        for query in queries:
            ParseDict(query, request.queries.add())
        answer = self.send(request)
        return [list(each.neighbors) for each in answer.nearest_neighbors]

    def read(self, endpoint: str, ids: list[str], id: str = "deployed") -> list[index_pb2.IndexDatapoint]:
        request = match_pb2.ReadIndexDatapointsRequest(index_endpoint=endpoint, deployed_index_id=id, ids=ids)
        return list(self.send(request).datapoints)

    def match(self, request: private_pb2.MatchRequest) -> private_pb2.MatchResponse:
        return self.send(request)


def refused(
    codes: grpc.StatusCode | tuple[grpc.StatusCode, ...],
    call: Callable[..., object],
    *args: Any,
    **options: Any,
) -> str:
    """Return the message of a call that is refused with one of some codes."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **options)
    assert caught.value.code() in (codes if isinstance(codes, tuple) else (codes,)), caught.value
    return str(caught.value.details())


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def ids_of(neighbors: list[Any]) -> list[str]:
    return [neighbor.datapoint.datapoint_id for neighbor in neighbors]
