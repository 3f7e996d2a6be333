"""What reaches an open port: noise, lies about lengths, silence. Others must not notice, and memory stays bounded."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.client.request import calls
from scannery.serving import Server
from scannery.serving.process.os_calls import allow_open_files
from scannery.serving.transport.grpc import grpc_server
from scannery.v1 import search_pb2, search_pb2_grpc
from tests import http2
from tests.served import DIMENSIONS, PAUSE_S, ROWS, serving

pytestmark = pytest.mark.system

VECTOR = np.ones(DIMENSIONS, np.float32)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_GROWTH_MIB = 200


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    allow_open_files()
    with serving(library, body_timeout_s=1.0, max_request_bytes=1 << 20) as server:
        yield server


@pytest.fixture(autouse=True)
def _well_behaved_callers_notice_nothing(server: Server) -> Iterator[None]:
    """Ask all the time, beside each test, and look at the memory."""
    before = _resident_mib()
    failures: list[Exception] = []
    slowest, done, answered = [0.0], threading.Event(), [0]

    def ask() -> None:
        with scannery.connect(server.address, retries=False) as client:
            while not done.wait(PAUSE_S):
                started_s = time.monotonic()
                try:
                    assert len(client.index("library").search(VECTOR, 3, timeout_s=30)) == 3
                    answered[0] += 1
                except Exception as error:  # noqa: BLE001  every one is a finding
                    failures.append(error)
                slowest[0] = max(slowest[0], time.monotonic() - started_s)

    thread = threading.Thread(target=ask)
    thread.start()
    until = time.monotonic() + 60
    while not (answered[0] or failures):
        assert time.monotonic() < until
        time.sleep(0.01)
    yield
    done.set()
    thread.join(60)
    assert failures == []
    assert answered[0] > 0
    assert slowest[0] < 30
    assert _resident_mib() - before < MAX_GROWTH_MIB


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def connected(server: Server) -> socket.socket:
    host, port = server.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def frame(kind: int, flags: int, stream: int, payload: bytes, *, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def sent(connection: socket.socket, data: bytes) -> None:
    """Send, and hear the answer out; a connection that the server closes is an answer."""
    try:
        connection.sendall(data)
        connection.settimeout(0.2)
        while connection.recv(65536):
            pass
    except OSError:
        pass


def test_noise(server: Server) -> None:
    rng = random.Random(1)
    for _ in range(30):
        with connected(server) as connection:
            sent(connection, rng.randbytes(rng.randrange(1, 4096)))
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", PREFACE[:10]):
        with connected(server) as connection:
            sent(connection, text)


def test_frames_that_lie(server: Server) -> None:
    rng = random.Random(2)
    settings = frame(4, 0, 0, b"")
    for _ in range(30):
        kind, flags, stream = rng.randrange(12), rng.randrange(256), rng.randrange(8)
        lie = frame(kind, flags, stream, rng.randbytes(rng.randrange(64)), length=rng.randrange(1 << 24))
        with connected(server) as connection:
            sent(connection, PREFACE + settings + lie)
    # A flood of settings, pings, and resets of streams that never were.
    for kind, payload in ((4, bytes(6)), (6, bytes(8)), (3, bytes(4))):
        with connected(server) as connection:
            sent(connection, PREFACE + settings + frame(kind, 0, kind == 3, payload) * 5000)


@pytest.mark.parametrize("method", ["Search", "SearchMany", "Get"])
def test_bodies_that_are_no_messages(server: Server, method: str) -> None:
    rng = random.Random(3)
    with grpc.insecure_channel(server.address) as channel:
        untyped: Any = channel
        call = untyped.unary_unary(f"/scannery.v1.SearchService/{method}")
        codes = set()
        for _ in range(50):
            with pytest.raises(grpc.RpcError) as caught:
                call(rng.randbytes(rng.randrange(1, 400)), timeout=60)
            codes.add(caught.value.code())
        allowed = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED}
        assert codes <= allowed
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(2 << 20), timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_bodies_that_never_come_free_their_threads(server: Server) -> None:
    """More of them than the server would ever work on at once."""
    with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        untyped: Any = channel
        gone = threading.Event()

        def nothing() -> Iterator[bytes]:
            gone.wait(60)
            yield from ()

        calls = [
            untyped.stream_unary("/scannery.v1.SearchService/Search").future(nothing(), timeout=60)
            for _ in range(10)
        ]
        codes = {call.exception(timeout=60).code() for call in calls}
        gone.set()
    assert codes <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    _only_well_behaved_callers_are_left(server)


def test_hundreds_of_connections_that_say_nothing(server: Server) -> None:
    connections = [connected(server) for _ in range(300)]
    for number, connection in enumerate(connections):
        if number % 2:
            connection.sendall(PREFACE + frame(4, 0, 0, b""))
    time.sleep(0.5)
    for connection in connections[::3]:
        # Gone without a word, as with a pulled plug.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for connection in connections:
        connection.close()


def test_callers_that_hang_up(server: Server) -> None:
    for _ in range(40):
        channel = grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)])
        untyped: Any = channel
        call = untyped.unary_unary("/scannery.v1.SearchService/Search").future(b"\x0a\x07library", timeout=60)
        channel.close()
        assert call.done()
    _only_well_behaved_callers_are_left(server)


def _only_well_behaved_callers_are_left(server: Server) -> None:
    until = time.monotonic() + 60
    while server.admission.in_flight > 2:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_stream_whose_answers_are_not_read_keeps_few_of_them(server: Server) -> None:
    """The windows of the connection hold some; the server holds no more than it may."""
    vectors = np.resize(VECTOR, (20, DIMENSIONS))
    large = search_pb2.SearchStreamRequest(search_many=calls.search_many("library", vectors, ROWS).request)
    answer_bytes = 2_000_000
    read, done = [0], threading.Event()

    def requests() -> Iterator[search_pb2.SearchStreamRequest]:
        for _ in range(150):
            read[0] += 1
            yield large
        done.wait(60)

    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.address, options) as channel:
        stub: Any = search_pb2_grpc.SearchServiceStub(channel)
        stream = stub.SearchStream(requests(), timeout=60)
        first = next(stream)
        assert not first.HasField("error")
        assert first.ByteSize() > answer_bytes
        made, before = _streamed(server), 0
        while made > before:
            time.sleep(2)
            made, before = _streamed(server), made
        stream.cancel()
        done.set()
    # One of each thread, and those in the windows of the connection; without a bound it would be all 150.
    assert made <= server.config.threads + 20
    _only_well_behaved_callers_are_left(server)


def _streamed(server: Server) -> int:
    """Return how many requests of streams were answered."""
    counted = server.metrics.request_seconds.dump()
    return sum(int(sum(series[1:])) for labels, series in counted.items() if "SearchStream" in labels)


def test_connections_are_bounded(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there go on, and when the others have gone, there is room again."""
    monkeypatch.setattr(grpc_server, "MAX_CONNECTIONS", 20)
    with serving(library) as other, scannery.connect(other.address) as client:
        assert len(client.index("library").search(VECTOR, 3)) == 3
        flood = [http2.dialled(other.address) for _ in range(60)]
        taken = 0
        for connection in flood:
            connection.settimeout(5)
            with suppress(OSError):
                taken += bool(connection.recv(9))
        assert 0 < taken <= 20
        assert len(client.index("library").search(VECTOR, 3)) == 3
        for connection in flood:
            connection.close()
        until_s = time.monotonic() + 20
        while True:
            try:
                with scannery.connect(other.address, retries=False) as late:
                    assert len(late.index("library").search(VECTOR, 3, timeout_s=2)) == 3
                break
            except scannery.ScanneryError:
                assert time.monotonic() < until_s


def test_long_headers_are_refused(server: Server) -> None:
    with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        untyped: Any = channel
        with pytest.raises(grpc.RpcError) as caught:
            untyped.unary_unary("/scannery.v1.SearchService/Search")(
                b"", timeout=60, metadata=(("authorization", "x" * 20_000),)
            )
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
