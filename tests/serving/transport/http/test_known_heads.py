"""Requests whose heads repeat an earlier one of their connection, but for the length of the body."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.client.request import calls
from scannery.serving import SecurityConfig, Server
from scannery.serving.request.search_template import SearchTemplate, template_of
from scannery.serving.security import KeyFile
from scannery.serving.services.search import Service
from scannery.serving.snapshot import search_times
from scannery.serving.transport import lifecycle
from scannery.serving.transport.http import handler
from scannery.serving.transport.http.connection import MAX_KNOWN, Connection
from scannery.serving.transport.http.head import NO_HEAD, Head
from scannery.serving.transport.http.parser import KnownHead
from scannery.v1.search_pb2 import MODE_DENSE, MODE_HYBRID, GetRequest, Query, SearchRequest, SearchResponse
from scannery.v1.types_pb2 import SparseVector, Vector
from tests.http1 import SEARCH, Http, head
from tests.served import DIMENSIONS, connected, serving

GET = "/scannery.v1.SearchService/Get"
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
    """Whether each request with a known head was taken without being parsed."""
    taken: list[bool] = []
    plain = Connection._take

    def noted(self: Connection, *arguments: Any) -> bool:
        taken.append(plain(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(Connection, "_take", noted)
    return taken


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
    assert repeated == [True] * 10


def test_bodies_of_any_kind_and_method_are_taken(server: Server, repeated: list[bool]) -> None:
    with Http(server.http_port) as http:
        answers(http, [body(0), body(1)])
        short = SearchRequest.FromString(body(2))
        short.query.vector.packed = short.query.vector.packed[:-4]
        nan = SearchRequest.FromString(body(2))
        nan.query.vector.packed = np.full(DIMENSIONS, np.nan, np.float32).tobytes()
        for bad in (short.SerializeToString(), nan.SerializeToString(), b"no message"):
            assert http.post(SEARCH, bad).status == 400
        fewer, one = answers(http, [body(3, k=1), body(4)])
        assert (len(fewer.hits), len(one.hits)) == (1, 3)
        assert repeated == [True] * 6
        missing = GetRequest(index="library", ids=["none"]).SerializeToString()
        assert [http.post(GET, missing).status for _ in range(2)] == [200, 200]
        assert repeated == [True] * 7, "the first of another method is parsed"


def test_a_search_that_a_thread_answers_is_prepared_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, threads = [], []
    plain, answer = Service.prepare, Service.answer
    methods = server._lifecycle.methods
    assert isinstance(methods, Service)

    def noted(self: Service, *arguments: Any) -> Any:
        prepared.append(plain(self, *arguments))
        return prepared[-1]

    def answered(self: Service, *arguments: Any) -> bytes:
        threads.append((arguments[0], threading.current_thread().name))
        return answer(self, *arguments)

    monkeypatch.setattr(Service, "prepare", noted)
    monkeypatch.setattr(Service, "answer", answered)
    monkeypatch.setattr(search_times, "QUICK_S", 1000.0)  # other tests run beside this one
    with Http(server.http_port) as http:
        [found] = answers(http, [body(0, where={"id": {"$substring": "d"}})])
        # The recall of searches is sampled in another thread, which prepares them for itself.
        [thread] = [name for query, name in threads if query is prepared[0]]
        assert "http" not in thread
        # The first of a form is measured there; the next ones differ in their values only.
        wheres = [{"year": {"$gte": year}, "rating": {"$lt": 9.5}} for year in range(3)]
        after = [len(answers(http, [body(1, where=where)])[0].hits) for where in wheres]
    own = [name for query, name in threads if any(query is each for each in prepared[1:])]
    assert (len(found.hits), after, len(own)) == (3, [3, 3, 3], 1)


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
    assert found.before + packed + found.after == body()
    other = found.vector_of(body(1))
    assert other is not None
    assert other.tolist() == [QUERIES_QD[1].tolist()]
    assert found.vector_of(body(1, k=4)) is None
    assert found.vector_of(b"x" + body(1)[1:]) is None
    unknown_field = bytes([15 << 3 | 2, len(packed)]) + packed
    assert template_of(request, unknown_field + body()) is None
    assert template_of(SearchRequest(index="library"), b"") is None
    large = body(where={"year": {"$in": list(range(1000, 3000))}})
    assert template_of(SearchRequest.FromString(large), large) is None, "a connection keeps little"
    for rest in (Query(words="naïve"), Query(sparse_vector=SparseVector(indices=[1], values=[1]))):
        more = SearchRequest.FromString(body())
        more.query.MergeFrom(rest)
        assert template_of(more, more.SerializeToString()) is None, "a vector is not all of the query"
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


@pytest.mark.system
def test_queries_with_more_than_a_vector_keep_it(tmp_path: Path) -> None:
    more = [Query(), Query(words="red"), Query(sparse_vector=SparseVector(indices=[1, 2], values=[1, 2]))]
    with connected(tmp_path / "store", "embedded") as client:
        index = client.create_index("beside", dimensions=2, lexical=True, sparse=True)
        words = ["red", "red red green", "green", "blue red"]
        index.upsert(
            {"id": str(n), "vector": [1, n], "text": text, "sparse_vector": {n: 1.0}}
            for n, text in enumerate(words)
        )
    with serving(tmp_path / "store", device="cpu") as running:
        for rest in more:
            bodies = []
            for vector in np.array([[1, 0], [1, 3], [2, 1]], np.float32):
                query = Query(vector=Vector(packed=vector.tobytes()))
                query.MergeFrom(rest)
                bodies.append(SearchRequest(index="beside", query=query).SerializeToString())
            parsed = []
            for each in bodies:
                with Http(running.http_port) as http:
                    parsed += answers(http, [each])
            with Http(running.http_port) as http:
                assert answers(http, bodies) == parsed
            assert {found.mode for found in parsed} == {MODE_DENSE if rest == Query() else MODE_HYBRID}


def test_searches_that_differ_in_their_vector_are_not_decoded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    plain = lifecycle.decoded

    def noted(kind: Any, data: bytes) -> Any:
        decoded.append(len(data))
        return plain(kind, data)

    monkeypatch.setattr(handler, "decoded", noted)
    with Http(server.http_port) as http:
        kinds: list[dict[str, Any]] = [{"fields": ["title"] * number} for number in range(1, 7)]
        expected = [answers(http, [body(1, **kind)])[0] for kind in kinds]
        assert len(decoded) == 6
        assert answers(http, [body(1, **kinds[-1]), body(1, **kinds[-2])]) == [expected[-1], expected[-2]]
        assert len(decoded) == 6
        assert len(next(iter(server._http._server._connections.values())).templates) <= MAX_KNOWN  # type: ignore[union-attr]
        # One that may be invalid is decoded, which finds what is wrong with it.
        nan = SearchRequest.FromString(body(2, **kinds[-1]))
        nan.query.vector.packed = np.full(DIMENSIONS, np.nan, np.float32).tobytes()
        assert http.post(SEARCH, nan.SerializeToString()).status == 400
        assert len(decoded) == 7


def test_a_filter_displaces_no_template_before_it_is_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates: list[SearchTemplate | None] = []

    def noted(*arguments: Any) -> SearchTemplate | None:
        templates.append(template_of(*arguments))
        return templates[-1]

    monkeypatch.setattr(handler, "template_of", noted)
    with Http(server.http_port) as http:
        for year in range(2011, 2016):
            answers(http, [body(0, where={"year": {"$lt": year}, "live": True})])
        assert not templates
        expected = answers(http, [body(1, where={"year": {"$lt": 2015}, "live": True})])
        assert len(templates) == 1
        assert answers(http, [body(1, where={"year": {"$lt": 2015}, "live": True})]) == expected
        assert len(templates) == 1, "it is known now"


POST = replace(NO_HEAD, method="POST")


def test_a_known_head_is_that_of_one_whole_request() -> None:
    data = sent(body())
    known = KnownHead.of(POST, data, body(), 4096)
    assert known is not None
    start = len(data) - len(body())
    longer = sent(body(1, fields=["title"]))
    for own, text in ((data, body()), (sent(body(1)), body(1)), (longer, body(1, fields=["title"]))):
        assert own[known.body_of(own) :] == text
    zero = data.replace(b"content-length: ", b"content-length: 0")
    assert known.body_of(zero) == start + 1, "a length with a zero in front of it is still that of the body"
    least = KnownHead.of(POST, data, body(), len(body()) - 1)
    assert least is not None
    assert least.body_of(data) == 0, "a long body is parsed, and perhaps refused"
    wrong = [data[:-1], data + b"x", data + data, b"x" + data[1:], data[:start], b"", data[: start - 2]]
    wrong += [
        data.replace(b"content-length: ", b"content-length: " + sign) for sign in (b"+", b"-", b"x", b" ")
    ]
    wrong += [data.replace(b"content-length: ", b"content-length: " + b"0" * 20)]
    wrong += [data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(start)]
    assert [known.body_of(each) for each in wrong] == [0] * len(wrong)


@pytest.mark.parametrize(
    ("before", "changed"),
    [
        ((b"", b""), NO_HEAD),
        ((b"", b""), replace(POST, expects_continue=True)),
        ((b"content-type", b"upgrade: h2c\r\ncontent-type"), POST),
        ((b"content-type", b"Content-Length: 1\r\ncontent-type"), POST),
        ((b"content-length: ", b"content-length: 1"), POST),
        ((b"content-length", b"x"), POST),
        ((b"content-type", b"x: " + b"y" * 9000 + b"\r\ncontent-type"), POST),
        ((b"POST", b"GET / HTTP/1.1\r\n\r\nPOST"), POST),
    ],
)
def test_other_heads_are_not_known(before: tuple[bytes, bytes], changed: Head) -> None:
    data = sent(body()).replace(*before, 1) if before[0] else sent(body())
    assert KnownHead.of(changed, data, body(), 4096) is None
    for other in (data + data, data[1:] + b"x", b""):
        assert KnownHead.of(POST, other, body(), 4096) is None


def test_an_idle_connection_keeps_nothing_that_it_read(server: Server) -> None:
    long = head("POST", "/unknown", [("content-length", "60000"), ("content-type", "application/proto")])
    with Http(server.http_port) as http:
        http.send(long + b"x" * 60_000)
        assert http.response().status != 200
        listening = server._http._server
        assert listening is not None
        assert [len(each._read) for each in listening._connections.values()] == [0]
