"""What no client sends: refused or closed within bounds, while another caller is answered."""

from __future__ import annotations

import gzip
import select
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.client.request import calls
from scannery.serving import Server
from scannery.serving.transport.http import connect as http_connect
from scannery.serving.transport.http import connection as http_connection
from scannery.serving.transport.http import server as http_server
from scannery.serving.transport.http.head import MAX_HEADER_BYTES, MAX_HEADERS
from scannery.serving.transport.http.parser import PIECE_BYTES
from scannery.v1.search_pb2 import SearchManyResponse
from tests.http1 import SEARCH, SEARCH_MANY, Http, eventually, head, idle
from tests.served import DIMENSIONS, ROWS, serving, without_permits

QUERIES = np.random.default_rng(0).normal(size=(160, DIMENSIONS)).astype(np.float32)
BODY = calls.search("library", QUERIES[0], 3).request.SerializeToString()
MANY = calls.search_many("library", QUERIES[:20], 3).request.SerializeToString()
LARGE = calls.search_many("library", QUERIES, ROWS).request.SerializeToString()
"""Its answer has several MiB."""
PROTO = [("content-type", "application/proto")]
MAX_REQUEST_BYTES = 1 << 20


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    options: dict[str, Any] = {"max_request_bytes": MAX_REQUEST_BYTES, "body_timeout_s": 1.0}
    with serving(library, threads=4, recall_share=0, **options) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_stays_behind(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(http_server, "CHECK_EVERY_S", 0.1)
    yield
    eventually(lambda: idle(server))
    eventually(lambda: not connections(server))


@pytest.fixture(autouse=True)
def _well_behaved_caller_is_answered(_nothing_stays_behind: None, server: Server) -> Iterator[None]:
    """Have a search answered all the time, over a connection that is kept."""
    done, slowest_s, statuses = threading.Event(), 0.0, set()

    def ask() -> None:
        nonlocal slowest_s
        with Http(server.http_port) as http:
            while not done.is_set():
                started_s = time.monotonic()
                statuses.add(http.post(SEARCH, BODY, [("scannery-client", "good")]).status)
                slowest_s = max(slowest_s, time.monotonic() - started_s)
                time.sleep(0.005)

    caller = threading.Thread(target=ask, daemon=True)
    caller.start()
    eventually(lambda: statuses)
    yield
    done.set()
    caller.join(60)
    assert statuses == {200}
    assert slowest_s < 5  # on a machine that does much else; alone, it is milliseconds


def connections(server: Server) -> dict[int, Any]:
    http = server._http._server
    assert http is not None
    return http._connections


def posted(body: bytes, *headers: tuple[str, str], path: str = SEARCH) -> bytes:
    return head("POST", path, [*PROTO, *headers]) + body


def sized(body: bytes = BODY, path: str = SEARCH) -> bytes:
    return posted(body, ("content-length", str(len(body))), path=path)


# Contradictions


LENGTH, CHUNKED = ("content-length", str(len(BODY))), ("transfer-encoding", "chunked")
SMUGGLED: dict[str, bytes] = {
    "length and chunks": posted(b"0\r\n\r\n", LENGTH, CHUNKED),
    "chunks and length": posted(b"0\r\n\r\n", CHUNKED, LENGTH),
    "two lengths": posted(BODY, LENGTH, ("content-length", "1")),
    "the same length twice": posted(BODY, LENGTH, LENGTH),
    "a list of lengths": posted(BODY, ("content-length", f"{len(BODY)}, {len(BODY)}")),
    "a signed length": posted(BODY, ("content-length", f"+{len(BODY)}")),
    "a negative length": posted(BODY, ("content-length", "-1")),
    "a length in hexadecimal": posted(BODY, ("content-length", "0x10")),
    "a length beyond 64 bits": posted(BODY, ("content-length", "9" * 30)),
    "an empty length": posted(BODY, ("content-length", "")),
    "another coding": posted(BODY, ("transfer-encoding", "gzip, chunked")),
    "a coding that is none": posted(BODY, ("transfer-encoding", "xchunked")),
    "chunked twice": posted(BODY, CHUNKED, CHUNKED),
    "chunked, and a tab": posted(b"0\r\n\r\n", ("transfer-encoding", "\x0bchunked")),
    "a space before the colon": posted(BODY, ("content-length ", str(len(BODY)))),
    "a folded header": posted(BODY, ("x", "a\r\n b"), LENGTH),
    "a line feed alone": b"POST / HTTP/1.1\nhost: localhost\ncontent-length: 0\n\n",
    "a header without a colon": b"POST / HTTP/1.1\r\nhost: localhost\r\nnothing\r\n\r\n",
    "a zero byte in a value": posted(BODY, ("x", "a\0b"), LENGTH),
    "a zero byte in a name": posted(BODY, ("x\0", "a"), LENGTH),
    "two hosts": head("POST", SEARCH, [("host", "localhost"), *PROTO, LENGTH]) + BODY,
    "no host": head("POST", SEARCH, [*PROTO, LENGTH], host=None) + BODY,
    "another version": b"POST / HTTP/3.7\r\nhost: localhost\r\n\r\n",
    "no version": b"GET /healthz\r\n\r\n",
    "a target that is no path": head("GET", "healthz"),
    "a target with a user": head("GET", "http://a@localhost/healthz"),
    "a target without a host": head("GET", "http:///healthz"),
    "a target of another scheme": head("GET", "ftp://localhost/healthz"),
    "an asterisk": head("GET", "*"),
    "chunks in HTTP/1.0": posted(b"0\r\n\r\n", CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "chunks in HTTP/1.0 that is kept": posted(b"0\r\n\r\n", CHUNKED, ("connection", "keep-alive")).replace(
        b"/1.1", b"/1.0", 1
    ),
    "a body of GET": head("GET", "/healthz", [LENGTH]) + BODY,
    "chunks of GET": head("GET", "/healthz", [CHUNKED]) + b"0\r\n\r\n",
    "a tunnel": head("CONNECT", "localhost:80"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "the native protocol": b"\x10\0\0\0\x01" + bytes(27),
    "a bad chunk size": posted(b"zz\r\nabc\r\n0\r\n\r\n", CHUNKED),
    "a negative chunk": posted(b"-1\r\nabc\r\n0\r\n\r\n", CHUNKED),
    "a chunk beyond 64 bits": posted(b"f" * 17 + b"\r\nabc", CHUNKED),
    "a chunk longer than it says": posted(b"2\r\nabc\r\n0\r\n\r\n", CHUNKED),
    "a chunk with line feeds": posted(b"3\nabc\n0\n\n", CHUNKED),
    "a space in a chunk size": posted(b"3 \r\nabc\r\n0\r\n\r\n", CHUNKED),
}


@pytest.mark.parametrize("request_bytes", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_what_can_be_read_in_two_ways_is_refused(server: Server, request_bytes: bytes) -> None:
    """Nothing that comes behind it is taken for a request."""
    with Http(server.http_port) as http:
        http.send(request_bytes + sized())
        response = http.response()
        assert response.status in (400, 404, 405), response
        assert response.code in ("invalid_argument", "unimplemented")
        if response.headers.get("connection") == "close":
            assert http.is_closed()
        else:  # it was clear where it ends
            assert http.response().status == 200


def test_only_what_is_clear_keeps_the_connection(server: Server) -> None:
    kept = []
    for name, request_bytes in SMUGGLED.items():
        with Http(server.http_port) as http:
            http.send(request_bytes)
            if http.response().headers.get("connection") != "close":
                kept.append(name)
    assert set(kept) <= {
        "two hosts", "no host", "a target that is no path", "a target with a user", "a target without a host",
        "a target of another scheme", "an asterisk", "a body of GET",
    }  # fmt: skip


def test_chunks_are_read(server: Server) -> None:
    with Http(server.http_port) as http:
        for extension in (b"", b";a=b"):
            pieces = b"".join(b"1%s\r\n%c\r\n" % (extension, byte) for byte in BODY)
            http.send(posted(pieces + b"0\r\nx: a trailer\r\n\r\n", CHUNKED))
            assert http.response().status == 200
        # A trailer says nothing of the request.
        http.send(posted(b"0\r\ncontent-type: text/plain\r\n\r\n", CHUNKED))
        assert http.response().code == "invalid_argument"
        assert http.post(SEARCH, BODY).status == 200


# Too much


@pytest.mark.parametrize(
    "request_bytes",
    [
        head("GET", "/" + "x" * MAX_HEADER_BYTES),
        head("GET", "/healthz", [("x", "y" * MAX_HEADER_BYTES)]),
        head("GET", "/healthz", [("x" * MAX_HEADER_BYTES, "y")]),
        head("GET", "/healthz", [("x", "y" * 1000)] * 20),
        head("GET", "/healthz", [("x", "y")] * (MAX_HEADERS + 1)),
        posted(b"0\r\n" + b"x: y\r\n" * 5000 + b"\r\n", CHUNKED),
    ],
)
def test_headers_have_limits(server: Server, request_bytes: bytes) -> None:
    with Http(server.http_port) as http:
        http.send(request_bytes)
        response = http.response()
        assert (response.status, response.code) == (431, "resource_exhausted")
        assert http.is_closed()


@pytest.mark.parametrize(
    "start",
    [b"GET /", b"GET /healthz HTTP/1.1\r\nx: ", b"GET /healthz HTTP/1.1\r\n", posted(b"0\r\nx: ", CHUNKED)],
)
def test_headers_that_never_end_are_cut_off(server: Server, start: bytes) -> None:
    with Http(server.http_port) as http:
        http.send(start)
        sent = 0
        with suppress(OSError):
            while sent < 100 * MAX_HEADER_BYTES:
                sent += http.socket.send(b"x" * 1000)
                if select.select([http.socket], [], [], 0.0005)[0]:
                    break
        assert sent < 10 * MAX_HEADER_BYTES
        with suppress(ConnectionError):  # or its answer got lost behind what came
            assert http.response().status == 431


def test_bodies_have_a_limit(server: Server) -> None:
    with Http(server.http_port) as http:
        http.send(posted(b"", ("content-length", str(MAX_REQUEST_BYTES + 1))))
        assert http.response().status == 413  # before any of it comes
        assert http.is_closed()
    with Http(server.http_port) as http:
        http.send(posted(b"", CHUNKED))
        with suppress(OSError):
            for _ in range(2 * MAX_REQUEST_BYTES >> 16):
                http.send(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        with suppress(ConnectionError):
            assert http.response().status == 413
    with Http(server.http_port) as http:
        whole = bytes(MAX_REQUEST_BYTES)
        assert http.post(SEARCH, whole).code == "invalid_argument"  # as long as it may be
        assert http.post(SEARCH, BODY).status == 200


def test_a_refused_body_is_not_awaited(server: Server) -> None:
    with Http(server.http_port) as http:
        http.send(head("POST", SEARCH, [("content-type", "text/plain"), ("content-length", "500000")]))
        assert http.response().status == 415
        assert http.is_closed()


@pytest.mark.system
def test_a_refused_caller_may_finish_sending(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients read an answer only when all of the body is sent."""
    monkeypatch.setattr(http_connection, "LINGER_S", 0.3)
    with Http(server.http_port) as http:
        http.send(posted(b"", ("content-length", str(MAX_REQUEST_BYTES + 1))))
        for _ in range(8):  # for longer than a caller that is silent may take, and less long than a body may
            time.sleep(0.1)
            http.send(b"x" * 1000)
        assert http.response().status == 413
        assert http.is_closed()


def test_who_waits_to_be_told_is_told(server: Server) -> None:
    with Http(server.http_port) as http:
        expects = ("expect", "100-continue")
        http.send(posted(b"", LENGTH, expects))
        assert http._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        http.send(BODY)
        assert http.response().status == 200
        http.send(head("POST", SEARCH, [("content-type", "text/plain"), LENGTH, expects]))
        assert http.response().status == 415
        assert http.is_closed()


@pytest.mark.system
def test_decompression_stops_at_the_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zlib.compressobj(9, wbits=31)
    data = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(50)) + bomb.flush()
    assert len(data) < MAX_REQUEST_BYTES / 4
    seen: list[int] = []
    real = http_connect.decompressed

    def watched(data: bytes, max_bytes: int) -> bytes:
        seen.append(max_bytes)
        return real(data, max_bytes)

    monkeypatch.setattr(http_connect, "decompressed", watched)
    with Http(server.http_port) as http:
        for kind in ("application/proto", "application/json"):
            response = http.post(SEARCH, data, [("content-encoding", "gzip")], kind=kind)
            assert response.code == "resource_exhausted"
            assert str(MAX_REQUEST_BYTES) in response.json["message"]
        assert seen == [MAX_REQUEST_BYTES] * 2
        assert http.post(SEARCH, gzip.compress(BODY), [("content-encoding", "gzip")]).status == 200


def test_a_body_counts_in_its_decompressed_size(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    held, real = [], server._lifecycle.methods.resolved

    def resolved(request: Any) -> Any:
        held.append(server._lifecycle.bytes.held)
        return real(request)

    monkeypatch.setattr(server._lifecycle.methods, "resolved", resolved)
    data = gzip.compress(b" " * (MAX_REQUEST_BYTES // 2) + b"{}")
    with Http(server.http_port) as http:
        assert http.post(SEARCH, data, [("content-encoding", "gzip")], kind="application/json").status == 400
    assert max(held) > MAX_REQUEST_BYTES // 2


# Too slow


@pytest.mark.system
def test_requests_that_trickle_are_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_WITHIN_S", 1.0)
    endless = head("POST", SEARCH, PROTO)[:-2] + b"x: "
    whole = posted(b"", ("content-length", "1000"))
    starts = [(b"", False), (b"P", False), (endless, False), (endless, True), (whole, False), (whole, True)]
    starts += [(sized()[:-1], False), (posted(b"5\r\n", CHUNKED), False)]
    started_s = time.monotonic()
    with ExitStack() as stack:
        opened = [stack.enter_context(Http(server.http_port)) for _ in starts]
        for http, (start, trickles) in zip(opened, starts, strict=True):
            http.send(start)
            if trickles:
                threading.Thread(target=_trickled, args=(http,), daemon=True).start()
        for http, (start, _) in zip(opened, starts, strict=True):
            if start:
                response = http.response()
                assert (response.status, response.code) == (408, "deadline_exceeded")
            assert http.is_closed()
    assert 0.5 < time.monotonic() - started_s < 30


def _trickled(http: Http) -> None:
    with suppress(OSError):
        while True:
            http.send(b"x")
            time.sleep(0.1)


@pytest.mark.system
def test_a_thousand_connections_that_say_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are answered; new ones get in, too, at the cost of the oldest."""
    assert http_server.MAX_CONNECTIONS == 1024
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 300)
    with ExitStack() as stack:
        silent = [stack.enter_context(Http(server.http_port)) for _ in range(1000)]
        for http in silent[::7]:
            with suppress(OSError):
                http.send(b"GET /healthz HT")
        with Http(server.http_port) as http:
            assert http.post(SEARCH, BODY).status == 200
        assert len(connections(server)) <= 300
        assert silent[0].is_closed()


@pytest.mark.system
def test_callers_that_read_nothing_are_cut_off(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            http = stack.enter_context(Http(server.http_port, window=1 << 14))
            http.send(sized(LARGE, SEARCH_MANY) * 3)
            eventually(lambda: not idle(server))
        # Answers that are not read count as in flight, and no further ones are made.
        eventually(lambda: idle(server), 30)
        eventually(lambda: len(connections(server)) <= 1, 30)


@pytest.mark.system
def test_slow_readers_get_all(library: Path) -> None:
    # Longer than the caller is away from a busy core.
    with (
        serving(library, max_request_bytes=MAX_REQUEST_BYTES, body_timeout_s=10.0) as server,
        Http(server.http_port, window=1 << 14) as http,
    ):
        http.send(sized(LARGE, SEARCH_MANY))
        time.sleep(0.5)
        response = http.response()
        assert response.status == 200
        assert len(response.body) > 4 << 20


# Several requests at once


@pytest.mark.system
def test_pipelined_requests_are_answered_in_their_order(server: Server) -> None:
    paths = [SEARCH_MANY, SEARCH, "/nothing", SEARCH_MANY, SEARCH] * 20
    wanted = [200, 200, 501, 200, 200] * 20
    packet = b"".join(sized(MANY if path == SEARCH_MANY else BODY, path) for path in paths)
    with Http(server.http_port) as http:
        http.send(packet)
        assert [http.response().status for _ in paths] == wanted
    with Http(server.http_port) as http:
        for start in range(0, len(packet), 97):  # in pieces of any size
            http.send(packet[start : start + 97])
        assert [http.response().status for _ in paths] == wanted


@pytest.mark.system
def test_a_large_body_ends_where_its_length_says(server: Server) -> None:
    """It is parsed in one piece with no byte of the request behind it, however both arrive."""
    vectors_QD = np.random.default_rng(0).normal(size=(1000, DIMENSIONS)).astype("<f4")
    many = calls.search_many("library", vectors_QD, 2).request.SerializeToString()
    assert len(many) > 2 * PIECE_BYTES
    packet = sized(many, SEARCH_MANY) + sized() + sized(many, SEARCH_MANY)
    answers = []
    for step in (len(packet), len(many), len(many) + 300, PIECE_BYTES + 1, 5_000):
        with Http(server.http_port) as http:
            for start in range(0, len(packet), step):
                http.send(packet[start : start + step])
            found = [http.response() for _ in range(3)]
        assert [each.status for each in found] == [200, 200, 200]
        assert found[0].body == found[2].body
        answers.append(found[0].body)
    assert len(set(answers)) == 1
    assert len(SearchManyResponse.FromString(answers[0]).results) == 1000


@pytest.mark.system
def test_what_is_pipelined_is_bounded(server: Server) -> None:
    """Requests that wait for a slow one stay in the kernel, and in its sender."""
    with without_permits(server), Http(server.http_port) as http:
        http.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            for _ in range(10_000):
                http.send(sized(MANY, SEARCH_MANY))
        stuck = [each for each in connections(server).values() if each._waiting]
        assert len(stuck) == 1
        [connection] = stuck
        assert len(connection._waiting) < http_connection.MAX_WAITING + 200
        assert server.admission.in_flight <= 2


def test_behind_the_last_request_nothing_is_read(server: Server) -> None:
    with Http(server.http_port) as http:
        http.send(posted(BODY, LENGTH, ("connection", "close")) + sized())
        response = http.response()
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert http.is_closed()


def test_callers_that_hang_up_are_forgotten(server: Server) -> None:
    with without_permits(server):
        for _ in range(8):
            with Http(server.http_port) as http:
                http.send(sized(MANY, SEARCH_MANY))
                eventually(lambda: not idle(server))
    eventually(lambda: idle(server))
