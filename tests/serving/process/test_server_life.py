"""A server from its address to its end: where it may listen, how it stops, and that versions change under it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

import scannery
from scannery.client.request.calls import search
from scannery.indexer import Store
from scannery.serving import BindError, ConfigError, Server, ServerConfig
from scannery.serving.config import split_address
from scannery.v1 import search_pb2, search_pb2_grpc
from tests.http1 import eventually
from tests.served import DIMENSIONS, PAUSE_S, serving
from tests.serving.catalog.test_catalog import SPEC as MOVING
from tests.serving.catalog.test_catalog import publish

VECTOR = np.random.default_rng(0).normal(size=DIMENSIONS).astype(np.float32)


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library) as server:
        yield server


def test_a_taken_port_is_a_clear_error(server: Server, library: Path) -> None:
    with pytest.raises(BindError, match=f"cannot listen on {server.address}"):
        Server(ServerConfig(store=str(library), listen=server.address)).start()
    assert not [t for t in threading.enumerate() if t.name == "scannery-watcher" and not t.is_alive()]


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:0", "[::]:0", "192.168.1.5:7077", "example.com:1", "127.evil.com:1"]
)
def test_an_address_beyond_loopback_needs_consent(listen: str, library: Path) -> None:
    with pytest.raises(ConfigError, match="does not authenticate callers") as caught:
        ServerConfig(store=str(library), listen=listen)
    assert caught.value.field == "listen"
    assert ServerConfig(store=str(library), listen=listen, insecure=True).listen == listen


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:7077", "[::1]:7077", "127.9.9.9:1"])
def test_loopback_needs_no_consent(listen: str) -> None:
    assert ServerConfig(store="x", listen=listen).listen == listen


@pytest.mark.parametrize(
    "listen", ["", "7077", ":7077", "localhost", "localhost:", "a:99999", "::1:80", "a b:1"]
)
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="must be host:port"):
        split_address(listen)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="threads: must be 1 to 1024, got 0"):
        ServerConfig(store="x", threads=0)


def test_the_callers_deadline_is_kept(server: Server) -> None:
    with scannery.connect(server.address) as client, pytest.raises(scannery.DeadlineExceededError):
        client.index("library").search_many([VECTOR] * 500, 100, timeout_s=0.001)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        scannery.connect(address) as client,
        pytest.raises(scannery.UnavailableError, match=address) as caught,
    ):
        client.index("library").search(VECTOR)
    assert caught.value.__cause__ is not None


WAIT_S = 180
"""More than the minute that a call waits which comes while the server stops, on a machine with much else to do."""


def test_stop_lets_running_requests_finish_and_refuses_new_ones(library: Path) -> None:
    server = Server(ServerConfig(store=str(library), listen="127.0.0.1:0", drain_s=WAIT_S))
    server.start()
    with grpc.insecure_channel(server.address) as channel:
        stub = search_pb2_grpc.SearchServiceStub(channel)
        go_on = threading.Event()

        def requests() -> Iterator[search_pb2.SearchStreamRequest]:
            message = search_pb2.SearchStreamRequest(tag=1, search=search("library", VECTOR, 1).request)
            yield message
            go_on.wait(WAIT_S)
            yield message

        stream = stub.SearchStream(requests(), timeout=WAIT_S)
        assert next(iter(stream)).search.hits
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        with pytest.raises(grpc.RpcError):
            until = time.monotonic() + 60
            while time.monotonic() < until:
                stub.Search(search("library", VECTOR, 1).request, timeout=60)
        go_on.set()
        assert len(list(stream)) == 1
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
    server.stop()  # a second time is nothing


@pytest.mark.system
def test_queries_never_fail_or_mix_while_versions_change(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    publish(store, tmp_path, 1)
    answers: list[tuple[int, set[str]]] = []
    failures: list[Exception] = []
    done = threading.Event()

    def ask(address: str) -> None:
        with scannery.connect(address) as client:
            index = client.index(MOVING.index)
            while not done.wait(PAUSE_S):
                try:
                    hits = index.search([1, 1, 1, 1], 5)
                    answers.append((hits.version, {hit.id for hit in hits}))
                except scannery.ScanneryError as error:
                    failures.append(error)

    with serving(tmp_path / "store", check_every_s=0.02) as server:
        threads = [threading.Thread(target=ask, args=(server.address,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: answers)
        for version in range(2, 8):
            publish(store, tmp_path, version)
            until = time.monotonic() + 60
            while answers[-1:] == [] or answers[-1][0] != version:
                assert time.monotonic() < until
                time.sleep(0.01)
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert {version for version, _ in answers} >= {1, 7}
    for version, ids in answers:
        assert ids == {f"v{version}-{row}" for row in range(5)}
