"""Which targets are servers, which are stores, and which are neither."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client.connect import connect_config
from scannery.client.transport.http.endpoint import Endpoint
from scannery.indexer import Store
from tests.data import ROOT
from tests.served import DIMENSIONS, serving
from tests.startup import imported_modules


@pytest.mark.parametrize(
    "target",
    [
        "localhost:7077",
        "127.0.0.1:1",
        "[::1]:7077",
        "search.example-1.com:65535",
        "dns:///host:1",
        "unix:/run/s.sock",
    ],
)
def test_servers(target: str) -> None:
    assert connect_config(target).target == target


@pytest.mark.parametrize(("target", "endpoint", "authority"), [
    ("http://localhost:7077", Endpoint("localhost", 7077), "localhost:7077"),
    ("HTTP://localhost:7077/", Endpoint("localhost", 7077), "localhost:7077"),
    ("http://[::1]:80", Endpoint("::1", 80), "[::1]"),
    ("https://search.example.com", Endpoint("search.example.com", 443, tls=True), "search.example.com"),
    ("https://search.example.com:80", Endpoint("search.example.com", 80, tls=True), "search.example.com:80"),
])  # fmt: skip
def test_servers_by_http(target: str, endpoint: Endpoint, authority: str) -> None:
    assert connect_config(target).target == endpoint
    assert endpoint.authority == authority


@pytest.mark.parametrize(
    ("target", "options", "field"),
    [
        ("http://localhost:1", {"tls": True}, "tls"),
        ("http://localhost:1", {"ca": "ca.pem"}, "ca"),
        ("http://localhost:1", {"cert": "a", "key": "b"}, "cert"),
        ("https://localhost:1", {"tls": False}, "tls"),
        ("https://localhost:1", {"ca": "/nothing/there.pem"}, "ca"),
        ("http://search.example.com", {"api_key": "k"}, "target"),
        ("http://localhost:1", {"channels": 0}, "channels"),
    ],
)
def test_options_that_do_not_fit_the_scheme(target: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError) as caught:
        scannery.connect(target, **options)
    assert caught.value.field == field
    with pytest.raises(TypeError, match="no option 'coalesce'"):
        scannery.connect(target, coalesce=True)  # type: ignore[call-arg]  # the point


def test_credentials_go_unencrypted_only_where_that_is_said() -> None:
    scannery.connect("http://127.0.0.1:1", api_key="k").close()
    scannery.connect("http://search.example.com", api_key="k", tls=False).close()
    scannery.connect("https://search.example.com", api_key="k").close()


@pytest.mark.parametrize(
    "target",
    ["./store", "store", "/a/b", "a/b:c", "C:store", "~/store", "gs://bucket/x", "s3://b", "az://c/d",
     "file:///a", "GS://bucket", Path("localhost:7077")],
)  # fmt: skip
def test_stores(target: str | Path) -> None:
    assert connect_config(target).target is None


@pytest.mark.parametrize(
    "target",
    [
        "",
        "  ",
        None,
        7077,
        "http://",
        "http://u:p@h:1",
        "http://h:0",
        "https://h:1/path",
        "grpc://a:1",
        "host:0",
        "host:99999",
        "localhost",
        "127.0.0.1",
        "search.example.com",
        "localhost:7077/",
    ],
)
def test_neither(target: Any) -> None:
    for connect in (scannery.connect, scannery.aio.connect):
        with pytest.raises(scannery.InvalidArgumentError) as caught:
            connect(target)
        assert caught.value.field == "target"


@pytest.mark.parametrize(
    "target", ["http://u:secret@h:1", "https://h:1/secret", "http://h?secret=1", "http://::1:5"]
)
def test_errors_name_what_a_url_may_have_and_repeat_no_secret(target: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="followed by a host and a port only") as caught:
        scannery.connect(target)
    assert "secret" not in str(caught.value)


def test_a_folder_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    for connect in (scannery.connect, scannery.aio.connect):
        with pytest.raises(scannery.NotFoundError, match="there is no store at"):
            connect(tmp_path / "nothing")


def test_a_store_can_be_created_for_its_first_index(tmp_path: Path) -> None:
    store = tmp_path / "new" / "store"
    with pytest.raises(scannery.NotFoundError, match=r"`scannery.connect\('.*/new/store', create=True\)`"):
        scannery.connect(str(store))
    with scannery.connect(store, create=True) as client:
        client.create_index("notes", dimensions=2)
        client.index("notes").upsert([{"id": "a", "vector": [1, 0]}])
    with scannery.connect(store, create=True) as client:
        assert client.index("notes").search([1, 0], k=1)[0].id == "a"


@pytest.mark.system
def test_a_wrong_port_or_wire_is_told(tmp_path: Path) -> None:
    Store.open(tmp_path, create=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        unused_port = probe.getsockname()[1]
    with serving(tmp_path) as server:
        host, _, port = server.address.rpartition(":")
        wrong = {
            f"{host}:{server.http_port}": "this seems to be the HTTP port: put http://",
            f"http://{host}:{port}": "this may be the port of gRPC: leave http:// out",
            f"https://{host}:{server.http_port}": "not to speak TLS: http:// in place",
            f"{host}:{unused_port}": "is a server running there",
            f"http://{host}:{unused_port}": "is a server running there",
        }
        for target, hint in wrong.items():
            with (
                scannery.connect(target, retries=False) as client,
                pytest.raises(scannery.UnavailableError, match=hint),
            ):
                client.indexes()


def test_a_deadline_in_this_process_tells_how_long_it_was(tmp_path: Path) -> None:
    with (
        scannery.connect(tmp_path, timeout_s=1e-6) as client,
        pytest.raises(scannery.DeadlineExceededError, match=r"1e-06 s; `timeout_s` of the call"),
    ):
        client.create_index("notes", dimensions=2)


def test_only_a_store_is_created() -> None:
    for connect in (scannery.connect, scannery.aio.connect):
        with pytest.raises(scannery.InvalidArgumentError, match="create: is for the folder of a store"):
            connect("localhost:7077", create=True)


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan"), True, "5"])
def test_timeouts_are_positive(timeout_s: Any) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="timeout_s"):
        scannery.connect("localhost:1", timeout_s=timeout_s)


def test_a_store_by_uri(library: Path) -> None:
    with scannery.connect(library.as_uri()) as client:
        assert [info.name for info in client.indexes()] == ["flat", "library"]


def test_a_closed_client_refuses(library: Path) -> None:
    with serving(library) as server:
        remote = scannery.connect(server.address)
        assert len(remote.indexes()) == 2
        for client in (remote, scannery.connect(library)):
            client.close()
            with pytest.raises(scannery.CancelledError, match="the client is closed"):
                client.index("library").search(np.ones(DIMENSIONS))


@pytest.mark.system
async def test_an_async_client_asks_many_things_at_once(library: Path) -> None:
    import asyncio

    with serving(library) as server:
        async with scannery.aio.connect(server.address) as client:
            index = client.index("library")
            queries = np.random.default_rng(0).normal(size=(30, DIMENSIONS))
            answers = await asyncio.gather(*(index.search(query, 3) for query in queries))
            together = await index.search_many(queries, 3)
            assert [[hit.id for hit in hits] for hits in answers] == [
                [hit.id for hit in hits] for hits in together
            ]
        with pytest.raises(scannery.CancelledError, match="closed"):
            await index.stats()


def test_errors_survive_pickling() -> None:
    import pickle

    error = scannery.ResourceExhaustedError("m", field="f", retry_after_s=2)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.field, copy.retry_after_s) == (type(error), "m", "f", 2)


def test_errors_are_the_builtin_ones_too() -> None:
    assert issubclass(scannery.InvalidArgumentError, ValueError)
    assert issubclass(scannery.NotFoundError, LookupError)
    assert issubclass(scannery.DeadlineExceededError, TimeoutError)
    assert issubclass(scannery.UnavailableError, ConnectionError)


@pytest.mark.system
def test_the_sdk_loads_no_wire_before_a_server_is_named() -> None:
    modules = imported_modules("import scannery; scannery.connect; scannery.Client; scannery.Index")
    unneeded = {
        "asyncio", "concurrent.futures", "grpc", "html", "httptools", "logging", "pathlib", "socket", "ssl",
    }  # fmt: skip
    assert modules & unneeded - imported_modules("import numpy") == set()


ENGINE = ("torch", "scann", "scannery.serving", "scannery.indexer", "pyarrow", "apache_beam")


@pytest.mark.system
@pytest.mark.parametrize(
    ("target", "more"), [("localhost:1", ()), ("http://localhost:1", ("asyncio", "grpc"))]
)
def test_a_client_of_a_server_never_loads_the_engine(target: str, more: tuple[str, ...]) -> None:
    code = (
        "import sys, scannery; scannery.connect(sys.argv[1]); "
        "print([m for m in sys.argv[2:] if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, target, *ENGINE, *more],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert result.stdout == "[]\n"
