"""Clients that chose HTTP, at real servers: the same answers and errors, over TLS, with keys, and over a restart."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

import scannery
from scannery.client.transport._async.grpc import AsyncGrpcWire
from scannery.client.transport._sync.grpc import GrpcWire
from scannery.serving import SecurityConfig, Server, ServerConfig
from scannery.serving.security import KeyFile
from tests.served import DIMENSIONS, PAUSE_S, serving
from tests.serving.process.test_supervisor import children, started
from tests.serving.security.test_tls import Authority, local, secure

pytestmark = pytest.mark.system

QUERIES = np.random.default_rng(3).normal(size=(32, DIMENSIONS)).astype(np.float32)

ASKS: list[Callable[[Any], Any]] = [
    lambda index: index.search(QUERIES[0], 5),
    lambda index: index.search(QUERIES[2], 600),
    lambda index: index.search_many(QUERIES, 4),
    lambda index: index.get(["d1", "nothing"]),
    lambda index: index.stats(),
    lambda index: index.search(np.ones(3)),
    lambda index: index.search("words", 3),
    lambda index: index.search(QUERIES[0], where={"nothing": 1}),
    lambda index: index.search_many(QUERIES, 1_000_000),
]


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library) as server:
        yield server


@pytest.fixture
def over_grpc(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what goes over gRPC, by method."""
    counts: Counter[str] = Counter()
    ask, ask_async = GrpcWire.ask, AsyncGrpcWire.ask

    def counted(self: Any, method: Any, *arguments: Any) -> Any:
        counts[method.path.rpartition("/")[2]] += 1
        return ask(self, method, *arguments)

    async def counted_async(self: Any, method: Any, *arguments: Any) -> Any:
        counts[method.path.rpartition("/")[2]] += 1
        return await ask_async(self, method, *arguments)

    monkeypatch.setattr(GrpcWire, "ask", counted)
    monkeypatch.setattr(AsyncGrpcWire, "ask", counted_async)
    return counts


def by_http(client: scannery.Client) -> scannery.Index:
    """Search twice, which chooses HTTP, and return the index."""
    index = client.index("library")
    for _ in range(2):
        index.search(QUERIES[0], 1)
    assert wire_of(client) is not None
    return index


async def by_http_async(client: scannery.aio.AsyncClient) -> scannery.aio.AsyncIndex:
    index = client.index("library")
    for _ in range(2):
        await index.search(QUERIES[0], 1)
    assert wire_of(client) is not None
    return index


def wire_of(client: Any) -> Any:
    """Return the HTTP wire, if it was chosen."""
    return client._transport._wire._http


def outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except scannery.ScanneryError as error:
        return type(error), error.message, error.field


async def test_answers_and_errors_are_those_of_grpc(server: Server, over_grpc: Counter[str]) -> None:
    with scannery.connect(server.address, http=False) as plain, scannery.connect(server.address) as client:
        async with scannery.aio.connect(server.address) as async_client:
            index, async_index = by_http(client), await by_http_async(async_client)
            expected = [outcome(partial(ask, plain.index("library"))) for ask in ASKS]
            over_grpc.clear()
            assert [outcome(partial(ask, index)) for ask in ASKS] == expected
            got = []
            for ask in ASKS:
                try:
                    got.append(await ask(async_index))
                except scannery.ScanneryError as error:
                    got.append((type(error), error.message, error.field))
            assert got == expected
            assert sum(isinstance(one, tuple) for one in expected) >= 4
            assert over_grpc == {}


def test_threads_get_their_answers_over_http(server: Server, over_grpc: Counter[str]) -> None:
    with scannery.connect(server.address, http=False) as plain, scannery.connect(server.address) as client:
        index = by_http(client)
        expected = [[hit.id for hit in hits] for hits in plain.index("library").search_many(QUERIES, 5)]
        over_grpc.clear()
        with ThreadPoolExecutor(32) as pool:
            for _ in range(5):
                got = list(pool.map(lambda query: index.search(query, 5), QUERIES))
                assert [[hit.id for hit in hits] for hits in got] == expected
        assert over_grpc == {}


@pytest.mark.parametrize("scheme", ["", "https://"])
async def test_tls_and_keys_are_those_of_grpc(
    tmp_path: Path, library: Path, over_grpc: Counter[str], scheme: str
) -> None:
    authority, keys = Authority(tmp_path), KeyFile(tmp_path / "keys.json")
    _, text = keys.create("a")
    security = secure(*authority.issue("server"), keys_file=str(keys.path), client_ca=str(authority.path))
    cert, key = authority.issue("client")
    shown: dict[str, Any] = {"ca": authority.path, "cert": cert, "key": key, "api_key": text}
    with serving(library, security=security) as server:
        target = f"https://localhost:{server.http_port}" if scheme else local(server)
        with scannery.connect(target, **shown) as client:
            index = client.index("library") if scheme else by_http(client)
            over_grpc.clear()
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda query: index.search(query, 100), QUERIES))
        async with scannery.aio.connect(target, **shown) as async_client:
            async_index = async_client.index("library") if scheme else await by_http_async(async_client)
            over_grpc.clear()
            found = await asyncio.gather(*(async_index.search(query, 100) for query in QUERIES))
            assert [len(hits) for hits in found] == [100] * len(QUERIES)
        assert over_grpc == {}
        if scheme:
            for less in ("ca", "cert", "api_key"):
                options = {name: value for name, value in shown.items() if name != less}
                options |= {"key": None} if less == "cert" else {}
                kind = scannery.UnauthenticatedError if less == "api_key" else scannery.UnavailableError
                with scannery.connect(target, **options) as wrong, pytest.raises(kind):
                    wrong.index("library").stats()


@pytest.mark.parametrize("tls", [False, True])
def test_clients_may_run_on_uvloop(tmp_path: Path, library: Path, tls: bool) -> None:
    authority = Authority(tmp_path)
    security = secure(*authority.issue("server")) if tls else SecurityConfig()
    with serving(library, security=security) as server:
        target = f"{'https' if tls else 'http'}://localhost:{server.http_port}"
        options: dict[str, Any] = {"ca": authority.path} if tls else {}

        async def ask() -> list[list[str]]:
            async with scannery.aio.connect(target, **options) as client:
                index = client.index("library")
                answers = await asyncio.gather(*(index.search(query, 100) for query in QUERIES))
                return [[hit.id for hit in hits] for hits in answers]

        loops = [asyncio.new_event_loop, uvloop.new_event_loop]
        by_loop = []
        for loop in loops:
            with asyncio.Runner(loop_factory=loop) as runner:
                by_loop.append(runner.run(ask()))
        assert by_loop[0] == by_loop[1]
        assert len(by_loop[0][0]) == 100


def test_a_name_that_the_certificate_does_not_have_is_refused(tmp_path: Path, library: Path) -> None:
    authority = Authority(tmp_path)
    with serving(library, security=secure(*authority.issue("server"))) as server:
        target = f"https://127.0.0.1:{server.http_port}"
        with (
            scannery.connect(target, ca=authority.path) as client,
            pytest.raises(scannery.UnavailableError, match="certificate"),
        ):
            client.index("library").stats()


def test_a_key_that_is_taken_back_is_refused(tmp_path: Path, library: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    made, text = keys.create("a")
    with (
        serving(library, security=SecurityConfig(keys_file=str(keys.path))) as server,
        scannery.connect(server.address, api_key=text) as client,
    ):
        index = by_http(client)
        index.search(QUERIES[0], 1)
        keys.revoke(made.id)
        until_s = time.monotonic() + 30
        with pytest.raises(scannery.UnauthenticatedError):
            while time.monotonic() < until_s:
                index.search(QUERIES[0], 1)
                time.sleep(0.05)


def test_the_restart_of_a_server_is_not_seen(library: Path, over_grpc: Counter[str]) -> None:
    done, answered = threading.Event(), [0] * 4
    failures: list[scannery.ScanneryError] = []

    def ask(caller: int) -> None:
        while not done.wait(PAUSE_S):
            try:
                index.search(QUERIES[caller], 3)
                answered[caller] += 1
            except scannery.ScanneryError as error:
                failures.append(error)

    def more(searches: int) -> None:
        wanted, until_s = sum(answered) + searches, time.monotonic() + 60
        while sum(answered) < wanted and not failures:
            assert time.monotonic() < until_s
            time.sleep(0.01)

    with serving(library) as server:
        address = server.address
        client = scannery.connect(address, timeout_s=60)
        index = by_http(client)
        first = wire_of(client)
        threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(4)]
        for thread in threads:
            thread.start()
        try:
            more(50)
            server.stop()
            time.sleep(0.2)
            with Server(ServerConfig(store=str(library), listen=address, drain_s=5)):
                more(50)
                # It may have been away when it was asked first.
                client._transport._wire._ask_at_s = 0.0  # type: ignore[attr-defined]
                until_s = time.monotonic() + 30
                while wire_of(client) in (None, first):
                    assert time.monotonic() < until_s
                    time.sleep(0.01)
                over_grpc.clear()
                more(50)
                assert sum(over_grpc.values()) < 10
                done.set()
                for thread in threads:
                    thread.join(30)
        finally:
            done.set()
            client.close()
    assert failures == []


def test_connections_go_to_all_workers_and_a_dead_one_is_not_seen(library: Path) -> None:
    with (
        started(library, "--workers", "2") as (process, address),
        scannery.connect(address, timeout_s=30) as client,
    ):
        index = by_http(client)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: index.search(QUERIES[number % 32], 3), range(400)))
            assert len(wire_of(client)._pool._loads) == 2
            asked = [pool.submit(index.search, QUERIES[number % 32], 3) for number in range(400)]
            os.kill(children(process.pid)[0], signal.SIGKILL)
            assert all(len(one.result(30)) == 3 for one in asked)
