"""Requests that differ from an earlier one of their connection in nothing but the vector."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.client.request import calls
from scannery.serving import SecurityConfig, Server
from scannery.serving.engine import segment_search
from scannery.serving.request.search_template import template_of
from scannery.serving.security import KeyFile
from scannery.serving.transport.http.handler import Handler
from scannery.serving.transport.http.head import NO_HEAD
from scannery.serving.transport.http.repeated_request import repeated_request
from scannery.v1.search_pb2 import Query, SearchRequest, SearchResponse
from scannery.v1.types_pb2 import Vector
from tests.http1 import SEARCH, Http, head
from tests.served import DIMENSIONS, serving

QUERIES_QD = np.random.default_rng(0).normal(size=(40, DIMENSIONS)).astype(np.float32)


def body(number: int = 0, k: int = 3, **options: Any) -> bytes:
    return calls.search("library", QUERIES_QD[number], k, **options).request.SerializeToString()


def sent(data: bytes) -> bytes:
    """Return a request with this body as the bytes of a connection."""
    return (
        head("POST", SEARCH, [("content-length", str(len(data))), ("content-type", "application/proto")])
        + data
    )


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library) as running:
        yield running


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request that fits an earlier one was answered without being parsed."""
    found: list[bool] = []
    plain = Handler.repeated

    def noted(self: Handler, *arguments: Any) -> Any:
        exchange = plain(self, *arguments)
        found.append(exchange is not None)
        return exchange

    monkeypatch.setattr(Handler, "repeated", noted)
    monkeypatch.setattr(
        segment_search, "QUICK_S", 1000.0
    )  # the first search may be slow: other tests run beside these
    return found


def answers(http: Http, bodies: list[bytes]) -> list[SearchResponse]:
    return [SearchResponse.FromString(http.post(SEARCH, each).body) for each in bodies]


@pytest.mark.system
@pytest.mark.parametrize(
    "options",
    [{}, {"where": {"year": {"$gte": 0}}}, {"fields": []}, {"k": 7, "offset": 2}, {"exact": True}],
    ids=str,
)
def test_they_get_the_answers_of_parsed_requests(
    server: Server, repeated: list[bool], options: dict[str, Any]
) -> None:
    bodies = [body(number, **options) for number in range(10)]
    parsed = []
    for each in bodies:
        with Http(server.http_port) as http:
            parsed += answers(http, [each])
    assert not repeated
    with Http(server.http_port) as http:
        assert answers(http, [bodies[0], *bodies]) == [parsed[0], *parsed]
    assert any(repeated), "some of them were quick before"


def test_other_requests_between_them_are_parsed(server: Server, repeated: list[bool]) -> None:
    with Http(server.http_port) as http:
        answers(http, [body(0), body(1)])
        assert repeated == [True]
        short = SearchRequest.FromString(body(2))
        short.query.vector.packed = short.query.vector.packed[:-4]
        assert http.post(SEARCH, short.SerializeToString()).status == 400
        nan = SearchRequest.FromString(body(2))
        nan.query.vector.packed = np.full(DIMENSIONS, np.nan, np.float32).tobytes()
        assert http.post(SEARCH, nan.SerializeToString()).status == 400
        assert repeated == [True, False], "a vector that may be invalid is parsed"
        fewer, one = answers(http, [body(3, k=1), body(4)])
        assert (len(fewer.hits), len(one.hits)) == (1, 3)
        # Those of both kinds are known soon: a request whose bytes came in two parts is not remembered.
        for _ in range(20):
            answers(http, [body(5, k=1), body(6)])
            if repeated[-2:] == [True, True]:
                break
        else:
            raise AssertionError("requests of one kind are always parsed")


def test_parts_and_several_at_once(server: Server) -> None:
    expected = []
    for number in range(4):
        with Http(server.http_port) as http:
            expected += answers(http, [body(number)])
    with Http(server.http_port) as http:
        answers(http, [body(0)])
        for number in range(4):
            data = sent(body(number))
            for part in (data[:20], data[20:-7], data[-7:]):
                http.send(part)
                time.sleep(0.01)
            assert SearchResponse.FromString(http.response().body) == expected[number]
        http.send(b"".join(sent(body(number)) for number in range(4)))
        assert [SearchResponse.FromString(http.response().body) for _ in range(4)] == expected


def test_the_rest_of_a_request_is_not_remembered(server: Server, repeated: list[bool]) -> None:
    with Http(server.http_port) as http:
        for number in range(3):
            data = sent(body(number))
            http.send(data[:30])
            time.sleep(0.02)
            http.send(data[30:])
            assert http.response().status == 200
        assert not repeated
        http.send(sent(body(3))[30:])
        assert http.response().status == 400


@pytest.mark.system
def test_each_is_authenticated_and_admitted(
    library: Path, tmp_path: Path, repeated: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    key, text = keys.create("reader")
    bearer = [("authorization", f"Bearer {text}")]
    with serving(library, security=SecurityConfig(keys_file=str(keys.path))) as server:
        with Http(server.http_port) as http:
            statuses = [http.post(SEARCH, body(number), bearer).status for number in range(3)]
            assert (statuses, repeated) == ([200] * 3, [True] * 2)
            monkeypatch.setattr(server.admission, "_has_room", lambda account, client: False)
            assert http.post(SEARCH, body(3), bearer).status == 429
            monkeypatch.undo()
            assert http.post(SEARCH, body(4), bearer).status == 200
            keys.revoke(key.id)
            deadline_s = time.monotonic() + 10
            while http.post(SEARCH, body(5), bearer).status != 401:
                assert time.monotonic() < deadline_s
                time.sleep(0.1)
        assert server.admission.in_flight == 0


def test_they_are_counted(server: Server) -> None:
    def count() -> float:
        series = server.metrics.request_seconds.dump()
        return sum(sum(values[1:]) for labels, values in series.items() if "library" in labels)

    before = count()
    with Http(server.http_port) as http:
        answers(http, [body(number) for number in range(8)])
    assert count() == before + 8


def test_a_template_needs_its_vector_in_one_place() -> None:
    request = SearchRequest.FromString(body())
    packed = request.query.vector.packed
    found = template_of(request, body())
    assert found is not None
    assert body()[found.start : found.stop] == packed
    assert found.vector_of(b"xx" + body(), 2).tolist() == [QUERIES_QD[0].tolist()]
    unknown_field = bytes([15 << 3 | 2, len(packed)]) + packed
    assert template_of(request, unknown_field + body()) is None
    assert template_of(SearchRequest(index="library"), b"") is None
    # The length in front of these 16 bytes is 16.
    alike = SearchRequest(index="library", query=Query(vector=Vector(packed=b"\x10" * 16)))
    assert template_of(alike, alike.SerializeToString()) is None


def test_a_vector_of_bytes_that_equal_its_length_has_no_template(server: Server) -> None:
    size = 4 * DIMENSIONS
    same_D = np.frombuffer(bytes([size]) * size, np.float32)
    data = calls.search("library", same_D, 3).request.SerializeToString()
    assert template_of(SearchRequest.FromString(data), data) is None
    # One byte further, its bytes would be another valid vector.
    bytes_D4 = np.random.default_rng(0).integers(0, 256, (DIMENSIONS, 4), dtype=np.uint8)
    bytes_D4[:, 2], bytes_D4[:, 3] = np.resize([0x3F, 0xBF, 0x40, 0xC0], DIMENSIONS), size
    other = calls.search("library", bytes_D4.view(np.float32)[:, 0], 3).request.SerializeToString()
    with Http(server.http_port) as http:
        [expected] = answers(http, [other])
    with Http(server.http_port) as http:
        assert answers(http, [data, other])[1] == expected


def test_a_request_is_remembered_only_if_it_was_read_whole_and_alone() -> None:
    data = sent(body())
    template = template_of(SearchRequest.FromString(body()), body())
    assert template is not None
    known = repeated_request(NO_HEAD, template, data, body())
    assert known is not None
    assert known.fits(sent(body(1)))
    assert not known.fits(sent(body(1))[:-1] + b"x")
    assert not known.fits(b"x" + sent(body(1))[1:])
    assert not known.fits(sent(body(1)) + b"x")
    assert known.asked_of(sent(body(1))).tolist() == [QUERIES_QD[1].tolist()]
    long = head("POST", SEARCH, [("x", "y" * 9000)]) + body()
    assert repeated_request(NO_HEAD, template, long, body()) is None, "a connection keeps little"
    for other in (data + data, data[1:] + b"x", b"", b"GET / HTTP/1.1\r\n\r\n" + data):
        assert repeated_request(NO_HEAD, template, other, body()) is None


def test_an_idle_connection_keeps_nothing_that_it_read(server: Server) -> None:
    long = head("POST", "/unknown", [("content-length", "60000"), ("content-type", "application/proto")])
    with Http(server.http_port) as http:
        http.send(long + b"x" * 60_000)
        assert http.response().status != 200
        listening = server._http._server
        assert listening is not None
        assert [len(each._read) for each in listening._connections.values()] == [0]
