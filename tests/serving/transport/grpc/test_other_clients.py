"""What gRPC clients in other languages rely on: keepalive, reflection, details of errors, retries of their own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from scannery.serving import Server
from scannery.v1 import search_pb2, search_pb2_grpc
from scannery.v1.types_pb2 import ErrorDetail, Vector
from tests.served import DIMENSIONS, serving

SEARCH = search_pb2.SearchRequest(
    index="library", query=search_pb2.Query(vector=Vector(packed=np.ones(DIMENSIONS, "<f4").tobytes()))
)
RETRIES = {
    "methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.01s",
     "maxBackoff": "0.01s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}],
}  # fmt: skip


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library, recall_share=0) as server:
        yield server


def refusing(server: Server, monkeypatch: pytest.MonkeyPatch, times: int) -> list[float]:
    """Have the next calls refused; return the times of all that come."""
    arrivals: list[float] = []

    def has_room(account: str, client: str) -> bool:
        arrivals.append(time.monotonic())
        return len(arrivals) > times

    monkeypatch.setattr(server.admission, "_has_room", has_room)
    monkeypatch.setattr(server.admission, "_retry_after_s", lambda: 0.3)
    return arrivals


@pytest.mark.system
def test_pings_of_clients_end_no_stream(server: Server) -> None:
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_timeout_ms", 5000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    ended = threading.Event()

    def requests() -> Iterator[search_pb2.SearchStreamRequest]:
        yield search_pb2.SearchStreamRequest(tag=1, search=SEARCH)
        ended.wait(4.5)
        yield search_pb2.SearchStreamRequest(tag=2, search=SEARCH)

    with grpc.insecure_channel(server.address, options) as channel:
        answers = search_pb2_grpc.SearchServiceStub(channel).SearchStream(requests(), timeout=60)
        assert [answer.tag for answer in answers] == [1, 2]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_has_both_names(server: Server, version: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="scannery.v1.SearchService")
    with grpc.insecure_channel(server.address) as channel:
        untyped: Any = channel
        reflect = untyped.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        [answer] = reflect(iter([request]), timeout=60)
    assert answer.file_descriptor_response.file_descriptor_proto


def test_a_refused_call_says_what_to_do(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    rpc, status_pb2 = (
        pytest.importorskip("google.rpc.error_details_pb2"),
        pytest.importorskip("google.rpc.status_pb2"),
    )
    refusing(server, monkeypatch, 1)
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
        search_pb2_grpc.SearchServiceStub(channel).Search(SEARCH, timeout=60)
    error: Any = refused.value
    trailers = dict(error.trailing_metadata())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailers["grpc-retry-pushback-ms"] == "300"
    assert ErrorDetail.FromString(trailers["scannery-error-bin"]).retry_after_ms == 300
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert status.message == error.details()
    retry = rpc.RetryInfo()
    assert [detail.Unpack(retry) for detail in status.details] == [False, False, True]
    assert retry.retry_delay.ToMilliseconds() == 300


@pytest.mark.system
def test_retries_of_grpc_itself_obey_the_delay(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = refusing(server, monkeypatch, 3)
    options = [("grpc.service_config", json.dumps(RETRIES)), ("grpc.enable_retries", 1)]
    with grpc.insecure_channel(server.address, options) as channel:
        assert len(search_pb2_grpc.SearchServiceStub(channel).Search(SEARCH, timeout=60).hits) == 10
    assert len(arrivals) == 4
    assert min(np.diff(arrivals)) > 0.25
