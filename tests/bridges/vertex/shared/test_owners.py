"""Endpoints and operations are for their owner, for who sees what they are about, and for who sees all indexes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

import scannery
from scannery.bridges.vertex.shared.state import RESOURCES_KEY
from scannery.bridges.vertex.v1 import endpoints as endpoints_module
from scannery.serving import SecurityConfig
from scannery.serving.security.api_keys import KeyFile
from scannery.vertex.v1 import endpoint_pb2 as pb
from scannery.vertex.v1 import operations_pb2, private_pb2
from tests.bridges.vertex.facade_client import PARENT, Caller, facade

SERVICE = "IndexEndpointService"
NOT_FOUND, DENIED = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED
EXISTS, EXHAUSTED = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.RESOURCE_EXHAUSTED
SCOPES = ("read", "write", "admin")
NO_ENDPOINT = f"{PARENT}/indexEndpoints/1"


@dataclass(frozen=True, slots=True)
class Tenants:
    """A server with the indexes `a` and `b`, and callers for one or all of them."""

    folder: Path
    root: Caller
    a: Caller
    b: Caller
    both: Caller


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp("owners")
    keys = KeyFile(folder / "keys.json")
    _, root = keys.create("root", scopes=SCOPES)
    secrets = {
        # All with the same name: the id of a key tells them apart.
        name: keys.create("tenant", scopes=SCOPES, indexes=indexes)[1]
        for name, indexes in {"a": ["a"], "b": ["b"], "both": ["a", "b"]}.items()
    }
    security = SecurityConfig(keys_file=str(folder / "keys.json"))
    with ExitStack() as stack:
        server = stack.enter_context(facade(folder, security=security))
        with scannery.connect(server.address, api_key=root) as client:
            for index in ("a", "b"):
                client.create_index(
                    {"index": index, "source": {"vector": "v"}, "vectors": "optional"}, dimensions=4
                )
        callers = {
            name: stack.enter_context(Caller(server.address, metadata=(("x-goog-api-key", secret),)))
            for name, secret in {"root": root, **secrets}.items()
        }
        yield Tenants(folder, **callers)


def created(caller: Caller, **fields: Any) -> str:
    given = pb.IndexEndpoint(display_name="an endpoint", **fields)
    request = pb.CreateIndexEndpointRequest(parent=PARENT, index_endpoint=given)
    return caller.end(caller.send(request), pb.IndexEndpoint).name


def deployed(caller: Caller, endpoint: str, index: str, id: str, **fields: Any) -> operations_pb2.Operation:
    given = pb.DeployedIndex(id=id, index=f"{PARENT}/indexes/{index}", **fields)
    operation: operations_pb2.Operation = caller.send(
        pb.DeployIndexRequest(index_endpoint=endpoint, deployed_index=given)
    )
    return operation


def undeployed(caller: Caller, endpoint: str, id: str) -> operations_pb2.Operation:
    request = pb.UndeployIndexRequest(index_endpoint=endpoint, deployed_index_id=id)
    operation: operations_pb2.Operation = caller.send(request)
    return operation


def listed(caller: Caller) -> list[str]:
    answer = caller.send(pb.ListIndexEndpointsRequest(parent=PARENT, page_size=1000))
    return [each.name for each in answer.index_endpoints]


def status(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), str(caught.value.details())


def requests_for(endpoint: str, index: str, id: str) -> dict[str, Message]:
    """Return a request of each method that names an endpoint."""
    given = pb.DeployedIndex(id=id, index=f"{PARENT}/indexes/{index}")
    return {
        "GetIndexEndpoint": pb.GetIndexEndpointRequest(name=endpoint),
        "UpdateIndexEndpoint": pb.UpdateIndexEndpointRequest(
            index_endpoint=pb.IndexEndpoint(name=endpoint, display_name="renamed")
        ),
        "DeleteIndexEndpoint": pb.DeleteIndexEndpointRequest(name=endpoint),
        "DeployIndex": pb.DeployIndexRequest(index_endpoint=endpoint, deployed_index=given),
        "UndeployIndex": pb.UndeployIndexRequest(index_endpoint=endpoint, deployed_index_id=id),
        "MutateDeployedIndex": pb.MutateDeployedIndexRequest(
            index_endpoint=endpoint, deployed_index=pb.DeployedIndex(id=id)
        ),
    }


@pytest.mark.parametrize("method", requests_for("", "", ""))
@pytest.mark.parametrize("content", ["nothing", "an index of the owner", "two indexes"])
def test_what_one_may_not_see_answers_as_what_does_not_exist(tenants: Tenants, method: str, content: str):
    owner = tenants.b
    endpoint = created(owner, labels={"secret": "label"}, network="secret")
    id = f"of_b_{endpoint.rpartition('/')[2]}"
    if content != "nothing":
        deployed(owner, endpoint, "b", id)
    if content == "two indexes":
        deployed(tenants.root, endpoint, "b", f"{id}_too")
    expected = status(lambda: tenants.a.send(requests_for(NO_ENDPOINT, "a", id)[method]))
    code, message = status(lambda: tenants.a.send(requests_for(endpoint, "a", id)[method]))
    assert (code, message.replace(endpoint, NO_ENDPOINT)) == expected
    assert code is NOT_FOUND
    assert endpoint not in listed(tenants.a)
    for caller in (owner, tenants.root):
        found = caller.send(pb.GetIndexEndpointRequest(name=endpoint))
        assert found.display_name == "an endpoint"
        assert found.labels == {"secret": "label"}
        assert endpoint in listed(caller)


@pytest.mark.system
def test_who_sees_an_index_reads_the_endpoint_without_the_others(tenants: Tenants):
    endpoint = created(tenants.root)
    deployed(tenants.root, endpoint, "a", "shared_a")
    deployed(tenants.root, endpoint, "b", "shared_b")
    for caller, ids in (
        (tenants.a, ["shared_a"]),
        (tenants.b, ["shared_b"]),
        (tenants.both, ["shared_a", "shared_b"]),
        (tenants.root, ["shared_a", "shared_b"]),
    ):
        found = caller.send(pb.GetIndexEndpointRequest(name=endpoint))
        assert [each.id for each in found.deployed_indexes] == ids
        assert endpoint in listed(caller)
    requests = requests_for(endpoint, "a", "another")
    for method in ("UpdateIndexEndpoint", "DeleteIndexEndpoint", "DeployIndex"):
        assert status(lambda: tenants.a.send(requests[method]))[0] is DENIED  # noqa: B023
    # What is deployed there and hidden is as what is not.
    hidden = requests_for(endpoint, "a", "shared_b")
    for method in ("UndeployIndex", "MutateDeployedIndex"):
        code, message = status(lambda: tenants.a.send(hidden[method]))  # noqa: B023
        missing = status(lambda: tenants.a.send(requests[method]))  # noqa: B023
        assert (code, message.replace("shared_b", "another")) == missing
    # An index that is deployed cannot be deleted, so that those who administer it may undeploy it.
    undeployed(tenants.a, endpoint, "shared_a")
    assert endpoint not in listed(tenants.a)
    assert endpoint in listed(tenants.b)


def test_the_owner_changes_and_deletes_an_endpoint(tenants: Tenants):
    endpoint = created(tenants.a)
    deployed(tenants.a, endpoint, "a", "own")
    requests = requests_for(endpoint, "a", "own")
    for method in ("UpdateIndexEndpoint", "MutateDeployedIndex", "UndeployIndex", "DeleteIndexEndpoint"):
        tenants.a.send(requests[method])
    assert endpoint not in listed(tenants.root)


@pytest.mark.system
def test_ids_of_deployments_are_unique_among_those_that_one_sees(tenants: Tenants):
    of_a, of_b = created(tenants.a), created(tenants.b)
    deployed(tenants.b, of_b, "b", "same")
    deployed(tenants.a, of_a, "a", "same")
    for caller, endpoint, index in ((tenants.a, of_a, "a"), (tenants.root, created(tenants.root), "b")):
        assert status(lambda: deployed(caller, endpoint, index, "same"))[0] is EXISTS  # noqa: B023
    for caller, index in ((tenants.a, "a"), (tenants.b, "b")):
        full = f"{PARENT}/indexes/{index}"
        caller.upsert(full, [{"datapoint_id": f"in {index}", "feature_vector": [1, 2, 3, 4]}])
    match = private_pb2.MatchRequest(deployed_index_id="same", float_val=[1, 2, 3, 4])
    for caller, id in (
        (tenants.a, "in a"),
        (tenants.b, "in b"),
        # The first: a later one does not take its place.
        (tenants.both, "in b"),
        (tenants.root, "in b"),
    ):
        assert [each.id for each in caller.match(match).neighbor] == [id]
    undeployed(tenants.b, of_b, "same")
    assert [each.id for each in tenants.root.match(match).neighbor] == ["in a"]
    undeployed(tenants.a, of_a, "same")


@pytest.mark.system
def test_operations_are_for_those_who_see_what_they_are_about(tenants: Tenants):
    def begun(owner: Caller, index: str) -> list[tuple[operations_pb2.Operation, bool]]:
        """Return operations, each with whether it is about the index."""
        request = pb.CreateIndexEndpointRequest(
            parent=PARENT, index_endpoint=pb.IndexEndpoint(display_name="an endpoint")
        )
        create = owner.send(request)
        endpoint = create.name.rpartition("/operations/")[0]
        deploy = deployed(owner, endpoint, index, "of_operation")
        mutate = owner.send(requests_for(endpoint, index, "of_operation")["MutateDeployedIndex"])
        undeploy = undeployed(owner, endpoint, "of_operation")
        delete = owner.send(pb.DeleteIndexEndpointRequest(name=endpoint))
        return [(create, False), (deploy, True), (mutate, True), (undeploy, True), (delete, False)]

    for owner, index in ((tenants.b, "b"), (tenants.root, "b")):
        for operation, is_about_index in begun(owner, index):
            for caller, sees in (
                (owner, True),
                (tenants.root, True),
                (tenants.a, False),
                (tenants.both, is_about_index),
                (tenants.b, is_about_index or owner is tenants.b),
            ):
                names = all_operations(caller)
                assert (operation.name in names) is sees
                for method in ("GetOperation", "WaitOperation", *([] if sees else ["DeleteOperation"])):
                    request = getattr(operations_pb2, f"{method}Request")(name=operation.name)
                    if sees:
                        assert caller.send(request).done
                    else:
                        ask: Any = lambda: caller.send(request)  # noqa: B023, E731
                        assert status(ask)[0] is NOT_FOUND


def all_operations(caller: Caller) -> list[str]:
    request = operations_pb2.ListOperationsRequest(name=PARENT, page_size=1000)
    return [each.name for each in caller.send(request).operations]


def test_what_earlier_releases_have_written_is_for_who_sees_all(tenants: Tenants):
    endpoint = created(tenants.a)
    path = tenants.folder / "store" / RESOURCES_KEY
    content = json.loads(path.read_bytes())
    id = endpoint.rpartition("/")[2]
    del content["resources"]["endpoints"][id]["owner"]
    path.write_text(json.dumps(content))
    assert endpoint in listed(tenants.root)
    assert endpoint not in listed(tenants.a)
    request = pb.GetIndexEndpointRequest(name=endpoint)
    assert status(lambda: tenants.a.send(request))[0] is NOT_FOUND


@pytest.mark.system
def test_one_owner_cannot_fill_the_store(tenants: Tenants, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoints_module, "MAX_OWNED_BYTES", 20_000)
    endpoint = created(tenants.a)

    def deploy_many() -> None:
        for number in range(100):
            deployed(tenants.a, endpoint, "a", f"large_{number}", reserved_ip_ranges=["r" * 3000])

    code, message = status(deploy_many)
    assert code is EXHAUSTED
    assert "deployed_index: all endpoints of their owner would have 2" in message
    assert "and may have 20000" in message
    # Others have their own room, and the owner can make some.
    deployed(tenants.b, created(tenants.b), "b", "large_of_b", reserved_ip_ranges=["r" * 3000])
    undeployed(tenants.a, endpoint, "large_0")
    created(tenants.a)


@pytest.mark.system
@pytest.mark.parametrize("caller", ["a", "root"])
def test_a_caller_for_some_indexes_has_half_of_what_others_leave(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch, caller: str
):
    before = len(listed(tenants.root))
    monkeypatch.setattr(endpoints_module, "MAX_ENDPOINTS", before + 6)
    one: Caller = getattr(tenants, caller)

    def create_many() -> None:
        for _ in range(8):
            created(one)

    names = set(listed(one))
    assert status(create_many)[0] is EXHAUSTED
    assert (len(listed(tenants.root)) < before + 6) is (caller == "a")
    for name in set(listed(one)) - names:
        one.send(pb.DeleteIndexEndpointRequest(name=name))
