"""Streams that last are shared: one caller cannot hold all of them, and none ends those of another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.serving.transport.grpc import dispatcher
from scannery.v1 import index_pb2, index_pb2_grpc, search_pb2, search_pb2_grpc
from scannery.v1.types_pb2 import Datapoint, Vector
from tests.http1 import eventually
from tests.served import DIMENSIONS, copied, serving

VECTOR = np.ones(DIMENSIONS, "<f4").tobytes()
STREAMS = 200


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def server(library: Path, tmp_path: Path, keys: KeyFile) -> Iterator[Server]:
    for name in ("reader", "writer", "a", "b", "c", "good"):
        text = keys.create(name, scopes=("write" if name == "writer" else "read",))[1]
        (tmp_path / name).write_text(text)
    security = SecurityConfig(keys_file=str(keys.path))
    with serving(copied(library, tmp_path), security=security, threads=4) as server:
        yield server


def metadata(folder: Path, name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {(folder / name).read_text()}"),)


def search() -> search_pb2.SearchStreamRequest:
    query = search_pb2.Query(vector=Vector(packed=VECTOR))
    return search_pb2.SearchStreamRequest(
        tag=1, search=search_pb2.SearchRequest(index="library", query=query)
    )


def upsert() -> index_pb2.UpsertRequest:
    point = Datapoint(id="new", vector=Vector(packed=VECTOR))
    return index_pb2.UpsertRequest(index="library", upserts=[index_pb2.Upsert(datapoint=point)])


class Requests:
    """Requests of a stream: one, silence, and as many as are asked for."""

    def __init__(self, first: Any) -> None:
        self._next = threading.Semaphore(1)
        self._first, self._ended = first, False

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._next.acquire(timeout=300)
            if self._ended:
                return
            yield self._first

    def more(self) -> None:
        self._next.release()

    def end(self) -> None:
        self._ended = True
        self._next.release()


@pytest.mark.system
def test_hundreds_of_streams_wait_and_are_answered(server: Server, tmp_path: Path) -> None:
    with ExitStack() as ends, grpc.insecure_channel(server.address) as channel:
        stubs = search_pb2_grpc.SearchServiceStub(channel), index_pb2_grpc.IndexServiceStub(channel)
        open_streams: list[tuple[Requests, Any]] = []
        for number in range(STREAMS):
            writes = number % 10 == 0
            requests = Requests(upsert() if writes else search())
            ends.callback(requests.end)
            call = stubs[1].UpsertStream if writes else stubs[0].SearchStream
            answers = call(
                iter(requests), metadata=metadata(tmp_path, "writer" if writes else "reader"), timeout=300
            )
            open_streams.append((requests, answers))
        for _, answers in open_streams:
            next(answers)
        # All of them wait; unary calls, and each of the streams, are answered as before.
        request = search().search
        for _ in range(3):
            assert len(stubs[0].Search(request, metadata=metadata(tmp_path, "reader"), timeout=30).hits) == 10
        eventually(
            lambda: server.admission.in_flight == 0
        )  # an answer may arrive before its call is counted out
        for requests, answers in open_streams[::7]:
            requests.more()
            next(answers)
        for requests, _ in open_streams:
            requests.end()
        assert not [answer for _, answers in open_streams for answer in answers]


def test_a_caller_with_all_its_streams_ends_none_of_another(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._grpc._dispatcher._streams, "total", 8)
    with ExitStack() as ends, grpc.insecure_channel(server.address) as channel:
        stub, writer = search_pb2_grpc.SearchServiceStub(channel), index_pb2_grpc.IndexServiceStub(channel)

        def opened(call: Any, first: Any, name: str) -> tuple[Requests, Any]:
            requests = Requests(first)
            ends.callback(requests.end)
            answers = call(iter(requests), metadata=metadata(tmp_path, name), timeout=60)
            next(answers)
            return requests, answers

        mine = [opened(stub.SearchStream, search(), "reader") for _ in range(4)]
        with pytest.raises(grpc.RpcError) as refused:
            opened(stub.SearchStream, search(), "reader")
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "open streams" in (refused.value.details() or "")
        theirs = [opened(writer.UpsertStream, upsert(), "writer") for _ in range(2)]
        for requests, answers in mine + theirs:
            requests.more()
            next(answers)


@pytest.mark.system
def test_callers_together_do_not_keep_all_streams_from_another(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = server._grpc._dispatcher._streams
    monkeypatch.setattr(streams, "total", 7)
    with ExitStack() as ends, grpc.insecure_channel(server.address) as channel:
        stub = search_pb2_grpc.SearchServiceStub(channel)

        def opened(name: str) -> Any:
            requests = Requests(search())
            ends.callback(requests.end)
            answers: Any = stub.SearchStream(iter(requests), metadata=metadata(tmp_path, name), timeout=60)
            next(answers)
            return answers

        # Half of what is left, each of them, and the last has what the first lost.
        greedy = {
            name: [opened(name) for _ in range(count)] for name, count in zip("abc", (3, 2, 1), strict=True)
        }
        assert (streams.held, streams.most_of("good")) == (6, 0)
        opened("good")
        eventually(lambda: sum(not answers.is_active() for answers in greedy["a"]) == 1)
        assert all(answers.is_active() for name in "bc" for answers in greedy[name])
        assert streams.held == 6


@pytest.mark.system
def test_a_stream_whose_key_is_revoked_is_told_so(server: Server, tmp_path: Path, keys: KeyFile) -> None:
    requests = Requests(search())
    with grpc.insecure_channel(server.address) as channel:
        stub = search_pb2_grpc.SearchServiceStub(channel)
        answers: Any = stub.SearchStream(iter(requests), metadata=metadata(tmp_path, "reader"), timeout=60)
        next(answers)
        started_s = time.monotonic()
        keys.revoke("reader")
        with pytest.raises(grpc.RpcError) as ended:
            next(answers)
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "no longer valid" in (ended.value.details() or "")
        assert time.monotonic() - started_s < 30
        requests.end()


@pytest.mark.system
def test_a_stream_whose_answers_are_not_read_ends(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = server._grpc._dispatcher
    config = replace(dispatcher._config, max_request_s=1.0, body_timeout_s=1.0)
    monkeypatch.setattr(dispatcher, "_config", config)
    many, open_streams = search(), dispatcher._streams
    many.search.options.k = 500
    many.search.options.return_vector = True
    with grpc.insecure_channel(server.address) as channel:
        stub = search_pb2_grpc.SearchServiceStub(channel)
        answers: Any = stub.SearchStream(
            iter([many] * 1000), metadata=metadata(tmp_path, "reader"), timeout=60
        )
        eventually(lambda: open_streams.held == 1)
        eventually(lambda: open_streams.held == 0)
        assert answers.is_active() or answers.code() is grpc.StatusCode.CANCELLED


def test_streams_are_as_many_as_the_documents_say() -> None:
    text = (Path(__file__).parents[4] / "docs" / "serving.md").read_text()
    assert f"{dispatcher.MAX_STREAMS} streams" in text
