"""Clients of gRPC targets: when they look for HTTP, what they make sure of, and what goes over which wire."""

from __future__ import annotations

import asyncio
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.client.transport import discovery as discovery_module
from scannery.client.transport._sync.grpc import GrpcTransport
from scannery.client.transport.credentials import Credentials
from scannery.client.transport.discovery import Discovery
from scannery.client.transport.http.pool import MAX_CONNECTIONS, Endpoint
from tests.client.transport.http_server import (
    GRPC,
    HTTP,
    Exchange,
    Speaker,
    answered,
    eventually,
    found,
    speaking,
)
from tests.client.transport.test_http import half_an_answer, hangs_up, no_length, no_message, too_much


@pytest.fixture
def speaker() -> Iterator[Speaker]:
    with speaking() as speaker:
        yield speaker


def version(client: scannery.Client, **options: Any) -> int:
    """Search, and return the wire that the answer came by."""
    return client.index("any").search([1.0], **options).version


def until_http(client: scannery.Client, *, seconds: float = 20) -> None:
    until_s = time.monotonic() + seconds
    while version(client) != HTTP:
        assert time.monotonic() < until_s, "no search went over HTTP"
        time.sleep(0.005)


@contextmanager
def connected(speaker: Speaker, **options: Any) -> Iterator[scannery.Client]:
    """A client that found HTTP."""
    with scannery.connect(speaker.address, **{"timeout_s": 20, **options}) as client:
        until_http(client)
        yield client


def discovery_of(client: scannery.Client) -> Discovery:
    transport = client._transport
    assert isinstance(transport, GrpcTransport)
    return transport._discovery


# What goes over HTTP


def test_the_second_call_asks_and_later_ones_need_no_grpc(speaker: Speaker) -> None:
    with scannery.connect(speaker.address, api_key="secret") as client:
        assert version(client) == GRPC
        assert speaker.asked == 0
        until_http(client)
        over_grpc = speaker.grpc_calls
        assert [version(client) for _ in range(50)] == [HTTP] * 50
        assert client.index("any").search_many([]) == []
        assert (speaker.grpc_calls, speaker.asked) == (over_grpc, 1)
    # Whether it is the right server is found out before a secret is sent.
    assert not any("authorization" in probe.headers for probe in speaker.probes)
    assert {one.headers["authorization"] for one in speaker.requests} == {"Bearer secret"}


def test_writes_go_over_http_only_if_they_may_be_repeated(speaker: Speaker) -> None:
    with connected(speaker) as client:
        speaker.requests.clear()
        assert client.index("any").upsert([{"id": "a", "vector": [1.0]}]).sequence == GRPC
        assert speaker.requests == []
        client.index("any").upsert([{"id": "a", "vector": [1.0]}], request_id="r")
        assert len(speaker.requests) == 1


def test_it_can_be_turned_off(speaker: Speaker) -> None:
    with scannery.connect(speaker.address, http=False) as client:
        assert [version(client) for _ in range(20)] == [GRPC] * 20
    assert speaker.asked == 0


@pytest.mark.system
def test_calls_beyond_the_connections_go_over_grpc(speaker: Speaker) -> None:
    release = threading.Event()
    with connected(speaker) as client, ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
        here = len(speaker.requests)
        speaker.answer = lambda exchange: found(HTTP) if release.wait(20) else None
        asked = [pool.submit(version, client) for _ in range(MAX_CONNECTIONS)]
        eventually(lambda: len(speaker.requests) == here + MAX_CONNECTIONS)
        assert version(client) == GRPC
        release.set()
        assert [one.result(20) for one in asked] == [HTTP] * MAX_CONNECTIONS
        assert version(client) == HTTP


def test_servers_that_share_a_configured_port_need_no_id(speaker: Speaker) -> None:
    speaker.told_id, speaker.server_id = "", "any of them"
    with connected(speaker) as client:
        assert version(client) == HTTP


# When it is looked for


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def discovery(clock: Clock) -> Discovery:
    return Discovery("localhost:1", Credentials(), clock=clock)


def test_waits_between_failures_double_until_an_endpoint_worked() -> None:
    clock = Clock()
    found = discovery(clock)
    assert [found.asks(), found.asks(), found.asks()] == [False, True, False]
    waits = []
    for _ in range(9):
        found.failed()
        before = clock.s
        while not found.asks():
            clock.s += 1
        waits.append(clock.s - before)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    found._looking = False
    found.endpoint = endpoint = Endpoint("localhost", 2)
    assert not found.asks()
    found.lost(endpoint)
    assert not found.asks()
    clock.s += 300
    assert found.asks()
    found._looking = False
    found.endpoint = endpoint
    found.proved()
    found.lost(Endpoint("localhost", 3))
    assert found.endpoint is endpoint
    found.lost(endpoint)
    assert found.asks()
    found.failed()
    clock.s += 5
    assert found.asks()


@pytest.mark.parametrize(
    "said",
    [
        None,
        (),
        (("scannery-http", "1"),),
        (("scannery-http", ""), ("scannery-server", "")),
        (("scannery-server", "a"),),
        (("scannery-http", "x"), ("scannery-server", "a")),
        (("scannery-http", "0"), ("scannery-server", "a")),
        (("scannery-http", "123456"), ("scannery-server", "a")),
    ],
)
def test_a_server_without_http_is_asked_once_until_connections_break(said: Any) -> None:
    found = discovery(Clock())
    assert [found.asks(), found.asks()] == [False, True]
    found.told(said)
    assert not any(found.asks() for _ in range(5))
    found.breaks += 1
    assert found.asks()


@pytest.mark.system
def test_a_server_without_http_serves_over_grpc() -> None:
    with speaking(http=False) as speaker, scannery.connect(speaker.address) as client:
        assert [version(client) for _ in range(50)] == [GRPC] * 50
        assert speaker.asked == 1


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("localhost:7077", "localhost"),
        ("[::1]:7077", "::1"),
        ("dns:///search.example.com:1", "search.example.com"),
        ("dns:h:1", "h"),
        ("ipv4:10.0.0.1:1", "10.0.0.1"),
        ("ipv6:[fe80::1%eth0]:1", "fe80::1%eth0"),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", None),
        ("dns://8.8.8.8/h:1", None),
        ("unix:/run/s.sock", None),
        ("unix:run:1", None),
        ("unix:1", None),
        ("dns:1", None),
        ("unix-abstract:a:1", None),
        ("xds:///h:1", None),
    ],
)
def test_only_a_single_host_with_a_port_is_looked_at(target: str, host: str | None) -> None:
    assert Discovery(target, Credentials())._host == host


def test_each_address_of_a_host_is_tried(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def resolved(host: str, *arguments: Any, **options: Any) -> list[Any]:
        found = resolve(host, *arguments, **options)
        # Nothing listens at the first.
        elsewhere = [(*what, ("127.0.0.9", where[1])) for *what, where in found]
        return elsewhere + found if host == "localhost" else found

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with scannery.connect(f"localhost:{speaker.address.rpartition(':')[2]}") as client:
        until_http(client)
        endpoint = discovery_of(client).endpoint
        assert endpoint is not None
        assert (endpoint.host, endpoint.address) == ("localhost", "127.0.0.1")
    assert {one.headers["host"] for one in speaker.requests} == {f"127.0.0.1:{speaker.port}"}


@pytest.mark.system
@pytest.mark.parametrize("wrong", ["server", "no server of ours", "misdirected", "refused", "silent"])
def test_another_server_or_none_is_left_alone(
    speaker: Speaker, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "PROBE_TIMEOUT_S", 0.2)
    if wrong == "server":
        speaker.server_id = "that"
    elif wrong == "no server of ours":
        speaker.told_id, speaker.server_id = "", ""
    elif wrong == "misdirected":
        speaker.health_status = 421
    elif wrong == "silent":
        speaker.worker = slow_worker
    else:
        speaker.stop_listening()
    with scannery.connect(speaker.address) as client:
        assert [version(client) for _ in range(50)] == [GRPC] * 50
        eventually(lambda: not discovery_of(client)._looking)
        assert [version(client) for _ in range(5)] == [GRPC] * 5
        assert (speaker.asked, speaker.requests) == (1, [])


@pytest.mark.parametrize("status", [401, 403, 503])
def test_a_refusal_of_health_tells_the_server_as_well(speaker: Speaker, status: int) -> None:
    speaker.health_status = status
    with connected(speaker) as client:
        assert version(client) == HTTP


def slow_worker() -> int:
    time.sleep(1)
    return 0


# What goes wrong


def foreign(exchange: Exchange) -> bytes:
    return answered(b"<html>", "text/html", 502)


@pytest.mark.parametrize("answer", [hangs_up, half_an_answer, no_length, too_much, no_message, foreign])
def test_what_breaks_goes_over_grpc_in_the_same_attempt(speaker: Speaker, answer: Any) -> None:
    with connected(speaker, retries=False) as client:
        speaker.answer = answer
        assert version(client) == GRPC
        speaker.answer = lambda exchange: found(HTTP)
        until_http(client)


def test_an_endpoint_that_never_answers_a_call_is_given_up(speaker: Speaker) -> None:
    speaker.answer = hangs_up
    with scannery.connect(speaker.address) as client:
        until_s = time.monotonic() + 20
        while not speaker.requests:
            assert version(client) == GRPC
            assert time.monotonic() < until_s
        assert [version(client) for _ in range(20)] == [GRPC] * 20
        assert speaker.asked == 1


def test_a_server_that_comes_back_elsewhere_is_found_again(speaker: Speaker) -> None:
    with connected(speaker, retries=False) as client:
        speaker.stop_listening()
        speaker.hang_up()
        eventually(lambda: not speaker.connections)
        speaker.listen_again()
        until_http(client)
        assert speaker.asked == 2
        assert [version(client) for _ in range(5)] == [HTTP] * 5


def test_a_token_that_is_not_there_yet_is_no_reason_to_stop_looking(speaker: Speaker) -> None:
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        if len(asked) == 2:
            raise LookupError("no token")
        return "a"

    with scannery.connect(speaker.address, token=token) as client:
        assert version(client) == GRPC
        with pytest.raises(LookupError):
            version(client)
        until_http(client)


# Clients that end and travel; coroutines


def test_a_pickled_client_looks_by_itself(speaker: Speaker) -> None:
    with connected(speaker) as client:
        copy = pickle.loads(pickle.dumps(client))
    until_http(copy)
    copy.close()
    with pytest.raises(scannery.CancelledError):
        version(copy)


@pytest.mark.system
def test_a_program_ends_while_it_looks(speaker: Speaker, tmp_path: Path) -> None:
    code = """
import sys, time, scannery
index = scannery.connect(sys.argv[1]).index("any")
index.search([1.0])
index.search([1.0])
time.sleep(float(sys.argv[2]))
"""
    for wait_s in ("0", "0.002"):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, speaker.address, wait_s],
            timeout=60,
            check=False,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.system
async def test_coroutines_find_and_lose_http_as_threads_do(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "_FIRST_WAIT_S", 0.2)

    async def wire(client: scannery.aio.AsyncClient) -> int:
        return (await client.index("any").search([1.0])).version

    async def until(client: scannery.aio.AsyncClient) -> None:
        until_s = time.monotonic() + 20
        while await wire(client) != HTTP:
            assert time.monotonic() < until_s, "no search went over HTTP"
            await asyncio.sleep(0.005)

    async with scannery.aio.connect(speaker.address, retries=False) as client:
        assert await wire(client) == GRPC
        assert speaker.asked == 0
        await until(client)
        over_grpc = speaker.grpc_calls
        assert (
            await asyncio.gather(*(wire(client) for _ in range(MAX_CONNECTIONS))) == [HTTP] * MAX_CONNECTIONS
        )
        assert speaker.grpc_calls == over_grpc
        ways = await asyncio.gather(*(wire(client) for _ in range(MAX_CONNECTIONS + 6)))
        assert (ways.count(HTTP), ways.count(GRPC)) == (MAX_CONNECTIONS, 6)
        speaker.answer = hangs_up
        assert await asyncio.gather(*(wire(client) for _ in range(20))) == [GRPC] * 20
        speaker.answer = lambda exchange: found(HTTP)
        await until(client)
        speaker.stop_listening()
        speaker.hang_up()
        assert await wire(client) == GRPC
        await asyncio.to_thread(speaker.listen_again)
        await until(client)
    with pytest.raises(scannery.CancelledError):
        await wire(client)
    async with scannery.aio.connect(speaker.address, http=False) as client:
        asked = speaker.asked
        assert [await wire(client) for _ in range(5)] == [GRPC] * 5
        assert speaker.asked == asked
