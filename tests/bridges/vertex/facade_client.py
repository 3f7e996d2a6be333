"""Calls of the managed service's API with our own messages: what its clients send, without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Value
from typing_extensions import Self

from scannery.indexer import Store
from scannery.pipelines.sources.managed.managed_contents import read_contents
from scannery.serving import Server, ServerConfig
from scannery.serving.config import VertexConfig
from scannery.vertex.v1 import endpoint_pb2, index_pb2, match_pb2, operations_pb2, private_pb2

PARENT = "projects/p/locations/l"
V1 = "google.cloud.aiplatform.v1"
MessageT = TypeVar("MessageT", bound=Message)


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

    def call(self, path: str, request: Message, answer: type[MessageT]) -> MessageT:
        method = self.channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return method(request, metadata=self.metadata, timeout=60)

    def begin(self, service: str, method: str, request: Message) -> operations_pb2.Operation:
        return self.call(f"/{V1}.{service}/{method}", request, operations_pb2.Operation)

    def end(self, operation: operations_pb2.Operation, answer: type[MessageT]) -> MessageT:
        """Return the result of an operation, once it has ended."""
        request = operations_pb2.WaitOperationRequest(name=operation.name)
        while not operation.done:
            operation = self.call(
                "/google.longrunning.Operations/WaitOperation", request, operations_pb2.Operation
            )
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
        return self.end(self.begin("IndexService", "CreateIndex", request), index_pb2.Index)

    def update_contents(self, index: str, folder: Path | str, *, overwrite: bool = False) -> Any:
        metadata = {"contentsDeltaUri": str(folder), "isCompleteOverwrite": overwrite}
        request = index_pb2.UpdateIndexRequest(
            index=index_pb2.Index(name=index, metadata=ParseDict(metadata, Value()))
        )
        request.update_mask.paths.append("metadata")
        operation = self.begin("IndexService", "UpdateIndex", request)
        return self.call(
            "/google.longrunning.Operations/WaitOperation",
            operations_pb2.WaitOperationRequest(name=operation.name),
            operations_pb2.Operation,
        )

    def deploy(self, index: str, id: str = "deployed") -> str:
        """Deploy an index at a new endpoint, and return the endpoint's name."""
        request = endpoint_pb2.CreateIndexEndpointRequest(
            parent=PARENT,
            index_endpoint=endpoint_pb2.IndexEndpoint(display_name="e", public_endpoint_enabled=True),
        )
        endpoint = self.end(
            self.begin("IndexEndpointService", "CreateIndexEndpoint", request), endpoint_pb2.IndexEndpoint
        )
        deployed = endpoint_pb2.DeployedIndex(id=id, index=index)
        self.begin(
            "IndexEndpointService",
            "DeployIndex",
            endpoint_pb2.DeployIndexRequest(index_endpoint=endpoint.name, deployed_index=deployed),
        )
        return endpoint.name

    def upsert(self, index: str, points: list[dict[str, Any]], *mask: str) -> None:
        request = index_pb2.UpsertDatapointsRequest(index=index)
        for point in points:
            ParseDict(point, request.datapoints.add())
        request.update_mask.paths.extend(mask)
        self.call(f"/{V1}.IndexService/UpsertDatapoints", request, index_pb2.UpsertDatapointsResponse)

    def remove(self, index: str, ids: list[str]) -> None:
        request = index_pb2.RemoveDatapointsRequest(index=index, datapoint_ids=ids)
        self.call(f"/{V1}.IndexService/RemoveDatapoints", request, index_pb2.RemoveDatapointsResponse)

    def find(
        self, endpoint: str, *queries: dict[str, Any], full: bool = False, id: str = "deployed"
    ) -> list[list[Any]]:
        """Return the neighbours of each query."""
        request = match_pb2.FindNeighborsRequest(
            index_endpoint=endpoint, deployed_index_id=id, return_full_datapoint=full
        )
        for query in queries:
            ParseDict(query, request.queries.add())
        answer = self.call(f"/{V1}.MatchService/FindNeighbors", request, match_pb2.FindNeighborsResponse)
        return [list(each.neighbors) for each in answer.nearest_neighbors]

    def read(self, endpoint: str, ids: list[str], id: str = "deployed") -> list[index_pb2.IndexDatapoint]:
        request = match_pb2.ReadIndexDatapointsRequest(index_endpoint=endpoint, deployed_index_id=id, ids=ids)
        path = f"/{V1}.MatchService/ReadIndexDatapoints"
        return list(self.call(path, request, match_pb2.ReadIndexDatapointsResponse).datapoints)

    def match(self, request: private_pb2.MatchRequest) -> private_pb2.MatchResponse:
        path = "/google.cloud.aiplatform.container.v1.MatchService/Match"
        return self.call(path, request, private_pb2.MatchResponse)


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def ids_of(neighbors: list[Any]) -> list[str]:
    return [neighbor.datapoint.datapoint_id for neighbor in neighbors]
