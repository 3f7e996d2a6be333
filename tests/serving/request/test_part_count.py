"""Requests of many parts that say nothing: refused before they are decoded, and nobody else waits for that."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError, Message

from scannery.runtime.errors import InvalidRequestError
from scannery.serving import Server
from scannery.serving.request.filter import parse_filter
from scannery.serving.request.part_count import MAX_OWN_PARTS, SMALL_BYTES
from scannery.serving.transport.lifecycle import decoded
from scannery.v1.index_pb2 import DeleteWhereRequest, UpsertRequest
from scannery.v1.search_pb2 import (
    CountRequest,
    FacetsRequest,
    GetRequest,
    ScanRequest,
    SearchManyRequest,
    SearchRequest,
)
from scannery.v1.types_pb2 import Filter, FilterList, Value
from tests.served import LIBRARY, serving

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library) as server:
        yield server


def field(number: int, data: bytes) -> bytes:
    size, length = len(data), b""
    while size > 127:
        size, length = size >> 7, length + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def number_of(kind: type[Message], name: str) -> int:
    return int(kind.DESCRIPTOR.fields_by_name[name].number)


def called(server: Server, path: str, data: bytes) -> tuple[grpc.StatusCode, str]:
    with grpc.insecure_channel(server.address) as channel:
        untyped: Any = channel
        with pytest.raises(grpc.RpcError) as raised:
            untyped.unary_unary(path)(data, timeout=120)
        error: Any = raised.value
        return error.code(), error.details()


@pytest.mark.system
@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("/scannery.v1.IndexService/Upsert", UpsertRequest, "upserts"),
        ("/scannery.v1.SearchService/SearchMany", SearchManyRequest, "where_each"),
        ("/scannery.v1.SearchService/Get", GetRequest, "ids"),
    ],
)
def test_eight_mib_of_nothing_keep_nobody_waiting(
    server: Server, path: str, kind: type[Message], name: str
) -> None:
    data = field(1, b"library") + field(number_of(kind, name), b"") * (4 * MIB)
    longest, done = [0.0], threading.Event()

    def look() -> None:
        while not done.is_set():
            began_s = time.monotonic()
            time.sleep(0.01)
            longest[0] = max(longest[0], time.monotonic() - began_s)

    other = threading.Thread(target=look)
    other.start()
    try:
        code, message = called(server, path, data)
    finally:
        done.set()
        other.join()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "too many parts" in message
    # Without the count, the batch of writes kept the interpreter's lock for 18 s.
    assert longest[0] < 5


@pytest.mark.system
def test_parts_within_parts_are_counted() -> None:
    inner = field(number_of(Filter, "any_of"), b"\x0a\x00" * (6 * MIB))
    data = field(3, field(2, inner))
    with pytest.raises(InvalidRequestError, match="too many parts"):
        decoded(SearchRequest, data)


VALUES = field(number_of(Filter, "condition"), b"\x1a\x00" * 1_000_000)


@pytest.mark.parametrize(("kind", "data"), [
    (SearchRequest, field(3, field(2, VALUES))),
    (SearchRequest, field(3, field(2, field(number_of(Filter, "condition"), b"\x1a\x00" * 9_000))) * 2),
    (SearchManyRequest, field(number_of(SearchManyRequest, "where_each"), VALUES)),
    *((kind, field(number_of(kind, "where"), VALUES)) for kind in (CountRequest, FacetsRequest, ScanRequest,
     DeleteWhereRequest)),
])  # fmt: skip
def test_a_filter_has_a_limit_of_its_own(kind: type[Message], data: bytes) -> None:
    """A million values were decoded, while nobody else was answered, and refused by the parser of filters."""
    with pytest.raises(InvalidRequestError, match="a list of a filter 4096, another field 16384 values"):
        decoded(kind, data)


@pytest.mark.system
def test_what_follows_the_limits_passes() -> None:
    request = SearchManyRequest(index="library")
    for _ in range(1000):
        request.queries.add(text="x" * 100)
        request.where_each.add().condition.values.extend([Value(int_value=1)] * 4096)
    assert decoded(SearchManyRequest, request.SerializeToString()) == request
    ids = GetRequest(index="library", ids=["x" * 100] * MAX_OWN_PARTS)
    assert decoded(GetRequest, ids.SerializeToString()) == ids


@pytest.mark.system
def test_what_is_no_message_is_none_with_the_count_either() -> None:
    rng = random.Random(3)
    good = UpsertRequest(index="library")
    for number in range(300):
        point = good.upserts.add().datapoint
        point.id, point.vector.packed = f"id-{number}", rng.randbytes(64)
        point.attributes["show"].string_value = "gotime"
        point.attributes["tags"].string_list_value.values.extend(["a", "b", "Ünï"])
    data = good.SerializeToString()
    assert len(data) > SMALL_BYTES
    assert decoded(UpsertRequest, data) == good
    for _ in range(500):
        broken = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        cut = bytes(broken[: rng.randrange(SMALL_BYTES + 1, len(broken))])
        try:
            expected = UpsertRequest.FromString(cut)
        except DecodeError:
            with pytest.raises(InvalidRequestError):
                decoded(UpsertRequest, cut)
        else:
            assert decoded(UpsertRequest, cut) == expected


def test_filters_that_say_nothing_are_counted() -> None:
    some = Filter(any_of=FilterList(filters=[Filter()] * 256))
    assert parse_filter(some, LIBRARY) is None
    with pytest.raises(InvalidRequestError, match="more than 4096 parts"):
        parse_filter(Filter(all_of=FilterList(filters=[some] * 256)), LIBRARY)
