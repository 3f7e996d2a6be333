"""Searches without gRPC: which go that way, and that nobody notices whatever goes wrong on it."""

from __future__ import annotations

import json
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.client.native import calls as native_calls
from scannery.client.native import discovery as native_discovery
from scannery.client.native import pool as native_pool
from scannery.client.native.discovery import Discovery
from scannery.client.native.frames import HEAD, LARGEST_REQUEST, host_of
from scannery.client.native.pool import MOST_CONNECTIONS
from scannery.client.status import error_from_status
from scannery.client.transport import GrpcTransport
from scannery.v1.search_pb2 import Hit, SearchRequest, SearchResponse
from scannery.v1.types_pb2 import Datapoint, ErrorDetail
from tests.client.native_server import GRPC, NATIVE, Speaker, found, frame, speaking, until_native


@pytest.fixture
def speaker() -> Iterator[Speaker]:
    with speaking() as speaker:
        yield speaker


@contextmanager
def connected(speaker: Speaker, **options: Any) -> Iterator[scannery.Client]:
    """A client whose searches go natively."""
    with scannery.connect(speaker.address, **{"timeout_s": 20, "coalesce": False, **options}) as client:
        until_native(client)
        yield client


def version(client: scannery.Client, **options: Any) -> int:
    """Search, and return the way that the answer came."""
    return client.index("any").search([1.0], **options).version


def eventually(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s, "it never came true"
        time.sleep(0.005)


# What goes natively


def test_the_second_search_looks_for_the_endpoint_and_later_ones_need_no_grpc(speaker: Speaker) -> None:
    with scannery.connect(speaker.address, timeout_s=20) as client:
        assert version(client) == GRPC
        time.sleep(0.1)
        assert speaker.looked == 0
        until_native(client)
        over_grpc = speaker.grpc_calls
        assert [version(client) for _ in range(50)] == [NATIVE] * 50
        assert (speaker.grpc_calls, speaker.looked, len(speaker.connections)) == (over_grpc, 1, 1)
        found_many = client.index("any").search_many([])
        assert (found_many, speaker.grpc_calls) == ([], over_grpc)
    assert 19_000 < speaker.timeouts_ms[-1] <= 20_000


def test_it_can_be_turned_off(speaker: Speaker) -> None:
    with scannery.connect(speaker.address, native=False) as client:
        assert [version(client) for _ in range(20)] == [GRPC] * 20
    assert speaker.looked == 0


def test_what_is_large_and_what_is_traced_goes_over_grpc(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(speaker) as client:
        over_grpc = speaker.grpc_calls
        client.index("any").search_many(np.zeros((1, LARGEST_REQUEST // 4 - 100)))
        assert speaker.grpc_calls == over_grpc
        client.index("any").search_many(np.zeros((1, LARGEST_REQUEST // 4)))
        assert speaker.grpc_calls == over_grpc + 1
        headers = nullcontext((("traceparent", "00-1-2-01"),))
        monkeypatch.setattr("scannery.client.transport.traced", lambda path, target: headers)
        assert version(client) == GRPC


def test_a_large_answer_comes_in_parts(speaker: Speaker) -> None:
    large = frame(
        SearchResponse(version=NATIVE, hits=[Hit(datapoint=Datapoint(id="a", text="x" * (5 << 20)))])
    )

    def answer(sock: socket.socket, kind: int, body: bytes) -> bytes:
        return large

    with connected(speaker) as client:
        speaker.answer = answer
        (hit,) = client.index("any").search([1.0])
        assert len(hit.text or "") == 5 << 20
        speaker.answer = lambda sock, kind, body: found(NATIVE)
        assert version(client) == NATIVE


def test_an_answer_that_trickles_in_is_put_together(speaker: Speaker) -> None:
    with connected(speaker) as client:
        speaker.trickle_s = 0.01
        assert version(client) == NATIVE


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_errors_are_those_of_grpc(speaker: Speaker, code: grpc.StatusCode) -> None:
    detail = ErrorDetail(field="options.k", message="too many", retry_after_ms=1500)
    with connected(speaker, retries=False) as client:
        speaker.answer = lambda sock, kind, body: frame(detail, code.value[0])
        over_grpc = speaker.grpc_calls
        with pytest.raises(scannery.ScanneryError) as caught:
            version(client)
        if code is grpc.StatusCode.CANCELLED:
            code = grpc.StatusCode.UNAVAILABLE
        expected = error_from_status(code, "", detail)
        assert type(caught.value) is type(expected)
        assert vars(caught.value) == vars(expected)
        assert speaker.grpc_calls == over_grpc
        speaker.answer = lambda sock, kind, body: found(NATIVE)
        assert (version(client), len(speaker.connections)) == (NATIVE, 1)


# Targets


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
def test_hosts_of_targets(target: str, host: str | None) -> None:
    assert host_of(target) == host


def test_each_address_of_a_host_is_tried(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def resolved(host: str, *arguments: Any, **options: Any) -> list[Any]:
        found = resolve(host, *arguments, **options)
        # Nobody listens at the first.
        elsewhere = [(*what, ("127.0.0.9", where[1])) for *what, where in found]
        return elsewhere + found if host == "localhost" else found

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    port = speaker.address.rpartition(":")[2]
    with scannery.connect(f"localhost:{port}", coalesce=False) as client:
        until_native(client)
        endpoint = way_of(client).endpoint
        assert (endpoint.host, endpoint.address) == ("localhost", "127.0.0.1")


# When it is looked for


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_waits_between_failures_double_until_an_endpoint_worked() -> None:
    clock = Clock()
    discovery = Discovery(clock=clock)
    assert [discovery.due(0), discovery.due(0), discovery.due(0)] == [False, True, False]
    waits = []
    for _ in range(9):
        discovery.failed()
        before = clock.s
        while not discovery.due(0):
            clock.s += 1
        waits.append(clock.s - before)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    discovery.found()
    discovery.lost()
    assert not discovery.due(0)
    clock.s += 300
    assert discovery.due(0)
    discovery.found()
    discovery.proved = True
    discovery.lost()
    assert discovery.due(0)
    discovery.failed()
    clock.s += 5
    assert discovery.due(0)


def test_a_server_without_an_endpoint_is_asked_once_until_connections_break() -> None:
    discovery = Discovery(clock=Clock())
    assert [discovery.due(3), discovery.due(3)] == [False, True]
    discovery.unserved(3)
    assert not any(discovery.due(3) for _ in range(5))
    assert discovery.due(4)
    with speaking(native=False) as speaker, scannery.connect(speaker.address) as client:
        for _ in range(50):
            assert version(client) == GRPC
        eventually(lambda: speaker.looked == 1)
        assert version(client) == GRPC
    assert speaker.looked == 1


@pytest.mark.parametrize("wrong", ["server", "hello", "refused"])
def test_another_server_or_one_that_does_not_want_us_is_left_alone(speaker: Speaker, wrong: str) -> None:
    if wrong == "server":
        speaker.welcomed_as = "that"
    elif wrong == "hello":
        speaker.hello_status = grpc.StatusCode.UNAUTHENTICATED.value[0]
    else:
        speaker.stop_listening()
    with scannery.connect(speaker.address, coalesce=False) as client:
        assert [version(client) for _ in range(50)] == [GRPC] * 50
        eventually(lambda: speaker.looked == 1)
        time.sleep(0.05)
        assert [version(client) for _ in range(5)] == [GRPC] * 5
        assert (speaker.looked, speaker.native_calls, speaker.connections) == (1, 0, [])


# What goes wrong


def hangs_up(sock: socket.socket, kind: int, body: bytes) -> bytes | None:
    return None


def half_an_answer(sock: socket.socket, kind: int, body: bytes) -> bytes | None:
    sock.sendall(HEAD.pack(100, 0, 1, 0) + b"x" * 20)
    return None


def another_call(sock: socket.socket, kind: int, body: bytes) -> bytes | None:
    sock.sendall(HEAD.pack(0, 0, 4_000_000_000, 0))
    return found(NATIVE)


def no_message(sock: socket.socket, kind: int, body: bytes) -> bytes | None:
    return HEAD.pack(3, 0, 0, 0) + b"\xff\xff\xff"


def far_too_large(sock: socket.socket, kind: int, body: bytes) -> bytes | None:
    return HEAD.pack(0xFFFFFFFF, 0, 0, 0)


def too_much(sock: socket.socket, kind: int, body: bytes) -> bytes | None:
    return found(NATIVE) + b"and more"


@pytest.mark.parametrize(
    "answer", [hangs_up, half_an_answer, another_call, no_message, far_too_large, too_much]
)
def test_a_connection_that_breaks_costs_nobody_an_answer(speaker: Speaker, answer: Any) -> None:
    with connected(speaker, retries=False) as client:
        speaker.answer = answer
        calls = speaker.native_calls
        assert version(client) == GRPC
        assert speaker.native_calls == calls + 1
        eventually(lambda: not speaker.connections)
        speaker.answer = lambda sock, kind, body: found(NATIVE)
        assert [version(client) for _ in range(5)] == [NATIVE] * 5


def test_an_endpoint_that_never_answers_a_call_is_given_up(speaker: Speaker) -> None:
    speaker.answer = hangs_up
    with scannery.connect(speaker.address, coalesce=False) as client:
        until_s = time.monotonic() + 20
        while not speaker.native_calls:
            assert version(client) == GRPC
            assert time.monotonic() < until_s
        assert [version(client) for _ in range(20)] == [GRPC] * 20
        assert (speaker.native_calls, speaker.looked) == (1, 1)


def test_a_slow_answer_is_too_late_and_nobody_else_gets_it(speaker: Speaker) -> None:
    release = threading.Event()

    def slow(sock: socket.socket, kind: int, body: bytes) -> bytes:
        release.wait(20)
        return found(77)

    with connected(speaker) as client:
        for timeout_s in (0.01, 0.2):
            release.clear()
            speaker.answer = slow
            began_s = time.monotonic()
            with pytest.raises(scannery.DeadlineExceededError):
                version(client, timeout_s=timeout_s)
            assert timeout_s <= time.monotonic() - began_s < timeout_s + 5
            speaker.answer = lambda sock, kind, body: found(NATIVE)
            release.set()
            assert [version(client) for _ in range(5)] == [NATIVE] * 5


def test_whoever_is_interrupted_leaves_no_answer_to_others(speaker: Speaker) -> None:
    release = threading.Event()

    def slow(sock: socket.socket, kind: int, body: bytes) -> bytes:
        release.wait(20)
        return found(77)

    def interrupt(number: int, stack: Any) -> None:
        raise KeyboardInterrupt

    with connected(speaker) as client:
        speaker.answer = slow
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                version(client)
        finally:
            signal.signal(signal.SIGALRM, before)
        speaker.answer = lambda sock, kind, body: found(NATIVE)
        release.set()
        assert [version(client) for _ in range(5)] == [NATIVE] * 5
        eventually(lambda: len(speaker.connections) == 1)


def test_connections_that_ended_while_they_were_idle_are_not_used(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_pool, "FRESH_S", 0.0)
    with connected(speaker) as client:
        at_once(client, speaker, 4)
        assert len(speaker.connections) == 4
        over_grpc = speaker.grpc_calls
        speaker.hang_up()
        eventually(lambda: not speaker.connections)
        assert (version(client), len(speaker.connections), speaker.grpc_calls) == (NATIVE, 1, over_grpc)


def test_the_end_of_one_connection_ends_all_that_have_ended(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_pool, "FRESH_S", 60.0)
    with connected(speaker) as client:
        at_once(client, speaker, 4)
        pool = way_of(client).pool
        assert len(pool._all) == 4
        speaker.hang_up()
        eventually(lambda: not speaker.connections)
        assert (version(client), pool._all) == (GRPC, set())
        assert version(client) == NATIVE


def test_connections_that_nobody_used_for_long_are_closed(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_pool, "UNUSED_S", 0.2)
    with connected(speaker) as client:
        at_once(client, speaker, 4)
        until_s = time.monotonic() + 20
        while len(speaker.connections) > 1:
            assert version(client) == NATIVE
            assert time.monotonic() < until_s


def test_a_server_that_comes_back_elsewhere_is_found_again(speaker: Speaker) -> None:
    with connected(speaker, retries=False) as client:
        speaker.stop_listening()
        speaker.hang_up()
        eventually(lambda: not speaker.connections)
        speaker.listen_again()
        until_native(client)
        assert speaker.looked == 2
        assert [version(client) for _ in range(5)] == [NATIVE] * 5


# Many callers


def at_once(client: scannery.Client, speaker: Speaker, callers: int) -> list[int]:
    """Let so many search at once, of whom none is answered before all have asked; return the ways they went."""
    before = speaker.answer
    here = speaker.native_calls + speaker.grpc_calls

    def answer(sock: socket.socket, kind: int, body: bytes) -> bytes | None:
        eventually(lambda: speaker.native_calls + speaker.grpc_calls >= here + callers)
        return before(sock, kind, body)

    speaker.answer = answer
    with ThreadPoolExecutor(callers) as pool:
        ways = list(pool.map(lambda _: version(client), range(callers)))
    speaker.answer = before
    return ways


def test_many_threads_have_a_connection_each_and_the_rest_go_over_grpc(speaker: Speaker) -> None:
    with connected(speaker) as client:
        assert at_once(client, speaker, 32) == [NATIVE] * 32
        assert len(speaker.connections) == 32
        ways = at_once(client, speaker, MOST_CONNECTIONS + 6)
        assert (ways.count(NATIVE), ways.count(GRPC)) == (MOST_CONNECTIONS, 6)


def test_threads_get_their_own_answers(speaker: Speaker) -> None:
    """The answer to each is its own vector's first number, whatever breaks meanwhile."""
    chance = random.Random(0)

    def answer(sock: socket.socket, kind: int, body: bytes) -> bytes | None:
        if chance.random() < 0.02:
            return None

        (value,) = np.frombuffer(SearchRequest.FromString(body).query.vector.packed, np.float32)
        return found(int(value))

    wrong = []
    with connected(speaker) as client:
        speaker.answer = answer

        def ask(caller: int) -> None:
            for number in range(caller * 100 + 10, caller * 100 + 60):
                got = client.index("any").search([float(number)]).version
                if got not in (number, GRPC):
                    wrong.append((number, got))

        calls = speaker.native_calls
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(ask, range(32)))
        assert speaker.native_calls > calls + 1000
    assert wrong == []


def test_connections_are_spread_over_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_pool, "SPREAD_EVERY_S", 1e-6)
    drawn = iter([7, 7, 7, 7, 9, 7, 7, 9, 9, 9, *[7, 9] * 40])
    with speaking(workers=2) as speaker:
        speaker.worker = lambda: next(drawn)
        with connected(speaker) as client:
            assert at_once(client, speaker, 2) == [NATIVE] * 2
            # The second was drawn three times before it came to the other worker.
            assert len(speaker.connections) == 5
            pool = way_of(client).pool
            for callers in (2, 4, 8, 3):
                taken = [pool.take(1.0) for _ in range(callers)]
                workers = [connection.welcome.worker for connection in taken if connection]
                assert abs(workers.count(7) - workers.count(9)) <= callers % 2
                for connection in taken:
                    assert connection is not None
                    pool.give_back(connection)
            assert len(speaker.connections) < 20


def way_of(client: scannery.Client) -> native_calls._Way:
    transport = client._transport
    assert isinstance(transport, GrpcTransport)
    assert transport._native._way is not None
    return transport._native._way


# Who calls


def test_connections_show_who_calls_and_are_made_anew_for_another_token(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = {"now": "first"}
    with connected(speaker, token=lambda: tokens["now"]) as client:
        at_once(client, speaker, 3)

        def shown() -> set[str]:
            return {
                pair.value
                for hello in speaker.hellos
                for pair in hello.metadata
                if pair.key == "authorization"
            }

        assert shown() == {"Bearer first"}
        assert {pair.key for pair in speaker.hellos[0].metadata} == {"authorization", "scannery-client"}
        speaker.hellos.clear()
        monkeypatch.setattr(native_calls, "RENEWAL_S", 0.0)
        tokens["now"] = "second"
        assert version(client) == NATIVE
        eventually(lambda: len(speaker.connections) == 1)
        assert shown() == {"Bearer second"}
        # Programs that change between the tokens of their users do not make a connection for each search.
        monkeypatch.setattr(native_calls, "RENEWAL_S", 60.0)
        hellos = len(speaker.hellos)
        ways = []
        for number in range(20):
            tokens["now"] = f"user {number % 2}"
            ways.append(version(client))
        assert ways == [GRPC] * 20
        tokens["now"] = "second"
        assert (version(client), len(speaker.hellos)) == (NATIVE, hellos)


def test_a_token_that_is_not_there_yet_is_no_reason_to_stop_looking(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_discovery, "_FIRST_WAIT_S", 0.01)
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        if len(asked) in (2, 3):
            raise LookupError("no token")
        return "a"

    with scannery.connect(speaker.address, token=token, coalesce=False) as client:
        assert version(client) == GRPC
        with pytest.raises(LookupError):
            version(client)
        until_native(client)


# Clients that end, travel and multiply


def test_a_closed_client_has_no_connections_and_refuses(speaker: Speaker) -> None:
    asked, release = threading.Event(), threading.Event()

    def slow(sock: socket.socket, kind: int, body: bytes) -> bytes:
        asked.set()
        release.wait(20)
        return found(NATIVE)

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
    with connected(speaker) as client:
        copy = pickle.loads(pickle.dumps(client))
    until_native(copy)
    copy.close()


def test_a_forked_child_has_connections_of_its_own(speaker: Speaker) -> None:
    """In a process of its own: a fork of this one, with all the threads that other tests left, proves nothing."""
    code = """
import json, os, sys, time, scannery
index = scannery.connect(sys.argv[1], coalesce=False).index("any")

def until_native():
    until_s = time.monotonic() + 20
    while index.search([1.0]).version != 1:
        assert time.monotonic() < until_s
        time.sleep(0.005)

until_native()
native = index._client._transport._native
(connection,) = native._way.pool._all
if os.fork() == 0:
    # As the fork finds it while other threads are in the middle of theirs.
    native._lock.acquire()
    until_native()
    gone = connection._socket.fileno() == -1
    os._exit(0 if gone else 1)
status = os.waitstatus_to_exitcode(os.wait()[1])
same = index.search([1.0]).version == 1 and native._way.pool._all == {connection}
print(json.dumps([status, same]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, speaker.address],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, True]
    names = [pair.value for hello in speaker.hellos for pair in hello.metadata]
    assert len(names) == len(set(names)) == 2


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
