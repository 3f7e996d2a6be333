"""Searches by text over HTTP: those that wait are encoded together, and each gets the answer of its own text."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.client.request import calls
from scannery.embed import Encoder, InvalidTextError
from scannery.indexer import Store, parse_spec
from scannery.runtime.retry import Deadline
from scannery.serving import Server
from scannery.v1.search_pb2 import SearchResponse
from tests.data import datapoints
from tests.http1 import SEARCH, Http, eventually, head
from tests.served import MINILM, publish_version, serving

TEXTS = {
    "volcanoes": "Molten rock rises until the volcano erupts.",
    "bread": "Knead the dough, let it rise overnight, and bake it.",
    "chess": "The queen takes the bishop, and the king has to move.",
    "sleep": "People who work at night sleep badly during the day.",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    encoder = Encoder.load(MINILM, device="cpu")
    source = {"id": "id", "text": "text", "vector": "vector"}
    made = parse_spec({"index": "texts", "source": source, "encoder": {"model": MINILM}})
    columns = {"document_id": list(TEXTS), "text": list(TEXTS.values())}
    table = datapoints(made, encoder.encode_documents(list(TEXTS.values())), ids=list(TEXTS), columns=columns)
    stored = Store.open(folder / "store", create=True)
    publish_version(stored, made, table, folder, encoder=encoder.fingerprint.to_dict())
    return folder / "store"


class Gate:
    """Notes the batches of an encoder, of which one is made at a time, and holds them back until it is opened."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.encoder = server._catalog.snapshot("texts").encoder()
        self.batches: list[list[str]] = []
        self.open = threading.Event()
        self._encode = self.encoder._queries
        monkeypatch.setattr(self.encoder, "at_once", 1)
        monkeypatch.setattr(self.encoder, "_queries", self._held)

    def _held(self, texts: Sequence[str], deadline: Deadline) -> Sequence[np.ndarray] | np.ndarray:
        self.batches.append(list(texts))
        assert self.open.wait(60)
        if "unreadable" in texts:
            raise InvalidTextError("is unreadable", index=0)
        return self._encode(texts, deadline)


def queued(server: Server) -> list[Any]:
    """Return the exchanges whose texts wait to be encoded."""
    handler: Any = server._http._handler
    return [exchange for exchange, _ in handler._texts._waiting]


def has_queued(server: Server, count: int) -> bool:
    return len(queued(server)) == count


def sent(server: Server, text: str, *headers: tuple[str, str]) -> Http:
    """Send a search and return its connection."""
    http = Http(server.http_port)
    body = calls.search("texts", text, 1, mode="dense").request.SerializeToString()
    start = [("content-type", "application/proto"), ("content-length", str(len(body))), *headers]
    http.send(head("POST", SEARCH, start) + body)
    return http


def best(http: Http) -> str:
    """Return the id of the first hit of an answer."""
    response = http.response()
    assert response.code == "ok"
    return SearchResponse.FromString(response.body).hits[0].datapoint.id


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:
    with serving(store, device="cpu") as server:
        with closing(sent(server, "the first text, which loads the encoder")) as http:
            best(http)
        # Until a search is known to be quick: the event loop passes on what was slow at first, on a busy machine.
        for _ in range(20):
            with closing(sent(server, "lava in a mountain")) as http:
                best(http)
        yield server


@pytest.mark.system
def test_texts_that_wait_are_encoded_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(server, monkeypatch)
    asked = {
        "eruptions": "volcanoes",
        "baking": "bread",
        "a game with a queen": "chess",
        "night shifts": "sleep",
    }
    with ExitStack() as stack:
        found = [stack.enter_context(closing(sent(server, "lava")))]
        eventually(lambda: gate.batches)
        for count, text in enumerate(asked, 1):
            found.append(stack.enter_context(closing(sent(server, text))))
            eventually(partial(has_queued, server, count))
        gate.open.set()
        assert [best(http) for http in found] == ["volcanoes", *asked.values()]
    assert gate.batches == [["lava"], list(asked)]
    eventually(lambda: server.admission.in_flight == 0)


def test_an_error_is_of_its_own_text(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(server, monkeypatch)
    with ExitStack() as stack:
        first = stack.enter_context(closing(sent(server, "hot magma")))
        eventually(lambda: gate.batches)
        bad = stack.enter_context(closing(sent(server, "unreadable")))
        good = stack.enter_context(closing(sent(server, "a loaf of bread")))
        eventually(lambda: len(queued(server)) == 2)
        gate.open.set()
        assert [best(http) for http in (first, good)] == ["volcanoes", "bread"]
        response = bad.response()
        assert (response.code, response.detail.field) == ("invalid_argument", "query")
    eventually(lambda: server.admission.in_flight == 0)


def test_texts_that_no_caller_waits_for_are_not_encoded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(server, monkeypatch)
    with ExitStack() as stack:
        first = stack.enter_context(closing(sent(server, "a volcano in Iceland")))
        eventually(lambda: gate.batches)
        late = stack.enter_context(closing(sent(server, "dough", ("connect-timeout-ms", "1"))))
        gone = sent(server, "checkmate")
        last = stack.enter_context(closing(sent(server, "tired workers")))
        eventually(lambda: len(queued(server)) == 3)
        gone.close()
        eventually(lambda: not all(exchange.is_wanted() for exchange in queued(server)))
        gate.open.set()
        assert [best(http) for http in (first, last)] == ["volcanoes", "sleep"]
        assert late.response().code == "deadline_exceeded"
    assert gate.batches == [["a volcano in Iceland"], ["tired workers"]]
    eventually(lambda: server.admission.in_flight == 0)
