"""A burst is not an overload: an idle server answers 256 requests that arrive at once, over every wire."""

from __future__ import annotations

import ssl
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from scannery.client.request import calls
from scannery.v1.search_pb2_grpc import SearchServiceStub
from tests.http1 import SEARCH_MANY, Http, head
from tests.served import DIMENSIONS, serving
from tests.serving.process.test_supervisor import started
from tests.serving.security.test_tls import Authority, secure

pytestmark = pytest.mark.system

BURST = 256
QUERIES = np.random.default_rng(0).normal(size=(20, DIMENSIONS)).astype(np.float32)
SLOW = calls.search_many("library", QUERIES, 20, exact=True).request
"""Takes some milliseconds, in a thread."""
KIND = ("content-type", "application/proto")


def burst_over_grpc(address: str, authority: bytes | None) -> Counter[str]:
    credentials = grpc.ssl_channel_credentials(authority)
    channel = grpc.secure_channel(address, credentials) if authority else grpc.insecure_channel(address)
    with channel:
        stub = SearchServiceStub(channel)
        futures: list[Any] = [stub.SearchMany.future(SLOW, timeout=120) for _ in range(BURST)]
        return Counter(future.code().name for future in futures)


def burst_over_http(port: int, context: ssl.SSLContext | None) -> Counter[str]:
    body = SLOW.SerializeToString()
    request = head("POST", SEARCH_MANY, [KIND, ("content-length", str(len(body)))]) + body
    with ExitStack() as stack:
        connections = [stack.enter_context(Http(port, context=context)) for _ in range(BURST)]
        for http in connections:
            http.send(request)
        return Counter("OK" if http.response().status == 200 else "refused" for http in connections)


def http_port(address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        call: Any = SearchServiceStub(channel).SearchMany
        _, answer = call.with_call(SLOW, metadata=[("scannery-http", "ask")], timeout=60)
        return int(dict(answer.trailing_metadata())["scannery-http"])


@pytest.mark.parametrize("wire", ["gRPC", "HTTP"])
def test_a_burst_of_first_requests_is_answered_over_tls(library: Path, tmp_path: Path, wire: str) -> None:
    authority = Authority(tmp_path)
    security = secure(*authority.issue("server"))
    with serving(library, security=security, recall_share=0) as server:
        for _ in range(2):  # the second one after an answered burst
            if wire == "gRPC":
                address = server.address.replace("127.0.0.1", "localhost")
                codes = burst_over_grpc(address, authority.path.read_bytes())
            else:
                context = ssl.create_default_context(cafile=str(authority.path))
                codes = burst_over_http(server.http_port, context)
            assert codes == {"OK": BURST}


def test_workers_answer_a_burst(library: Path) -> None:
    with started(library, "--workers", "2") as (_, address):
        assert burst_over_grpc(address, None) == {"OK": BURST}
        assert burst_over_http(http_port(address), None) == {"OK": BURST}
