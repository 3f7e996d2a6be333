"""Clients of gRPC targets: which wire all calls use, when it is chosen, and what is made sure of before."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

import scannery
from scannery.client.transport._sync import choice
from scannery.client.transport.discovery import host_of, offer_in
from scannery.client.transport.http.pool import MAX_CONNECTIONS
from tests.client.transport.http_server import (
    GRPC,
    HTTP,
    Exchange,
    Speaker,
    all_well,
    answered,
    eventually,
    found,
    speaking,
)
from tests.client.transport.test_http import half_an_answer, hangs_up, no_length, no_message, too_much

POINT: Any = {"id": "a", "vector": [1.0]}


@pytest.fixture
def speaker() -> Iterator[Speaker]:
    with speaking() as speaker:
        yield speaker


def version(client: scannery.Client, **options: Any) -> int:
    """Search, and return the wire that the answer came by."""
    return client.index("any").search([1.0], **options).version


def upsert(client: scannery.Client, **options: Any) -> int:
    """Write, and return the wire that the answer came by."""
    return client.index("any").upsert([POINT], **options).sequence


@contextmanager
def connected(speaker: Speaker, **options: Any) -> Iterator[scannery.Client]:
    """A client that has chosen HTTP."""
    with scannery.connect(speaker.address, **{"timeout_s": 20, **options}) as client:
        assert [version(client), version(client)] == [GRPC, HTTP]
        yield client


# What goes over which wire


def test_the_first_call_asks_and_all_later_ones_go_over_http(speaker: Speaker) -> None:
    with scannery.connect(speaker.address, api_key="secret") as client:
        assert version(client) == GRPC
        # A program of one call does not pay for a connection that it would not use.
        assert (speaker.asked, speaker.probes) == (1, [])
        assert [version(client) for _ in range(50)] == [HTTP] * 50
        assert [upsert(client), upsert(client, request_id="r")] == [HTTP] * 2
        assert client.index("any").search_many([]) == []
    assert (speaker.grpc_calls, speaker.asked, len(speaker.probes)) == (1, 1, 1)
    # Whether it is the right server is found out before a secret is sent.
    assert not any("authorization" in probe.headers for probe in speaker.probes)
    assert {one.headers["authorization"] for one in speaker.requests} == {"Bearer secret"}


def test_a_first_write_chooses_as_a_search_does(speaker: Speaker) -> None:
    with scannery.connect(speaker.address) as client:
        assert [upsert(client), upsert(client), version(client)] == [GRPC, HTTP, HTTP]


def test_it_can_be_turned_off(speaker: Speaker) -> None:
    with scannery.connect(speaker.address, http=False) as client:
        assert [version(client) for _ in range(20)] == [GRPC] * 20
    assert speaker.asked == 0


@pytest.mark.system
def test_calls_beyond_the_connections_wait(speaker: Speaker) -> None:
    release = threading.Event()
    with connected(speaker) as client, ThreadPoolExecutor(MAX_CONNECTIONS + 1) as pool:
        before = len(speaker.requests)
        speaker.answer = lambda exchange: found(HTTP) if release.wait(20) else None
        calls = [pool.submit(version, client) for _ in range(MAX_CONNECTIONS + 1)]
        eventually(lambda: len(speaker.requests) == before + MAX_CONNECTIONS)
        release.set()
        assert [one.result(20) for one in calls] == [HTTP] * (MAX_CONNECTIONS + 1)
    assert speaker.grpc_calls == 1


@pytest.mark.system
def test_threads_that_begin_together_end_on_one_wire(speaker: Speaker) -> None:
    begin = threading.Barrier(16)

    def search_twice(_: int) -> None:
        begin.wait(20)
        version(client)
        version(client)

    with scannery.connect(speaker.address) as client, ThreadPoolExecutor(16) as pool:
        list(pool.map(search_twice, range(16)))
        over_grpc = speaker.grpc_calls
        assert [version(client) for _ in range(20)] == [HTTP] * 20
        assert speaker.grpc_calls == over_grpc


def test_servers_that_share_a_configured_port_need_no_id(speaker: Speaker) -> None:
    speaker.told_id, speaker.server_id = "", "any of them"
    with connected(speaker) as client:
        assert version(client) == HTTP


# When the server is asked


def test_a_server_without_http_is_asked_again_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking(http=False) as speaker, scannery.connect(speaker.address) as client:
        assert [version(client) for _ in range(50)] == [GRPC] * 50
        assert speaker.asked == 1
    monkeypatch.setattr(choice, "STAY_S", 0.0)
    with speaking(http=False) as speaker, scannery.connect(speaker.address) as client:
        assert [version(client) for _ in range(5)] == [GRPC] * 5
        assert speaker.asked == 5


def test_a_lost_grpc_connection_is_a_reason_to_ask_again() -> None:
    with speaking(http=False) as speaker:
        client = scannery.connect(speaker.address, timeout_s=20)
        assert [version(client), version(client)] == [GRPC, GRPC]
    with pytest.raises(scannery.UnavailableError):
        version(client, timeout_s=1)  # it is tried again until then
    with speaking(grpc_address=speaker.address) as speaker, client:
        assert [version(client), version(client)] == [GRPC, HTTP]


def test_a_call_that_fails_leaves_the_question_to_the_next(speaker: Speaker) -> None:
    with scannery.connect(speaker.address) as client:
        with pytest.raises(scannery.UnimplementedError):
            client.indexes()
        assert [version(client), version(client)] == [GRPC, HTTP]


def test_a_token_that_is_not_there_yet_is_no_reason_to_stop_looking(speaker: Speaker) -> None:
    tokens = iter(["", "a", "b"])

    def token() -> str:
        if not (text := next(tokens)):
            raise LookupError("no token")
        return text

    with scannery.connect(speaker.address, token=token) as client:
        with pytest.raises(LookupError):
            version(client)
        assert [version(client), version(client)] == [GRPC, HTTP]


@pytest.mark.parametrize(
    "metadata",
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
def test_what_is_no_offer(metadata: Any) -> None:
    assert offer_in(metadata) is None


def test_what_is_an_offer() -> None:
    assert offer_in((("scannery-http", "7080"), ("other", "b"), ("scannery-server", "a"))) == (7080, "a")
    assert offer_in((("scannery-http", "1"), ("scannery-server", ""))) == (1, "")


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
    assert host_of(target) == host


def test_each_address_of_a_host_is_tried(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def resolved(host: str, *arguments: Any, **options: Any) -> list[Any]:
        addresses = resolve(host, *arguments, **options)
        # Nothing listens at the first.
        elsewhere = [(*what, ("127.0.0.9", where[1])) for *what, where in addresses]
        return elsewhere + addresses if host == "localhost" else addresses

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with scannery.connect(f"localhost:{speaker.address.rpartition(':')[2]}") as client:
        assert [version(client), version(client)] == [GRPC, HTTP]
    assert {one.headers["host"] for one in speaker.requests} == {f"127.0.0.1:{speaker.port}"}


@pytest.mark.system
@pytest.mark.parametrize("wrong", ["server", "no server of ours", "misdirected", "refused", "silent"])
def test_another_server_or_none_is_left_alone(
    speaker: Speaker, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "PROBE_TIMEOUT_S", 0.2)
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
        assert version(client) == GRPC
        began_s = time.monotonic()
        assert version(client) == GRPC
        assert time.monotonic() - began_s < 0.9
        assert [version(client) for _ in range(50)] == [GRPC] * 50
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
        speaker.answer = all_well
        # That call has asked.
        assert [version(client) for _ in range(5)] == [HTTP] * 5
        assert speaker.asked == 2


@pytest.mark.parametrize("answer", [hangs_up, half_an_answer, foreign])
def test_a_write_that_may_have_arrived_is_not_sent_again(speaker: Speaker, answer: Any) -> None:
    with connected(speaker) as client:
        here, over_grpc = len(speaker.requests), speaker.grpc_calls
        speaker.answer = answer
        with pytest.raises(scannery.UnavailableError, match=speaker.address):
            upsert(client)
        assert (len(speaker.requests), speaker.grpc_calls) == (here + 1, over_grpc)
        # With a request_id the server does it once.
        speaker.answer = all_well
        assert [upsert(client, request_id="r"), upsert(client)] == [GRPC, HTTP]


def test_a_write_that_cannot_have_arrived_goes_over_grpc(speaker: Speaker) -> None:
    with connected(speaker, retries=False) as client:
        speaker.stop_listening()
        speaker.hang_up()
        eventually(lambda: not speaker.connections)
        assert upsert(client) == GRPC


def test_an_endpoint_that_never_answers_a_call_is_given_up(speaker: Speaker) -> None:
    speaker.answer = hangs_up
    with scannery.connect(speaker.address) as client:
        assert [version(client) for _ in range(20)] == [GRPC] * 20
        assert (speaker.asked, len(speaker.requests)) == (1, 2)


def test_errors_of_the_server_are_no_reason_to_change(speaker: Speaker) -> None:
    refusal = b'{"code": "unavailable", "message": "busy"}'
    with connected(speaker, retries=False) as client:
        speaker.answer = lambda exchange: answered(refusal, "application/json", 503)
        with pytest.raises(scannery.UnavailableError, match="busy"):
            version(client)
        speaker.answer = all_well
        assert version(client) == HTTP
        assert speaker.grpc_calls == 1


def test_a_server_that_comes_back_elsewhere_is_found_again(speaker: Speaker) -> None:
    with connected(speaker, retries=False) as client:
        speaker.stop_listening()
        speaker.hang_up()
        eventually(lambda: not speaker.connections)
        speaker.listen_again()
        assert [version(client) for _ in range(5)] == [GRPC, *[HTTP] * 4]
        assert speaker.asked == 2


# Clients that end and travel; coroutines


def test_a_pickled_client_chooses_by_itself(speaker: Speaker) -> None:
    with connected(speaker) as client:
        copy = pickle.loads(pickle.dumps(client))
    assert [version(copy), version(copy)] == [GRPC, HTTP]
    copy.close()
    with pytest.raises(scannery.CancelledError):
        version(copy)


@pytest.mark.system
def test_a_forked_child_has_connections_of_its_own_on_the_same_wire(speaker: Speaker) -> None:
    code = """
import json, os, sys, scannery
index = scannery.connect(sys.argv[1]).index("any")
versions = [index.search([1.0]).version for _ in range(2)]
if os.fork() == 0:
    os._exit(0 if index.search([1.0]).version == 1 else 1)
status = os.waitstatus_to_exitcode(os.wait()[1])
print(json.dumps([status, *versions, index.search([1.0]).version]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, speaker.address],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, GRPC, HTTP, HTTP]
    assert (speaker.grpc_calls, len(speaker.probes)) == (1, 2)


@pytest.mark.system
async def test_coroutines_choose_and_lose_a_wire_as_threads_do(speaker: Speaker) -> None:
    async def wire(client: scannery.aio.AsyncClient) -> int:
        return (await client.index("any").search([1.0])).version

    async def wires(client: scannery.aio.AsyncClient, calls: int) -> list[int]:
        return await asyncio.gather(*(wire(client) for _ in range(calls)))

    async with scannery.aio.connect(speaker.address, retries=False) as client:
        assert await wires(client, 20) == [GRPC] * 20
        assert (speaker.asked, speaker.probes) == (1, [])
        assert await wire(client) == HTTP
        assert await wires(client, 2 * MAX_CONNECTIONS) == [HTTP] * (2 * MAX_CONNECTIONS)
        assert (await client.index("any").upsert([POINT])).sequence == HTTP
        assert speaker.grpc_calls == 20
        speaker.answer = hangs_up
        with pytest.raises(scannery.UnavailableError):
            await client.index("any").upsert([POINT])
        assert await wires(client, 20) == [GRPC] * 20
        speaker.answer = all_well
        assert await wire(client) == HTTP
        speaker.stop_listening()
        speaker.hang_up()
        await asyncio.to_thread(speaker.listen_again)
        assert [await wire(client), await wire(client)] == [GRPC, HTTP]
    with pytest.raises(scannery.CancelledError):
        await wire(client)
    async with scannery.aio.connect(speaker.address, http=False) as client:
        asked = speaker.asked
        assert await wires(client, 5) == [GRPC] * 5
        assert speaker.asked == asked


async def test_the_call_after_a_cancelled_choice_decides(speaker: Speaker) -> None:
    begun, release = threading.Event(), threading.Event()

    def worker() -> int:
        begun.set()
        release.wait(20)
        return 0

    speaker.worker = worker
    async with scannery.aio.connect(speaker.address, timeout_s=20) as client:
        search = partial(client.index("any").search, [1.0])
        assert (await search()).version == GRPC
        chooses = asyncio.create_task(search())
        assert await asyncio.to_thread(begun.wait, 20)
        chooses.cancel()
        with pytest.raises(asyncio.CancelledError):
            await chooses
        release.set()
        assert (await search()).version == HTTP
