"""HTTP as other clients and proxies speak it: offers of other protocols, old versions, targets, expectations."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.serving.security.development_certificate import made_certificate
from tests.http1 import SEARCH, UPSERT, Headers, Http, Response, head
from tests.served import DIMENSIONS, serving

QUERY = np.random.default_rng(0).normal(size=DIMENSIONS).astype(np.float32)
BODY = json.dumps(
    {"index": "library", "query": {"vector": {"values": QUERY.tolist()}}, "options": {"k": 3}}
).encode()
JSON = ("content-type", "application/json")
ORIGIN = "https://console.example"


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library, recall_share=0, http_cors=(ORIGIN,)) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[Http]:
    with Http(server.http_port) as http:
        yield http


def old(request: bytes) -> bytes:
    """Return a request as HTTP/1.0 has it."""
    return request.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)


def said(response: Response) -> tuple[int, bytes, str | None]:
    """Return what an answer says; errors have numbers that differ."""
    return response.status, response.body, response.headers.get("allow")


# Offers of other protocols

SETTINGS = ("http2-settings", "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA")
OFFERS: dict[str, Headers] = {
    "h2c of Java": [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), SETTINGS],
    "h2c of Ktor": [("Upgrade", "h2c"), ("HTTP2-Settings", ""), ("Connection", "HTTP2-Settings,upgrade")],
    "h2c, kept alive": [("connection", "keep-alive, Upgrade"), ("upgrade", "h2c"), SETTINGS],
    "two connections": [("connection", "Upgrade"), ("connection", "HTTP2-Settings"), ("upgrade", "h2c")],
    "websocket": [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"),
     ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")],
    "TLS": [("connection", "upgrade"), ("upgrade", "TLS/1.2, HTTP/1.1")],
    "two upgrades": [("connection", "upgrade"), ("upgrade", "a"), ("upgrade", "b/1")],
    "no upgrade named": [("connection", "upgrade")],
    "no connection named": [("upgrade", "h2c")],
}  # fmt: skip
ROUTES: dict[str, tuple[str, str, Headers, bytes]] = {
    "search": ("POST", SEARCH, [JSON], BODY),
    "search in chunks": ("POST", SEARCH, [JSON, ("transfer-encoding", "chunked")],
     b"5\r\n%b\r\n%x\r\n%b\r\n0\r\nx: a trailer\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])),
    "empty body": ("POST", SEARCH, [JSON], b""),
    "no body": ("POST", SEARCH, [JSON, ("content-length", "")], b""),
    "no such method": ("POST", "/nothing", [JSON], BODY),
    "another type": ("POST", SEARCH, [("content-type", "text/plain")], BODY),
    "embeddings": ("POST", "/v1/embeddings", [JSON], b'{"model": "none", "input": "a"}'),
    "models": ("GET", "/v1/models", [], b""),
    "no model": ("GET", "/v1/models/none", [], b""),
    "health": ("GET", "/healthz", [], b""),
    "length of zero": ("GET", "/readyz", [("content-length", "0")], b""),
    "head": ("HEAD", "/readyz", [], b""),
    "description": ("GET", "/openapi.json", [("accept-encoding", "gzip")], b""),
    "no such page": ("GET", "/nothing", [], b""),
    "get of a method": ("GET", UPSERT, [], b""),
    "preflight": ("OPTIONS", SEARCH, [("origin", ORIGIN), ("access-control-request-method", "POST")], b""),
    "put": ("PUT", "/healthz", [], b""),
    "delete": ("DELETE", SEARCH, [], b""),
}  # fmt: skip


def packet(route: str, headers: Headers = ()) -> bytes:
    method, path, own, body = ROUTES[route]
    names = {name for name, _ in own}
    length: Headers = [("content-length", str(len(body)))]
    if method != "POST" or names & {"transfer-encoding", "content-length"}:
        length = []
    return head(method, path, [*(h for h in own if h != ("content-length", "")), *headers, *length]) + body


@pytest.mark.system
@pytest.mark.parametrize("offer", OFFERS)
def test_offers_of_other_protocols_are_ignored(server: Server, offer: str) -> None:
    """Each request is answered as without the offer, over a connection that stays open, however its bytes arrive."""
    for route in ROUTES:
        empty = ROUTES[route][0] == "HEAD"
        with Http(server.http_port) as http:
            http.send(packet(route))
            wanted = http.response(empty=empty)
            assert wanted.status != 500
            offered = packet(route, OFFERS[offer])
            http.send(offered * 2)
            for _ in range(2):
                assert said(http.response(empty=empty)) == said(wanted), route
            for start in range(0, len(offered), 37):
                http.send(offered[start : start + 37])
            answer = http.response(empty=empty)
            assert said(answer) == said(wanted), route
            assert "upgrade" not in answer.headers
            assert http.post(SEARCH, BODY, kind="application/json").status == 200


def test_an_offer_does_not_end_the_limits_of_a_request(server: Server) -> None:
    offer = OFFERS["h2c of Java"]
    for request in (
        head("POST", SEARCH, [JSON, *offer, ("content-length", str(1 << 40))]),
        head("POST", SEARCH, [JSON, *offer, ("content-length", "1"), ("transfer-encoding", "chunked")]),
        head("POST", SEARCH, [JSON, *offer, ("content-length", "1"), ("content-length", "1")]),
        head("GET", "/healthz", [*offer, ("content-length", str(1 << 20))]),
        head("GET", "/healthz", [*offer, ("x", "y" * (16 << 10))]),
        head("CONNECT", "localhost:80", offer),
    ):
        with Http(server.http_port) as http:
            http.send(request)
            assert http.response().status in (400, 405, 413, 431), request
            assert http.is_closed()


def test_offers_are_ignored_behind_tls_and_with_keys(library: Path, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    key = ("authorization", f"Bearer {file.create('reader')[1]}")
    cert, tls_key = made_certificate(tmp_path)
    security = SecurityConfig(keys_file=str(file.path), tls_cert=str(cert), tls_key=str(tls_key))
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with serving(library, security=security) as server, Http(server.http_port, context=context) as http:
        for headers, status in (([key], 200), ([], 401), ([key], 200)):
            http.send(packet("search", [*headers, *OFFERS["h2c of Java"]]))
            assert http.response().status == status


# Versions


@pytest.mark.parametrize("route", ROUTES)
def test_http_1_0_is_answered_with_and_without_host(server: Server, route: str) -> None:
    """HAProxy asks for health without it, and no browser does, so that it may not be a foreign name."""
    empty = ROUTES[route][0] == "HEAD"
    with Http(server.http_port) as http:
        http.send(packet(route))
        wanted = http.response(empty=empty)
    if "chunks" in route:
        wanted = Response(400, {}, b"")  # HTTP/1.0 has none: who sends them means something else
    for host in (b"", b"host: localhost\r\n"):
        request = old(packet(route).replace(b"host: localhost\r\n", host))
        with Http(server.http_port) as http:
            http.send(request)
            answer = http.response(empty=empty)
            assert answer.status == wanted.status
            assert wanted.body in (answer.body, b"")
            assert answer.headers["connection"] == "close"
            assert http.is_closed()


@pytest.mark.parametrize("offer", [(), OFFERS["h2c of Java"]], ids=["plain", "with an offer"])
def test_http_1_0_stays_open_if_both_sides_say_so(http: Http, offer: Headers) -> None:
    """ApacheBench and older proxies wait for the header."""
    stays = [*offer, ("connection", "keep-alive")]
    for route in ("search", "health", "search", "search", "no such method", "head"):
        http.send(old(packet(route, stays)))
        assert http.response(empty=route == "head").headers["connection"] == "keep-alive"
    http.send(packet("health"))
    assert "connection" not in http.response().headers
    http.send(old(packet("health")))
    assert http.response().headers["connection"] == "close"
    assert http.is_closed()


def test_foreign_names_are_refused_in_any_version_and_form(http: Http) -> None:
    for request in (
        old(head("GET", "/healthz", [("connection", "keep-alive")], host="evil.example")),
        old(head("GET", "/healthz", [("connection", "keep-alive"), ("origin", "https://a.example")], host=None)),
        head("GET", "http://evil.example/healthz"),
        head("GET", "http://evil.example:7080/healthz"),
    ):  # fmt: skip
        http.send(request)
        assert http.response().status == 403, request
    http.send(head("GET", "http://localhost/healthz", host=None))
    assert http.response().status == 400  # HTTP/1.1 always has a Host


@pytest.mark.parametrize(
    "version", [b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.10", b"http/1.1"]
)
def test_other_versions_are_refused(http: Http, version: bytes) -> None:
    http.send(head("GET", "/healthz").replace(b"HTTP/1.1", version, 1))
    assert http.response().status == 400
    assert http.is_closed()


# Targets


def test_targets_as_proxies_get_them(server: Server, http: Http) -> None:
    """The host of the target counts, and that of the header does not (RFC 9112, 3.2.2)."""
    own = f"127.0.0.1:{server.http_port}"
    for origin in (f"http://{own}", f"HTTP://{own}", f"https://{own}", "http://localhost", "http://[::1]:80"):
        assert http.ask("GET", f"{origin}/readyz", host="evil.example").json == {"status": "ok"}
        for path in (SEARCH, f"{SEARCH}?trace=1"):
            assert http.post(f"{origin}{path}", BODY, kind="application/json").status == 200
        for path in ("", "/", "?a=b"):
            assert http.ask("GET", f"{origin}{path}").status == 404
    assert http.ask("GET", f"http://{own}/v1/models").json == {"object": "list", "data": []}
    assert http.ask("OPTIONS", "*").status == 204
    assert http.ask("OPTIONS", "*", host="evil.example").status == 403


# Bodies


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH", "TRACE"])
def test_only_post_has_a_body(server: Server, method: str) -> None:
    for path in (
        "/healthz", "/openapi.json", "/nothing", SEARCH, "/v1/models", "/v1/embeddings", "/v1/nothing",
    ):  # fmt: skip
        with Http(server.http_port) as http:
            bare = http.ask(method, path)
            assert http.ask(method, path, headers=[("content-length", "0")]).status == bare.status
            http.send(head(method, path, [("content-length", "5")]) + b"x" * 5)
            short = http.response(empty=method == "HEAD")
            assert short.status == (400 if bare.status < 300 else bare.status)
            assert http.ask("GET", "/healthz").status == 200  # it was clear where it ends
        for framing in (("content-length", "70000"), ("transfer-encoding", "chunked")):
            with Http(server.http_port) as http:
                http.send(head(method, path, [framing]))
                assert http.response(empty=method == "HEAD").status == short.status  # before any of it comes
                assert http.is_closed()


def test_an_expectation_counts_where_a_body_comes(server: Server, http: Http) -> None:
    expects = ("expect", "100-continue")
    for route in ("health", "length of zero", "empty body", "head", "preflight"):
        http.send(packet(route, [expects]))
        assert http.response(empty=route == "head").status != 100
    method, path, own, body = ROUTES["search"]
    http.send(head(method, path, [*own, ("Expect", "100-Continue"), ("content-length", str(len(body)))]))
    assert http._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
    http.send(body)
    assert http.response().status == 200
    http.send(old(packet("search", [expects, ("connection", "keep-alive")])))
    assert http.response().status == 200  # and nothing before it (RFC 9110, 10.1.1)
