"""The configurations of docs/operations/proxies.md, in front of a real server, with the proxies that are installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.client.request import calls
from scannery.serving import Server
from scannery.v1 import search_pb2, search_pb2_grpc
from tests.data import ROOT
from tests.http1 import SEARCH, Http, eventually
from tests.served import DIMENSIONS, copied, serving
from tests.tools.ports import free_port

pytestmark = pytest.mark.system

PAGE = (ROOT / "docs" / "operations" / "proxies.md").read_text()
NAME = "search.example.com"
QUERIES = np.random.default_rng(0).normal(size=(4, DIMENSIONS)).astype(np.float32)
NGINX = (
    "daemon off; master_process off; pid {folder}/pid; events {{}}\n"
    "http {{ access_log off; {temporary}\n{text}}}\n"
)
"""What a distribution has around the configuration of a site."""
SHORT_CHECK = re.compile(r"    option httpchk\n    http-check send .*\n")
COMMANDS = {
    "nginx": ["nginx", "-e", "stderr", "-c"],
    "haproxy": ["haproxy", "-db", "-f"],
    "caddy": ["caddy", "run", "--adapter", "caddyfile", "--config"],
}


@pytest.fixture(scope="module")
def server(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    store = copied(library, tmp_path_factory.mktemp("proxied"))
    with serving(store, recall_share=0, http_hosts=(NAME,)) as server:
        yield server


@pytest.fixture(scope="module", params=["nginx", "haproxy", "haproxy with a short check", "caddy"])
def proxy(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, int]]:
    """The ports of a proxy for HTTP and for gRPC."""
    name = request.param.partition(" ")[0]
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp(name)
    match = re.search(rf"```{name}\w*\n(.*?)```", PAGE, re.DOTALL)
    assert match
    http_port, grpc_port = free_port(), free_port()
    ports = {
        "7077": server.address.rpartition(":")[2],
        "7080": server.http_port,
        "8080": http_port,
        "8077": grpc_port,
    }
    text = re.sub(r"\b(7077|7080|8080|8077)\b", lambda port: str(ports[port[0]]), match[1])
    if "short check" in request.param:
        # By HTTP/1.0 and without Host, as `option httpchk` asks by itself.
        text = SHORT_CHECK.sub("    option httpchk GET /readyz\n", text, count=1)
    if name == "nginx":
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        text = NGINX.format(folder=folder, temporary=temporary, text=text)
    path = folder / "proxy.conf"
    path.write_text(text)
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with subprocess.Popen(
        [*COMMANDS[name], str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **home},
    ) as process:  # fmt: skip
        try:
            eventually(lambda: process.poll() is not None or _answers(http_port))
            assert process.poll() is None, process.communicate()
            yield http_port, grpc_port
        finally:
            process.kill()


def _answers(port: int) -> bool:
    try:
        with Http(port) as http:
            return http.ask("GET", "/readyz", host=NAME).status == 200
    except (OSError, AssertionError):
        return False


def rows(count: int, size: int) -> list[Any]:
    """Return datapoints with a payload of so many bytes."""
    vectors = np.random.default_rng(1).normal(size=(count, DIMENSIONS)).astype(np.float32)
    return [
        {"id": f"new{n}", "vector": vector, "payload": {"a": "x" * size}} for n, vector in enumerate(vectors)
    ]


def ask(port: int, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    """Return status and JSON of an answer, which a proxy may send in chunks."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Host": NAME, "Content-Type": "application/json", **headers}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def test_http_passes(proxy: tuple[int, int]) -> None:
    body = {"index": "library", "query": {"vector": {"values": QUERIES[0].tolist()}}, "options": {"k": 300}}
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": ""}
    for headers in ({}, offer):
        status, answer = ask(proxy[0], "POST", SEARCH, body, **headers)
        assert (status, len(answer["hits"])) == (200, 300), headers
    # A server without keys answers only to its own names.
    assert ask(proxy[0], "GET", "/readyz", Host="evil.example")[0] == 403
    status, answer = ask(proxy[0], "POST", SEARCH, {**body, "index": "none"})
    assert (status, answer["code"]) == (404, "not_found")


def test_the_sdk_passes_by_both_wires(proxy: tuple[int, int]) -> None:
    """With an upload of more than 1 MiB, nginx's own limit, and answers of as much."""
    for target, http in ((f"http://127.0.0.1:{proxy[0]}", True), (f"127.0.0.1:{proxy[1]}", False)):
        with scannery.connect(target, http=http, timeout_s=120) as client:
            index = client.index("library")
            assert index.upsert(rows(100, 30_000)).written == 100
            hits = index.search(rows(1, 1)[0]["vector"], k=100)
            assert hits[0].id == "new0"
            assert len(hits) == 100


def test_streams_pass_in_both_directions(proxy: tuple[int, int]) -> None:
    """Each answer comes before the next request is made, which a proxy that collects bodies would not let happen."""
    request = calls.search("library", QUERIES[0], 50).request
    with grpc.insecure_channel(f"127.0.0.1:{proxy[1]}") as channel:
        stub = search_pb2_grpc.SearchServiceStub(channel)
        answered = 0

        def requests() -> Iterator[search_pb2.SearchStreamRequest]:
            for tag in range(200):
                eventually(lambda tag=tag: answered >= tag)  # type: ignore[misc]
                message = search_pb2.SearchStreamRequest(tag=tag, search=request)
                yield message

        for response in stub.SearchStream(requests(), timeout=120):
            assert response.tag == answered
            answered += 1
        assert answered == 200
