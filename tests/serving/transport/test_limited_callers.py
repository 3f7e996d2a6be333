"""Limits of callers on every wire, and of several workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.client.request import calls
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.serving.security.authentication import Authenticator
from scannery.serving.security.limits import parse_items
from scannery.v1 import search_pb2, search_pb2_grpc
from tests.http1 import SEARCH, Http
from tests.served import DIMENSIONS, serving
from tests.serving.process.test_supervisor import started

VECTOR = np.random.default_rng(0).normal(size=DIMENSIONS).astype(np.float32)


def search(**options: Any) -> search_pb2.SearchRequest:
    return calls.search("library", VECTOR, **{"k": 10, **options}).request


@pytest.fixture(scope="module")
def limited(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, KeyFile]]:
    """A server whose callers have `max_k=20`, if their keys do not say otherwise."""
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    file.create("first")
    with serving(library, security=SecurityConfig(keys_file=str(file.path), limits=("max_k=20",))) as server:
        yield server, file


Make = Callable[..., str]


@pytest.fixture
def made(limited: tuple[Server, KeyFile]) -> Make:
    """Makes a key with limits."""
    server, file = limited

    def make(*items: str) -> str:
        text = file.create("k", limits=parse_items(items) if items else None)[1]
        authenticator: Authenticator = server._authorizer._authenticator
        authenticator._files._checked_at_s = (
            -1e9
        )  # looked at with the next call, and not up to a second later
        return text

    return make


def target(server: Server, wire: str) -> str:
    return server.address if wire == "gRPC" else f"http://127.0.0.1:{server.http_port}"


@pytest.mark.parametrize("wire", ["gRPC", "HTTP"])
def test_limits_hold_on_both_wires(limited: tuple[Server, KeyFile], made: Make, wire: str) -> None:
    server, _ = limited
    strict, plain, free = made("strict", "max_k=30", "requests_per_s=4", "burst_s=1"), made(), made("none")
    for text, largest in ((strict, 30), (plain, 20), (free, 50)):
        with scannery.connect(target(server, wire), api_key=text) as client:
            index = client.index("library")
            assert len(index.search(VECTOR, k=largest)) == largest
            if text != free:
                with pytest.raises(scannery.PermissionDeniedError, match=r"^k: .*max_k") as caught:
                    index.search(VECTOR, k=largest + 1)
                assert caught.value.field == "k"
    with scannery.connect(target(server, wire), api_key=strict) as client:
        assert client.whoami().limits == parse_items(["strict", "max_k=30", "requests_per_s=4"]).to_dict()
        index = client.index("library")
        with pytest.raises(scannery.PermissionDeniedError, match="refuse=scan"):
            list(index.scan())
        with pytest.raises(scannery.ResourceExhaustedError, match="requests_per_s") as used_up:
            for _ in range(9):
                index.search(VECTOR, timeout_s=0.1)  # too short to try again
        assert used_up.value.retry_after_s is not None
        assert 0 < used_up.value.retry_after_s <= 0.25
        started = time.monotonic()
        for _ in range(4):
            index.search(VECTOR)  # tried again by the client
        assert time.monotonic() - started > 0.5
    with scannery.connect(target(server, wire), api_key=plain) as client:
        assert client.whoami().limits == {"max_k": 20}
    with scannery.connect(target(server, wire), api_key=free) as client:
        assert client.whoami().limits == {}


def test_a_refusal_over_http_says_when_to_come_again(limited: tuple[Server, KeyFile], made: Make) -> None:
    server, _ = limited
    headers = [("authorization", f"Bearer {made('requests_per_s=0.5')}")]
    with Http(server.http_port) as http:
        answers = [http.post(SEARCH, search().SerializeToString(), headers=headers) for _ in range(2)]
    assert [each.status for each in answers] == [200, 429]
    assert answers[1].headers["retry-after"] == "2"


def test_a_search_like_one_of_another_caller_is_checked_again(
    limited: tuple[Server, KeyFile], made: Make
) -> None:
    """A connection knows searches by their bytes; several callers may share it, as behind a proxy."""
    server, _ = limited
    free, strict = made("none"), made("strict", "max_k=5")
    rated = made("queries_per_s=3", "burst_s=1")
    data = search().SerializeToString()

    def status(text: str) -> int:
        return http.post(SEARCH, data, headers=[("authorization", f"Bearer {text}")]).status

    with Http(server.http_port) as http:
        assert [status(free) for _ in range(3)] == [200] * 3
        assert [status(strict) for _ in range(2)] == [403] * 2
        assert [status(free) for _ in range(2)] == [200] * 2
        assert status(strict) == 403
        assert [status(rated) for _ in range(5)].count(429) == 2


def test_each_request_of_a_stream_is_checked(limited: tuple[Server, KeyFile], made: Make) -> None:
    server, _ = limited
    metadata = (("authorization", f"Bearer {made('max_k=20', 'queries_per_s=3')}"),)
    requests = [
        search_pb2.SearchStreamRequest(tag=tag, search=search(k=30 if tag == 0 else 3)) for tag in range(6)
    ]
    with grpc.insecure_channel(server.address) as channel:
        stub = search_pb2_grpc.SearchServiceStub(channel)
        answers = {
            each.tag: each for each in stub.SearchStream(iter(requests), timeout=60, metadata=metadata)
        }
    codes = [answers[tag].error.code for tag in range(6)]
    assert codes[0] == grpc.StatusCode.PERMISSION_DENIED.value[0]
    assert sorted(codes[1:]) == [0, 0, 0] + [grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]] * 2
    assert all(answer.error.detail.retry_after_ms for answer in answers.values() if answer.error.code == 8)


def test_callers_without_credentials_have_the_limits_of_the_server(library: Path) -> None:
    security = SecurityConfig(limits=("requests_per_s=3", "burst_s=1", "max_k=12"))
    with serving(library, security=security) as server:
        for wire in ("gRPC", "HTTP"):
            with (
                scannery.connect(target(server, wire)) as client,
                pytest.raises(scannery.PermissionDeniedError, match="max_k"),
            ):
                client.index("library").search(VECTOR, k=13)
        with (
            scannery.connect(server.address) as client,
            pytest.raises(scannery.ResourceExhaustedError, match="requests_per_s"),
        ):
            for _ in range(5):
                client.index("library").search(VECTOR, timeout_s=0.1)
        assert server.metrics.limited.dump()["anonymous\x1fpolicy"] == 2


def test_a_store_in_this_process_has_no_limits(library: Path) -> None:
    with scannery.connect(library) as client:
        assert client.whoami().limits == {}


@pytest.mark.system
def test_workers_count_together(library: Path) -> None:
    """Each connection has one of two workers; all connections have one quota."""
    options = ("--workers", "2", "--limit", "requests_per_s=40", "--limit", "burst_s=0.5")
    with started(library, *options) as (_, address):
        channels = [
            grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(8)
        ]
        stubs = [search_pb2_grpc.SearchServiceStub(channel) for channel in channels]
        request, codes = search_pb2.GetRequest(index="library", ids=["d1"]), Counter[grpc.StatusCode]()
        for stub in stubs:
            with suppress(grpc.RpcError):
                stub.Get(request, timeout=60, wait_for_ready=True)  # connects
        time.sleep(1)  # the bucket is full
        began = time.monotonic()
        while (took_s := time.monotonic() - began) < 3:
            for stub in stubs:
                try:
                    stub.Get(request, timeout=60)
                    codes[grpc.StatusCode.OK] += 1
                except grpc.RpcError as error:
                    codes[error.code()] += 1
        for channel in channels:
            channel.close()
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert codes[grpc.StatusCode.OK] == pytest.approx(40 * (took_s + 0.5), abs=3)
