"""The managed service's API v1 over gRPC, with our own messages, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.indexer import Store
from scannery.serving import ConfigError, SecurityConfig, ServerConfig
from scannery.serving.config import VertexConfig
from scannery.serving.security.api_keys import KeyFile
from scannery.serving.security.limits import parse_items
from scannery.vertex.v1 import endpoint_pb2, index_pb2, match_pb2, operations_pb2, private_pb2
from scannery.vertex.v2 import collections_pb2
from tests.bridges.vertex.facade_client import (
    ABORTED,
    DENIED,
    EXISTS,
    INVALID,
    NOT_FOUND,
    PARENT,
    PRECONDITION,
    UNAUTHENTICATED,
    UNSUPPORTED,
    Caller,
    facade,
    ids_of,
    refused,
    write_lines,
)
from tests.served import serving

RNG = np.random.default_rng(4)
VECTORS_ND = RNG.normal(size=(60, 4)).astype(np.float32)
COLORS = ["red", "blue", "green", "black"]


def point(row: int) -> dict[str, Any]:
    """Return a datapoint with restricts of every kind."""
    restricts: list[dict[str, Any]] = []
    if row % 5:
        restricts.append({"namespace": "color", "allow_list": [COLORS[row % 4], COLORS[row % 3]]})
    if row % 7 == 0:
        restricts = [{"namespace": "color", "allow_list": [COLORS[row % 4]], "deny_list": ["blue"]}]
    numbers: list[dict[str, Any]] = [{"namespace": "year", "value_int": 2000 + row % 10}]
    if row % 4 == 0:
        numbers.append({"namespace": "price", "value_float": row / 7})
    elif row % 4 == 1:
        numbers = []
    found = {
        "datapoint_id": f"d{row:02}",
        "feature_vector": VECTORS_ND[row].tolist(),
        "restricts": restricts,
        "numeric_restricts": numbers,
        "embedding_metadata": {"row": row, "deep": [None, {"a": "ü"}]},
    }
    if row % 3 == 0:
        found["crowding_tag"] = {"crowding_attribute": str(row % 2)}
    if row % 2 == 0:
        found["sparse_embedding"] = {"values": [1.0 + row, -0.5], "dimensions": [7, row]}
        if row == 14:
            del found["feature_vector"]
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Caller, str, str]]:
    """An index with the points, deployed: caller, name of the index, name of the endpoint."""
    with facade(tmp_path_factory.mktemp("v1")) as server, Caller(server.address) as caller:
        index = caller.create_index().name
        caller.upsert(index, [point(row) for row in range(60)])
        yield caller, index, caller.deploy(index)


def expected(vector_D: np.ndarray, allowed: Any = lambda row: True) -> list[str]:
    rows = [row for row in range(60) if row != 14 and allowed(row)]
    return [f"d{row:02}" for row in sorted(rows, key=lambda row: -float(VECTORS_ND[row] @ vector_D))]


def query(vector_D: np.ndarray, count: int = 60, **rest: Any) -> dict[str, Any]:
    """Return a query; the rest goes to its datapoint."""
    return {"neighbor_count": count, "datapoint": {"feature_vector": vector_D.tolist(), **rest}}


def test_neighbors_are_those_of_brute_force(served: tuple[Caller, str, str]):
    caller, _, endpoint = served
    [found] = caller.find(endpoint, query(VECTORS_ND[2], 10))
    assert ids_of(found) == expected(VECTORS_ND[2])[:10]
    assert found[0].distance == pytest.approx(
        float(max(VECTORS_ND[row] @ VECTORS_ND[2] for row in range(60) if row != 14)), rel=1e-5
    )
    assert not found[0].datapoint.feature_vector


def has(row: int, name: str) -> tuple[list[str], list[str]]:
    for restrict in point(row)["restricts"]:
        if restrict["namespace"] == name:
            return restrict.get("allow_list", []), restrict.get("deny_list", [])
    return [], []


@pytest.mark.parametrize(
    ("allow", "deny"),
    [
        (allow, deny)
        for allow in ([], ["red"], ["blue", "green"], ["violet"])
        for deny in ([], ["blue"], ["red", "black"])
    ],
)
def test_restricts(served: tuple[Caller, str, str], allow: list[str], deny: list[str]):
    def allowed(row: int) -> bool:
        own, denied = has(row, "color")
        return (not allow or bool({*own} & {*allow})) and not {*own} & {*deny} and not {*denied} & {*allow}

    caller, _, endpoint = served
    restrict = {"namespace": "color", "allow_list": allow, "deny_list": deny}
    [found] = caller.find(endpoint, query(VECTORS_ND[1], restricts=[restrict]))
    assert ids_of(found) == expected(VECTORS_ND[1], allowed)


OPERATORS = {
    "LESS": lambda a, b: a < b,
    "LESS_EQUAL": lambda a, b: a <= b,
    "EQUAL": lambda a, b: a == b,
    "GREATER_EQUAL": lambda a, b: a >= b,
    "GREATER": lambda a, b: a > b,
    "NOT_EQUAL": lambda a, b: a != b,
}


@pytest.mark.parametrize("op", OPERATORS)
def test_numeric_restricts(served: tuple[Caller, str, str], op: str):
    caller, _, endpoint = served
    prices = {row: np.float32(row / 7) for row in range(60) if row % 4 == 0}
    for namespace, given, values in (
        ("year", {"value_int": 2004}, {row: 2000 + row % 10 for row in range(60) if row % 4 != 1}),
        ("price", {"value_float": float(np.float32(20 / 7))}, prices),
        ("price", {"value_double": 3.0}, prices),
        ("never", {"value_int": 1}, {}),
    ):
        right = expected(
            VECTORS_ND[1],
            lambda row: row in values and OPERATORS[op](values[row], next(iter(given.values()))),  # noqa: B023
        )
        numeric = {"namespace": namespace, "op": op, **given}
        [found] = caller.find(endpoint, query(VECTORS_ND[1], numeric_restricts=[numeric]))
        assert ids_of(found) == right


def sparse_scores(weights: dict[int, float]) -> dict[str, float]:
    scores = {}
    for row in range(0, 60, 2):
        sparse = point(row)["sparse_embedding"]
        own = dict(zip(sparse["dimensions"], sparse["values"], strict=True))
        if common := own.keys() & weights.keys():
            scores[f"d{row:02}"] = sum(own[at] * weights[at] for at in common)
    return scores


def test_sparse_and_hybrid_queries(served: tuple[Caller, str, str]):
    caller, _, endpoint = served
    sparse = {"sparse_embedding": {"values": [2.0, 1.0], "dimensions": [20, 7]}}
    scores = sparse_scores({20: 2.0, 7: 1.0})
    [found] = caller.find(endpoint, {"neighbor_count": 60, "datapoint": sparse})
    assert {n.datapoint.datapoint_id: n.sparse_distance for n in found} == pytest.approx(scores, rel=1e-5)
    assert all(n.distance == 0 for n in found)
    by_sparse = sorted(scores, key=lambda id: -scores[id])
    by_dense = expected(VECTORS_ND[3])
    for alpha in (0.5, 0.2, None):
        asked = query(VECTORS_ND[3], 10, **sparse) | ({} if alpha is None else {"rrf": {"alpha": alpha}})
        share = 0.5 if alpha is None else alpha
        fused = {
            id: share / (61 + by_dense.index(id) if id in by_dense else np.inf)
            + (1 - share) / (61 + by_sparse.index(id) if id in by_sparse else np.inf)
            for id in {*by_dense, *by_sparse}
        }
        [found] = caller.find(endpoint, asked)
        ranked = [fused[id] for id in ids_of(found)]
        assert ranked == pytest.approx(sorted(fused.values(), reverse=True)[:10], rel=1e-5)
        for neighbor in found:
            row = int(neighbor.datapoint.datapoint_id[1:])
            right = 0.0 if row == 14 else float(VECTORS_ND[row] @ VECTORS_ND[3])
            assert neighbor.distance == pytest.approx(right, rel=1e-4)
            assert neighbor.sparse_distance == pytest.approx(scores.get(f"d{row:02}", 0), rel=1e-5)
    [dense] = caller.find(endpoint, query(VECTORS_ND[3], 10, **sparse) | {"rrf": {"alpha": 1}})
    assert ids_of(dense) == by_dense[:10]
    [only] = caller.find(endpoint, query(VECTORS_ND[3], 10, **sparse) | {"rrf": {"alpha": 0}})
    assert [n.sparse_distance for n in only] == pytest.approx(sorted(scores.values())[::-1][:10], rel=1e-5)


def test_crowding(served: tuple[Caller, str, str]):
    caller, _, endpoint = served
    [found] = caller.find(endpoint, query(VECTORS_ND[1], 20) | {"per_crowding_attribute_neighbor_count": 2})
    tags = [n.datapoint.crowding_tag.crowding_attribute for n in found]
    assert 1 <= max(tags.count("0"), tags.count("1")) <= 2
    seen: dict[str, int] = {"0": 0, "1": 0}
    right = []
    for id in expected(VECTORS_ND[1]):
        row = int(id[1:])
        if row % 3 == 0:
            seen[str(row % 2)] += 1
            if seen[str(row % 2)] > 2:
                continue
        right.append(id)
    assert ids_of(found) == right[:20]


def test_full_datapoints_are_those_that_were_written(served: tuple[Caller, str, str]):
    caller, _, endpoint = served
    for row in (0, 3, 14, 21, 28):
        given = index_pb2.IndexDatapoint()
        from google.protobuf.json_format import ParseDict

        ParseDict(point(row), given)
        sparse = given.sparse_embedding
        if given.HasField("sparse_embedding"):  # dimensions come back in order
            pairs = sorted(zip(sparse.dimensions, sparse.values, strict=True))
            sparse.dimensions[:], sparse.values[:] = zip(*pairs, strict=True)
        given.numeric_restricts.sort(key=lambda numeric: numeric.namespace)
        assert caller.read(endpoint, [f"d{row:02}", "unknown"]) == [given]
    [found] = caller.find(endpoint, query(VECTORS_ND[28], 60), full=True)
    by_id = {n.datapoint.datapoint_id: n.datapoint for n in found}
    assert [by_id["d28"]] == caller.read(endpoint, ["d28"])


def test_a_query_by_id_is_one_by_its_vectors(served: tuple[Caller, str, str]):
    caller, _, endpoint = served
    by_id, by_vector = (
        caller.find(endpoint, {"neighbor_count": 5, "datapoint": asked})[0]
        for asked in ({"datapoint_id": "d03"}, {"feature_vector": VECTORS_ND[3].tolist()})
    )
    assert by_id == by_vector
    assert "queries[0].datapoint.datapoint_id" in refused(
        NOT_FOUND, caller.find, endpoint, {"datapoint": {"datapoint_id": "none"}}
    )


def test_queries_with_different_options_come_back_in_their_order(served: tuple[Caller, str, str]):
    caller, _, endpoint = served
    asked = [
        query(
            VECTORS_ND[row], 3 + row % 3, restricts=[{"namespace": "color", "allow_list": [COLORS[row % 4]]}]
        )
        | ({"fraction_leaf_nodes_to_search_override": 0.5} if row % 2 else {"approximate_neighbor_count": 20})
        for row in range(12)
    ]
    together = caller.find(endpoint, *asked)
    assert together == [caller.find(endpoint, one)[0] for one in asked]
    assert [len(found) for found in together] == [3 + row % 3 for row in range(12)]


def test_the_private_api_gives_the_same_neighbors(served: tuple[Caller, str, str]):
    caller, _, endpoint = served
    restrict = {"namespace": "color", "allow_list": ["red"]}
    numeric = {"namespace": "year", "op": "GREATER", "value_int": 2003}
    [found] = caller.find(
        endpoint, query(VECTORS_ND[1], 7, restricts=[restrict], numeric_restricts=[numeric]), full=True
    )
    request = private_pb2.MatchRequest(
        deployed_index_id="deployed",
        float_val=VECTORS_ND[1].tolist(),
        num_neighbors=7,
        restricts=[private_pb2.Namespace(name="color", allow_tokens=["red"])],
        numeric_restricts=[private_pb2.NumericNamespace(name="year", op=5, value_int=2003)],
        embedding_enabled=True,
    )
    answer = caller.match(request)
    assert [(n.id, n.distance) for n in answer.neighbor] == [
        (n.datapoint.datapoint_id, n.distance) for n in found
    ]
    assert [each.float_val for each in answer.embeddings] == [n.datapoint.feature_vector for n in found]
    batch = private_pb2.BatchMatchRequest()
    batch.requests.add(deployed_index_id="deployed", requests=[request, request])
    batch.requests.add(deployed_index_id="unknown", requests=[request])
    first, second = caller.send(batch).responses
    assert [*first.responses] == [answer, answer]
    assert second.status.code == NOT_FOUND.value[0]


@pytest.mark.parametrize(("measure", "norm", "distance"), [
    ("DOT_PRODUCT_DISTANCE", "NONE", lambda a, b: a @ b),
    ("DOT_PRODUCT_DISTANCE", "UNIT_L2_NORM", lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
    ("COSINE_DISTANCE", "NONE", lambda a, b: 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
    ("SQUARED_L2_DISTANCE", "NONE", lambda a, b: ((a - b) ** 2).sum()),
    ("SQUARED_L2_DISTANCE", "UNIT_L2_NORM", lambda a,
     b: ((a / np.linalg.norm(a) - b / np.linalg.norm(b)) ** 2).sum()),
])  # fmt: skip
def test_distances(tmp_path: Path, measure: str, norm: str, distance: Any):
    with facade(tmp_path) as server, Caller(server.address) as caller:
        index = caller.create_index(
            distanceMeasureType=measure, featureNormType=norm, algorithmConfig={"bruteForceConfig": {}}
        ).name
        rows = [row for row in range(60) if row != 14]
        caller.upsert(
            index,
            [{"datapoint_id": f"d{row:02}", "feature_vector": VECTORS_ND[row].tolist()} for row in rows],
        )
        [found] = caller.find(caller.deploy(index), query(VECTORS_ND[0]))
        right = {f"d{row:02}": float(distance(VECTORS_ND[row], VECTORS_ND[0])) for row in rows}
        falls = measure == "DOT_PRODUCT_DISTANCE"
        order = [n.distance for n in found]
        assert order == sorted(order, reverse=falls)
        assert {n.datapoint.datapoint_id: n.distance for n in found} == pytest.approx(
            right, rel=1e-4, abs=1e-5
        )


@pytest.mark.system
def test_upsert_without_a_vector_drops_it_and_masks_keep_the_rest(tmp_path: Path):
    with facade(tmp_path) as server, Caller(server.address) as caller:
        index = caller.create_index().name
        endpoint = caller.deploy(index)
        caller.upsert(index, [point(6), point(8)])
        caller.upsert(
            index,
            [{"datapoint_id": "d06", "restricts": [{"namespace": "size", "allow_list": ["s"]}]}],
            "all_restricts",
        )
        [found] = caller.read(endpoint, ["d06"])
        assert [restrict.namespace for restrict in found.restricts] == ["size"]
        assert not found.numeric_restricts
        assert found.crowding_tag.crowding_attribute == "0"
        assert found.embedding_metadata["row"] == 6
        assert found.HasField("sparse_embedding")
        assert len(found.feature_vector) == 4
        caller.upsert(
            index, [{"datapoint_id": "d06", "embedding_metadata": {"new": 1}}], "embedding_metadata"
        )
        [found] = caller.read(endpoint, ["d06"])
        assert dict(found.embedding_metadata) == {"new": 1}
        assert [restrict.namespace for restrict in found.restricts] == ["size"]
        # Clients send an empty sparse embedding for none.
        caller.upsert(
            index, [{"datapoint_id": "d06", "feature_vector": [1, 0, 0, 0], "sparse_embedding": {}}]
        )
        [found] = caller.read(endpoint, ["d06"])
        assert not found.HasField("sparse_embedding")
        assert not found.HasField("embedding_metadata")
        refused(NOT_FOUND, caller.upsert, index, [{"datapoint_id": "none"}], "all_restricts")
        caller.remove(index, ["d06", "unknown"])
        assert caller.read(endpoint, ["d06", "d08"])[0].datapoint_id == "d08"


@pytest.mark.parametrize(("wrong", "field"), [
    ({"datapoint_id": "x", "feature_vector": [1, 2]}, "datapoints[1].feature_vector"),
    ({"datapoint_id": "x"}, "datapoints[1].feature_vector"),
    ({"datapoint_id": "", "feature_vector": [1, 2, 3, 4]}, "datapoints[1].datapoint_id"),
    ({"datapoint_id": "x", "sparse_embedding": {"values": [1], "dimensions": [-1]}},
     "datapoints[1].sparse_embedding.dimensions"),
    ({"datapoint_id": "x", "feature_vector": [1, 2, 3, 4], "numeric_restricts": [{"namespace": "a"}]},
     "datapoints[1].numeric_restricts[0]"),
    ({"datapoint_id": "x", "feature_vector": [1, 2, 3, 4], "restricts": [{"namespace": "a"}, {"namespace": "a"}]},
     "datapoints[1].restricts[1].namespace"),
])  # fmt: skip
def test_batches_are_all_or_nothing(served: tuple[Caller, str, str], wrong: dict[str, Any], field: str):
    caller, index, endpoint = served
    assert refused(
        INVALID, caller.upsert, index, [{"datapoint_id": "good", "feature_vector": [1, 2, 3, 4]}, wrong]
    ).startswith(field)
    assert caller.read(endpoint, ["good", "x"]) == []


@pytest.mark.system
def test_state_survives_a_restart(tmp_path: Path):
    with facade(tmp_path) as server, Caller(server.address) as caller:
        index = caller.create_index(distanceMeasureType="COSINE_DISTANCE")
        endpoint = caller.deploy(index.name)
        caller.upsert(index.name, [point(3)])
        request = index_pb2.UpdateIndexRequest(
            index=index_pb2.Index(name=index.name, display_name="renamed", labels={"a": "b"})
        )
        operation = caller.send(request)
    with facade(tmp_path) as server, Caller(server.address) as caller:
        found = caller.send(index_pb2.GetIndexRequest(name=index.name))
        assert (found.display_name, dict(found.labels)) == ("renamed", {"a": "b"})
        assert found.deployed_indexes[0].index_endpoint == endpoint
        assert found.index_stats.vectors_count == 1
        config = found.metadata.struct_value.fields["config"].struct_value
        assert config["distanceMeasureType"] == "COSINE_DISTANCE"
        assert ids_of(caller.find(endpoint, query(VECTORS_ND[3]))[0]) == ["d03"]
        again = operations_pb2.GetOperationRequest(name=operation.name)
        assert caller.send(again) == operation


@pytest.mark.system
def test_contents_are_read_from_below_the_roots_only(tmp_path: Path):
    outside, contents = tmp_path / "outside", tmp_path / "contents"
    write_lines(outside / "a.json", [{"id": "secret", "embedding": [1, 2, 3, 4]}])
    write_lines(contents / "batch" / "a.json", [{"id": "a", "embedding": [1, 2, 3, 4]}])
    (contents / "link").symlink_to(outside)
    (contents / "batch" / "b.json").symlink_to(outside / "a.json")
    with facade(tmp_path) as server, Caller(server.address) as caller:
        index = caller.create_index(stream=False).name
        for uri in (
            outside,
            f"{contents}/../outside",
            contents / "link",
            f"file://{contents}/%2e%2e/outside",
            f"{contents}*",
            "gs://bucket/batch",
            "relative",
            tmp_path,
            contents / "none",
        ):
            assert "the server's --vertex-contents" in refused(INVALID, caller.update_contents, index, uri)
        operation = caller.update_contents(index, contents / "batch")  # a link in it leaves the roots
        assert operation.error.code == INVALID.value[0]
        (contents / "batch" / "b.json").unlink()
        assert caller.update_contents(index, f"file://{contents}/batch").HasField("response")
        assert [p.datapoint_id for p in caller.read(caller.deploy(index), ["a", "secret"])] == ["a"]


@pytest.mark.system
def test_batch_updates(tmp_path: Path):
    contents = tmp_path / "contents"
    records = [
        {
            "id": f"d{row:02}",
            "embedding": VECTORS_ND[row].tolist(),
            "restricts": [{"namespace": "color", "allow": [COLORS[row % 4]]}],
        }
        for row in range(20)
    ]
    write_lines(contents / "one" / "a.json", records)
    write_lines(contents / "two" / "b.json", [{"id": "new", "embedding": [1, 0, 0, 0]}])
    (contents / "two" / "delete").mkdir()
    (contents / "two" / "delete" / "ids.txt").write_text("d00\nd01\n")
    write_lines(
        contents / "wrong" / "c.json",
        [{"id": "more", "embedding": [1, 0, 0, 0]}, {"id": "x", "embedding": [1]}],
    )
    write_lines(contents / "all" / "d.json", [{"id": "d05", "embedding": [0, 1, 0, 0]}])
    with facade(tmp_path) as server, Caller(server.address) as caller:
        index = caller.create_index(stream=False, contents=contents / "one").name
        endpoint = caller.deploy(index)
        [found] = caller.find(
            endpoint, query(VECTORS_ND[1], restricts=[{"namespace": "color", "allow_list": ["red"]}])
        )
        assert {*ids_of(found)} == {f"d{row:02}" for row in range(0, 20, 4)}
        refused(PRECONDITION, caller.upsert, index, [point(1)])
        assert caller.update_contents(index, contents / "two").HasField("response")
        assert [p.datapoint_id for p in caller.read(endpoint, ["d00", "d01", "d02", "new"])] == ["d02", "new"]
        failed = caller.update_contents(index, contents / "wrong")
        assert failed.error.code == INVALID.value[0]
        metadata = index_pb2.UpdateIndexOperationMetadata.FromString(failed.metadata.value)
        [stats] = metadata.nearest_neighbor_search_operation_metadata.content_validation_stats
        assert (stats.valid_record_count, stats.invalid_record_count) == (1, 1)
        assert stats.partial_errors[0].embedding_id == "x"
        kinds = index_pb2.NearestNeighborSearchOperationMetadata.RecordError
        assert stats.partial_errors[0].error_type == kinds.EMBEDDING_SIZE_MISMATCH
        assert caller.read(endpoint, ["more"]) == []
        assert caller.update_contents(index, contents / "all", overwrite=True).HasField("response")
        [found] = caller.find(endpoint, query(VECTORS_ND[1]))
        assert ids_of(found) == ["d05"]


@pytest.mark.system
def test_indexes_of_our_own_api_can_be_deployed(tmp_path: Path):
    with facade(tmp_path) as server, Caller(server.address) as caller:
        client = scannery.connect(server.address)
        own = client.create_index(
            "notes", dimensions=4, distance="squared_l2", attributes={"show": "string", "year": "int"}
        )
        client.create_index("words", lexical=True)
        own.upsert(
            [
                {
                    "id": f"n{row}",
                    "vector": VECTORS_ND[row],
                    "attributes": {"show": "ab"[row % 2], "year": row},
                }
                for row in range(10)
            ]
        )
        listed = caller.send(index_pb2.ListIndexesRequest(parent=PARENT))
        assert [index.name for index in listed.indexes] == [f"{PARENT}/indexes/notes"]
        endpoint = caller.deploy(f"{PARENT}/indexes/notes")
        [found] = caller.find(
            endpoint,
            query(
                VECTORS_ND[0],
                restricts=[{"namespace": "show", "allow_list": ["a"]}],
                numeric_restricts=[{"namespace": "year", "op": "LESS", "value_int": 5}],
            ),
            full=True,
        )
        assert {*ids_of(found)} == {"n0", "n2", "n4"}
        assert found[0].datapoint.restricts[0].namespace == "show"
        assert found[0].distance == pytest.approx(0, abs=1e-5)
        [none] = caller.find(
            endpoint, query(VECTORS_ND[0], restricts=[{"namespace": "no", "allow_list": ["a"]}])
        )
        assert none == []


def test_collections_of_the_other_api_are_no_indexes(tmp_path: Path):
    """Writes here would not know of their schema, their data and their etags."""
    with facade(tmp_path) as server, Caller(server.address) as caller:
        vector = collections_pb2.DenseVectorField(dimensions=4)
        collection = collections_pb2.Collection(
            vector_schema={"v": collections_pb2.VectorField(dense_vector=vector)}
        )
        create = collections_pb2.CreateCollectionRequest(
            parent=PARENT, collection_id="songs", collection=collection
        )
        caller.send(create)
        assert [index.name for index in scannery.connect(server.address).indexes()] == ["songs"]
        own = caller.create_index().name
        listed = caller.send(index_pb2.ListIndexesRequest(parent=PARENT))
        assert [index.name for index in listed.indexes] == [own]
        songs = f"{PARENT}/indexes/songs"
        for call in (
            lambda: caller.send(index_pb2.GetIndexRequest(name=songs)),
            lambda: caller.upsert(songs, [point(1)]),
            lambda: caller.send(index_pb2.DeleteIndexRequest(name=songs)),
        ):
            refused(NOT_FOUND, call)


@pytest.mark.system
def test_wrong_etags_deployments_and_names(tmp_path: Path):
    with facade(tmp_path) as server, Caller(server.address) as caller:
        index = caller.create_index()
        endpoint = caller.deploy(index.name)
        stale = index_pb2.UpdateIndexRequest(
            index=index_pb2.Index(name=index.name, display_name="x", etag="stale")
        )
        other = PARENT.replace("/p/", "/other/")
        for request, code in (
            (stale, ABORTED),
            (index_pb2.DeleteIndexRequest(name=index.name), PRECONDITION),
            (index_pb2.GetIndexRequest(name=index.name.replace(PARENT, other)), NOT_FOUND),
            (index_pb2.GetIndexRequest(name="../store"), INVALID),
        ):
            refused(code, caller.send, request)
        deploy = endpoint_pb2.DeployIndexRequest(
            index_endpoint=endpoint,
            deployed_index=endpoint_pb2.DeployedIndex(id="deployed", index=index.name),
        )
        refused(EXISTS, caller.send, deploy)
        for wrong in ("none", ""):
            refused(NOT_FOUND, caller.find, endpoint, query(VECTORS_ND[0]), id=wrong)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"distanceMeasureType": "L1_DISTANCE"}, UNSUPPORTED),
        ({"distanceMeasureType": "HAMMING"}, INVALID),
        ({"dimensions": 0}, INVALID),
        ({"dimensions": 1.5}, INVALID),
        ({"unknown": 1}, INVALID),
    ],
)
def test_what_is_not_supported_is_refused(
    served: tuple[Caller, str, str], config: dict[str, Any], code: grpc.StatusCode
):
    refused(code, served[0].create_index, **{"dimensions": 4, **config})


def test_fields_that_are_not_known_are_refused(served: tuple[Caller, str, str]):
    caller, _, endpoint = served
    request = match_pb2.FindNeighborsRequest(index_endpoint=endpoint, deployed_index_id="deployed")
    request.queries.add().datapoint.feature_vector.extend(VECTORS_ND[0].tolist())
    # Field 9 of the query, 1.
    request.queries[0].MergeFromString(b"\x48\x01")
    assert "queries[0]: field number 9" in refused(UNSUPPORTED, caller.send, request)


def test_batches_beyond_the_limits_are_refused(served: tuple[Caller, str, str]):
    caller, index, endpoint = served
    for call in (
        lambda: caller.upsert(
            index, [{"datapoint_id": f"x{n}", "feature_vector": [1, 1, 1, 1]} for n in range(1001)]
        ),
        lambda: caller.upsert(index, []),
        lambda: caller.remove(index, [str(n) for n in range(1001)]),
        lambda: caller.read(endpoint, [str(n) for n in range(1001)]),
        lambda: caller.find(endpoint, *itertools.repeat(query(VECTORS_ND[0], 1), 1001)),
        lambda: caller.find(endpoint, query(VECTORS_ND[0], 10_001)),
        lambda: caller.find(endpoint),
    ):
        refused(INVALID, call)


@pytest.mark.system
def test_callers_see_the_indexes_of_their_keys_only(tmp_path: Path):
    keys = KeyFile(tmp_path / "keys.json")
    _, admin = keys.create("admin", scopes=("read", "write", "admin"))
    _, reader = keys.create("reader", indexes=["other"])
    _, limited = keys.create("limited", limits=parse_items(["max_k=2", "queries_per_s=0.1"]))
    security = SecurityConfig(keys_file=str(tmp_path / "keys.json"))
    with facade(tmp_path, security=security) as server:
        with Caller(server.address, metadata=(("x-goog-api-key", admin),)) as caller:
            index = caller.create_index().name
            endpoint = caller.deploy(index)
            caller.upsert(index, [point(3)])
            operation = caller.send(
                index_pb2.UpdateIndexRequest(index=index_pb2.Index(name=index, display_name="new"))
            )
        with Caller(server.address, metadata=(("authorization", f"Bearer: {reader}"),)) as caller:
            get = index_pb2.GetIndexRequest(name=index)
            polled = operations_pb2.GetOperationRequest(name=operation.name)
            for call in (
                lambda: caller.send(get),
                lambda: caller.find(endpoint, query(VECTORS_ND[0])),
                lambda: caller.read(endpoint, ["d03"]),
                lambda: caller.match(
                    private_pb2.MatchRequest(deployed_index_id="deployed", float_val=[1] * 4)
                ),
                lambda: caller.send(polled),
            ):
                refused(NOT_FOUND, call)
            refused(DENIED, caller.create_index)
        with Caller(server.address, metadata=(("x-goog-api-key", limited),)) as caller:
            refused(DENIED, caller.find, endpoint, query(VECTORS_ND[0], 3))
            assert caller.find(endpoint, query(VECTORS_ND[0], 2), query(VECTORS_ND[1], 2))
            refused(grpc.StatusCode.RESOURCE_EXHAUSTED, caller.find, endpoint, query(VECTORS_ND[0], 2))
        for metadata in ((), (("x-goog-api-key", admin), ("authorization", f"Bearer {admin}"))):
            with Caller(server.address, metadata=metadata) as caller, pytest.raises(grpc.RpcError) as caught:
                caller.create_index()
            assert caught.value.code() is UNAUTHENTICATED


@pytest.mark.system
def test_the_private_endpoint_answers_its_own_methods_only(tmp_path: Path):
    vertex = VertexConfig(private="127.0.0.1:0")
    with facade(tmp_path, vertex=vertex) as server, Caller(server.address) as caller:
        index = caller.create_index().name
        endpoint = caller.deploy(index)
        caller.upsert(index, [point(3)])
        request = private_pb2.MatchRequest(deployed_index_id="deployed", embedding_id="d03")
        with Caller(server.private_address) as private:
            assert private.match(request).neighbor[0].id == "d03"
            refused(UNSUPPORTED, private.find, endpoint, query(VECTORS_ND[0]))
        get = endpoint_pb2.GetIndexEndpointRequest(name=endpoint)
        [deployed] = caller.send(get).deployed_indexes
        assert deployed.private_endpoints.match_grpc_address == "127.0.0.1"


def test_a_private_endpoint_beyond_loopback_needs_consent(tmp_path: Path):
    KeyFile(tmp_path / "keys.json").create("a")
    security = SecurityConfig(keys_file=str(tmp_path / "keys.json"))
    with pytest.raises(ConfigError, match="in the clear"):
        ServerConfig(store=str(tmp_path), security=security, vertex=VertexConfig(private="0.0.0.0:10000"))


@pytest.mark.parametrize("listen", ["0.0.0.0:7077", "[::]:7077"])
def test_clients_are_told_an_address_that_they_can_reach(tmp_path: Path, listen: str) -> None:
    options: dict[str, Any] = {"store": str(tmp_path), "listen": listen, "insecure": True}
    with pytest.raises(ConfigError, match=r"such as search\.example\.com:7077 \(--vertex-address\)"):
        ServerConfig(**options, vertex=VertexConfig())
    ServerConfig(**options, vertex=VertexConfig(address="search.example.com:7077"))


def test_a_server_without_it_names_the_option(tmp_path: Path) -> None:
    Store.open(tmp_path, create=True)
    with (
        serving(tmp_path, http="off") as server,
        Caller(server.address) as caller,
        pytest.raises(grpc.RpcError, match="`scannery serve --vertex`") as caught,
    ):
        caller.create_index()
    assert caught.value.code() is UNSUPPORTED
