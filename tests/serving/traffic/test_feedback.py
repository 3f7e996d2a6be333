"""Ids of answers and feedback on them: over both wires, synchronous and not, embedded, and at the root of a cluster."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.indexer import Store
from scannery.indexer.traffic.day_files import read_rows
from scannery.indexer.traffic.keys import add_key, read_keys
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery
from scannery.serving import Server
from scannery.serving.config import TrafficConfig
from scannery.serving.security.api_keys import KeyFile
from scannery.serving.security.config import SecurityConfig
from scannery.v1 import search_pb2, search_pb2_grpc
from scannery.v1.types_pb2 import Vector
from tests.cluster.servers import started_cluster
from tests.served import DIMENSIONS, copied, serving

pytestmark = pytest.mark.system

RNG = np.random.default_rng(0)
VECTOR = RNG.normal(size=DIMENSIONS).astype(np.float32)
ON = TrafficConfig(share=1e-9)


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Path:
    return copied(library, tmp_path)


@contextmanager
def connected(server: Server, wire: str) -> Iterator[scannery.Client]:
    target = server.address if wire == "gRPC" else f"http://127.0.0.1:{server.http_port}"
    with scannery.connect(target, http=wire == "HTTP") as client:
        yield client


def events(store: Path, index: str = "library") -> list[tuple[str, str, int]]:
    rows = read_rows(Store.open(store), index, LoggedEvent)
    return sorted((row.action_name, row.object_id, row.ordinal) for row in rows)


@pytest.mark.parametrize("wire", ["gRPC", "HTTP"])
def test_feedback_becomes_events(store: Path, wire: str) -> None:
    with serving(store, traffic=ON) as server, connected(server, wire) as client:
        hits = client.index("library").search(VECTOR, k=5)
        ids = [hit.id for hit in hits]
        assert client.feedback(hits.query_id, clicked=ids[1:3], rejected=ids[:1]) == 3
        assert client.feedback(hits.query_id, clicked=ids[2:4]) == 1
        several = client.index("library").search_many([VECTOR, -VECTOR], k=3)
        assert client.feedback(several[1].query_id, clicked=[several[1][2].id]) == 1
        assert len({hits.query_id, *(each.query_id for each in several)}) == 3
    assert events(store) == sorted(
        [
            ("reject", ids[0], 1),
            *(("click", identifier, number + 2) for number, identifier in enumerate(ids[1:4])),
            ("click", several[1][2].id, 3),
        ]
    )


def test_feedback_of_the_asynchronous_client(store: Path) -> None:
    async def give(target: str, **options: Any) -> str:
        async with scannery.aio.connect(target, **options) as client:
            hits = await client.index("library").search(VECTOR, k=2)
            assert await client.feedback(hits.query_id, clicked=[hits[0].id]) == 1
            return hits[0].id

    with serving(store, traffic=ON) as server:
        first = asyncio.run(give(server.address, http=False))
        asyncio.run(give(f"http://127.0.0.1:{server.http_port}"))
    assert events(store) == [("click", first, 1)] * 2


def test_feedback_of_a_stream(store: Path) -> None:
    with serving(store, traffic=ON) as server, grpc.insecure_channel(server.address) as channel:
        search = search_pb2.SearchRequest(
            index="library", query=search_pb2.Query(vector=Vector(packed=VECTOR.tobytes()))
        )
        many = search_pb2.SearchManyRequest(index="library", queries=[search.query, search.query])
        stub = search_pb2_grpc.SearchServiceStub(channel)
        requests = [
            search_pb2.SearchStreamRequest(tag=1, search=search),
            search_pb2.SearchStreamRequest(tag=2, search_many=many),
            search_pb2.SearchStreamRequest(tag=3),
        ]
        answers = {answer.tag: answer for answer in stub.SearchStream(iter(requests), timeout=60)}
        answer = answers[1].search
        stub.Feedback(
            search_pb2.FeedbackRequest(query_id=answer.query_id, clicked=[answer.hits[3].datapoint.id]),
            timeout=60,
        )
        assert len(answers[2].search_many.query_ids) == 2
    assert [(action, ordinal) for action, _, ordinal in events(store)] == [("click", 4)]


def test_feedback_as_json(store: Path) -> None:
    with serving(store, traffic=ON) as server:

        def post(method: str, body: dict[str, Any]) -> Any:
            request = urllib.request.Request(
                f"http://127.0.0.1:{server.http_port}/scannery.v1.SearchService/{method}",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)

        found = post("Search", {"index": "library", "query": {"vector": {"values": VECTOR.tolist()}}})
        clicked = found["hits"][0]["datapoint"]["id"]
        assert post("Feedback", {"queryId": found["queryId"], "clicked": [clicked]}) == {"events": 1}


def test_embedded_answers_have_ids_where_they_are_wanted(store: Path) -> None:
    with scannery.connect(store) as plain:
        assert plain.index("library").search(VECTOR).query_id == ""
    with scannery.connect(store, query_ids=True) as client:
        hits = client.index("library").search(VECTOR, k=3)
        assert client.feedback(hits.query_id, clicked=[hits[2].id]) == 1
        assert client.feedback(hits.query_id, clicked=[hits[2].id]) == 0
        several = client.index("library").search_many([VECTOR, -VECTOR])
        assert all(each.query_id for each in several)
    assert events(store) == [("click", hits[2].id, 3)]
    with serving(store, traffic=ON) as server, connected(server, "gRPC") as client:
        assert client.feedback(hits.query_id, rejected=[hits[1].id]) == 1, "servers and engines share the key"


async def _feedback_embedded(store: Path) -> int:
    async with scannery.aio.connect(store, query_ids=True) as client:
        hits = await client.index("library").search(VECTOR)
        return await client.feedback(hits.query_id, clicked=[hits[0].id])


def test_embedded_feedback_of_the_asynchronous_client(store: Path) -> None:
    assert asyncio.run(_feedback_embedded(store)) == 1


def test_the_root_of_a_cluster_takes_feedback(store: Path) -> None:
    with started_cluster(store, 2, traffic=TrafficConfig(share=1.0)) as (root, _):
        for wire in ("gRPC", "HTTP"):
            with connected(root, wire) as client:
                hits = client.index("library").search(VECTOR, k=4)
                assert client.feedback(hits.query_id, clicked=[hits[3].id]) == 1
    assert events(store) == [("click", hits[3].id, 4)] * 2
    assert len(list(read_rows(Store.open(store), "library", LoggedQuery))) == 2


def test_feedback_by_an_alias_is_of_its_index(store: Path) -> None:
    with serving(store, traffic=ON) as server, connected(server, "gRPC") as client:
        client.alias("books", "library")
        hits = client.index("books").search(VECTOR)
        client.feedback(hits.query_id, clicked=[hits[0].id])
    assert len(events(store)) == 1


@pytest.mark.parametrize(
    ("change", "message", "field"),
    [
        (lambda hits: {"query_id": "x" + hits.query_id[1:]}, "not the id of an answer", "query_id"),
        (lambda hits: {"query_id": "a.b"}, "not the id of an answer", "query_id"),
        (lambda hits: {"clicked": [hits[0].id, "nobody"]}, "'nobody' is not among", "clicked[1]"),
        (lambda hits: {"rejected": ["nobody"]}, "'nobody' is not among", "rejected[0]"),
        (lambda hits: {"clicked": []}, "must have the id of a hit", "clicked"),
        (lambda hits: {"rejected": [hits[0].id]}, "is in `clicked`, too", "rejected"),
        (lambda hits: {"clicked": [hits[0].id] * 101}, "1 to 100 items", "clicked"),
    ],
)
def test_what_was_not_answered_is_refused(
    store: Path, change: Callable[[scannery.Hits], dict[str, Any]], message: str, field: str
) -> None:
    with serving(store, traffic=ON) as server, connected(server, "gRPC") as client:
        hits = client.index("library").search(VECTOR, k=2)
        arguments = {"query_id": hits.query_id, "clicked": [hits[0].id]} | change(hits)
        with pytest.raises(scannery.InvalidArgumentError, match=message) as caught:
            client.feedback(**arguments)
        assert caught.value.field == field
    assert not events(store)


def test_ids_are_those_of_a_store(store: Path, library: Path, tmp_path: Path) -> None:
    sibling = copied(library, tmp_path / "sibling")
    with serving(sibling, traffic=ON) as server, connected(server, "gRPC") as client:
        hits = client.index("library").search(VECTOR)
    with (
        serving(store, traffic=ON) as server,
        connected(server, "gRPC") as client,
        pytest.raises(scannery.InvalidArgumentError, match="not the id of an answer"),
    ):
        client.feedback(hits.query_id, clicked=[hits[0].id])


def test_keys_see_feedback_of_their_indexes_alone(store: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    _, reader = keys.create("reader", indexes=["library"])
    _, stranger = keys.create("stranger", indexes=["flat"])
    _, writer = keys.create("writer", scopes=["write"])
    security = SecurityConfig(keys_file=str(keys.path))
    with serving(store, traffic=ON, security=security) as server:

        def give(key: str, hits: scannery.Hits) -> int:
            with scannery.connect(server.address, api_key=key, http=False) as client:
                return client.feedback(hits.query_id, clicked=[hits[0].id])

        with scannery.connect(server.address, api_key=reader, http=False) as client:
            hits = client.index("library").search(VECTOR)
        assert give(reader, hits) == 1
        with pytest.raises(scannery.NotFoundError, match="library"):
            give(stranger, hits)
        with pytest.raises(scannery.PermissionDeniedError, match="'read'"):
            give(writer, hits)


def test_without_the_log_there_are_no_ids(store: Path) -> None:
    with serving(store) as server, connected(server, "gRPC") as client:
        hits = client.index("library").search(VECTOR)
        assert hits.query_id == ""
        with pytest.raises(scannery.InvalidArgumentError, match="must be `hits.query_id`"):
            client.feedback(hits.query_id, clicked=[hits[0].id])
        with pytest.raises(scannery.FailedPreconditionError, match="--traffic-share"):
            client.feedback("a.b", clicked=["a"])
    assert not read_keys(Store.open(store))


def test_a_new_key_signs_and_the_old_one_verifies(store: Path) -> None:
    with serving(store, traffic=ON) as first, connected(first, "gRPC") as client:
        before = client.index("library").search(VECTOR)
        assert add_key(Store.open(store)) == 2
        with serving(store, traffic=ON) as second, connected(second, "gRPC") as beside:
            after = beside.index("library").search(VECTOR)
            assert beside.feedback(before.query_id, clicked=[before[0].id]) == 1
        # The first server has not seen the new key so far.
        first._traffic._keys._read_at_s = 0.0  # type: ignore[union-attr]
        assert client.feedback(after.query_id, clicked=[after[0].id]) == 1


def test_a_client_id_that_is_too_long_is_refused(store: Path) -> None:
    with serving(store) as server, connected(server, "gRPC") as client:
        index = client.index("library")
        assert index.search(VECTOR, client_id="ü" * 100)
        for search in (index.search, lambda query, **options: index.search_many([query], **options)):
            with pytest.raises(scannery.InvalidArgumentError, match="at most 100 characters") as caught:
                search(VECTOR, client_id="u" * 101)
            assert caught.value.field == "client_id"
        with pytest.raises(scannery.InvalidArgumentError, match="must be a string"):
            index.search(VECTOR, client_id=7)  # type: ignore[arg-type]
