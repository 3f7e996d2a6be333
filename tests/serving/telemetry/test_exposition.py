"""The port of the metrics, and those who would keep it busy."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from scannery.serving import BindError
from scannery.serving.telemetry.metrics import exposition as http
from scannery.serving.telemetry.metrics.exposition import MAX_CONNECTIONS, MAX_REQUEST_BYTES, MetricsServer

LONG = "metric 1\n" * 500_000


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer("127.0.0.1:0", lambda: LONG)
    yield server
    server.stop()


def scraped(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def dialled(server: MetricsServer) -> socket.socket:
    host, port = server.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10)


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_it_tells_the_metrics_and_nothing_else(server: MetricsServer) -> None:
    assert scraped(server) == LONG
    for path, method, code in (("/", "GET", 404), ("/metrics", "POST", 405), ("/metrics", "DELETE", 405)):
        request = urllib.request.Request(f"http://{server.address}{path}", method=method)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        assert caught.value.code == code
        caught.value.close()


@pytest.mark.system
def test_a_flood_of_connections_takes_no_threads_and_leaves_room(
    server: MetricsServer, caplog: pytest.LogCaptureFixture
) -> None:
    before = threading.active_count()
    silent = [dialled(server) for _ in range(4 * MAX_CONNECTIONS)]
    for connection in silent:
        connection.setblocking(False)
        with suppress(OSError):  # it made room already
            connection.send(b"GET /metrics HTTP/1.1\r\nA: ")
    started_s = time.monotonic()
    assert scraped(server) == LONG
    assert time.monotonic() - started_s < 2
    assert threading.active_count() <= before  # threads of earlier tests may end meanwhile
    assert not [record for record in caplog.records if record.name == "asyncio"]
    assert len(server._connections) <= MAX_CONNECTIONS
    for connection in silent:
        connection.close()


@pytest.mark.system
def test_bytes_that_drip_do_not_keep_a_connection(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "WITHIN_S", 0.5)
    with dialled(server) as connection, dialled(server) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        started_s = time.monotonic()
        while time.monotonic() - started_s < 30:
            try:
                connection.sendall(b"G")
            except OSError:
                break
            time.sleep(0.05)
        assert time.monotonic() - started_s < 15
        time.sleep(0.6)
        assert not server._connections


@pytest.mark.system
def test_a_request_without_end_is_not_kept(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WITHIN_S", 0.5)
    with dialled(server) as connection:
        connection.sendall(b"x" * (MAX_REQUEST_BYTES + 1))
        assert is_closed(connection)
    assert scraped(server) == LONG


@pytest.mark.system
def test_an_error_ends_no_thread() -> None:
    answers = iter([LONG])
    server = MetricsServer("[::1]:0", lambda: next(answers))
    try:
        assert scraped(server) == LONG
        with pytest.raises(urllib.error.HTTPError, match="500"):
            scraped(server)
        with pytest.raises(urllib.error.HTTPError, match="500"):
            scraped(server)
    finally:
        server.stop()


def test_an_address_that_is_taken_is_told(server: MetricsServer) -> None:
    with pytest.raises(BindError) as caught:
        MetricsServer(server.address, str)
    assert caught.value.field == "metrics_listen"
