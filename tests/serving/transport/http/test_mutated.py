"""Requests of all kinds with any bytes in place of others: they get an answer or the end of the connection."""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
from codecs import BOM_UTF8
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from scannery.client.request import calls
from tests.http1 import SEARCH, SEARCH_MANY, UPSERT, Http, head
from tests.served import DIMENSIONS, serving
from tests.serving.process.test_supervisor import children, started
from tests.serving.transport.http.test_strangers import process_state
from tests.tools.ports import free_port

pytestmark = pytest.mark.system

VECTORS = np.random.default_rng(0).normal(size=(3, DIMENSIONS)).astype(np.float32)
BODY = calls.search("library", VECTORS[0], 3).request.SerializeToString()
MANY = calls.search_many("library", VECTORS, 3).request.SerializeToString()
MESSAGE = json.dumps({"index": "library", "query": {"vector": {"values": VECTORS[0].tolist()}}}).encode()
UPGRADE = [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAEA")]
PROTO, JSON = ("content-type", "application/proto"), ("content-type", "application/json")
EXPECTED = {200, 204, 400, 403, 404, 405, 408, 413, 415, 417, 429, 431, 501}

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Z]")


def sized(path: str, body: bytes, *headers: tuple[str, str]) -> bytes:
    return head("POST", path, [*headers, ("content-length", str(len(body)))]) + body


WHOLE = (
    sized(SEARCH, BODY, PROTO)
    + head("POST", SEARCH, [PROTO, ("transfer-encoding", "chunked")])
    + b"%x\r\n%b\r\n0\r\nx: y\r\n\r\n" % (len(BODY), BODY)
    + head("GET", "/healthz"),
    sized(SEARCH, MESSAGE, JSON, *UPGRADE) + sized(SEARCH, BOM_UTF8 + MESSAGE, JSON) + head("HEAD", "/openapi.json"),
    sized(SEARCH, gzip.compress(MESSAGE), JSON, ("content-encoding", "gzip"), ("accept-encoding", "gzip"))
    + head("GET", "http://localhost/readyz", UPGRADE)
    + head("OPTIONS", "*", [("origin", "http://localhost")]),
    head("GET", "/openapi.json", [("connection", "keep-alive")]).replace(b"HTTP/1.1", b"HTTP/1.0")
    + sized(SEARCH_MANY, MANY, PROTO, ("connect-timeout-ms", "9000"), ("expect", "100-continue")),
    sized("/v1/embeddings", b'{"model": "none", "input": ["a", "b"]}', JSON)
    + head("GET", "/v1/models/a%2Fb")
    + sized(UPSERT, b'{"index": "library", "upserts": [{"datapoint": {"id": "a"}}]}', JSON)
    + head("DELETE", SEARCH),
)  # fmt: skip
PIECES = (
    b"\r\n", b"\0", b":", b" ", b"chunked", b"\n", b"9", b"upgrade: h2c\r\n", b"HTTP/1.0", b"content-length: 5\r\n",
)  # fmt: skip


def mutated(rng: random.Random) -> bytes:
    """Return a request, or several, with some bytes changed."""
    data = bytearray(rng.choice(WHOLE))
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[place : place + rng.randrange(1, 20)]
            case 2:
                data[place:place] = rng.choice(PIECES)
            case _:
                start = rng.randrange(len(data) + 1)
                data[place:place] = data[start : start + rng.randrange(400)]
    return bytes(data)


def ask(port: int, rng: random.Random, count: int) -> Counter[int]:
    """Send so many requests, each over a connection of its own, and return the statuses of the answers."""
    statuses: Counter[int] = Counter()
    for _ in range(count):
        with Http(port) as http, suppress(OSError):
            data = mutated(rng)
            cut = rng.randrange(len(data))
            http.send(data[:cut])
            http.send(data[cut:])
            http.socket.shutdown(socket.SHUT_WR)
            while received := http.socket.recv(1 << 20):
                statuses.update(map(int, STATUS.findall(received)))
    return statuses


def test_mutated_requests_harm_nobody(library: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(library, recall_share=0) as server:
        statuses = ask(server.http_port, random.Random(7), 300)
    assert statuses.keys() <= EXPECTED | {100}, statuses
    assert (
        statuses[200] > 30
    )  # the connection ends with what was sent, so that many answers are not waited for
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.long
def test_many_mutated_requests_leave_nothing_behind(library: Path) -> None:
    port, rng = free_port(), random.Random(8)
    with started(library, "--workers", "1", "--http", f"127.0.0.1:{port}") as (process, _):
        [worker] = children(process.pid)
        statuses = ask(port, rng, 1_000)
        before = process_state(worker)
        for _ in range(4):
            statuses += ask(port, rng, 1_000)
        after = process_state(worker)
        assert children(process.pid) == [worker]
    assert statuses.keys() <= EXPECTED | {100}, statuses
    assert after["VmRSS"] - before["VmRSS"] < 24 << 10, (before, after)
