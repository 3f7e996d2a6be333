"""Strangers who open many connections and say nothing, or next to nothing, at each port: callers do not notice."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.serving import EncoderConfig, SecurityConfig, Server
from scannery.serving.process.encoder_server import EncoderServer
from scannery.serving.process.os_calls import allow_open_files
from scannery.serving.security import KeyFile
from scannery.v1 import embedding_pb2, embedding_pb2_grpc
from tests import http2
from tests.http1 import SEARCH, Http
from tests.served import DIMENSIONS, MINILM, serving

pytestmark = pytest.mark.system

VECTOR = np.ones(DIMENSIONS, np.float32)
CONNECTIONS = 200
WITHIN_S = 10.0
"""On a machine that is busy with other tests; without strangers it takes milliseconds."""

GRPC_CALL = http2.PREFACE + http2.frame(4, 0, 0, b"") + http2.call("/scannery.v1.SearchService/Search", 1)

HTTP_CALL = (
    b"POST /scannery.v1.SearchService/Search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/proto\r\n"
    b"content-length: 100\r\n\r\n"
)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[SecurityConfig, str]:
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    _, text = file.create("a")
    return SecurityConfig(keys_file=str(file.path)), text


@pytest.fixture(scope="module")
def server(library: Path, key: tuple[SecurityConfig, str]) -> Iterator[Server]:
    allow_open_files()
    with serving(library, security=key[0]) as server:
        yield server


@pytest.fixture(scope="module")
def encoders(key: tuple[SecurityConfig, str]) -> Iterator[EncoderServer]:
    config = EncoderConfig(models=(MINILM,), listen="127.0.0.1:0", device="cpu", security=key[0])
    with EncoderServer(config) as server:
        yield server


class Flood:
    """Connections to one port, and a thread that adds a byte to each now and then."""

    def __init__(self, address: str, said: bytes, dripped: bytes) -> None:
        host, port = address.rsplit(":", 1)
        self._sockets = [socket.create_connection((host, int(port)), timeout=10) for _ in range(CONNECTIONS)]
        self._dripped = dripped
        self._done = threading.Event()
        for each in self._sockets:
            each.sendall(said)
            each.setblocking(False)
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    def _drip(self) -> None:
        for number in range(len(self._dripped)):
            for each in self._sockets:
                try:
                    each.send(self._dripped[number : number + 1])
                except OSError:
                    continue  # it was closed, as it should be
            if self._done.wait(0.05):
                return

    def __enter__(self) -> Flood:
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        for each in self._sockets:
            each.close()


def ask_grpc(server: Server, encoders: EncoderServer, key: str) -> None:
    with scannery.connect(server.address, api_key=key, retries=False, http=False) as client:
        assert len(client.index("library").search(VECTOR, 3, timeout_s=WITHIN_S)) == 3


def ask_http(server: Server, encoders: EncoderServer, key: str) -> None:
    with Http(server.http_port) as http:
        answer = http.post(SEARCH, b"", [("authorization", f"Bearer {key}")])
        assert answer.code == "invalid_argument"


def ask_encoder(server: Server, encoders: EncoderServer, key: str) -> None:
    with grpc.insecure_channel(encoders.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        request = embedding_pb2.EmbedRequest(texts=["a"])
        metadata = (("authorization", f"Bearer {key}"),)
        assert stub.Embed(request, timeout=WITHIN_S, metadata=metadata).vectors.dimensions == 384


@pytest.mark.parametrize(
    ("port", "said", "dripped"),
    [
        ("grpc", b"", b""),
        ("grpc", http2.PREFACE + http2.frame(4, 0, 0, b""), b""),
        ("grpc", b"", http2.PREFACE),
        ("grpc", GRPC_CALL[:-20], GRPC_CALL[-20:]),
        ("grpc", GRPC_CALL, http2.frame(0, 0, 1, bytes(100))),
        ("encoder", b"", b""),
        ("encoder", GRPC_CALL, http2.frame(0, 0, 1, bytes(100))),
        ("http", b"", b""),
        ("http", b"", HTTP_CALL),
        ("http", HTTP_CALL, b"x"),
    ],
)
def test_strangers_do_not_keep_callers_waiting(
    server: Server,
    encoders: EncoderServer,
    key: tuple[SecurityConfig, str],
    port: str,
    said: bytes,
    dripped: bytes,
) -> None:
    address, ask = {
        "grpc": (server.address, ask_grpc),
        "encoder": (encoders.address, ask_encoder),
        "http": (f"127.0.0.1:{server.http_port}", ask_http),
    }[port]
    asked: Callable[[Server, EncoderServer, str], None] = ask
    asked(server, encoders, key[1])
    threads = threading.active_count()
    with Flood(address, said, dripped):
        for _ in range(3):
            started_s = time.monotonic()
            asked(server, encoders, key[1])
            assert time.monotonic() - started_s < WITHIN_S
        # None of them has a thread of its own.
        assert threading.active_count() < threads + CONNECTIONS // 4
