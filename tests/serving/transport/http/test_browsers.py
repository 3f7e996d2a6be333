"""Pages in browsers reach loopback: what they may do there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scannery.serving import ConfigError, SecurityConfig, Server, ServerConfig
from scannery.serving.security import KeyFile
from tests.http1 import SEARCH, Http
from tests.served import serving

ORIGIN = "https://console.example"


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library, http_cors=(ORIGIN.replace("console", "Console"),)) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[Http]:
    with Http(server.http_port) as http:
        yield http


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost:",
        "[::1",
    ],
)
def test_foreign_hosts_are_refused(server: Server, http: Http, host: str) -> None:
    """A name that its owner points at this machine would make the server look like the page's own."""
    for path in ("/healthz", "/openapi.json"):
        refused = http.ask("GET", path, host=host)
        assert (refused.status, refused.code) == (403, "permission_denied")
    assert http.call(SEARCH, {"index": "library"}, host=host).status == 403


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "localhost:{}",
        "127.0.0.1:{}",
        "[::1]:{}",
        "192.0.2.7",
        "[2001:db8::1]:{}",
    ],
)
def test_names_of_this_machine_and_addresses_are_its_own(server: Server, http: Http, host: str) -> None:
    assert http.ask("GET", "/healthz", host=host.format(server.http_port)).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://localhost:1",
        "https://console.example.evil",
        "http://console.example",
        "",
    ],
)
def test_foreign_origins_are_refused(http: Http, origin: str) -> None:
    for response in (
        http.ask("GET", "/healthz", headers=[("origin", origin)]),
        http.call(SEARCH, {"index": "library"}, [("origin", origin)]),
        http.ask("OPTIONS", SEARCH, headers=[("origin", origin), ("access-control-request-method", "POST")]),
    ):
        if not origin:  # says nothing
            assert response.status != 403
            continue
        assert (response.status, response.code) == (403, "permission_denied")
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_allowed_origins_may_ask_and_read(http: Http) -> None:
    asked = [("origin", ORIGIN), ("access-control-request-method", "POST"),
             ("access-control-request-headers", "authorization,content-type")]  # fmt: skip
    preflight = http.ask("OPTIONS", SEARCH, headers=asked)
    assert (preflight.status, preflight.body) == (204, b"")
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert preflight.headers["access-control-allow-methods"] == "POST, GET, HEAD"
    assert {"authorization", "content-type", "connect-timeout-ms"} <= set(
        preflight.headers["access-control-allow-headers"].split(", ")
    )
    other = "x-stainless-lang,x-stainless-retry-count"  # the client of OpenAI sends these
    asked[2] = ("access-control-request-headers", other)
    allowed = http.ask("OPTIONS", SEARCH, headers=asked).headers["access-control-allow-headers"]
    assert {"authorization", *other.split(",")} <= {name.strip() for name in allowed.split(",")}
    query = {"index": "library", "query": {"vector": {"values": [1.0] * 16}}}
    for response in (
        http.call(SEARCH, query, [("origin", ORIGIN)]),
        http.call(SEARCH, {}, [("origin", ORIGIN)]),
        http.ask("GET", "/healthz", headers=[("origin", ORIGIN)]),
    ):
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert "trailer-scannery-error-bin" in response.headers["access-control-expose-headers"]
        assert "retry-after" in response.headers["access-control-expose-headers"]
        assert response.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in response.headers


def test_pages_of_the_server_itself_may_ask(server: Server, http: Http) -> None:
    own = f"localhost:{server.http_port}"
    assert http.ask("GET", "/healthz", headers=[("origin", f"http://{own}")], host=own).status == 200
    assert http.ask("GET", "/healthz", headers=[("origin", f"https://{own}")], host=own).status == 403


def test_without_cors_there_is_nothing_to_allow(library: Path) -> None:
    with serving(library) as server, Http(server.http_port) as http:
        assert http.ask("OPTIONS", SEARCH).headers["allow"] == "POST, GET, HEAD"
        asked = [("origin", ORIGIN), ("access-control-request-method", "POST")]
        assert http.ask("OPTIONS", SEARCH, headers=asked).status == 403


@pytest.mark.system
def test_a_list_of_hosts_is_all_there_is(library: Path, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, text = file.create("reader")
    keys = [("authorization", f"Bearer {text}")]
    security = SecurityConfig(keys_file=str(file.path))
    # A browser has no key that it would show to a page's server.
    with serving(library, security=security) as server, Http(server.http_port) as http:
        assert http.call(SEARCH, {}, keys, host="search.example").status == 400
        assert http.call(SEARCH, {}, host="search.example").status == 401
    with (
        serving(library, security=security, http_hosts=("Search.example",)) as server,
        Http(server.http_port) as http,
    ):
        assert http.call(SEARCH, {}, keys, host="search.example:443").status == 400
        assert http.call(SEARCH, {}, keys, host="other.example").status == 403


@pytest.mark.parametrize(
    "origin", ["*", "console.example", "https://a.example/path", "", "https://a, https://b", "null"]
)
def test_an_origin_is_a_scheme_and_a_host(library: Path, origin: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(store=str(library), http_cors=(origin,))
    assert caught.value.field == "http_cors"


@pytest.mark.parametrize(
    "name", ["https://search.example", "search.example:7080", "search.example.", "*", "", "a/b"]
)
def test_a_name_of_the_server_is_a_host_without_a_port(library: Path, name: str) -> None:
    """Any other would match no request, and end the permission of all names."""
    with pytest.raises(ConfigError, match="without scheme and port") as caught:
        ServerConfig(store=str(library), http_hosts=(name,))
    assert caught.value.field == "http_hosts"
