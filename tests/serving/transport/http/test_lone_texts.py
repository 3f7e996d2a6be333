"""Texts of a lone caller are encoded by the event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from scannery.client.request import calls
from scannery.embed import Encoder
from scannery.embed.devices.bert_kernels import has_flag
from scannery.embed.devices.bert_pass import bert_pass
from scannery.indexer import Store, parse_spec
from scannery.serving import Server
from scannery.serving.snapshot import search_times
from scannery.serving.transport.http.connection import ALONE_S, Connection
from scannery.serving.transport.http.text_queue import TextQueue
from scannery.v1.search_pb2 import SearchResponse
from tests.data import datapoints
from tests.http1 import SEARCH, Http, eventually, head
from tests.served import MINILM, publish_version, serving

TEXTS = {
    "volcanoes": "Molten rock rises until the volcano erupts.",
    "bread": "Knead the dough, let it rise overnight, and bake it.",
    "chess": "The queen takes the bishop, and the king has to move.",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("texts")
    encoder = Encoder.load(MINILM, device="cpu")
    source = {"id": "id", "text": "text", "vector": "vector"}
    made = parse_spec({"index": "texts", "source": source, "encoder": {"model": MINILM}})
    columns = {"document_id": list(TEXTS), "text": list(TEXTS.values())}
    table = datapoints(made, encoder.encode_documents(list(TEXTS.values())), ids=list(TEXTS), columns=columns)
    stored = Store.open(folder / "store", create=True)
    publish_version(stored, made, table, folder, encoder=encoder.fingerprint.to_dict())
    with pytest.MonkeyPatch.context() as patch, serving(folder / "store", device="cpu") as server:
        # Other tests run beside these: nothing is too slow for the event loop.
        patch.setattr(search_times, "QUICK_S", 1000.0)
        patch.setattr("scannery.serving.encoding.query_encoder.NOW_S", 1000.0)
        with Http(server.http_port) as http:
            for number in range(3):
                ask(http, f"text {number} loads the encoder and is timed")
        yield server


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were put into the queue."""
    found: list[str] = []
    put = TextQueue.put

    def noted(self: TextQueue, exchange: Any, query: Any) -> None:
        found.append(query.query.text)
        put(self, exchange, query)

    monkeypatch.setattr(TextQueue, "put", noted)
    return found


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


def body(text: str, **options: Any) -> bytes:
    return calls.search("texts", text, 1, mode="dense", **options).request.SerializeToString()


def sent(data: bytes) -> bytes:
    """Return a request with this body as the bytes of a connection, its length last."""
    return (
        head("POST", SEARCH, [("content-type", "application/proto"), ("content-length", str(len(data)))])
        + data
    )


def answer(http: Http) -> SearchResponse:
    response = http.response()
    assert response.code == "ok"
    return SearchResponse.FromString(response.body)


def ask(http: Http, text: str) -> str:
    """Return the id of the best hit."""
    http.send(sent(body(text)))
    return answer(http).hits[0].datapoint.id


def alone(http: Http) -> None:
    """Wait until the connection counts as that of a lone caller."""
    ask(http, "a first text of this connection")
    time.sleep(2 * ALONE_S)


needs_one_pass = pytest.mark.skipif(
    bert_pass(32, 64, 96) is None or has_flag("amx_bf16"),
    reason="needs a processor with AVX512-BF16 and without AMX",
)


@needs_one_pass
def test_a_lone_text_is_encoded_on_the_event_loop(server: Server, queued: list[str]) -> None:
    with Http(server.http_port) as http:
        assert ask(http, "lava at once") == "volcanoes"
        assert queued == ["lava at once"], "of a connection that is new"
        alone(http)
        queued.clear()
        assert [ask(http, text) for text in ("hot lava", "a loaf", "checkmate")] == list(TEXTS)
        assert not queued
        assert ask(http, "heiße Lava") == "volcanoes"
        assert ask(http, "a loaf " * 60) == "bread"
        assert queued == ["heiße Lava", "a loaf " * 60]
    eventually(lambda: server.admission.in_flight == 0)


@needs_one_pass
def test_a_caller_beside_another_one_is_not_alone(server: Server, queued: list[str]) -> None:
    with Http(server.http_port) as http, Http(server.http_port) as other:
        alone(http)
        assert ask(other, "another caller asks for dough") == "bread"
        assert ask(http, "a volcano beside it") == "volcanoes"
        assert queued[-2:] == ["another caller asks for dough", "a volcano beside it"]


@needs_one_pass
def test_a_slow_encoder_does_not_hold_the_event_loop(
    server: Server, queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Http(server.http_port) as http:
        alone(http)
        queued.clear()
        monkeypatch.setattr("scannery.serving.encoding.query_encoder.NOW_S", 0.0)
        assert ask(http, "an opening with the queen") == "chess"
        assert queued == ["an opening with the queen"]


@needs_one_pass
def test_lone_texts_are_cached_and_counted(server: Server, queued: list[str]) -> None:
    encoder = server._catalog.snapshot("texts").encoder()
    with Http(server.http_port) as http:
        alone(http)
        before = encoder._encoder.statistics().texts  # type: ignore[attr-defined]
        assert [ask(http, "the king is in check") for _ in range(3)] == ["chess"] * 3
        assert encoder._encoder.statistics().texts == before + 1  # type: ignore[attr-defined]


@pytest.mark.system
def test_repeated_texts_get_the_answers_of_parsed_ones(server: Server, repeated: list[bool]) -> None:
    texts = [
        "lava",
        "a loaf of bread",
        "größer",
        "日本",
        "x" * 123,
        "x" * 124,
        "a" * 300,
        "",
        "checkmate",
        "lava",
    ]
    parsed = []
    for text in texts:
        with Http(server.http_port) as http:
            http.send(sent(body(text)))
            parsed.append(http.response().body)
    assert not repeated
    with Http(server.http_port) as http:
        ask(http, "the first one is parsed")
        for text, expected in zip(texts, parsed, strict=True):
            http.send(sent(body(text)))
            assert http.response().body == expected
    assert any(repeated)
    eventually(lambda: server.admission.in_flight == 0)


def test_requests_that_only_look_alike(server: Server) -> None:
    with Http(server.http_port) as http:
        assert [ask(http, text) for text in ("hot lava", "hotter lava")] == ["volcanoes"] * 2
        bad = bytearray(sent(body("bad \x01 text")))
        bad[bad.index(b"\x01 text")] = 0xFF
        http.send(bytes(bad))
        assert http.response().status == 400
        http.send(sent(body("a loaf", fields=[])))
        assert not answer(http).hits[0].datapoint.text
        assert ask(http, "hottest lava") == "volcanoes"
        data = sent(body("in two parts: dough"))
        http.send(data[:40])
        time.sleep(0.02)
        http.send(data[40:])
        assert answer(http).hits[0].datapoint.id == "bread"
        http.send(sent(body("two of them: dough")) + sent(body("two of them: a queen")))
        assert [answer(http).hits[0].datapoint.id for _ in range(2)] == ["bread", "chess"]


@pytest.mark.system
def test_the_event_loop_answers_others_soon(server: Server) -> None:
    """Beside a caller of texts without a pause, another one waits for few encodings."""
    done, waits_s = threading.Event(), []

    def asking() -> None:
        with Http(server.http_port) as http:
            number = 0
            while not done.is_set():
                ask(http, f"a text that was not asked before {number}")
                number += 1

    thread = threading.Thread(target=asking)
    thread.start()
    try:
        with Http(server.http_port) as http:
            for number in range(10):
                time.sleep(2 * ALONE_S)
                started_s = time.monotonic()
                ask(http, f"now and then {number}")
                waits_s.append(time.monotonic() - started_s)
    finally:
        done.set()
        thread.join()
    assert sorted(waits_s)[5] < 0.5
