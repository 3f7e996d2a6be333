"""The native protocol as proto/scannery/v1/native.proto words it, over real connections, compared with gRPC."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from scannery.client import Like, calls
from scannery.client.response.decoding import parse_hits
from scannery.client.response.results import Hits
from scannery.serving import BindError, ConfigError, EncoderConfig, Server, ServerConfig
from scannery.serving.native import connection as native_connection
from scannery.serving.native import listener as native_listener
from scannery.serving.options import parse_options
from scannery.v1 import search_pb2
from tests.native import (
    SEARCH,
    SEARCH_MANY,
    Answer,
    Native,
    endpoint_of,
    eventually,
    framed,
    hello,
    idle,
    over_grpc,
    port_of,
)
from tests.served import DIMENSIONS, ROWS, serving

QUERIES = np.random.default_rng(0).normal(size=(64, DIMENSIONS)).astype(np.float32)
OK, EXHAUSTED = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED
THREADS = 4


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library, threads=THREADS, body_timeout_s=1.0, recall_share=0) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_stays_behind(server: Server) -> Iterator[None]:
    yield
    eventually(lambda: idle(server))
    listener = server._front._native._listener
    assert listener is not None
    eventually(lambda: not listener._connections)


@pytest.fixture
def native(server: Server) -> Iterator[Native]:
    with Native.greeted(port_of(server)) as native:
        yield native


@pytest.fixture(autouse=True)
def _often_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_listener, "LOOK_EVERY_S", 0.1)


def search(number: int = 0, k: int = 3, index: str = "library", **options: Any) -> bytes:
    return calls.search(index, QUERIES[number], k, **options).request.SerializeToString()


def search_many(queries: int = 10, k: int = 3, **options: Any) -> bytes:
    vectors = np.resize(QUERIES, (queries, DIMENSIONS))
    return calls.search_many("library", vectors, k, **options).request.SerializeToString()


LARGE = search_many(160, ROWS)
"""Its answer has several MiB."""


@contextmanager
def held_turns(server: Server, count: int = THREADS) -> Iterator[None]:
    """Let nobody work."""
    turns = server._front._dispatcher._answering.turns
    for _ in range(count):
        turns.acquire()
    try:
        yield
    finally:
        turns.release(count)


def counted(server: Server, **wanted: str) -> int:
    """Return how many requests were counted with these labels."""
    family = server.metrics.request_seconds
    total = 0
    for key, series in family.dump().items():
        labels = dict(zip(family.labels, key.split("\x1f"), strict=True))
        if wanted.items() <= labels.items():
            total += int(sum(series[1:]))
    return total


# The first frame


def test_a_hello_is_answered_with_what_the_endpoint_says(server: Server) -> None:
    endpoint = endpoint_of(server.address)
    assert endpoint.port == port_of(server)
    with Native(endpoint.port) as native, Native(endpoint.port) as another:
        welcome = native.welcome()
        assert (welcome.protocol, welcome.server, welcome.workers) == (1, endpoint.server, 1)
        assert len(endpoint.server) >= 16
        assert welcome == another.welcome()


def test_what_comes_first_must_be_a_hello(server: Server) -> None:
    for first in (framed(SEARCH, search()), framed(1, b"\xff"), framed(9, b""), b"GET / HTTP/1.1\r\n\r\n"):
        with Native(port_of(server)) as native:
            native.send(first)
            assert native.is_closed()


def test_a_hello_has_16_kib_at_most(server: Server) -> None:
    def with_bytes(count: int) -> bytes:
        empty = len(hello([("a", "")]))
        whole = hello([("a", "x" * (count - empty - 10))])
        return hello([("a", "x" * (count - empty - 10 + count - (len(whole) - 16)))])

    most = with_bytes(16 << 10)
    assert len(most) == 16 + (16 << 10)
    with Native(port_of(server)) as native:
        native.send(most)
        assert native.answer().code is OK
        assert native.ask(SEARCH, search()).code is OK
    with Native(port_of(server)) as native:
        native.send(with_bytes((16 << 10) + 1))
        assert native.is_closed()


@pytest.mark.parametrize(
    ("first", "field"),
    [(hello(protocol=2), "protocol"), (hello([("a", "b")] * 17), "metadata")],
)
def test_a_hello_that_cannot_be_met_is_told_so(server: Server, first: bytes, field: str) -> None:
    with Native(port_of(server)) as native:
        native.send(first)
        answer = native.answer()
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
        assert answer.detail.field == field
        assert native.is_closed()


@pytest.mark.parametrize("trickles", [False, True])
def test_without_a_hello_in_time_a_connection_is_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch, trickles: bool
) -> None:
    assert native_connection.WELCOME_WITHIN_S == 10
    monkeypatch.setattr(native_connection, "WELCOME_WITHIN_S", 0.5)
    started_s = time.monotonic()
    with Native(port_of(server)) as native:
        if trickles:
            assert _trickled(native, hello([("a", "x" * 5000)]))
        else:
            assert native.is_closed()
    assert 0.4 < time.monotonic() - started_s < 30


def _trickled(native: Native, data: bytes) -> bool:
    """Send byte by byte; return whether the server hangs up before the end."""
    for number in range(len(data)):
        try:
            native.send(data[number : number + 1])
        except OSError:
            return True
        if native.is_closed(0.02):
            return True
    return False


# Answers


SEARCHES: list[dict[str, Any]] = [
    {},
    {"k": 600, "fields": ["id"]},
    {"offset": 7, "k": 20, "vectors": True},
    {"where": {"year": {"$gte": 2010}, "live": True}},
    {"where": {"year": 1}},
    {"max_per_group": 1},
    {"max_per_group": 2, "group_by": "show"},
    {"min_score": 0.1, "k": 50},
    {"exact": True},
    {"leaves": 2, "rescore": 100},
    {"explain": True},
]


@pytest.mark.parametrize("options", SEARCHES)
def test_answers_are_those_of_grpc(server: Server, native: Native, options: dict[str, Any]) -> None:
    requests = [(SEARCH, search(1, **options)), (SEARCH_MANY, search_many(**options))]
    like = calls.search("library", Like("d3"), **{"k": 5, **options}).request
    requests.append((SEARCH, like.SerializeToString()))
    for kind, request in requests:
        response = search_pb2.SearchResponse if kind == SEARCH else search_pb2.SearchManyResponse
        code, wanted = over_grpc(server, kind, request)
        # Whatever is learned from the first one, the others are the same.
        for _ in range(3):
            answer = native.ask(kind, request, call=9)
            assert (answer.code, answer.call) == (code, 9)
            if code is OK and options.get("explain"):
                assert _timeless(response.FromString(answer.body)) == _timeless(response.FromString(wanted))
            else:
                assert answer.body == wanted
        assert code is OK or kind == SEARCH


def _timeless(response: Any) -> Any:
    for owner in getattr(response, "results", [response]):
        for stage in owner.explanation.stages:
            stage.duration_us = 0
    return response


WRONG: list[tuple[int, bytes]] = [
    (SEARCH, calls.search("library", [1.0] * 15, 3).request.SerializeToString()),
    (SEARCH, calls.search("library", [float("nan")] * DIMENSIONS, 3).request.SerializeToString()),
    (SEARCH, search(k=0)),
    (SEARCH, search(k=10_001)),
    (SEARCH, search(index="nothing")),
    (SEARCH, search(index="")),
    (SEARCH, search(where={"nothing": 1})),
    (SEARCH, search(min_sequence=1 << 40)),
    (SEARCH, calls.search("library", "a text", 3).request.SerializeToString()),
    (SEARCH, calls.search("library", Like("nobody"), 3).request.SerializeToString()),
    (SEARCH, b"\xff\xff\xff"),
    (SEARCH, b""),
    (SEARCH_MANY, search_many(1001)),
    (SEARCH_MANY, search_many(1000, 600)),
    (SEARCH_MANY, b"\x0a\x07library"),
    (SEARCH_MANY, b"\xff"),
    (SEARCH_MANY, calls.search_many("nothing", QUERIES, 3).request.SerializeToString()),
]


@pytest.mark.parametrize(("kind", "request_bytes"), WRONG)
def test_errors_are_those_of_grpc(server: Server, native: Native, kind: int, request_bytes: bytes) -> None:
    code, detail = over_grpc(server, kind, request_bytes)
    assert code is not OK
    answer = native.ask(kind, request_bytes)
    assert (answer.code, answer.body) == (code, detail)
    assert native.ask(SEARCH, search()).code is OK  # the connection goes on


@pytest.mark.parametrize("kind", [0, 1, 4, 255])
def test_kinds_that_there_are_not(server: Server, native: Native, kind: int) -> None:
    native.send(framed(SEARCH, search(), call=1) + framed(kind, search(), call=2))
    answers = {answer.call: answer.code for answer in (native.answer(), native.answer())}
    assert answers == {1: OK, 2: grpc.StatusCode.UNIMPLEMENTED}
    assert native.is_closed()


def test_deadlines(server: Server, native: Native) -> None:
    slow = search_many(160, ROWS, exact=True, explain=True)
    for kind, body, timeout_ms in (
        (SEARCH, search(), 0),
        (SEARCH_MANY, slow, 1),
        (SEARCH, search(exact=True), 0),
    ):
        answer = native.ask(kind, body, timeout_ms=timeout_ms)
        assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "deadline" in answer.detail.message
    with held_turns(server):
        started_s = time.monotonic()
        answer = native.ask(SEARCH_MANY, search_many(), timeout_ms=200)
        assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert 0.15 < time.monotonic() - started_s < 30


# Frames


def test_many_frames_in_one_packet_and_one_in_many(server: Server) -> None:
    requests = [search(number, k=number + 1) for number in range(12)]
    packet = b"".join(framed(SEARCH, body, call=number) for number, body in enumerate(requests))
    with Native(port_of(server)) as native:
        native.send(hello(call=99) + packet)
        assert native.answer().call == 99
        _are_answers(server, [native.answer() for _ in requests], requests)
        for number in range(len(packet)):
            native.send(packet[number : number + 1])
        _are_answers(server, [native.answer() for _ in requests], requests)


def _are_answers(server: Server, answers: list[Answer], requests: list[bytes]) -> None:
    assert sorted(answer.call for answer in answers) == list(range(len(requests)))
    for answer in answers:
        assert answer.code is OK
        hits = _hits(answer.body)
        wanted = _hits(over_grpc(server, SEARCH, requests[answer.call])[1])
        # Several queries at once, as gRPC has them too: scores may differ in the last digit.
        assert [hit.id for hit in hits] == [hit.id for hit in wanted]
        assert np.allclose([hit.score for hit in hits], [hit.score for hit in wanted], atol=1e-5)


def _hits(response: bytes) -> Hits:
    return parse_hits(search_pb2.SearchResponse.FromString(response))


def test_answers_come_as_they_are_ready(server: Server, native: Native) -> None:
    with held_turns(server):
        native.send(framed(SEARCH_MANY, search_many(), call=1) + framed(SEARCH, search(), call=2))
        assert native.answer().call == 2
        assert native.ask(SEARCH, search(), call=3).code is OK
    assert native.answer().call == 1


def test_more_requests_than_may_be_under_way_wait_for_the_others(server: Server) -> None:
    """All in one packet, and none is read beyond what may be under way."""
    count = 300
    packet = b"".join(framed(SEARCH_MANY, b"", call=number) for number in range(count))
    listener = server._front._native._listener
    assert listener is not None
    with Native.greeted(port_of(server)) as native:
        [connection] = listener._connections.values()
        with held_turns(server):
            native.send(packet)
            time.sleep(0.3)
            assert connection.calls == native_connection.MAX_CALLS or native.socket.recv(1, socket.MSG_PEEK)
        codes: Counter[grpc.StatusCode] = Counter()
        for _ in range(count):
            answer = native.answer()
            codes[answer.code] += 1
        assert codes.total() == count
        assert codes.keys() <= {grpc.StatusCode.INVALID_ARGUMENT, EXHAUSTED}
        # What came behind is read, too.
        assert native.ask(SEARCH, search()).code is OK
        assert connection.calls == 0


def test_requests_under_way_are_at_most_64(library: Path) -> None:
    with serving(library, threads=2, queue=1000) as server:
        listener = server._front._native._listener
        assert listener is not None
        server._front.admission.limit = 1000.0
        with Native.greeted(port_of(server)) as native:
            [connection] = listener._connections.values()
            with held_turns(server, 2):
                for number in range(200):
                    native.send(framed(SEARCH_MANY, search_many(1), call=number))
                eventually(lambda: server._front.admission.in_flight == 64)
                time.sleep(0.2)
                assert connection.calls == server._front.admission.in_flight == 64
            assert {native.answer().call for _ in range(200)} == set(range(200))


def _padded(body: bytes, size: int) -> bytes:
    """Return the message with a field that nobody knows, so that it has `size` bytes."""
    rest = size - len(body) - 6
    return (
        body
        + b"\xfa\x7f"
        + bytes([rest & 127 | 128, rest >> 7 & 127 | 128, rest >> 14 | 128, 0])
        + bytes(rest)
    )


def test_requests_have_256_kib_at_most(server: Server, native: Native) -> None:
    longest = _padded(search(), 256 << 10)
    assert len(longest) == 256 << 10
    assert native.ask(SEARCH, longest).code is OK
    native.send(framed(SEARCH, longest + b"\0")[:1000])
    assert native.is_closed()


def test_lengths_are_not_believed(server: Server) -> None:
    for length in (1 << 20, (1 << 31) - 1, (1 << 32) - 1):
        with Native.greeted(port_of(server)) as native:
            native.send(struct.pack("<IBxxxII", length, SEARCH, 1, 1000))
            assert native.is_closed()


def test_large_answers_come_whole(server: Server, native: Native) -> None:
    _, wanted = over_grpc(server, SEARCH_MANY, LARGE)
    assert len(wanted) > 4 << 20
    for number in range(3):
        native.send(framed(SEARCH_MANY, LARGE, call=number))
    for _ in range(3):
        answer = native.answer()
        assert answer.code is OK
        assert answer.body == wanted


# Slow, silent, gone


@pytest.mark.parametrize("trickles", [False, True])
def test_whoever_does_not_read_keeps_their_place_and_is_closed(server: Server, trickles: bool) -> None:
    done = threading.Event()
    with Native.greeted(port_of(server), window=4096) as native:
        native.send(framed(SEARCH_MANY, LARGE) * 3)
        eventually(lambda: native.socket.recv(1, socket.MSG_PEEK))

        def trickle() -> None:
            while not done.wait(0.05):
                try:
                    native.socket.recv(16)
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        if trickles:
            thread.start()
        time.sleep(0.5)
        assert server._front.admission.in_flight >= 1  # what is not read is in flight
        with Native.greeted(port_of(server)) as other:
            assert other.ask(SEARCH, search()).code is OK
        eventually(lambda: idle(server), 30)
        done.set()
        if trickles:
            thread.join()
        assert _rest(native) < 3 * (4 << 20)


def _rest(native: Native) -> int:
    """Return how many bytes there are before the server hangs up."""
    count = 0
    with suppress(ConnectionError):
        while data := native.socket.recv(1 << 16):
            count += len(data)
    return count


def test_a_slow_reader_gets_all_of_it(server: Server) -> None:
    """As long as something is taken in good time, it takes as long as it takes."""
    with Native.greeted(port_of(server), window=1 << 16) as native:
        native.send(framed(SEARCH_MANY, LARGE) * 3)
        length, _, _, _ = struct.unpack("<IBxxxII", native.socket.recv(16, socket.MSG_WAITALL))
        left, started_s = 3 * length + 32, time.monotonic()
        while left:
            left -= len(native.socket.recv(min(left, 1 << 16)))
            time.sleep(0.02 if time.monotonic() - started_s < 2.5 else 0)
        assert time.monotonic() - started_s > 2.5


@pytest.mark.parametrize("trickles", [False, True])
def test_half_a_frame_is_not_waited_for(server: Server, native: Native, trickles: bool) -> None:
    frame = framed(SEARCH, _padded(search(), 10_000))
    started_s = time.monotonic()
    if trickles:
        assert _trickled(native, frame[:-1])
    else:
        native.send(frame[:-1])
        assert native.is_closed()
    assert 0.9 < time.monotonic() - started_s < 30


def test_connections_may_be_idle(server: Server, native: Native) -> None:
    assert native.ask(SEARCH, search()).code is OK
    assert not native.is_closed(1.6)
    assert native.ask(SEARCH, search()).code is OK


def test_idle_connections_end_some_day(
    server: Server, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_connection, "IDLE_S", 0.5)
    assert native.is_closed(30)


@pytest.mark.parametrize("how", ["close", "reset", "last word"])
def test_whoever_hangs_up_is_dropped_before_anything_is_computed(server: Server, how: str) -> None:
    dropped = counted(server, method="SearchMany", code="CANCELLED")
    answered = counted(server, method="SearchMany", code="OK")
    with Native.greeted(port_of(server)) as native:
        with held_turns(server):
            for number in range(5):
                native.send(framed(SEARCH_MANY, search_many(), call=number))
            eventually(lambda: server._front.admission.in_flight == 5)
            if how == "reset":
                native.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how == "last word":
                native.socket.shutdown(socket.SHUT_WR)
                assert native.is_closed()
            native.close()
            time.sleep(0.2)
        eventually(lambda: counted(server, method="SearchMany", code="CANCELLED") == dropped + 5)
    assert counted(server, method="SearchMany", code="OK") == answered


def test_there_are_so_many_connections_and_strangers_make_room(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_listener, "MAX_CONNECTIONS", 6)
    port = port_of(server)
    known = [Native.greeted(port) for _ in range(3)]
    silent = [Native(port) for _ in range(20)]
    known.append(Native.greeted(port))
    assert sum(not each.is_closed(0.1) for each in silent) <= 3
    known += [Native.greeted(port) for _ in range(2)]
    with Native(port) as more:
        assert more.is_closed()
    for each in known:
        assert each.ask(SEARCH, search()).code is OK
    for each in known + silent:
        each.close()


def test_without_descriptors_the_others_are_served(server: Server, native: Native) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    late = socket.socket()
    late.settimeout(60)
    spare = [socket.socket() for _ in range(20)]  # so that no number below is free
    limit = max(each.fileno() for each in [late, *spare]) + 1
    for each in spare:
        each.close()
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(socket.socket())
        late.connect(("127.0.0.1", port_of(server)))
        late.sendall(hello())
        time.sleep(0.1)
        cpu_s = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - cpu_s < 0.4  # it does not ask all the time
        assert native.ask(SEARCH, search()).code is OK
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            each.close()
    assert len(late.recv(16)) == 16
    late.close()


def test_a_connection_that_another_process_has_open_is_forgotten_all_the_same(
    server: Server, native: Native
) -> None:
    """As after a fork: epoll goes on to tell of a descriptor that was closed here only."""
    listener = server._front._native._listener
    assert listener is not None
    [number] = listener._connections
    elsewhere = os.dup(number)
    native.close()
    eventually(lambda: not listener._connections)
    cpu_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - cpu_s < 0.4
    os.close(elsewhere)


def test_filters_that_are_new_are_taken_apart_by_threads_of_their_own(
    server: Server, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes as long as many searches, for which all connections would wait."""
    parsed_by = []

    def noted(*arguments: Any) -> Any:
        parsed_by.append(threading.current_thread().name)
        return parse_options(*arguments)

    monkeypatch.setattr("scannery.serving.snapshot.parse_options", noted)
    for number in range(3):
        where = {"show": {"$in": [f"{number}-{other}" for other in range(1000)]}}
        assert native.ask(SEARCH, search(where=where)).code is OK
    assert len(parsed_by) == 3
    assert "scannery-native" not in parsed_by


# What is counted, and shared


def test_requests_are_counted_as_those_of_grpc(server: Server, native: Native) -> None:
    family = server.metrics.request_seconds
    requests = [
        (SEARCH, search()),
        (SEARCH, search(where={"year": {"$gte": 2010}})),
        (SEARCH, search(exact=True)),
        (SEARCH, search(index="nothing")),
        (SEARCH, b"\xff"),
        (SEARCH_MANY, search_many()),
        (SEARCH_MANY, search_many(1001)),
    ]

    def series() -> Counter[str]:
        return Counter({key: int(sum(values[1:])) for key, values in family.dump().items()})

    def ended() -> bool:
        return idle(server) and sum(series().values()) >= sum(before.values()) + len(requests)

    before = series()
    for kind, body in requests:
        over_grpc(server, kind, body)
    eventually(ended)
    by_grpc = series() - before
    before = series()
    for kind, body in requests:
        native.ask(kind, body)
    eventually(ended)
    assert series() - before == by_grpc
    assert by_grpc.total() == len(requests)


def test_the_recall_is_estimated_of_both(library: Path) -> None:
    with serving(library, recall_share=1.0) as server, Native.greeted(port_of(server)) as native:
        wanted = server.metrics.recall_wanted
        for number, (kind, body) in enumerate(((SEARCH, search()), (SEARCH_MANY, search_many()))):
            assert native.ask(kind, body).code is OK
            eventually(lambda number=number: sum(wanted.dump().values()) >= 3 * (number + 1))
        assert wanted.dump().keys() == {"library"}


def test_overload_is_told_at_once_and_nobody_is_shut_out(server: Server) -> None:
    refused = server._front.admission.refused
    with (
        Native.greeted(port_of(server), [("scannery-client", "greedy")]) as greedy,
        Native.greeted(port_of(server), [("scannery-client", "modest")]) as modest,
    ):
        with held_turns(server):
            for number in range(60):
                greedy.send(framed(SEARCH_MANY, search_many(), call=number))
            answer = greedy.answer()  # while nobody works
            assert answer.code is EXHAUSTED
            assert answer.detail.retry_after_ms >= 20
            modest.send(framed(SEARCH_MANY, search_many(), call=1))
            modest.send(framed(SEARCH_MANY, search_many(), call=2))
            eventually(lambda: server._front.admission._clients.get("modest", 0) == 2)
        assert [modest.answer().code for _ in range(2)] == [OK, OK]
        codes = Counter(greedy.answer().code for _ in range(59))
        assert codes.keys() == {OK, EXHAUSTED}
        # It is no reason to hang up.
        assert greedy.ask(SEARCH, search()).code is OK
        assert server._front.admission.refused == refused + 1 + codes[EXHAUSTED]


def test_admission_sees_all_who_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits in the kernel is not seen, and then nobody is refused, however late they are answered."""
    listener = server._front._native._listener
    assert listener is not None
    answer, together, all_wait = listener._answer, [], threading.Event()

    def answer_later(asked: Sequence[Any]) -> None:
        together.append(len(asked))
        all_wait.wait(60)
        answer(asked)

    natives = [Native.greeted(port_of(server)) for _ in range(150)]
    monkeypatch.setattr(listener, "_answer", answer_later)
    for native in natives:
        native.send(framed(SEARCH, search()))
    all_wait.set()
    codes = Counter(native.answer().code for native in natives)
    assert sum(together[:2]) == len(natives)
    assert codes.keys() == {OK, EXHAUSTED}
    for native in natives:
        native.close()


def test_all_who_wait_are_heard_in_equal_parts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = server._front._native._listener
    assert listener is not None
    answer, turns, all_wait = listener._answer, [], threading.Event()

    def answer_later(asked: Sequence[Any]) -> None:
        turns.append(Counter(connection for connection, _ in asked))
        all_wait.wait(60)
        answer(asked)

    monkeypatch.setattr(native_listener, "FRAMES_AT_ONCE", 12)
    natives = [Native.greeted(port_of(server)) for _ in range(4)]
    monkeypatch.setattr(listener, "_answer", answer_later)
    natives[0].send(framed(SEARCH, b""))
    eventually(lambda: turns)
    for native in natives:
        native.send(framed(SEARCH, b"") * 50)
    all_wait.set()
    for native in natives:
        assert Counter(native.answer().status for _ in range(50)).total() == 50
    assert natives[0].answer().call == 1
    assert [*turns[1].values()] == [3, 3, 3, 3]
    assert all(turn.total() <= 12 for turn in turns)
    for native in natives:
        native.close()


def test_whatever_goes_wrong_the_thread_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for owner, name in ((server._sampler, "offer"), (server._front._entry, "principal")):
        with Native.greeted(port_of(server)) as native, monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_: 1 / 0)
            native.send(framed(SEARCH, search()))
            with pytest.raises(ConnectionError):
                while True:
                    native.answer()
    with Native.greeted(port_of(server)) as native:
        monkeypatch.setattr(server._front._native._answers._service, "ready", lambda *_: 1 / 0)
        answer = native.ask(SEARCH, search())
        assert answer.code is grpc.StatusCode.INTERNAL
        assert "division" not in answer.detail.message
        monkeypatch.undo()
        assert native.ask(SEARCH, search()).code is OK
    assert caplog.text.count("ZeroDivisionError") >= 2


# Where it listens


def test_where_it_is_spoken(library: Path) -> None:
    with serving(library, native="off") as server:
        assert port_of(server) == 0
        with pytest.raises(grpc.RpcError) as caught:
            endpoint_of(server.address)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    with serving(library, native="127.0.0.1:0") as server:
        endpoint = endpoint_of(server.address)
        assert endpoint.server == ""  # whoever answers at a port that was chosen for it is the right one
        with Native(endpoint.port) as native:
            assert native.welcome().server == ""
        with (
            pytest.raises(BindError, match=rf"native: cannot listen on 127\.0\.0\.1:{endpoint.port}") as bind,
            serving(library, native=f"127.0.0.1:{endpoint.port}"),
        ):
            pass
        assert bind.value.field == "native"


def test_by_itself_it_is_for_this_machine_only() -> None:
    config = ServerConfig(store="x", listen="127.0.0.1:0")
    assert config.native_address == "127.0.0.1:0"
    assert replace(config, listen="[::1]:7").native_address == "[::1]:0"
    assert replace(config, native_port=9).native_address == "127.0.0.1:9"
    assert replace(config, listen="0.0.0.0:7", insecure=True).native_address == ""
    assert replace(config, native="off").native_address == ""
    assert EncoderConfig(models=("x",)).native_address == ""
    for native in ("nowhere", "127.0.0.1", "127.0.0.1:70000"):
        with pytest.raises(ConfigError, match="native: must be"):
            replace(config, native=native)
    with pytest.raises(ConfigError, match="native: 0.0.0.0:7079 can be reached from other machines"):
        replace(config, native="0.0.0.0:7079")


def test_stopping_answers_what_has_arrived_and_hangs_up(library: Path) -> None:
    with serving(library, threads=2) as server:
        port = port_of(server)
        with Native.greeted(port) as waiting, Native.greeted(port) as idle_one, Native(port) as stranger:
            with held_turns(server, 2):
                waiting.send(framed(SEARCH_MANY, search_many(), call=5))
                eventually(lambda: server._front.admission.in_flight == 1)
                stopping = threading.Thread(target=server.stop, args=(30,))
                stopping.start()
                assert idle_one.is_closed()
                assert stranger.is_closed()
                with pytest.raises(OSError):
                    Native(port)
            assert waiting.answer().call == 5
            assert waiting.is_closed()
            stopping.join()


def test_a_drain_has_an_end(library: Path) -> None:
    with (
        serving(library, threads=2) as server,
        Native.greeted(port_of(server)) as waiting,
        held_turns(server, 2),
    ):
        waiting.send(framed(SEARCH_MANY, search_many()))
        eventually(lambda: server._front.admission.in_flight == 1)
        started_s = time.monotonic()
        server.stop(0.2)
        assert time.monotonic() - started_s < 20
        assert waiting.is_closed()
