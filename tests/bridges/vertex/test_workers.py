"""Several workers at one address: what one of them did, all of them know."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from scannery.indexer import Store
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.published_versions import WATCHED
from scannery.vertex.v1 import endpoint_pb2, index_pb2, operations_pb2, private_pb2
from scannery.vertex.v2 import collections_pb2
from tests.bridges.vertex.collection_client import CollectionCaller, dense, dimensions
from tests.bridges.vertex.facade_client import (
    NOT_FOUND,
    PARENT,
    PRECONDITION,
    UNSUPPORTED,
    Caller,
    facade,
    ids_of,
    refused,
    write_lines,
)
from tests.serving.process.test_supervisor import started

pytestmark = pytest.mark.system

CALLERS = 8
"""Connections, which the kernel spreads over the workers: all go to one of two in one run of 128."""


class Connected(Caller):
    """A caller with a connection of its own."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.metadata = ()


class ConnectedCollections(CollectionCaller, Connected):
    """A caller of API v2 with a connection of its own."""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """A server with two workers: its address, that of the private endpoint, and its folder of contents."""
    folder = tmp_path_factory.mktemp("workers")
    Store.open(folder / "store", create=True)
    (folder / "contents").mkdir()
    # An address of this process alone, so that the port stays free until the server takes it.
    pid = os.getpid()
    host = f"127.{pid >> 16 & 127 | 64}.{pid >> 8 & 255}.{pid & 255 or 1}"
    with socket.socket() as probe:
        probe.bind((host, 0))
        private = f"{host}:{probe.getsockname()[1]}"
    options = ("--vertex", "--vertex-contents", str(folder / "contents"), "--vertex-private", private)
    with started(folder / "store", "--http", "off", "--workers", "2", *options) as (_, address):
        yield address, private, folder / "contents"


@pytest.fixture
def callers(addresses: tuple[str, str, Path]) -> Iterator[list[Caller]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Connected(addresses[0])) for _ in range(CALLERS)]


def eventually(found: Any) -> None:
    """Wait until a call returns a true value: a write is visible in the other workers within about a second."""
    until_s = time.monotonic() + 60
    while not found():
        assert time.monotonic() < until_s, "it never came true"
        time.sleep(0.02)


def point(id: str) -> dict[str, Any]:
    return {"datapoint_id": id, "feature_vector": [1, 2, 3, 4]}


def test_every_worker_finds_at_once_what_one_has_just_made(callers: list[Caller]):
    first = callers[0]
    for attempt in range(3):
        id = f"state_{attempt}"
        index = first.create_index().name
        for caller in callers:
            get = index_pb2.GetIndexRequest(name=index)
            assert caller.send(get).name == index
        endpoint = first.deploy(index, id)
        query = {"datapoint": {"feature_vector": [1, 2, 3, 4]}}
        for number, caller in enumerate(callers):
            caller.find(endpoint, query, id=id)
            caller.read(endpoint, ["p0"], id=id)
            caller.match(private_pb2.MatchRequest(deployed_index_id=id, float_val=[1] * 4))
            caller.upsert(index, [point(f"p{number}")])
        everything = {f"p{number}" for number in range(CALLERS)}
        for caller in callers:
            eventually(lambda: {*ids_of(caller.find(endpoint, query, id=id)[0])} == everything)  # noqa: B023
        listed = index_pb2.ListIndexesRequest(parent=PARENT)
        for caller in callers:
            answer = caller.send(listed)
            assert index in [each.name for each in answer.indexes]


def test_an_index_that_another_has_made_is_waited_for_while_others_are_looked_for(tmp_path: Path):
    with (
        facade(tmp_path) as other,
        facade(tmp_path, check_every_s=3600) as server,
        Connected(other.address) as creator,
        Connected(server.address) as caller,
    ):
        get = index_pb2.GetIndexRequest(name=creator.create_index().name)
        catalog = server._bridges["vertex"].facade.catalog
        assert isinstance(catalog, Catalog)
        assert catalog._looks.acquire(timeout=60)
        threading.Timer(3 * WATCHED.wait_s, catalog._looks.release).start()
        assert caller.send(get).name == get.name


def test_writes_to_an_index_for_batches_are_refused_by_every_worker(callers: list[Caller]):
    for _ in range(3):
        index = callers[0].create_index(stream=False).name
        for caller in callers:
            refused(PRECONDITION, caller.upsert, index, [point("x")])


def test_every_worker_answers_for_an_operation_and_shows_its_result(
    callers: list[Caller], addresses: tuple[str, str, Path]
):
    write_lines(addresses[2] / "new" / "a.json", [{"id": "new", "embedding": [1, 2, 3, 4]}])
    index = callers[0].create_index().name
    endpoint = callers[0].deploy(index, "operation")
    callers[0].upsert(index, [point("old")])
    operation = callers[1].update_contents(index, addresses[2] / "new", overwrite=True)
    assert operation.HasField("response"), operation.error
    for caller in callers:
        get = operations_pb2.GetOperationRequest(name=operation.name)
        found = caller.send(get)
        assert found == operation
        query = {"datapoint": {"feature_vector": [1, 2, 3, 4]}}
        eventually(lambda: ids_of(caller.find(endpoint, query, id="operation")[0]) == ["new"])  # noqa: B023


ROUNDS = 5
"""Each is a chance to meet a worker that does not know yet."""


def test_what_one_worker_has_undeployed_no_worker_answers(callers: list[Caller]):
    index = callers[0].create_index().name
    query = {"datapoint": {"feature_vector": [1, 2, 3, 4]}}
    for attempt in range(ROUNDS):
        id = f"gone_{attempt}"
        endpoint = callers[0].deploy(index, id)
        for caller in callers:
            caller.find(endpoint, query, id=id)
        request = endpoint_pb2.UndeployIndexRequest(index_endpoint=endpoint, deployed_index_id=id)
        callers[0].send(request)
        for caller in callers:
            refused(NOT_FOUND, caller.find, endpoint, query, id=id)


def test_every_worker_knows_at_once_what_one_has_changed_of_a_collection(addresses: tuple[str, str, Path]):
    """New indexes are searched by name, and new schemas refuse."""
    with ExitStack() as stack:
        callers = [stack.enter_context(ConnectedCollections(addresses[0])) for _ in range(CALLERS)]
        parent = f"{PARENT}/collections/changing"
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        callers[0].create("changing", data_schema=schema, vector_schema=dimensions(v0=2))
        callers[0].write("changing", {"a": {"vectors": {"v0": dense(1, 0)}}})
        for attempt in range(1, ROUNDS):
            for caller in callers:  # each worker has just read the state
                caller.read("changing", "a")
            request = {
                "parent": parent,
                "index_id": f"i{attempt}",
                "index": {"index_field": "v0", "dense_scann": {}},
            }
            callers[0].operate(collections_pb2.CreateIndexRequest, request)
            search = {"search_field": "v0", "vector": {"values": [1, 0]}}
            hint = {"index_hint": {"name": f"{parent}/indexes/i{attempt}"}}
            for caller in callers:
                caller.search("changing", vector_search={**search, "search_hint": hint})

            schema["properties"][f"p{attempt}"] = {"type": "integer"}
            change = {"collection": {"name": parent, "data_schema": schema}}
            callers[0].operate(collections_pb2.UpdateCollectionRequest, change)
            for number, caller in enumerate(callers):
                with pytest.raises(grpc.RpcError, match=f"data.p{attempt}: must be integer"):
                    caller.write("changing", {f"w{number}": {"data": {f"p{attempt}": "text"}}})


def test_the_private_endpoint_is_at_its_port_in_every_worker(
    callers: list[Caller], addresses: tuple[str, str, Path]
):
    index = callers[0].create_index().name
    endpoint = callers[0].deploy(index, "private")
    callers[0].upsert(index, [point("a")])
    request = private_pb2.MatchRequest(deployed_index_id="private", float_val=[1, 2, 3, 4])
    for _ in range(CALLERS):
        with Connected(addresses[1]) as caller:
            eventually(lambda: [n.id for n in caller.match(request).neighbor] == ["a"])
            refused(UNSUPPORTED, caller.upsert, index, [point("b")])
    get = endpoint_pb2.GetIndexEndpointRequest(name=endpoint)
    [deployed] = callers[1].send(get).deployed_indexes
    assert deployed.private_endpoints.match_grpc_address == addresses[1].partition(":")[0]
