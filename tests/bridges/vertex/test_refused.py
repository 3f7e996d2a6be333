"""What is refused, or cut short, changes nothing: descriptions, settings, deployments, schemas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

import scannery
from scannery.bridges.vertex.shared import operations
from scannery.bridges.vertex.shared.state import JsonDocument
from scannery.bridges.vertex.v1.registry import DELETIONS, INDEXES
from scannery.indexer import Store
from scannery.vertex.v1 import endpoint_pb2, index_pb2
from tests.bridges.vertex.facade_client import (
    EXHAUSTED,
    NOT_FOUND,
    PARENT,
    PRECONDITION,
    Caller,
    facade,
    refused,
    write_lines,
)

CONFIGS: tuple[dict[str, Any], ...] = (
    {"distanceMeasureType": "SQUARED_L2_DISTANCE", "algorithmConfig": {"bruteForceConfig": {}}},
    {"distanceMeasureType": "COSINE_DISTANCE", "algorithmConfig": {"treeAhConfig": {}}},
    {"featureNormType": "UNIT_L2_NORM", "shardSize": "SHARD_SIZE_SMALL"},
)


class Site:
    """A server with its folder."""

    def __init__(self, folder: Path, caller: Caller, address: str) -> None:
        self.folder, self.caller = folder, caller
        self.client = scannery.connect(address)
        self.state = JsonDocument(Store.open(folder / "store"))

    def get(self, name: str) -> index_pb2.Index:
        return self.caller.send(index_pb2.GetIndexRequest(name=name))

    def delete(self, name: str) -> None:
        self.caller.send(index_pb2.DeleteIndexRequest(name=name))

    def update(self, index: index_pb2.Index, *paths: str) -> None:
        request = index_pb2.UpdateIndexRequest(index=index)
        request.update_mask.paths.extend(paths)
        self.caller.send(request)

    def names(self) -> list[str]:
        request = index_pb2.ListIndexesRequest(parent=PARENT)
        listed = self.caller.send(request)
        return [index.name for index in listed.indexes]

    def deploy(self, name: str) -> None:
        request = endpoint_pb2.CreateIndexEndpointRequest(parent=PARENT)
        request.index_endpoint.display_name = "e"
        operation = self.caller.send(request)
        endpoint = self.caller.end(operation, endpoint_pb2.IndexEndpoint).name
        deployed = endpoint_pb2.DeployedIndex(id="d", index=name)
        deploy = endpoint_pb2.DeployIndexRequest(index_endpoint=endpoint, deployed_index=deployed)
        self.caller.send(deploy)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("refused")
    with facade(folder) as server, Caller(server.address) as caller:
        yield Site(folder, caller, server.address)


@pytest.mark.system
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("stream", [True, False])
def test_a_deletion_that_an_alias_refuses_loses_nothing(site: Site, config: dict[str, Any], stream: bool):
    made = site.caller.create_index(stream=stream, **config)
    site.update(
        index_pb2.Index(name=made.name, description="of colours", labels={"team": "a"}),
        "description",
        "labels",
    )
    before, id = site.get(made.name), made.name.rpartition("/")[2]
    site.client.alias("live", id)
    with pytest.raises(grpc.RpcError, match="has the aliases live") as caught:
        site.delete(made.name)
    assert caught.value.code() is PRECONDITION
    assert site.get(made.name) == before
    site.client.delete_alias("live")
    site.delete(made.name)
    assert made.name not in site.names()
    assert not {*site.state.read()[INDEXES], *site.state.read()[DELETIONS]} & {id}


def test_a_deletion_that_was_cut_short_is_done_again(site: Site):
    made = site.caller.create_index()
    id = made.name.rpartition("/")[2]
    site.client.drop_index(id)  # and the server dies before the description is removed
    assert made.name not in site.names()
    other = made.name.replace("projects/p/", "projects/q/")
    for name in (other, f"{PARENT}/indexes/none"):
        refused(NOT_FOUND, site.delete, name)
    site.delete(made.name)
    assert id not in site.state.read()[INDEXES]


def test_an_index_that_is_being_deleted_is_not_deployed(site: Site):
    made = site.caller.create_index()
    id = made.name.rpartition("/")[2]
    site.state.change(lambda found: found.setdefault(DELETIONS, {}).update({id: time.time()}))
    with pytest.raises(grpc.RpcError, match="is being deleted") as caught:
        site.deploy(made.name)
    assert caught.value.code() is PRECONDITION
    # A server that was killed in between does not keep it for ever.
    site.state.change(lambda found: found[DELETIONS].update({id: time.time() - 601}))
    site.deploy(made.name)
    with pytest.raises(grpc.RpcError, match="undeploy it first"):
        site.delete(made.name)


def test_an_index_has_not_the_description_of_another_one_that_had_its_name(site: Site):
    site.client.create_index("mine", dimensions=4)
    name = f"{PARENT}/indexes/mine"
    site.update(index_pb2.Index(name=name, description="of four dimensions"), "description")
    site.client.drop_index("mine")
    site.client.create_index("mine", dimensions=2)
    assert site.get(name).description == ""
    site.client.index("mine").upsert([{"id": "a", "vector": [1.0, 0.0]}])
    site.delete(name)


def test_with_too_many_operations_nothing_is_changed_or_left(site: Site, monkeypatch: pytest.MonkeyPatch):
    made = site.caller.create_index()
    before, names = site.get(made.name), site.names()
    contents = site.folder / "contents" / "full"
    write_lines(contents / "a.json", [{"id": "a", "embedding": [1, 0, 0, 0]}])
    metadata = ParseDict({"contentsDeltaUri": str(contents)}, Value())
    monkeypatch.setattr(operations, "MAX_RUNNING", 0)
    refused(
        EXHAUSTED,
        site.update,
        index_pb2.Index(name=made.name, description="new", metadata=metadata, etag=before.etag),
        "description",
        "metadata",
    )
    assert site.get(made.name) == before
    refused(EXHAUSTED, site.caller.create_index, contents=contents)
    assert site.names() == names
