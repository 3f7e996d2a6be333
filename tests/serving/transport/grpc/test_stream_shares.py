"""Streams that last are shared: one caller cannot hold all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.v1 import index_pb2, index_pb2_grpc, search_pb2, search_pb2_grpc
from scannery.v1.types_pb2 import Datapoint, Vector
from tests.served import DIMENSIONS, copied, serving

VECTOR = np.ones(DIMENSIONS, "<f4").tobytes()
STREAMS = 3


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def server(library: Path, tmp_path: Path, keys: KeyFile) -> Iterator[Server]:
    keys.create("nobody")
    security = SecurityConfig(keys_file=str(keys.path))
    with serving(copied(library, tmp_path), security=security, threads=2 * STREAMS) as server:
        yield server


def metadata(keys: KeyFile, name: str, scope: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {keys.create(name, scopes=(scope,))[1]}"),)


def test_whoever_holds_all_streams_makes_room_for_others(server: Server, keys: KeyFile) -> None:
    reader, writer = metadata(keys, "reader", "read"), metadata(keys, "writer", "write")
    time.sleep(1.5)  # the server looks at its keys once a second
    done = threading.Event()

    def silent() -> Iterator[search_pb2.SearchStreamRequest]:
        search = search_pb2.SearchRequest(
            index="library", query=search_pb2.Query(vector=Vector(packed=VECTOR))
        )
        yield search_pb2.SearchStreamRequest(tag=1, search=search)
        done.wait(60)

    def upserts() -> Iterator[index_pb2.UpsertRequest]:
        point = Datapoint(id="new", vector=Vector(packed=VECTOR))
        yield index_pb2.UpsertRequest(index="library", upserts=[index_pb2.Upsert(datapoint=point)])

    with grpc.insecure_channel(server.address) as channel:
        search, write = search_pb2_grpc.SearchServiceStub(channel), index_pb2_grpc.IndexServiceStub(channel)
        held: list[Any] = []
        for _ in range(STREAMS):
            # One after the other: the server numbers streams as they reach it, and ends the oldest.
            held.append(search.SearchStream(silent(), metadata=reader, timeout=60))
            assert next(iter(held[-1])).tag == 1
        with pytest.raises(grpc.RpcError) as refused:
            list(search.SearchStream(silent(), metadata=reader, timeout=60))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        assert [answer.written for answer in write.UpsertStream(upserts(), metadata=writer, timeout=60)] == [
            1
        ]
        with pytest.raises(grpc.RpcError) as ended:
            list(held[0])
        assert ended.value.code() is grpc.StatusCode.CANCELLED
        done.set()
        assert [list(stream) for stream in held[1:]] == [[], []]
