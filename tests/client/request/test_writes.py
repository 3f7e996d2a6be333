"""Writes by every client: embedded and remote, synchronous and asynchronous, and as a stream."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.client import Deleted, Written
from scannery.client.request.writes import build_upserts
from scannery.v1 import index_pb2, types_pb2
from tests.served import DIMENSIONS, copied, serving

VECTOR = np.ones(DIMENSIONS)
POINT: Any = {"id": "a", "vector": VECTOR, "attributes": {"year": 2024, "tags": ["x"]}, "payload": [1]}


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Path:
    return copied(library, tmp_path)


def check(client: scannery.Client) -> None:
    index = client.index("library")
    assert index.upsert([POINT]) == Written(1, 1)
    assert index.update([{"id": "a", "title": "A"}]) == Written(2, 1)
    [point] = index.get(["a"])
    assert point is not None
    assert (point.title, point.attributes, point.payload, point.revision) == (
        "A", {"tags": ["x"], "year": 2024}, [1], 2,
    )  # fmt: skip
    assert index.search(VECTOR, 1).sequence == 2
    assert index.delete(["a"], document_ids=["doc0"]) == Deleted(3, 6)
    wrong: Any = [{"id": "b", "vector": "no"}]
    with pytest.raises(scannery.InvalidArgumentError, match=r"upserts\[0\].datapoint.vector"):
        index.upsert(wrong)


@pytest.mark.system
def test_embedded(store: Path) -> None:
    with scannery.connect(store) as client:
        check(client)


@pytest.mark.system
def test_remote(store: Path) -> None:
    with serving(store) as server, scannery.connect(server.address) as client:
        check(client)


@pytest.mark.system
async def test_asynchronous(store: Path) -> None:
    with serving(store) as server:
        async with scannery.aio.connect(server.address) as client:
            index = client.index("library")
            assert await index.upsert([POINT]) == Written(1, 1)
            assert (await index.search(VECTOR, 1)).sequence == 1
            assert await index.update([{"id": "a", "title": "A"}]) == Written(2, 1)
            assert await index.delete(["a"]) == Deleted(3, 1)


@pytest.mark.parametrize(
    ("points", "field"),
    [
        ({"id": "a"}, "upserts"),
        (["a"], "upserts[0]"),
        ([{"id": "a", "vektor": VECTOR}], "upserts[0]"),
        ([{"id": True}], "upserts[0].datapoint.id"),
        ([{"id": "a", "vector": [[1.0]]}], "upserts[0].datapoint.vector"),
        ([{"id": "a", "attributes": {"tags": [b"1"]}}], "upserts[0].datapoint.attributes.tags[0]"),
        ([{"id": "a", "payload": {1, 2}}], "upserts[0].datapoint.payload_json"),
        ([{"id": "a", "if_absent": True, "if_revision": 1}], "upserts[0].condition"),
        ([{"id": "a", "if_revision": -1}], "upserts[0].if_revision"),
    ],
)
def test_what_cannot_be_sent_is_named(store: Path, points: Any, field: str) -> None:
    with scannery.connect(store) as client, pytest.raises(scannery.InvalidArgumentError) as caught:
        client.index("library").upsert(points)
    assert caught.value.field == field


def test_all_that_is_wrong_with_a_datapoint_is_told_at_once(store: Path) -> None:
    wrong: Any = {"id": "a", "vector": [1.0], "attributes": {"year": "soon", "live": "perhaps"}}
    with scannery.connect(store) as client, pytest.raises(scannery.InvalidArgumentError) as caught:
        client.index("library").upsert([wrong])
    for part in ("upserts[0].datapoint.vector: ", "attributes.year: ", "attributes.live: "):
        assert part in caught.value.message


@pytest.mark.system
def test_a_stream_acknowledges_each_batch_and_ends_at_the_first_error(store: Path) -> None:
    def batch(name: str, size: int) -> index_pb2.UpsertRequest:
        vector = types_pb2.Vector(values=[1.0] * size)
        request = index_pb2.UpsertRequest(index="library", request_id=name)
        request.upserts.add(datapoint=types_pb2.Datapoint(id=name, vector=vector))
        return request

    with serving(store) as server, grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream(
            "/scannery.v1.IndexService/UpsertStream",
            request_serializer=index_pb2.UpsertRequest.SerializeToString,
            response_deserializer=index_pb2.UpsertResponse.FromString,
        )
        answers: Any = call(iter([batch("a", DIMENSIONS), batch("b", DIMENSIONS), batch("c", 3)]), timeout=60)
        got = [next(answers), next(answers)]
        assert [(answer.sequence, answer.written, answer.request_id) for answer in got] == [
            (1, 1, "a"), (2, 1, "b"),
        ]  # fmt: skip
        with pytest.raises(grpc.RpcError, match="must have 16 dimensions"):
            next(answers)
        with scannery.connect(server.address) as client:
            assert [p is not None for p in client.index("library").get(["a", "b", "c"])] == [
                True,
                True,
                False,
            ]


def test_dates_in_nested_attributes_are_in_utc() -> None:
    east = dt.datetime(2024, 5, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    value: Any = {"a": [dt.date(2024, 5, 1), {"b": dt.datetime(2024, 5, 1)}, east]}
    [upsert] = build_upserts([{"id": "a", "attributes": {"x": value}}])
    at = "2024-05-01T00:00:00+00:00"
    assert json.loads(upsert.datapoint.attributes["x"].json_value) == {"a": [at, {"b": at}, at]}
