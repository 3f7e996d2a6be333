"""Where HTTP is, how clients learn of it, TLS, and the end."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from scannery.client.request import calls
from scannery.serving import BindError, ConfigError, EncoderConfig, SecurityConfig, Server, ServerConfig
from scannery.serving.security import KeyFile
from scannery.serving.transport.http import connection as http_connection
from scannery.serving.transport.http import server as http_server
from tests.http1 import SEARCH, SEARCH_MANY, Http, eventually, idle
from tests.served import DIMENSIONS, PAUSE_S, ROWS, serving, without_permits
from tests.serving.process.test_supervisor import Log, started
from tests.serving.security.test_tls import Authority, secure

QUERIES = np.random.default_rng(0).normal(size=(160, DIMENSIONS)).astype(np.float32)
BODY = calls.search("library", QUERIES[0], 3).request.SerializeToString()
LARGE = calls.search_many("library", QUERIES, ROWS).request.SerializeToString()


# Where


def asked(address: str, body: bytes = BODY, metadata: Any = (("scannery-http", "ask"),)) -> dict[str, Any]:
    """Return the trailing metadata of a search over gRPC."""
    with grpc.insecure_channel(address) as channel:
        untyped: Any = channel
        try:
            _, call = untyped.unary_unary(SEARCH).with_call(body, timeout=60, metadata=metadata)
        except grpc.RpcError as error:
            call = error
        return dict(call.trailing_metadata())


@pytest.mark.system
def test_grpc_tells_who_asks(library: Path) -> None:
    with serving(library) as server:
        told = {"scannery-http": str(server.http_port), "scannery-server": server.context.server_id}
        assert asked(server.address) == told
        failed = asked(server.address, b"\xff")
        assert failed.pop("scannery-error-bin")
        assert failed.pop("grpc-status-details-bin")
        assert failed == told
        assert asked(server.address, metadata=None) == {}
        with Http(server.http_port) as http:
            assert http.ask("GET", "/healthz").headers["scannery-server"] == told["scannery-server"]
    with serving(library, http="off") as server:
        assert (server.http_port, asked(server.address)) == (0, {})


def test_strangers_are_not_told(library: Path, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, text = file.create("reader")
    with serving(library, security=SecurityConfig(keys_file=str(file.path))) as server:
        assert "scannery-http" not in asked(server.address)
        known = (("scannery-http", "ask"), ("authorization", f"Bearer {text}"))
        assert asked(server.address, metadata=known)["scannery-http"] == str(server.http_port)


def test_it_is_on_where_callers_are_known_or_local(tmp_path: Path) -> None:
    def address(**options: Any) -> str:
        return ServerConfig(store=str(tmp_path), **options).http_address

    keys = KeyFile(tmp_path / "keys.json")
    keys.create("a")
    certificate, key = Authority(tmp_path).issue("localhost")
    known = SecurityConfig(keys_file=str(keys.path), tls_cert=str(certificate), tls_key=str(key))
    assert address() == "127.0.0.1:0"
    assert address(listen="[::1]:1") == "[::1]:0"
    assert address(listen="0.0.0.0:1", insecure=True) == ""
    assert address(listen="0.0.0.0:1", security=known) == "0.0.0.0:0"
    assert address(listen="0.0.0.0:1", insecure=True, role="leaf", group="0/1") == "0.0.0.0:0"
    assert address(http="off", role="leaf", group="0/1") == ""
    assert address(http="off") == ""
    assert address(http="127.0.0.1:80") == "127.0.0.1:80"
    assert EncoderConfig(models=("x",)).http_address == ""
    with pytest.raises(ConfigError) as caught:
        address(http="0.0.0.0:80")
    assert caught.value.field == "http"
    assert address(http="0.0.0.0:80", insecure=True) == "0.0.0.0:80"
    for wrong in ("", "on", "localhost"):
        with pytest.raises(ConfigError):
            address(http=wrong)


def test_a_port_that_is_taken_is_named(library: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(BindError, match="http") as caught, serving(library, http=address):
            pass
        assert caught.value.field == "http"


# The end


@pytest.mark.system
def test_what_was_asked_is_answered_before_the_end(library: Path) -> None:
    server = Server(ServerConfig(store=str(library), listen="127.0.0.1:0", threads=1, drain_s=30))
    with server, Http(server.http_port) as busy, Http(server.http_port) as quiet:
        assert quiet.post(SEARCH, BODY).status == 200
        assert busy.post(SEARCH, BODY).status == 200
        with without_permits(server):
            busy.send(
                b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/proto\r\n"
                b"content-length: %d\r\n\r\n%s" % (SEARCH_MANY.encode(), len(LARGE), LARGE)
            )
            eventually(lambda: not idle(server))
            stopping = threading.Thread(target=server.stop, daemon=True)
            stopping.start()
            assert quiet.is_closed(10)
            with pytest.raises(OSError):
                Http(server.http_port or int(busy.socket.getpeername()[1]))
        response = busy.response()
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert len(response.body) > 4 << 20
        assert busy.is_closed()
        stopping.join(30)
        assert not stopping.is_alive()


@pytest.mark.system
def test_a_drain_has_an_end(library: Path) -> None:
    server = Server(ServerConfig(store=str(library), listen="127.0.0.1:0", drain_s=0.2))
    with server, Http(server.http_port, window=1 << 14) as http:
        http.send(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/proto\r\n"
            b"content-length: %d\r\n\r\n%s" % (SEARCH_MANY.encode(), len(LARGE), LARGE)
        )
        eventually(lambda: not idle(server))
        started_s = time.monotonic()
        server.stop()
        assert time.monotonic() - started_s < 20


# TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def trusting(authority: Authority, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


@pytest.mark.system
def test_requests_by_tls(library: Path, authority: Authority) -> None:
    with serving(library, security=secure(*authority.issue("one"))) as server:
        context = trusting(authority)
        with Http(server.http_port, context=context) as http:
            for _ in range(3):
                assert http.post(SEARCH, BODY).status == 200
            many = calls.search_many("library", QUERIES[:20], ROWS).request.SerializeToString()
            assert len(http.post(SEARCH_MANY, many).body) > 1 << 19
            assert http.post(SEARCH, b"\xff").code == "invalid_argument"
            assert http.ask("GET", "/healthz", host="any.example").status == 200
            http.send(b"broken\r\n\r\n")
            assert http.response().status == 400
            assert http.is_closed()
        with Http(server.http_port) as clear:
            clear.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            with pytest.raises(OSError):
                clear.response()
        with pytest.raises(ssl.SSLError):
            Http(server.http_port, context=ssl.create_default_context())


def test_certificates_are_read_again(library: Path, authority: Authority) -> None:
    first, second = authority.issue("first"), authority.issue("second")
    with serving(library, security=secure(*first)) as server:
        context = trusting(authority)

        def served() -> str:
            with Http(server.http_port, context=context) as http:
                tls: Any = http.socket
                assert http.post(SEARCH, BODY).status == 200
                return dict(item[0] for item in tls.getpeercert()["subject"])["commonName"]

        assert served() == "first"
        with Http(server.http_port, context=context) as kept:
            assert kept.post(SEARCH, BODY).status == 200
            for old, new in zip(first, second, strict=True):
                old.write_bytes(new.read_bytes())
            assert served() == "second"
            assert kept.post(SEARCH, BODY).status == 200


def test_callers_show_certificates(library: Path, authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    security = secure(*authority.issue("server"), client_ca=str(authority.path))
    with serving(library, security=security) as server:
        with Http(server.http_port, context=trusting(authority, authority.issue("caller"))) as http:
            assert http.post(SEARCH, BODY).status == 200
        for certificate in (None, other.issue("stranger")):
            with (
                pytest.raises(OSError),
                Http(server.http_port, context=trusting(authority, certificate)) as http,
            ):
                http.post(SEARCH, BODY)


@pytest.mark.system
def test_handshakes_that_never_end_are_cut_off(
    library: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "HEAD_WITHIN_S", 0.5)
    monkeypatch.setattr(http_server, "CHECK_EVERY_S", 0.1)
    with serving(library, security=secure(*authority.issue("one"))) as server:
        tls = ssl.MemoryBIO()
        outgoing = ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            trusting(authority).wrap_bio(tls, outgoing, server_hostname="localhost").do_handshake()
        hello = outgoing.read()
        waiting = [Http(server.http_port) for _ in range(3)]
        try:
            waiting[1].send(hello[:50])
            waiting[2].send(hello)
            with Http(server.http_port, context=trusting(authority)) as http:
                assert http.post(SEARCH, BODY).status == 200
            for each in waiting:
                with suppress(OSError):
                    while each.socket.recv(1 << 16):
                        pass
            wire = server._http._server
            assert wire is not None
            eventually(lambda: not wire._connections, 10)
        finally:
            for each in waiting:
                each.close()


@pytest.mark.system
def test_slow_readers_by_tls_are_cut_off(
    library: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CHECK_EVERY_S", 0.1)
    security = secure(*authority.issue("one"))
    with (
        serving(library, security=security, body_timeout_s=0.5) as server,
        Http(server.http_port, context=trusting(authority), window=1 << 14) as http,
    ):
        http.send(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/proto\r\n"
            b"content-length: %d\r\n\r\n%s" % (SEARCH_MANY.encode(), len(LARGE), LARGE)
        )
        eventually(lambda: not idle(server))
        eventually(lambda: idle(server), 20)


# Processes


@pytest.mark.system
def test_workers_share_the_port(library: Path) -> None:
    with started(library, "--workers", "2", "--http", "127.0.0.1:0", "--http-cors", "https://a.example") as (
        process,
        address,
    ):
        told = asked(address)
        port = int(told["scannery-http"])
        seen: dict[str, int] = {}

        def ask() -> bool:
            with Http(port) as http:
                response = http.post(SEARCH, BODY, [("origin", "https://a.example")])
            assert response.status == 200
            assert response.headers["scannery-server"] == told["scannery-server"]
            assert response.headers["access-control-allow-origin"] == "https://a.example"
            worker, _, workers = response.headers["scannery-worker"].partition("/")
            assert workers == "2"
            seen[worker] = seen.get(worker, 0) + 1
            return len(seen) == 2

        eventually(ask)
        with Http(port) as kept:
            assert kept.post(SEARCH, BODY).status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert kept.is_closed()


@pytest.mark.system
def test_a_reload_is_seen_as_closed_connections_only(library: Path) -> None:
    """Every request is answered; those on a connection that closes between requests are sent again."""
    with started(library, "--workers", "2") as (process, address):
        port, log = int(asked(address)["scannery-http"]), Log(process)
        done, statuses, broken = threading.Event(), set(), []

        def ask() -> None:
            http = Http(port)
            while not done.wait(PAUSE_S):
                try:
                    statuses.add(http.post(SEARCH, BODY).status)
                except OSError as error:
                    broken.append(error)
                    http.close()
                    with suppress(OSError):
                        http = Http(port)
            http.close()

        callers = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for caller in callers:
            caller.start()
        process.send_signal(signal.SIGHUP)
        eventually(lambda: log.said("the new workers are ready"))
        first = set(broken)
        time.sleep(0.5)
        assert asked(address)["scannery-http"] == str(port)
        done.set()
        for caller in callers:
            caller.join(60)
        assert statuses == {200}
        assert len(set(broken) - first) <= 2 * len(callers)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert log.said("Traceback") == 0


def test_at_a_chosen_port_any_server_may_answer(library: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(library, http=f"127.0.0.1:{port}") as server:
        assert asked(server.address) == {"scannery-http": str(port), "scannery-server": ""}
