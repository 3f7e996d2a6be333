"""Requests that no honest client sends: each is refused with a status that says why, and nothing else happens."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value

from scannery.bridges.vertex.v1 import contents as contents_module
from scannery.pipelines.sources.managed.managed_contents import read_contents
from scannery.serving import SecurityConfig
from scannery.serving.config import VertexConfig
from scannery.serving.security.api_keys import KeyFile
from scannery.vertex.v1 import endpoint_pb2, index_pb2, operations_pb2, private_pb2
from tests.bridges.vertex.facade_client import (
    DENIED,
    EXHAUSTED,
    INVALID,
    NOT_FOUND,
    PARENT,
    UNSUPPORTED,
    V1,
    Caller,
    facade,
    refused,
    write_lines,
)

NAN, INF = float("nan"), float("inf")
GOOD_RECORD = {"id": "more", "embedding": [1, 2, 3, 4]}
GOOD = {"datapoint_id": "good", "feature_vector": [1, 2, 3, 4]}


class Served:
    """A server with an index, deployed."""

    def __init__(self, caller: Caller, folder: Path) -> None:
        self.caller, self.folder = caller, folder
        self.index = caller.create_index().name
        self.endpoint = caller.deploy(self.index)
        caller.upsert(self.index, [GOOD])

    def check(self) -> None:
        """Check that the server answers, and that the index has what it had."""
        [found] = self.caller.find(self.endpoint, {"datapoint": {"feature_vector": [1, 2, 3, 4]}})
        assert [neighbor.datapoint.datapoint_id for neighbor in found] == ["good"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("hostile")
    with facade(folder) as server, Caller(server.address) as caller:
        yield Served(caller, folder)


@pytest.fixture
def hostile(served: Served) -> Iterator[Served]:
    yield served
    try:
        served.check()
    finally:
        served.caller.remove(served.index, ["bad", "deep"])


def outside(contents: Path) -> dict[str, str]:
    """Return URIs of folders that are not below the root, each with another trick."""
    quoted = str(contents / "batch").replace("/", "%2F")
    return {
        "parent": f"{contents}/batch/../../outside",
        "link": str(contents / "link"),
        "below a link": str(contents / "link" / "deep"),
        "prefix of a name": f"{contents}-other",
        "host": f"file://elsewhere{contents}/batch",
        "host with a port": f"file://127.0.0.1:80{contents}/batch",
        "broken host": f"file://[{contents}/batch",
        "encoded parent": f"file://{contents}/batch/%2e%2e/%2e%2e/outside",
        "encoded twice": f"file://{contents}/batch/%252e%252e/%252e%252e/outside",
        "encoded slashes": f"file:///{quoted}%2F..%2F..%2Foutside",
        "encoded NUL": f"file://{contents}/batch%00/../outside",
        "NUL": f"{contents}/batch\0",
        "query": f"file://{contents}/batch?x",
        "fragment": f"file://{contents}/batch#x",
        "upper case": f"FILE://{contents}/batch",
        "relative": "contents/batch",
        "home": "~/contents",
        "pattern": f"{contents}/b*",
        "file": f"{contents}/batch/a.json",
        "missing": f"{contents}/missing",
        "too long": f"{contents}/{'x' * 5000}",
        "bucket": "gs://bucket/batch",
        "bucket of another name": "s3://bucket2/batches/one",
        "prefix of a bucket's folder": "s3://bucket/batches-other/one",
        "parent in a bucket": "s3://bucket/batches/../secret",
        "encoded parent in a bucket": "s3://bucket/batches/%2e%2e/secret",
        "credentials": "s3://key:secret@bucket/batches/one",
        "query of a bucket": "s3://bucket/batches/one?endpoint=evil",
        "http": "http://127.0.0.1/batch",
        "data": "data:text/plain,x",
        "device": "/dev/zero",
        "unicode": f"{contents}/\u202ehctab",
        "space": " ",
    }


@pytest.mark.system
@pytest.mark.parametrize("trick", outside(Path("/")))
def test_contents_outside_of_the_roots(roots: Served, trick: str):
    contents = roots.folder / "contents"
    uri = outside(contents)[trick]
    assert "contentsDeltaUri" in refused(INVALID, roots.caller.update_contents, roots.index, uri)
    config = {"contentsDeltaUri": uri, "config": {"dimensions": 4}}
    index = index_pb2.Index(display_name="x", metadata=ParseDict(config, Value()))
    request = index_pb2.CreateIndexRequest(parent=PARENT, index=index)
    refused(INVALID, roots.caller.send, request)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("roots")
    for name in ("outside/deep", "contents/batch", "contents-other"):
        write_lines(folder / name / "a.json", [{"id": "secret", "embedding": [1, 2, 3, 4]}])
    (folder / "contents" / "link").symlink_to(folder / "outside")
    vertex = VertexConfig(contents=(str(folder / "contents"), "s3://bucket/batches"), reader=read_contents)
    with facade(folder, vertex=vertex) as server, Caller(server.address) as caller:
        served = Served(caller, folder)
        yield served
        served.check()
        # Nothing was created by requests that were refused.
        listed = caller.send(index_pb2.ListIndexesRequest(parent=PARENT))
        assert len(listed.indexes) == 1


WRONG_NAMES = [
    "",
    "x",
    "/",
    "../../store",
    f"{PARENT}/indexes/",
    f"{PARENT}/indexes/..",
    f"{PARENT}/indexes/a/b",
    f"{PARENT}/indexes/a\0",
    f"{PARENT}/indexes/{'9' * 10_000}",
    f"{PARENT}/indexes/ünï",
    f"{PARENT}/indexes/1\n",
    f"{PARENT}/indexes/1/operations/2",
    f"{PARENT}/indexes/vertex.json",
    f"projects/{'p' * 5000}/locations/l/indexes/1",
    "projects//locations/l/indexes/1",
    "projects/p/locations/l/l/indexes/1",
    "projects/%2e%2e/locations/l/indexes/1",
    "projects/p/locations/../indexes/1",
    "//indexes/1",
]


@pytest.mark.system
@pytest.mark.parametrize("name", WRONG_NAMES)
def test_malformed_names(hostile: Served, name: str):
    caller = hostile.caller
    deployed = endpoint_pb2.DeployedIndex(id="x", index=name)
    deploy = endpoint_pb2.DeployIndexRequest(index_endpoint=hostile.endpoint, deployed_index=deployed)
    query = {"datapoint": {"datapoint_id": "good"}}
    for call in (
        lambda: caller.send(index_pb2.GetIndexRequest(name=name)),
        lambda: caller.send(index_pb2.DeleteIndexRequest(name=name)),
        lambda: caller.upsert(name, [GOOD]),
        lambda: caller.remove(name, ["good"]),
        lambda: caller.find(name.replace("indexes", "indexEndpoints"), query),
        lambda: caller.send(deploy),
    ):
        assert len(refused(INVALID, call)) < 1000
    for method in ("GetOperation", "WaitOperation", "DeleteOperation", "CancelOperation"):
        request = getattr(operations_pb2, f"{method}Request")(name=name)
        refused(NOT_FOUND, caller.send, request)


@pytest.mark.system
@pytest.mark.parametrize(
    "parent", ["", "x", "projects/p", "projects/p/locations/", "projects/../locations/l", "\0"]
)
def test_malformed_parents(hostile: Served, parent: str):
    caller = hostile.caller
    index = index_pb2.Index(display_name="x", metadata=ParseDict({"config": {"dimensions": 4}}, Value()))
    endpoint = endpoint_pb2.IndexEndpoint(display_name="x")
    for request in (
        index_pb2.CreateIndexRequest(parent=parent, index=index),
        index_pb2.ListIndexesRequest(parent=parent),
        endpoint_pb2.CreateIndexEndpointRequest(parent=parent, index_endpoint=endpoint),
        endpoint_pb2.ListIndexEndpointsRequest(parent=parent),
    ):
        refused(INVALID, caller.send, request)


def test_other_locations_do_not_find_what_is_elsewhere(hostile: Served):
    caller = hostile.caller
    for other in ("projects/p/locations/m", "projects/q/locations/l", "projects/P/locations/l"):
        index, endpoint = (name.replace(PARENT, other) for name in (hostile.index, hostile.endpoint))
        for call in (
            lambda: caller.upsert(index, [GOOD]),  # noqa: B023
            lambda: caller.remove(index, ["good"]),  # noqa: B023
            lambda: caller.find(endpoint, {"datapoint": {"datapoint_id": "good"}}),  # noqa: B023
            lambda: caller.read(endpoint, ["good"]),  # noqa: B023
            lambda: caller.send(index_pb2.DeleteIndexRequest(name=index)),  # noqa: B023
            lambda: caller.update_contents(index, hostile.folder / "contents"),  # noqa: B023
        ):
            refused((NOT_FOUND, INVALID), call)
        listed = index_pb2.ListIndexesRequest(parent=other)
        assert not caller.send(listed).indexes


WRONG_POINTS: dict[str, dict[str, Any]] = {
    "too few dimensions": {"feature_vector": [1, 2, 3]},
    "too many dimensions": {"feature_vector": [1] * 20_000},
    "NaN": {"feature_vector": [1, "NaN", 3, 4]},
    "infinity": {"feature_vector": [1, "Infinity", 3, 4]},
    "NaN in a sparse vector": {"sparse_embedding": {"values": ["NaN"], "dimensions": [1]}},
    "infinity in a sparse vector": {"sparse_embedding": {"values": ["-Infinity"], "dimensions": [1]}},
    "a negative dimension": {"sparse_embedding": {"values": [1], "dimensions": [-1]}},
    "a huge dimension": {"sparse_embedding": {"values": [1], "dimensions": [1 << 62]}},
    "a dimension twice": {"sparse_embedding": {"values": [1, 2], "dimensions": [3, 3]}},
    "values without dimensions": {"sparse_embedding": {"values": [1, 2], "dimensions": [3]}},
    "a namespace without a name": {"restricts": [{"allow_list": ["a"]}]},
    "a long namespace": {"restricts": [{"namespace": "n" * 10_000, "allow_list": ["a"]}]},
    "a NUL in a namespace": {"restricts": [{"namespace": "a\0b", "allow_list": ["a"]}]},
    "an empty token": {"restricts": [{"namespace": "a", "allow_list": [""]}]},
    "a namespace twice": {"restricts": [{"namespace": "a"}, {"namespace": "a"}]},
    "huge tokens": {"restricts": [{"namespace": "a", "allow_list": ["t" * (1 << 21)]}]},
    "too many tokens": {"restricts": [{"namespace": "a", "allow_list": ["t"] * 70_000}]},
    "too many namespaces": {"restricts": [{"namespace": f"n{n}", "allow_list": ["a"]} for n in range(5000)]},
    "a number without a value": {"numeric_restricts": [{"namespace": "a"}]},
    "a number that is none": {"numeric_restricts": [{"namespace": "a", "value_double": "NaN"}]},
    "an infinite number": {"numeric_restricts": [{"namespace": "a", "value_float": "Infinity"}]},
    "an operator": {"numeric_restricts": [{"namespace": "a", "value_int": 1, "op": "LESS"}]},
    "no id": {"datapoint_id": ""},
    "a long id": {"datapoint_id": "x" * 513},
    "a NUL in an id": {"datapoint_id": "a\0b"},
    "a long crowding tag": {"crowding_tag": {"crowding_attribute": "c" * (1 << 21)}},
    "large metadata": {"embedding_metadata": {"a": "m" * (1 << 21)}},
}


@pytest.mark.system
@pytest.mark.parametrize("wrong", WRONG_POINTS)
def test_datapoints(hostile: Served, wrong: str):
    point = {**GOOD, "datapoint_id": "bad", **WRONG_POINTS[wrong]}
    message = refused(INVALID, hostile.caller.upsert, hostile.index, [GOOD, point])
    # The parts of a request are counted before it is decoded.
    assert message.startswith("datapoints[1]") or "too many parts" in message, message
    assert hostile.caller.read(hostile.endpoint, ["bad"]) == []


def test_metadata_that_cannot_be_json(hostile: Served):
    for value in (Value(number_value=NAN), Value(number_value=INF)):
        request = index_pb2.UpsertDatapointsRequest(index=hostile.index)
        point = ParseDict({**GOOD, "datapoint_id": "bad"}, request.datapoints.add())
        point.embedding_metadata.fields["a"].CopyFrom(value)
        refused(INVALID, hostile.caller.send, request)


def deep(levels: int) -> Struct:
    """Return a Struct in a Struct in a …"""
    found = Struct()
    for _ in range(levels):
        outer = Struct()
        outer.fields["a"].struct_value.CopyFrom(found)
        found = outer
    return found


@pytest.mark.parametrize("levels", [20, 30, 45])
def test_deep_nesting(hostile: Served, levels: int):
    request = index_pb2.UpsertDatapointsRequest(index=hostile.index)
    ParseDict({**GOOD, "datapoint_id": "deep"}, request.datapoints.add())
    request.datapoints[0].embedding_metadata.CopyFrom(deep(levels))
    try:
        hostile.caller.send(request)
    except grpc.RpcError as error:
        assert error.code() is INVALID, error
    else:
        [found] = hostile.caller.read(hostile.endpoint, ["deep"])
        assert found.embedding_metadata == request.datapoints[0].embedding_metadata
        hostile.caller.remove(hostile.index, ["deep"])
    index = index_pb2.Index(display_name="x", metadata=Value(struct_value=deep(min(levels, 30))))
    refused(INVALID, hostile.caller.send, index_pb2.CreateIndexRequest(parent=PARENT, index=index))


def test_nesting_beyond_what_protobuf_reads(hostile: Served):
    struct = b""
    for _ in range(5000):
        value = prefixed(b"\x2a", struct)
        struct = prefixed(b"\x0a", b"\x0a\x01a" + prefixed(b"\x12", value))
    point = prefixed(b"\x0a", b"deep") + prefixed(b"\x42", struct)
    request = prefixed(b"\x0a", hostile.index.encode()) + prefixed(b"\x12", point)
    call = raw(hostile.caller, f"/{V1}.IndexService/UpsertDatapoints")
    refused(INVALID, call, request, timeout=30)


def raw(caller: Caller, path: str) -> Callable[..., bytes]:
    """Return a method that takes and returns bytes."""
    return caller.channel.unary_unary(path, request_serializer=None, response_deserializer=None)


def prefixed(tag: bytes, data: bytes) -> bytes:
    """Return a field of a message: its tag, its length and its content."""
    size, length = len(data), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return tag + length + bytes([size]) + data


WRONG_QUERIES: dict[str, dict[str, Any]] = {
    "nothing": {"datapoint": {}},
    "too few dimensions": {"datapoint": {"feature_vector": [1]}},
    "NaN": {"datapoint": {"feature_vector": ["NaN", 1, 1, 1]}},
    "infinity": {"datapoint": {"feature_vector": ["Infinity", 1, 1, 1]}},
    "NaN in a sparse vector": {"datapoint": {"sparse_embedding": {"values": ["NaN"], "dimensions": [1]}}},
    "negative count": {"neighbor_count": -1},
    "huge count": {"neighbor_count": 1 << 30},
    "negative candidates": {"approximate_neighbor_count": -1},
    "huge candidates": {"approximate_neighbor_count": 1 << 30},
    "negative share": {"fraction_leaf_nodes_to_search_override": -0.1},
    "share above all": {"fraction_leaf_nodes_to_search_override": 1.1},
    "share that is none": {"fraction_leaf_nodes_to_search_override": "NaN"},
    "alpha that is none": {"rrf": {"alpha": "NaN"}, "datapoint": {"feature_vector": [1] * 4,
     "sparse_embedding": {"values": [1], "dimensions": [1]}}},
    "number that is none": {"datapoint": {"feature_vector": [1] * 4, "numeric_restricts": [{"namespace": "a",
     "value_double": "NaN", "op": "LESS"}]}},
    "too many conditions": {"datapoint": {"feature_vector": [1] * 4, "restricts": [{"namespace": f"n{n}",
     "allow_list": ["a"]} for n in range(5000)]}},
    "too many tokens": {"datapoint": {"feature_vector": [1] * 4, "restricts": [{"namespace": "n",
     "allow_list": ["a"] * 5000}]}},
    "no namespace": {"datapoint": {"feature_vector": [1] * 4, "restricts": [{"allow_list": ["a"]}]}},
    "long namespace": {"datapoint": {"feature_vector": [1] * 4, "restricts": [{"namespace": "n" * 10_000,
     "allow_list": ["a"]}]}},
}  # fmt: skip


@pytest.mark.system
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("wrong", WRONG_QUERIES)
def test_queries(hostile: Served, wrong: str, together: bool):
    good = {"datapoint": {"feature_vector": [1, 2, 3, 4]}}
    query = {**good, **WRONG_QUERIES[wrong]}
    front = [good] if together else []
    message = refused(INVALID, hostile.caller.find, hostile.endpoint, *front, query)
    assert message.startswith(f"queries[{len(front)}]"), message


@pytest.mark.parametrize("id", ["\0", "x" * 10_000, "ünï", " ", "../good"])
def test_ids_that_nothing_has(hostile: Served, id: str):
    refused((NOT_FOUND, INVALID), hostile.caller.find, hostile.endpoint, {"datapoint": {"datapoint_id": id}})
    refused((NOT_FOUND, INVALID), hostile.caller.find, hostile.endpoint, {"datapoint": GOOD}, id=id)
    for call in (
        lambda: hostile.caller.read(hostile.endpoint, [id]),
        lambda: hostile.caller.remove(hostile.index, [id]),
    ):
        try:
            assert not call()
        except grpc.RpcError as error:
            assert error.code() is INVALID, error


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.system
def test_huge_batches(hostile: Served):
    caller, peak = hostile.caller, peak_bytes()
    match = private_pb2.MatchRequest(deployed_index_id="deployed", float_val=[1] * 4, num_neighbors=10_000)
    batch = private_pb2.BatchMatchRequest()
    for _ in range(3):
        batch.requests.add(deployed_index_id="deployed", requests=[match] * 330)
    embeddings = private_pb2.BatchGetEmbeddingsRequest(
        deployed_index_id="deployed", id=[str(n) for n in range(1001)]
    )
    # Different options, so that they are not searched together.
    queries = [{"neighbor_count": 10_000 - n, "datapoint": {"feature_vector": [1] * 4}} for n in range(1000)]
    large = index_pb2.UpsertDatapointsRequest(index=hostile.index)
    large.datapoints.extend(
        [index_pb2.IndexDatapoint(datapoint_id="x", feature_vector=[1.0] * 10_000)] * 1000
    )
    many = index_pb2.UpsertDatapointsRequest(index=hostile.index)
    many.datapoints.extend([index_pb2.IndexDatapoint(datapoint_id="x")] * 100_000)
    for call in (
        lambda: caller.find(hostile.endpoint, *queries),
        lambda: caller.send(batch),
        lambda: caller.send(embeddings),
        lambda: caller.send(large),
        lambda: caller.send(many),
    ):
        refused((INVALID, EXHAUSTED), call)
    assert peak_bytes() - peak < 1 << 30


@pytest.mark.parametrize("where", ["request", "datapoint", "restrict", "sparse", "value of a map"])
def test_unknown_fields(hostile: Served, where: str):
    request = index_pb2.UpsertDatapointsRequest(index=hostile.index)
    point = ParseDict({**GOOD, "datapoint_id": "bad"}, request.datapoints.add())
    target: Message = {
        "request": lambda: request,
        "datapoint": lambda: point,
        "restrict": lambda: point.restricts.add(namespace="a"),
        "sparse": lambda: point.sparse_embedding,
        "value of a map": lambda: point.embedding_metadata.fields["a"],
    }[where]()
    target.MergeFromString(b"\x98\x06\x01")  # field 99, 1
    message = refused(UNSUPPORTED, hostile.caller.send, request)
    assert "field number 99" in message or where == "value of a map"


def test_bytes_that_are_no_message(hostile: Served):
    for data in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", os.urandom(1000)):
        call = raw(hostile.caller, f"/{V1}.MatchService/FindNeighbors")
        refused((INVALID, UNSUPPORTED), call, data, timeout=30)


def index_with(**metadata: Any) -> index_pb2.CreateIndexRequest:
    index = index_pb2.Index(display_name="x", metadata=ParseDict(metadata, Value()))
    return index_pb2.CreateIndexRequest(parent=PARENT, index=index)


def test_settings_of_indexes(hostile: Served):
    caller = hostile.caller
    configs: tuple[dict[str, Any], ...] = (
        {"dimensions": -1},
        {"dimensions": 1e300},
        {"dimensions": "4"},
        {"dimensions": True},
        {"dimensions": []},
        {"dimensions": 4, "shardSize": "x" * 100_000},
        {"dimensions": 4, "algorithmConfig": []},
        {"dimensions": 4, "algorithmConfig": {"treeAhConfig": {"leafNodeEmbeddingCount": "many"}}},
        {"dimensions": 4, "distanceMeasureType": {"a": 1}},
    )
    for config in configs:
        refused(INVALID, caller.send, index_with(config=config))
    request = index_with(config={"dimensions": 4})
    for number in (NAN, INF):
        request.index.metadata.struct_value.fields["config"].struct_value.fields[
            "dimensions"
        ].number_value = number
        refused(INVALID, caller.send, request)
    others: tuple[dict[str, Any], ...] = (
        {"config": []},
        {"config": {"dimensions": 4}, "isCompleteOverwrite": True},
        {"more": 1},
    )
    for metadata in others:
        refused(INVALID, caller.send, index_with(**metadata))


def test_descriptions(hostile: Served):
    caller = hostile.caller
    for wrong in (
        {"display_name": ""},
        {"display_name": "x" * 129},
        {"description": "x" * 10_000},
        {"labels": {f"l{n}": "" for n in range(65)}},
        {"labels": {"Upper": "a"}},
        {"labels": {"a" * 64: "a"}},
        {"labels": {"a": "\0"}},
    ):
        given: dict[str, Any] = wrong
        update = index_pb2.UpdateIndexRequest(index=index_pb2.Index(name=hostile.index, **given))
        update.update_mask.paths.extend(given)
        refused(INVALID, caller.send, update)
        change = endpoint_pb2.UpdateIndexEndpointRequest(
            index_endpoint=endpoint_pb2.IndexEndpoint(name=hostile.endpoint, **given)
        )
        change.update_mask.paths.extend(given)
        refused(INVALID, caller.send, change)
    large = endpoint_pb2.IndexEndpoint(display_name="x", network="n" * 100_000)
    create = endpoint_pb2.CreateIndexEndpointRequest(parent=PARENT, index_endpoint=large)
    refused(INVALID, caller.send, create)
    deployed = endpoint_pb2.DeployedIndex(id="x", index=hostile.index, reserved_ip_ranges=["r" * 100_000])
    deploy = endpoint_pb2.DeployIndexRequest(index_endpoint=hostile.endpoint, deployed_index=deployed)
    refused(INVALID, caller.send, deploy)
    for id in ("", "1a", "a-b", "a" * 129, "ü", "a\0"):
        deploy.deployed_index.id = id
        refused(INVALID, caller.send, deploy)


def test_lists(hostile: Served):
    def listed(**options: Any) -> Callable[[], object]:
        request = index_pb2.ListIndexesRequest(parent=PARENT, **options)
        return lambda: hostile.caller.send(request)

    for options in (
        {"page_size": -1},
        {"page_token": "x"},
        {"page_token": "ü"},
        {"page_token": "A" * 100_000},
        {"filter": "a" + " " * 100_000 + "b"},
        {"filter": "x"},
        {"filter": 'display_name="a" OR display_name="b"'},
        {"read_mask": FieldMask(paths=["nothing"])},
        {"read_mask": FieldMask(paths=["name.more"])},
        {"read_mask": FieldMask(paths=[""])},
        {"read_mask": FieldMask(paths=["a" * 100_000])},
    ):
        refused((INVALID, UNSUPPORTED), listed(**options))


def test_operations(hostile: Served):
    caller = hostile.caller
    operation = caller.send(
        index_pb2.UpdateIndexRequest(index=index_pb2.Index(name=hostile.index, display_name="again"))
    )
    id = operation.name.rpartition("/")[2]
    for name in (
        f"operations/{id}",
        f"{PARENT}/operations/{id}",
        f"{hostile.index}/operations/{id[:-1]}",
        f"{hostile.index}/operations/{id}/",
        f"{hostile.index}/operations/{id}\0",
        f"{hostile.index}/operations/{'x' * 10_000}",
        hostile.index,
    ):
        request = operations_pb2.GetOperationRequest(name=name)
        refused(NOT_FOUND, caller.send, request)
    wait = operations_pb2.WaitOperationRequest(name=operation.name)
    for seconds in (-(1 << 62), -1, 1 << 62):
        wait.timeout.seconds = seconds
        assert caller.send(wait).done
    for name in ("", "projects", "../..", "\0"):
        listed = operations_pb2.ListOperationsRequest(name=name)
        answer = caller.send(listed)
        assert not answer.operations or name == "projects"


@pytest.mark.system
def test_a_tenant_cannot_touch_what_is_others(tmp_path: Path):
    """Two administrators, each with a key for own indexes."""
    keys = KeyFile(tmp_path / "keys.json")
    scopes = ("read", "write", "admin")
    _, root = keys.create("root", scopes=scopes)
    _, tenant = keys.create("tenant", scopes=scopes, indexes=["theirs"])
    security = SecurityConfig(keys_file=str(tmp_path / "keys.json"))
    with facade(tmp_path, security=security) as server:
        with Caller(server.address, metadata=(("x-goog-api-key", root),)) as caller:
            own = Served(caller, tmp_path)
            done = caller.send(
                index_pb2.UpdateIndexRequest(index=index_pb2.Index(name=own.index, display_name="new"))
            )
        with Caller(server.address, metadata=(("x-goog-api-key", tenant),)) as caller:
            deployed = endpoint_pb2.DeployedIndex(id="mine", index=own.index)
            existing = endpoint_pb2.DeployedIndex(id="deployed")
            match = private_pb2.MatchRequest(deployed_index_id="deployed", float_val=[1] * 4)
            embeddings = private_pb2.BatchGetEmbeddingsRequest(deployed_index_id="deployed", id=["good"])
            update = index_pb2.UpdateIndexRequest(index=index_pb2.Index(name=own.index, display_name="mine"))
            calls: list[Callable[[], object]] = [
                lambda: caller.send(index_pb2.GetIndexRequest(name=own.index)),
                lambda: caller.send(update),
                lambda: caller.send(index_pb2.DeleteIndexRequest(name=own.index)),
                lambda: caller.update_contents(own.index, tmp_path / "contents"),
                lambda: caller.upsert(own.index, [GOOD]),
                lambda: caller.remove(own.index, ["good"]),
                lambda: caller.find(own.endpoint, {"datapoint": {"datapoint_id": "good"}}),
                lambda: caller.read(own.endpoint, ["good"]),
                lambda: caller.match(match),
                lambda: caller.send(embeddings),
                lambda: caller.send(endpoint_pb2.DeployIndexRequest(index_endpoint=own.endpoint,
                 deployed_index=deployed)),
                lambda: caller.send(endpoint_pb2.UndeployIndexRequest(index_endpoint=own.endpoint,
                 deployed_index_id="deployed")),
                lambda: caller.send(endpoint_pb2.MutateDeployedIndexRequest(index_endpoint=own.endpoint,
                 deployed_index=existing)),
                *(lambda method=method: caller.send(getattr(operations_pb2,
                 f"{method}Request")(name=done.name)) for method in ("GetOperation", "WaitOperation",
                 "DeleteOperation", "CancelOperation")),
            ]  # fmt: skip
            for call in calls:
                message = refused(NOT_FOUND, call)
                assert "deployed there" not in message
            batch = private_pb2.BatchMatchRequest()
            batch.requests.add(deployed_index_id="deployed", requests=[match])
            [answer] = caller.send(batch).responses
            assert answer.status.code == NOT_FOUND.value[0]
            assert not answer.responses
            listed = index_pb2.ListIndexesRequest(parent=PARENT)
            found = caller.send(listed)
            assert not found.indexes
            refused(DENIED, caller.create_index)
        own.caller = Caller(server.address, metadata=(("x-goog-api-key", root),))
        with own.caller:
            own.check()


def test_what_is_told_of_wrong_contents_is_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents_module, "MAX_TOLD_FILES", 2)
    monkeypatch.setattr(contents_module, "MAX_TOLD_ERRORS", 3)
    folder = served.folder / "contents" / "wrong"
    write_lines(folder / "a.json", [GOOD_RECORD])
    for name in "bcd":
        write_lines(folder / f"{name}.json", [{"id": "x" * 10_000, "embedding": [1]}] * 2)
    failed = served.caller.update_contents(served.index, folder)
    assert "6 records cannot be written" in failed.error.message
    metadata = index_pb2.UpdateIndexOperationMetadata.FromString(failed.metadata.value)
    told = metadata.nearest_neighbor_search_operation_metadata.content_validation_stats
    assert [(stats.invalid_record_count, len(stats.partial_errors)) for stats in told] == [(2, 2), (2, 1)]
    assert failed.ByteSize() < 10_000
