"""Bytes of bodies and unread answers are counted by caller, whatever the number of connections, and given back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

import scannery
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from tests.http1 import SEARCH, Http, eventually, head, idle
from tests.served import serving

BUDGET = 48 << 20
LARGE = 3 << 20
"""Of a body, and of an answer."""
SEARCHED = json.dumps({"index": "large", "query": {"vector": {"values": [1.0, 0.0]}}}).encode()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[KeyFile, dict[str, str]]:
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    return file, {name: file.create(name, scopes=("read",))[1] for name in ("good", "greedy")}


@pytest.fixture(scope="module")
def server(
    keys: tuple[KeyFile, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    store = tmp_path_factory.mktemp("bytes") / "store"
    with scannery.connect(store, create=True) as client:
        index = client.create_index("large", dimensions=2)
        index.upsert([{"id": i, "vector": [1.0, 0.0], "text": "x" * (LARGE // 3)} for i in range(3)])
    security = SecurityConfig(keys_file=str(keys[0].path))
    with serving(store, security=security, memory_budget=BUDGET, recall_share=0) as server:
        with Http(server.http_port, timeout_s=300) as first:  # which compiles kernels
            first.send(posted(keys[1]["good"], "json", str(len(SEARCHED)), SEARCHED))
            assert first.response().status == 200
        yield server
        eventually(lambda: idle(server) and server._lifecycle.bytes.held == 0)


def posted(key: str, kind: str, length: str, body: bytes = b"") -> bytes:
    name = "transfer-encoding" if length == "chunked" else "content-length"
    headers = [("authorization", f"Bearer {key}"), ("content-type", f"application/{kind}"), (name, length)]
    return head("POST", SEARCH, headers) + body


@pytest.mark.system
@pytest.mark.parametrize("length", [str(LARGE), "chunked"])
def test_bodies_over_many_connections_are_those_of_one_caller(
    server: Server, keys: tuple[KeyFile, dict[str, str]], length: str
) -> None:
    held = server._lifecycle.bytes
    with ExitStack() as stack:
        connections = [stack.enter_context(Http(server.http_port)) for _ in range(12)]
        for http in connections:
            http.send(posted(keys[1]["greedy"], "proto", length))
            with suppress(OSError):
                for _ in range((LARGE >> 16) - 1):
                    part = bytes(1 << 16)
                    http.send(b"10000\r\n" + part + b"\r\n" if length == "chunked" else part)
        eventually(lambda: held.held > BUDGET // 4)
        assert held.held <= BUDGET // 2
        # Another caller is served, with a large body and a large answer.
        with Http(server.http_port) as other:
            body = SEARCHED + b" " * (1 << 20)
            other.send(posted(keys[1]["good"], "json", str(len(body)), body))
            response = other.response()
            assert response.status == 200
            assert len(response.body) > LARGE
        assert held.held <= BUDGET // 2
    eventually(lambda: held.held == 0)
    assert idle(server)


def test_a_caller_over_its_share_is_told_when_to_try_again(
    server: Server, keys: tuple[KeyFile, dict[str, str]]
) -> None:
    with Http(server.http_port) as http:
        http.send(posted(keys[1]["greedy"], "proto", str(BUDGET)) + bytes(1 << 17))
        response = http.response()
    assert (response.status, response.code) == (429, "resource_exhausted")
    assert int(response.headers["retry-after"]) >= 1
    assert "bytes" in response.detail.message


@pytest.mark.system
def test_answers_that_are_not_read_are_those_of_one_caller(
    server: Server, keys: tuple[KeyFile, dict[str, str]]
) -> None:
    held = server._lifecycle.bytes
    with ExitStack() as stack:
        connections = [stack.enter_context(Http(server.http_port, window=4096)) for _ in range(12)]
        for http in connections:
            http.send(posted(keys[1]["greedy"], "json", str(len(SEARCHED)), SEARCHED))
        eventually(lambda: held.held > 0)
        for _ in range(50):
            assert held.held <= BUDGET
            time.sleep(0.01)
        with Http(server.http_port) as other:
            other.send(posted(keys[1]["good"], "json", str(len(SEARCHED)), SEARCHED))
            assert other.response().status == 200
    eventually(lambda: held.held == 0)
    assert idle(server)
