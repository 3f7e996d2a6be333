"""Callers without credentials: nothing that they send is kept, admitted or given a thread, whatever they ask for."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.serving.transport.http.handler import MAX_DROPPED_BYTES
from tests.http1 import SEARCH, UPSERT, Headers, Http, eventually, head, idle
from tests.served import serving
from tests.serving.process.test_supervisor import children, started
from tests.tools.ports import free_port

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE")
PATHS = (
    "/", "/nothing", "/healthz", "/readyz", "/metrics", "/openapi.json", SEARCH, UPSERT,
    "/scannery.v1.SearchService/SearchStream", "/scannery.v1.EmbeddingService/Embed",
    "/v1/embeddings", "/v1/models", "/v1/models/a", "/v1/chat/completions",
    "/google.cloud.aiplatform.v1.MatchService/FindNeighbors", "http://localhost/healthz", "*",
)  # fmt: skip
FRAMINGS: dict[str, Headers] = {
    "short": [("content-length", "50000")],
    "long": [("content-length", str(60 << 20))],
    "chunked": [("transfer-encoding", "chunked")],
    "offered": [("content-length", str(60 << 20)), ("connection", "upgrade"), ("upgrade", "h2c")],
    "expected": [("content-length", "50000"), ("expect", "100-continue")],
}
TYPES = ("application/json", "application/proto", "text/plain")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file of keys, and a key."""
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    return file.path, file.create("reader")[1]


@pytest.fixture(scope="module", params=[True, False], ids=["public health", "no public health"])
def server(request: pytest.FixtureRequest, library: Path, keys: tuple[Path, str]) -> Iterator[Server]:
    security = SecurityConfig(keys_file=str(keys[0]), public_health=request.param)
    with serving(library, security=security) as server:
        yield server


def connections(server: Server) -> list[Any]:
    http = server._http._server
    assert http is not None
    return list(http._connections.values())


@pytest.mark.system
@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_bodies_of_strangers_are_not_kept(server: Server, framing: str, host: str) -> None:
    for number, path in enumerate(PATHS):
        for method in METHODS:
            headers = [
                ("content-type", TYPES[number % 3]),
                ("scannery-client", f"{number}"),
                *FRAMINGS[framing],
            ]
            with Http(server.http_port) as http:
                http.send(head(method, path, headers, host=host))
                if framing == "chunked":
                    http.send(b"100000\r\n")
                if framing == "short":
                    http.send(b"x" * 50000)
                answer = http.response(empty=method == "HEAD")  # it comes before a long body does
                assert answer.status in (400, 401, 403, 404, 405, 415), (method, path)
                for connection in connections(server):
                    arriving = connection._parser.exchange
                    assert arriving is None or not arriving.body
                    assert not connection._held
                assert server.admission.in_flight == 0
                assert not server.admission._clients


def test_a_short_body_of_a_stranger_is_dropped_while_it_arrives(server: Server) -> None:
    with Http(server.http_port) as http:
        http.send(head("POST", SEARCH, [("content-type", TYPES[1]), *FRAMINGS["short"]]) + b"x" * 40_000)
        eventually(
            lambda: [each for each in connections(server) if 0 < each._parser.body_left_bytes <= 10_000]
        )
        assert [
            bytes(each._parser.exchange.body) for each in connections(server) if each._parser.exchange
        ] == [b""]
        assert server.admission.in_flight == 0
        http.send(b"x" * 10_000)
        assert http.response().status == 401
        assert http.ask("OPTIONS", "/").status == 204  # it was clear where it ends


def test_strangers_over_grpc_are_refused_unread(server: Server) -> None:
    paths = [path for path in PATHS if path.count("/") == 2 and "." in path]
    with grpc.insecure_channel(server.address) as channel:
        untyped: Any = channel
        for path in (*paths, "/scannery.v1.IndexService/UpsertStream", "/nothing/There"):
            for call in (
                lambda path: untyped.unary_unary(path)(bytes(1 << 20), timeout=60),
                lambda path: list(untyped.stream_stream(path)(iter([bytes(1 << 20)] * 4), timeout=60)),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    call(path)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, path
                assert idle(server)


@pytest.mark.system
def test_floods_of_strangers_take_neither_memory_nor_threads(library: Path, keys: tuple[Path, str]) -> None:
    """The process that they flood reads a bounded part of what they send, and answers a caller meanwhile."""
    requests = [
        (method, path, framing)
        for method, path in (("POST", SEARCH), ("GET", "/healthz"), ("OPTIONS", SEARCH), ("HEAD", "/nothing"))
        for framing in ("long", "chunked", "offered")
    ]
    port = free_port()
    with started(library, "--workers", "1", "--keys", str(keys[0]), "--http", f"127.0.0.1:{port}") as (
        process,
        _,
    ):
        [worker] = children(process.pid)
        good = [("authorization", f"Bearer {keys[1]}"), ("content-type", "application/json")]
        with Http(port) as caller:
            assert caller.ask("POST", SEARCH, b"{}", good).status == 400
            before = process_state(worker)
            flood = []
            for method, path, framing in requests:
                http = Http(port)
                http.send(head(method, path, [("content-type", TYPES[0]), *FRAMINGS[framing]]))
                http.socket.setblocking(False)
                flood.append(http)
            sent, until_s = 0, time.monotonic() + 4
            chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
            while time.monotonic() < until_s:
                _, ready, _ = select.select(
                    [], [each.socket for each in flood if each.socket.fileno() >= 0], [], 0.1
                )
                for one in ready:
                    try:
                        sent += one.send(chunk)
                    except OSError:
                        one.close()
                if not ready:
                    time.sleep(0.01)
            assert caller.ask("POST", SEARCH, b"{}", good).status == 400
            after = process_state(worker)
            for http in flood:
                with suppress(OSError):
                    http.close()
    assert after["Threads"] <= before["Threads"] + 1
    assert after["VmRSS"] - before["VmRSS"] < 48 << 10  # in KiB
    # The kernel holds the rest: its buffers of one connection take some MiB on both sides.
    assert sent < len(requests) * (MAX_DROPPED_BYTES + (12 << 20))


def process_state(pid: int) -> dict[str, int]:
    """Return memory in KiB and threads of a process."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) for line in lines if line[0] in ("VmRSS:", "Threads:")}
