"""Calls over HTTP in threads: connections, their pool, and what callers notice of what goes wrong."""

from __future__ import annotations

import gc
import json
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client import concurrency
from scannery.client.transport._sync import http
from scannery.client.transport._sync.http import HttpWire
from scannery.client.transport.http import pool as pool_module
from scannery.client.transport.http.pool import MAX_CONNECTIONS
from scannery.v1.index_pb2 import UpsertResponse
from scannery.v1.search_pb2 import Hit, SearchRequest, SearchResponse
from scannery.v1.types_pb2 import Datapoint
from tests.client.transport.http_server import HTTP, Exchange, Speaker, answered, eventually, found, speaking


@pytest.fixture
def speaker() -> Iterator[Speaker]:
    with speaking() as speaker:
        yield speaker


@contextmanager
def connected(speaker: Speaker, **options: Any) -> Iterator[scannery.Client]:
    with scannery.connect(speaker.url, **{"timeout_s": 20, **options}) as client:
        yield client


def version(client: scannery.Client, **options: Any) -> int:
    return client.index("any").search([1.0], **options).version


def wire_of(client: scannery.Client) -> HttpWire:
    wire = client._transport._wire  # type: ignore[attr-defined]
    assert isinstance(wire, HttpWire)
    return wire


def at_once(client: scannery.Client, speaker: Speaker, callers: int) -> None:
    """Let so many search at once, of whom none is answered before all have asked."""
    before, here = speaker.answer, len(speaker.requests)

    def answer(exchange: Exchange) -> bytes | None:
        eventually(lambda: len(speaker.requests) >= here + callers)
        return before(exchange)

    speaker.answer = answer
    with ThreadPoolExecutor(callers) as pool:
        assert list(pool.map(lambda _: version(client), range(callers))) == [HTTP] * callers
    speaker.answer = before


# Requests


def test_one_connection_serves_a_caller_and_health_is_asked_once_without_credentials(
    speaker: Speaker,
) -> None:
    with connected(speaker, api_key="secret") as client:
        assert [version(client) for _ in range(50)] == [HTTP] * 50
        assert client.index("any").search_many([]) == []
    assert (len(speaker.probes), speaker.grpc_calls) == (1, 0)
    assert speaker.probes[0].headers == {"host": f"127.0.0.1:{speaker.port}"}
    assert [one.path.rpartition("/")[2] for one in speaker.requests] == ["Search"] * 50 + ["SearchMany"]
    headers = speaker.requests[0].headers
    assert headers["authorization"] == "Bearer secret"
    assert headers["host"] == f"127.0.0.1:{speaker.port}"
    assert headers["connect-timeout-ms"] == "20000"
    assert len(headers["scannery-client"]) == 16


def test_each_request_has_the_token_of_its_moment(speaker: Speaker) -> None:
    tokens = iter(f"t{number}" for number in range(200))
    with connected(speaker, token=lambda: next(tokens)) as client:
        for _ in range(100):
            version(client)
    assert [one.headers["authorization"] for one in speaker.requests] == [f"Bearer t{n}" for n in range(100)]
    assert len(speaker.probes) == 1


def test_traces_go_along(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = nullcontext((("traceparent", "00-1-2-01"),))
    monkeypatch.setattr("scannery.client.transport._sync.server.traced", lambda path, target: headers)
    with connected(speaker) as client:
        version(client)
    assert speaker.requests[0].headers["traceparent"] == "00-1-2-01"


@pytest.mark.system
@pytest.mark.parametrize("piece_bytes", [0, 7])
def test_large_and_slow_answers_are_put_together(speaker: Speaker, piece_bytes: int) -> None:
    text = "x" * (1000 if piece_bytes else 5 << 20)
    hits = [Hit(datapoint=Datapoint(id="a", text=text))]
    speaker.answer = lambda exchange: answered(SearchResponse(hits=hits).SerializeToString())
    speaker.piece_bytes = piece_bytes
    with connected(speaker) as client:
        (hit,) = client.index("any").search([1.0])
        assert hit.text == text


@pytest.mark.system
def test_a_large_request_arrives_whole(speaker: Speaker) -> None:
    with connected(speaker) as client:
        client.index("any").search_many(np.ones((8, 1 << 18)))
    assert len(speaker.requests[0].body) > 8 << 20


# What goes wrong


@pytest.mark.system
def test_a_refusal_is_heard_before_the_whole_request_is_sent() -> None:
    """A server that refuses a request by its head need not read the body."""
    body = b'{"code": "resource_exhausted", "message": "too much"}'

    def refuse(listener: socket.socket, stack: ExitStack) -> None:
        while True:
            try:
                sock = stack.enter_context(listener.accept()[0])
            except OSError:
                return
            sock.recv(1 << 16)
            sock.sendall(answered(b"{}", "application/json"))  # health
            sock.recv(1 << 10)
            sock.sendall(answered(body, "application/json", 429, {"connection": "close"}))

    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=refuse, args=(listener, stack), daemon=True).start()
        client = stack.enter_context(
            scannery.connect(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=5)
        )
        for _ in range(2):
            with pytest.raises(scannery.ResourceExhaustedError, match="too much"):
                client.index("any").upsert([{"id": "a", "vector": [1.0], "text": "x" * (32 << 20)}])
        listener.shutdown(socket.SHUT_RDWR)


def hangs_up(exchange: Exchange) -> bytes | None:
    return None


def half_an_answer(exchange: Exchange) -> bytes | None:
    exchange.sock.sendall(found(HTTP)[:-1])
    return None


def no_length(exchange: Exchange) -> bytes | None:
    exchange.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\n\r\n")
    return None


def too_much(exchange: Exchange) -> bytes | None:
    return found(HTTP) + b"and more"


def no_message(exchange: Exchange) -> bytes | None:
    return answered(b"\xff\xff\xff")


@pytest.mark.parametrize("answer", [hangs_up, half_an_answer, no_length, too_much, no_message])
@pytest.mark.parametrize("retries", [True, False])
def test_a_broken_answer_is_asked_for_again_if_that_is_wanted(
    speaker: Speaker, answer: Any, retries: bool
) -> None:
    with connected(speaker, retries=retries) as client:
        speaker.answer = lambda exchange: answer(exchange) if len(speaker.requests) == 1 else found(HTTP)
        if retries:
            assert version(client) == HTTP
        else:
            with pytest.raises(scannery.UnavailableError, match=speaker.url):
                version(client)
        assert version(client) == HTTP


def test_a_write_is_sent_again_only_with_a_request_id(speaker: Speaker) -> None:
    """The server may have done what it did not answer."""
    written = answered(UpsertResponse(sequence=HTTP).SerializeToString())

    def broken_first(exchange: Exchange) -> bytes | None:
        return None if len(speaker.requests) == 1 else written

    with connected(speaker) as client:
        index = client.index("any")
        speaker.answer = broken_first
        with pytest.raises(scannery.UnavailableError):
            index.upsert([{"id": "a", "vector": [1.0]}])
        assert len(speaker.requests) == 1
        speaker.requests.clear()
        assert index.upsert([{"id": "a", "vector": [1.0]}], request_id="r").sequence == HTTP
        assert len(speaker.requests) == 2


def test_connections_that_ended_while_they_were_idle_are_not_seen(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = answered(UpsertResponse(sequence=HTTP).SerializeToString())
    with connected(speaker, retries=False) as client:
        for fresh_s in (0.0, 60.0):
            monkeypatch.setattr(pool_module, "FRESH_S", fresh_s)
            at_once(client, speaker, 4)
            speaker.hang_up()
            eventually(lambda: not speaker.connections)
            assert version(client) == HTTP
            assert (len(speaker.connections), len(wire_of(client)._pool)) == (1, 1)
        speaker.hang_up()
        eventually(lambda: not speaker.connections)
        speaker.answer = lambda exchange: written
        assert client.index("any").upsert([{"id": "a", "vector": [1.0]}]).sequence == HTTP


def test_a_server_that_closes_behind_each_answer_is_obeyed(speaker: Speaker) -> None:
    def answer(exchange: Exchange) -> bytes:
        return answered(b"", headers={"connection": "close"})

    speaker.answer = answer
    with connected(speaker) as client:
        for _ in range(5):
            version(client)
        assert (len(speaker.probes), len(wire_of(client)._pool)) == (5, 0)


def test_a_proxy_s_answer_is_told_with_its_status(speaker: Speaker) -> None:
    with connected(speaker, retries=False) as client:
        speaker.answer = lambda exchange: answered(b"<html>", "text/html", 502)
        with pytest.raises(scannery.UnavailableError, match="HTTP status 502"):
            version(client)
        speaker.answer = lambda exchange: answered(b"<html>", "text/html", 404)
        with pytest.raises(scannery.UnimplementedError, match="not an answer of Scannery"):
            version(client)
        assert len(speaker.probes) == 1


def test_a_server_that_is_not_there_is_given_up_soon(speaker: Speaker) -> None:
    url = speaker.url
    speaker.stop_listening()
    began_s = time.monotonic()
    with scannery.connect(url) as client, pytest.raises(scannery.UnavailableError, match=url):
        version(client)
    assert time.monotonic() - began_s < 5


def test_a_slow_answer_is_too_late_and_no_other_call_gets_it(speaker: Speaker) -> None:
    release = threading.Event()

    def slow(exchange: Exchange) -> bytes:
        release.wait(20)
        return found(77)

    with connected(speaker) as client:
        for timeout_s in (0.01, 0.2):
            release.clear()
            version(client)
            speaker.answer = slow
            began_s = time.monotonic()
            with pytest.raises(scannery.DeadlineExceededError):
                version(client, timeout_s=timeout_s)
            assert timeout_s <= time.monotonic() - began_s < timeout_s + 5
            speaker.answer = lambda exchange: found(HTTP)
            release.set()
            assert [version(client) for _ in range(5)] == [HTTP] * 5


def test_an_interrupted_call_leaves_no_answer_to_others(speaker: Speaker) -> None:
    release = threading.Event()

    def slow(exchange: Exchange) -> bytes:
        release.wait(20)
        return found(77)

    def interrupt(number: int, stack: Any) -> None:
        raise KeyboardInterrupt

    with connected(speaker) as client:
        version(client)
        speaker.answer = slow
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                version(client)
        finally:
            signal.signal(signal.SIGALRM, before)
        speaker.answer = lambda exchange: found(HTTP)
        release.set()
        assert [version(client) for _ in range(5)] == [HTTP] * 5
        eventually(lambda: len(speaker.connections) == 1)


# Many callers


@pytest.mark.system
def test_callers_at_once_have_a_connection_each_and_the_rest_wait(speaker: Speaker) -> None:
    with connected(speaker) as client:
        at_once(client, speaker, 32)
        assert len(speaker.connections) == 32
        at_once(client, speaker, MAX_CONNECTIONS)
        with ThreadPoolExecutor(2 * MAX_CONNECTIONS) as pool:
            assert list(pool.map(lambda _: version(client), range(500))) == [HTTP] * 500
        assert len(speaker.connections) == MAX_CONNECTIONS
        release, before = threading.Event(), len(speaker.requests)
        speaker.answer = lambda exchange: found(HTTP) if release.wait(20) else None
        with ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
            asked = [pool.submit(version, client) for _ in range(MAX_CONNECTIONS)]
            eventually(lambda: len(speaker.requests) == before + MAX_CONNECTIONS)
            with pytest.raises(scannery.DeadlineExceededError):
                version(client, timeout_s=0.05)
            release.set()
            assert [one.result(20) for one in asked] == [HTTP] * MAX_CONNECTIONS


@pytest.mark.system
def test_a_client_that_was_never_closed_warns_of_nothing(speaker: Speaker) -> None:
    client = scannery.connect(speaker.url)
    client.index("any").search([1.0])
    cycle: list[object] = [client]
    cycle.append(cycle)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del client, cycle
        gc.collect()
    assert [str(warning.message) for warning in warned] == []


def test_threads_get_their_own_answers(speaker: Speaker) -> None:
    """The answer to each is its own vector's first number, whatever breaks meanwhile."""
    chance = random.Random(0)

    def answer(exchange: Exchange) -> bytes | None:
        if chance.random() < 0.02:
            return None
        (value,) = np.frombuffer(SearchRequest.FromString(exchange.body).query.vector.packed, np.float32)
        return found(int(value))

    speaker.answer = answer
    with connected(speaker) as client, ThreadPoolExecutor(16) as pool:

        def ask(caller: int) -> list[int]:
            first = caller * 100
            return [client.index("any").search([float(first + n)]).version for n in range(25)]

        answers = list(pool.map(ask, range(16)))
    assert answers == [[caller * 100 + n for n in range(25)] for caller in range(16)]


def test_connections_that_were_not_used_for_long_are_closed(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "IDLE_S", 0.2)
    with connected(speaker) as client:
        at_once(client, speaker, 4)
        until_s = time.monotonic() + 20
        while len(speaker.connections) > 1:
            assert version(client) == HTTP
            assert time.monotonic() < until_s


def test_connections_are_spread_over_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SPREAD_EVERY_S", 1e-6)
    drawn = iter([7, 7, 7, 7, 9, 7, 7, 9, 9, 9, *[7, 9] * 40])
    with speaking(workers=2) as speaker:
        speaker.worker = lambda: next(drawn)
        with connected(speaker) as client:
            at_once(client, speaker, 1)
            at_once(client, speaker, 2)
            # The second was drawn until it came to the other worker.
            assert 3 <= len(speaker.connections) <= 5
            calls = wire_of(client)
            for callers in (2, 4, 8, 3):
                taken = []
                for _ in range(callers):
                    connection = calls._pool.take() or calls._dialled(calls._pool, time.monotonic() + 5)
                    taken.append(connection)
                names = [connection.worker.name for connection in taken]
                assert abs(names.count("7") - names.count("9")) <= callers % 2
                for connection in taken:
                    calls._pool.give_back(connection)
            assert len(speaker.connections) < 20


# Clients that end, travel and multiply


def test_threads_that_begin_together_leave_each_other_their_connections(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, writes = threading.Event(), threading.Event()

    def owner() -> object:
        """Let the thread of the search look whose connections there are before the write makes one, and go on then."""
        if threading.current_thread() is not threading.main_thread() and not looks.is_set():
            looks.set()
            assert writes.wait(20)
        return concurrency.owner()

    def answer(exchange: Exchange) -> bytes:
        if not exchange.path.endswith("/Upsert"):
            return found(HTTP)
        writes.set()
        eventually(lambda: len(speaker.requests) == 2)
        time.sleep(0.02)  # a read that has begun blocks for 5 ms, and would still get the answer
        return answered(UpsertResponse(sequence=HTTP).SerializeToString())

    monkeypatch.setattr(http, "owner", owner)
    speaker.answer = answer
    with connected(speaker) as client, ThreadPoolExecutor(1) as pool:
        search = pool.submit(version, client)
        assert looks.wait(20)
        # Without a request id, so that it is not repeated.
        assert client.index("any").upsert([{"id": "a", "vector": [1.0]}]).sequence == HTTP
        assert search.result(20) == HTTP


def test_a_closed_client_has_no_connections_and_refuses(speaker: Speaker) -> None:
    asked, release = threading.Event(), threading.Event()

    def slow(exchange: Exchange) -> bytes:
        asked.set()
        release.wait(20)
        return found(HTTP)

    with connected(speaker) as client, ThreadPoolExecutor(1) as pool:
        at_once(client, speaker, 3)
        speaker.answer = slow
        waiting = pool.submit(version, client)
        assert asked.wait(20)
        client.close()
        assert isinstance(waiting.exception(20), scannery.CancelledError)
        release.set()
        eventually(lambda: not speaker.connections)
        with pytest.raises(scannery.CancelledError):
            version(client)


def test_a_client_may_be_pickled(speaker: Speaker) -> None:
    with connected(speaker, api_key="secret") as client:
        version(client)
        copy = pickle.loads(pickle.dumps(client))
        assert version(copy) == HTTP
        copy.close()
    first, last = speaker.requests
    assert first.headers["authorization"] == last.headers["authorization"]
    assert first.headers["scannery-client"] != last.headers["scannery-client"]


@pytest.mark.system
def test_a_forked_child_has_connections_of_its_own(speaker: Speaker) -> None:
    """In a process of its own: a fork of this one, with all the threads that other tests left, proves nothing."""
    code = """
import json, os, sys, scannery
index = scannery.connect(sys.argv[1]).index("any")
index.search([1.0])
pool = index._client._transport._wire._pool
(connection,) = pool._all
if os.fork() == 0:
    # As the fork finds it while other threads are in the middle of theirs.
    pool._lock.acquire()
    answered = index.search([1.0]).version == 1
    released = connection._socket.fileno() == -1
    os._exit(0 if answered and released else 1)
status = os.waitstatus_to_exitcode(os.wait()[1])
print(json.dumps([status, index.search([1.0]).version, pool._all == {connection}]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, speaker.url],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, HTTP, True]
    assert len({one.headers["scannery-client"] for one in speaker.requests}) == 2
    assert len(speaker.probes) == 2
