"""Who sends much is not read, and who asks for much is not written to, at the expense of others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from scannery.runtime.retry import Deadline
from scannery.serving import Server
from scannery.serving.transport.http import connect, connection
from scannery.v1 import search_pb2
from tests.http1 import SEARCH, Http, eventually, head, idle
from tests.served import serving

LARGE_BYTES = 16 << 20


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library, threads=1) as server:
        yield server


def test_a_quick_sender_is_read_once_in_each_turn_of_the_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, reads, done = [0], Counter[int](), threading.Event()
    received = connection.Connection.data_received

    def counted(self: connection.Connection, data: bytes) -> None:
        reads[turn[0]] += 1
        received(self, data)

    def next_turn() -> None:
        turn[0] += 1
        if not done.is_set():
            loop.call_soon(next_turn)

    monkeypatch.setattr(connection.Connection, "data_received", counted)
    http_server = server._http._server
    assert http_server is not None
    loop: asyncio.AbstractEventLoop = http_server._loop
    loop.call_soon_threadsafe(next_turn)
    try:
        with Http(server.http_port) as http:
            headers = [("content-type", "application/proto"), ("content-length", str(LARGE_BYTES))]
            http.send(head("POST", SEARCH, headers) + bytes(LARGE_BYTES))
            assert http.response().status == 400
    finally:
        done.set()
    # Small reads, at the beginning and where the sender was slow, may come together.
    assert sum(reads.values()) > 16
    assert max(reads.values()) <= 3
    assert idle(server)


@pytest.mark.system
def test_json_is_written_hit_by_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Recorded(json.JSONEncoder):
        def encode(self, value: object) -> str:
            text = super().encode(value)
            sizes.append(len(text))
            return text

    monkeypatch.setattr(connect, "_JSON", Recorded(ensure_ascii=False))
    hits: list[dict[str, Any]] = [{"datapoint": {"id": str(i), "text": "ü" * 100_000}} for i in range(20)]
    for kind, value in (
        (search_pb2.SearchResponse, {"hits": hits}),
        (search_pb2.SearchManyResponse, {"results": [{"hits": hits}, {"hits": []}]}),
    ):
        message = json_format.ParseDict(value, kind())
        text = connect.encoded_json(kind, message.SerializeToString(), Deadline.after(60)).decode()
        assert text == json.dumps(json.loads(text), ensure_ascii=False)
        assert json_format.Parse(text, kind()) == message
    assert max(sizes) < 101_000


def test_json_is_written_with_the_permit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take longer than the search: without one, all connections of a caller would write at once."""
    permits, write, running = server._lifecycle.permits, connect.encoded_json, list[int]()

    def counted(kind: Any, data: bytes, deadline: Deadline) -> bytes:
        running.append(permits._taken)
        return write(kind, data, deadline)

    monkeypatch.setattr(connect, "encoded_json", counted)
    with Http(server.http_port) as http:
        assert "count" in http.call("/scannery.v1.SearchService/Count", {"index": "library"}).json
    assert running == [1]
    eventually(lambda: permits._taken == 0)
