"""Leaves as servers: what they serve on the wire, and the options that they take."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.client.request.calls import search
from scannery.serving import ConfigError, ServerConfig
from scannery.serving.process.preload import preload
from scannery.serving.process.server import Server
from scannery.serving.security import KeyFile, SecurityConfig
from scannery.serving.services.leaf import leaf_service
from scannery.serving.services.leaf.searching import search_response
from scannery.v1 import leaf_pb2 as pb
from scannery.v1 import leaf_pb2_grpc, search_pb2, search_pb2_grpc
from scannery.v1.types_pb2 import ErrorDetail
from tests.cluster.processes import wait_until
from tests.served import DIMENSIONS, ROWS, serving
from tests.serving.process.test_supervisor import started

VECTOR = np.ones(DIMENSIONS, np.float32) / np.float32(4)


def stub(address: str) -> tuple[grpc.Channel, Any]:
    channel = grpc.insecure_channel(address)
    return channel, leaf_pb2_grpc.LeafServiceStub(channel)


def status_of(address: str, timeout_s: float = 60) -> pb.LeafStatus:
    with grpc.insecure_channel(address) as channel:
        return leaf_pb2_grpc.LeafServiceStub(channel).GetStatus(pb.LeafStatusRequest(), timeout=timeout_s)


def by_vector(at: pb.At, k: int) -> pb.LeafSearchRequest:
    request = pb.LeafSearchRequest(at=at, queries=1, wanted=k)
    request.options.mode = search_pb2.MODE_DENSE
    request.options.exact = True
    own = request.vectors.add().vectors
    own.dimensions, own.packed = DIMENSIONS, VECTOR.tobytes()
    return request


def found_by(address: str, k: int) -> list[tuple[float, str]]:
    """Return the best hits of a leaf."""
    [at] = [index.at for index in status_of(address).indexes if index.at.index == "library"]
    with grpc.insecure_channel(address) as channel:
        answer = leaf_pb2_grpc.LeafServiceStub(channel).Search(by_vector(at, k), timeout=60)
    [result] = answer.results
    [ranking] = result.by_vector
    ids = [result.ids[place] for place in np.frombuffer(ranking.places, "<u4")]
    return list(zip(np.frombuffer(ranking.scores, "<f4").tolist(), ids, strict=True))


@pytest.mark.system
def test_leaves_find_together_what_a_server_finds(library: Path) -> None:
    with serving(library) as server, grpc.insecure_channel(server.address) as channel:
        request = search("library", VECTOR, 40, exact=True).request
        hits = search_pb2_grpc.SearchServiceStub(channel).Search(request, timeout=60).hits
    found = []
    for number in range(2):
        with serving(library, role="leaf", group=f"{number}/2") as leaf:
            found += found_by(leaf.address, 40)
    found.sort(key=lambda hit: (-hit[0], hit[1]))
    assert found[:40] == [(hit.score, hit.datapoint.id) for hit in hits]


def test_a_leaf_says_what_it_serves(library: Path) -> None:
    with serving(library, role="leaf", group="1/2") as leaf:
        status = status_of(leaf.address)
        limit = leaf.admission.limit
        [flat, index] = status.indexes
    assert (status.group, status.groups) == (1, 2)
    assert (status.in_flight, status.in_flight_limit) == (0, int(limit))
    assert (flat.at.index, flat.rows, flat.shards) == ("flat", 0, 0)
    assert (index.at.index, index.at.version, index.at.sequence, index.shards) == ("library", 1, 0, 1)
    assert 0 < index.rows < ROWS


@pytest.mark.system
def test_a_leaf_that_is_full_says_what_it_serves(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def late(*arguments: Any) -> Any:
        assert ended.wait(60)
        return search_response(*arguments)

    monkeypatch.setattr(leaf_service, "search_response", late)
    with (
        serving(library, role="leaf", group="0/2", threads=2, queue=30) as leaf,
        ThreadPoolExecutor(80) as threads,
    ):
        asked = [threads.submit(answered, leaf.address) for _ in range(80)]
        try:
            wait_until(lambda: any(each.done() for each in asked))  # it refuses calls
            assert status_of(leaf.address, timeout_s=5).in_flight >= 2
        finally:
            ended.set()
        assert {each.result() for each in asked} == {True, False}


def answered(address: str) -> bool:
    """Return whether a leaf answers a search; False: it is full."""
    try:
        found_by(address, 3)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return False
    return True


def refused(call: Any, request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=60)
    error: Any = caught.value
    metadata = dict(error.trailing_metadata())
    return error.code(), ErrorDetail.FromString(metadata.get("scannery-error-bin", b"")).field


def test_other_states_are_out_of_range(library: Path) -> None:
    with serving(library, role="leaf", group="0/2") as leaf:
        channel, calls = stub(leaf.address)
        with channel:
            at = status_of(leaf.address).indexes[1].at
            at.version = 9
            for call, request in (
                (calls.Search, by_vector(at, 3)),
                (calls.GetStatistics, pb.LeafStatisticsRequest(at=at)),
                (calls.Fetch, pb.LeafFetchRequest(at=at, ids=["d1"])),
                (calls.Count, pb.LeafCountRequest(at=at)),
            ):
                assert refused(call, request) == (grpc.StatusCode.OUT_OF_RANGE, "at")
            at.index = "nothing"
            assert refused(calls.Count, pb.LeafCountRequest(at=at))[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.system
def test_roles_serve_their_own_methods(library: Path) -> None:
    with serving(library, role="leaf", group="0/2") as leaf, serving(library) as server:
        with grpc.insecure_channel(leaf.address) as channel:
            call = search_pb2_grpc.SearchServiceStub(channel).Search
            assert refused(call, search("library", VECTOR, 3).request)[0] is grpc.StatusCode.UNIMPLEMENTED
        with (
            scannery.connect(leaf.address) as client,
            pytest.raises(scannery.UnimplementedError, match=r"the leaf of group 0/2 .* call a root"),
        ):
            client.index("library").upsert([{"id": "a", "vector": VECTOR}])
        channel, calls = stub(server.address)
        with channel:
            assert refused(calls.GetStatus, pb.LeafStatusRequest())[0] is grpc.StatusCode.UNIMPLEMENTED


def test_leaves_answer_over_grpc_only(library: Path) -> None:
    with serving(library, role="leaf", group="0/2", http="127.0.0.1:0") as leaf:
        connection = HTTPConnection("127.0.0.1", leaf.http_port, timeout=60)
        connection.request(
            "POST",
            "/scannery.v1.LeafService/GetStatus",
            "{}",
            {"Content-Type": "application/json", "Connect-Protocol-Version": "1"},
        )
        assert connection.getresponse().status == 501
        connection.close()


def test_a_root_needs_a_key_that_may_read(library: Path, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    texts = {
        "reader": file.create("reader")[1],
        "writer": file.create("writer", scopes=["write"])[1],
        "flat": file.create("flat", indexes=["flat"])[1],
    }
    security = SecurityConfig(keys_file=str(file.path))
    with serving(library, role="leaf", group="0/1", security=security) as leaf:
        channel, calls = stub(leaf.address)
        with channel:
            assert refused(calls.GetStatus, pb.LeafStatusRequest())[0] is grpc.StatusCode.UNAUTHENTICATED

            def asked(call: Any, request: Any, name: str) -> Any:
                return call(request, timeout=60, metadata=[("authorization", f"Bearer {texts[name]}")])

            with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
                asked(calls.GetStatus, pb.LeafStatusRequest(), "writer")
            seen = asked(calls.GetStatus, pb.LeafStatusRequest(), "reader").indexes
            assert [index.at.index for index in seen] == ["flat", "library"]
            own = asked(calls.GetStatus, pb.LeafStatusRequest(), "flat").indexes
            assert [index.at.index for index in own] == ["flat"]
            hidden = pb.LeafCountRequest(at=seen[1].at)
            assert asked(calls.Count, hidden, "reader").rows == ROWS
            with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
                asked(calls.Count, hidden, "flat")


@pytest.mark.system
def test_a_supervisor_opens_only_the_segments_of_the_group(library: Path) -> None:
    config = ServerConfig(store=str(library), listen="127.0.0.1:0", role="leaf", group="1/2")
    preloaded = preload(config)
    assert {
        name: [segment.entry.shard for segment in index.segments] for name, index in preloaded.indexes.items()
    } == {"flat": [], "library": [1]}
    with Server(config, preloaded=preloaded) as leaf:
        [segment] = leaf._catalog.snapshot("library").segments
        assert segment.ids is preloaded.indexes["library"].segments[0].ids
    again = preload(config, preloaded)
    assert again.indexes["library"].segments[0].ids is segment.ids


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"role": "leaf", "group": "8/8"}, "group", "must be 0 to 7 with 8 groups, got 8"),
        ({"role": "leaf", "group": "3/0"}, "group", "must be at least 1, got 0"),
        ({"role": "leaf", "group": "x"}, "group", "such as 3/8, got 'x'"),
        ({"role": "leaf"}, "group", "a leaf needs a group"),
        ({"group": "0/2"}, "group", "is for the role leaf, the role is all"),
        ({"role": "branch"}, "role", "must be all, leaf, root, got 'branch'"),
        ({"role": "leaf", "group": "0/2", "keep_queries": 5}, "keep_queries", "is not for a leaf"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(store="store", **options)
    assert caught.value.field == field
    assert message in str(caught.value)


@pytest.mark.system
def test_the_command_serves_a_leaf(library: Path) -> None:
    with started(library, "--role", "leaf", "--group", "0/2", "--workers", "2") as (process, address):
        status = status_of(address)
        assert (status.group, status.groups) == (0, 2)
        assert len(found_by(address, 7)) == 7
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.system
def test_the_command_refuses_groups_that_are_none(library: Path) -> None:
    for group, message in (("8/8", "must be 0 to 7"), ("x", "such as 3/8")):
        with (
            pytest.raises(AssertionError, match=f"group: .*{message}"),
            started(library, "--role", "leaf", "--group", group),
        ):
            pass
