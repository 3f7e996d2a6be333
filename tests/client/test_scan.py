"""What a scan of the SDK gives: datapoints that are decoded when they are read, tokens, batches, tables."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.client.request.queries import build_scan
from scannery.client.response.decoding import parse_page
from scannery.v1 import search_pb2
from tests.served import ROWS, serving


@pytest.fixture(scope="module")
def index(library: Path) -> Iterator[scannery.Index]:
    with scannery.connect(library) as client:
        yield client.index("library")


@pytest.mark.system
def test_datapoints_are_those_of_get(index: scannery.Index) -> None:
    found = list(index.scan(vectors=True))
    expected = index.get([point.id for point in found], vectors=True)
    for point, other in zip(found, expected, strict=True):
        assert other is not None
        assert point == other
        assert repr(point) == repr(other)
        assert point.vector is not None and other.vector is not None
        assert point.vector.tolist() == other.vector.tolist()


def test_undecoded_datapoints_are_equal_and_can_be_pickled_and_copied(index: scannery.Index) -> None:
    decoded = next(index.scan())
    assert decoded.id and decoded.attributes
    assert next(index.scan()) == decoded
    assert decoded == next(index.scan())
    assert repr(next(index.scan())) == repr(decoded)
    assert pickle.loads(pickle.dumps(next(index.scan()))) == decoded
    assert copy.copy(next(index.scan())) == decoded
    assert copy.deepcopy(next(index.scan())) == decoded
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = next(index.scan()).nothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        next(index.scan()).id = "other"  # type: ignore[misc]
    bare = next(index.scan(fields=[]))
    assert (bare.id, bare.title, bare.text, bare.attributes, bare.payload) == (
        decoded.id,
        None,
        None,
        {},
        None,
    )


def test_a_datapoint_is_decoded_once_for_several_threads() -> None:
    response = search_pb2.ScanResponse(page_token="x.0", total=300)
    for number in range(300):
        point = response.datapoints.add(id=f"p{number}", document_id="d", revision=number)
        point.attributes["year"].int_value = number
    points = list(parse_page(response).points)
    found: list[list[Any]] = [[] for _ in range(4)]
    start = threading.Barrier(4)

    def read(turn: int) -> None:
        start.wait()
        for point in points:
            found[turn].append((point.attributes["year"], point.id, point.revision, point.title))

    threads = [threading.Thread(target=read, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each == [(n, f"p{n}", n, None) for n in range(300)] for each in found)


@pytest.mark.system
def test_the_token_follows_the_datapoints_that_were_taken(index: scannery.Index) -> None:
    everything = [point.id for point in index.scan()]
    running = index.scan(page_size=100)
    assert (running.token, running.total) == (None, None)
    sizes = []
    for batch in running.batches():
        sizes.append(len(batch))
        assert running.token is not None and running.token.endswith(f".{sum(sizes)}")
    assert sizes == [100] * 6
    assert (running.total, running.version, running.sequence) == (ROWS, 1, 0)
    assert running.token is not None
    assert list(index.scan(token=running.token)) == []
    middle = f"{running.token.rpartition('.')[0]}.250"
    rest = index.scan(token=middle)
    assert rest.token == middle
    next(rest)
    assert [point.id for point in next(rest.batches())] == everything[251:]


def test_a_page_that_fails_can_be_asked_for_again(index: scannery.Index) -> None:
    running = index.scan(page_size=10)
    first = [next(running).id for _ in range(10)]
    read, running._read = running._read, _fails
    with pytest.raises(scannery.UnavailableError):
        next(running)
    running._read = read
    assert first + [point.id for point in running] == [point.id for point in index.scan()]


def _fails(token: str | None) -> Any:
    raise scannery.UnavailableError(f"no page at {token}")


def test_a_scan_becomes_a_table(index: scannery.Index) -> None:
    table = index.scan(fields=["title", "year"], order_by="id", vectors=True).to_arrow()
    assert table.num_rows == ROWS
    assert {"id", "document_id", "title", "year", "vector"} <= set(table.column_names)
    assert not {"score", "rerank_score", "relevance"} & set(table.column_names)
    assert table.column("id").to_pylist() == sorted(table.column("id").to_pylist())


@pytest.mark.system
async def test_the_asynchronous_scan_gives_the_same(library: Path, index: scannery.Index) -> None:
    everything = list(index.scan(order_by="-year"))
    with serving(library) as server:
        for target in (str(library), server.address, f"http://127.0.0.1:{server.http_port}"):
            async with scannery.aio.connect(target) as client:
                other = client.index("library")
                assert [point async for point in other.scan(order_by="-year")] == everything
                running = other.scan(order_by="-year", page_size=250)
                assert await anext(running) == everything[0]
                assert [len(batch) async for batch in running.batches()] == [249, 250, 100]
                assert (await other.scan(token=running.token, order_by="-year").to_arrow()).num_rows == 0


@pytest.mark.parametrize(
    ("options", "field", "told"),
    [
        ({"order_by": ""}, "order_by", "must be the name of an attribute"),
        ({"order_by": "-"}, "order_by", "must be the name of an attribute"),
        ({"order_by": 3}, "order_by", "got 3"),
        ({"sample": 0}, "sample", "must be 1 to"),
        ({"sample": 1.5}, "sample", "got 1.5"),
        ({"seed": -1}, "seed", "must be 0 to"),
        ({"page_size": 10_001}, "page_size", "must be 1 to 10000, got 10001"),
        ({"page_size": True}, "page_size", "got True"),
        ({"token": ""}, "token", "must be the token of a scan"),
        ({"token": 7}, "token", "got 7"),
        ({"fields": "year"}, "fields", "must be a list of names"),
        ({"where": {"year": {"$gt": object()}}}, "where.year.$gt", "where.year.\\$gt"),
    ],
)
def test_a_wrong_argument_is_named_at_once(
    index: scannery.Index, options: dict[str, Any], field: str, told: str
) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match=told) as caught:
        index.scan(**options)
    assert caught.value.field == field


def test_a_descending_order_is_a_minus() -> None:
    assert build_scan("x", order_by="-year").order_by == search_pb2.OrderBy(field="year", descending=True)
    assert build_scan("x", order_by="year").order_by == search_pb2.OrderBy(field="year")


def test_rows_with_dynamic_attributes_only_have_them(tmp_path: Path) -> None:
    """Rows of a scan are decoded when they are read; a row without a declared attribute was decoded for ever."""
    with scannery.connect(tmp_path) as client:
        index = client.create_index("any", dimensions=4, attributes={"n": "int"}, dynamic=True)
        vector = [1.0] * 4
        index.upsert(
            [
                {"id": "a", "vector": vector, "attributes": {"mood": 1}},
                {"id": "b", "vector": vector, "attributes": {"mood": 2, "n": 3}},
            ]
        )
        found = {point.id: point.attributes for point in index.scan()}
        assert found == {"a": {"mood": 1}, "b": {"mood": 2, "n": 3}}


@pytest.mark.parametrize("token", ["", "abc", "abc.", "abc.-1", "abc.²", "abc." + "9" * 5000])
def test_a_page_whose_position_cannot_be_read_is_an_error_of_the_server(token: str) -> None:
    with pytest.raises(scannery.InternalError, match="page_token that cannot be read"):
        parse_page(search_pb2.ScanResponse(page_token=token))
