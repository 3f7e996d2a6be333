"""Leaves that answer what no leaf should: a root gives an error, and no wrong answer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import Store, read_manifest
from scannery.runtime.errors import ServingError
from scannery.serving.engine.scanning.scan_result import decoded_keys
from scannery.serving.engine.wire_fields import read_table, table_bytes
from scannery.v1.index_pb2 import DeleteRequest, UpdateWhereRequest
from scannery.v1.index_pb2_grpc import IndexServiceStub
from scannery.v1.leaf_pb2 import (
    At,
    LeafCountRequest,
    LeafCounts,
    LeafFound,
    LeafRanking,
    LeafRows,
    LeafRowsRequest,
    LeafSearchRequest,
    LeafSearchResponse,
    LeafValues,
)
from scannery.v1.search_pb2 import FacetsRequest, Hit, Query, SearchOptions, SearchRequest
from scannery.v1.search_pb2_grpc import SearchServiceStub
from scannery.v1.types_pb2 import Datapoint, Filter, Value, Vector
from tests.cluster.servers import root_server
from tests.served import make_library_store
from tests.serving.leaves.leaf_server import ScriptedLeaf

SCORES = np.array([0.9, 0.8], "<f4").tobytes()
PLACES = np.array([0, 1], "<u4").tobytes()


class AnsweringLeaf(ScriptedLeaf):
    """A leaf of the only group with one answer to all searches."""

    answer = LeafSearchResponse()
    table = b""
    """In all answers that have tables."""

    def Search(self, request: LeafSearchRequest, context: grpc.ServicerContext) -> LeafSearchResponse:  # noqa: N802
        return self.answer

    def Count(self, request: LeafCountRequest, context: grpc.ServicerContext) -> LeafCounts:  # noqa: N802
        counts = np.ones(1, "<i8").tobytes()
        return LeafCounts(rows=1, values=[LeafValues(kind="string", values=self.table, counts=counts)])

    def ReadRows(self, request: LeafRowsRequest, context: grpc.ServicerContext) -> LeafRows:  # noqa: N802
        return LeafRows(tables=[self.table], matching=1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AnsweringLeaf, grpc.Channel]]:
    store: Path = make_library_store(tmp_path_factory.mktemp("wrong"))
    manifest = read_manifest(Store.open(store), "library", 1)
    leaf = AnsweringLeaf()
    leaf.states = [
        At(index="library", index_id=manifest.index_id or "", version=manifest.version,
         sequence=manifest.log_sequence),
    ]  # fmt: skip
    with root_server(store, leaf.address) as root, grpc.insecure_channel(root.address) as channel:
        yield leaf, channel
    leaf.stop()


def right() -> LeafFound:
    """Return what a leaf finds: two rows."""
    points = [Hit(datapoint=Datapoint(id=name)).SerializeToString() for name in ("a", "b")]
    ranking = LeafRanking(places=PLACES, scores=SCORES)
    return LeafFound(ids=["a", "b"], by_vector=[ranking], datapoints=points)


def wrong(**parts: Any) -> LeafSearchResponse:
    """Return the answer of a leaf with other parts than it should have."""
    found = right()
    for name, value in parts.items():
        found.ClearField(name)  # type: ignore[arg-type]  # a name of a field
        found.MergeFrom(LeafFound(**{name: value}))
    return LeafSearchResponse(results=[found], allowed=2, allowed_by_vector=[2])


def ranked(places: bytes = PLACES, scores: bytes = SCORES) -> list[LeafRanking]:
    return [LeafRanking(places=places, scores=scores)]


WRONG = {
    "no results": LeafSearchResponse(allowed=2),
    "no ranking": wrong(by_vector=[]),
    "a place beyond the ids": wrong(by_vector=ranked(places=np.array([0, 9], "<u4").tobytes())),
    "half a place": wrong(by_vector=ranked(places=PLACES[:-2])),
    "fewer scores than places": wrong(by_vector=ranked(scores=SCORES[:4])),
    "more scores than places": wrong(by_vector=ranked(scores=SCORES * 2)),
    "a score that is no number": wrong(by_vector=ranked(scores=np.array([0.9, np.nan], "<f4").tobytes())),
    "fewer datapoints than ids": wrong(datapoints=right().datapoints[:1]),
}


def ask(stub: SearchServiceStub) -> Any:
    vector = Vector(packed=np.ones(16, "<f4").tobytes())
    request = SearchRequest(index="library", query=Query(vector=vector), options=SearchOptions(k=2))
    return stub.Search(request, timeout=20)


@pytest.mark.system
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_of_a_leaf_is_an_error(served: tuple[AnsweringLeaf, grpc.Channel], case: str) -> None:
    leaf, stub = served[0], SearchServiceStub(served[1])
    leaf.answer = WRONG[case]
    with pytest.raises(grpc.RpcError) as caught:
        ask(stub)
    assert caught.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE), case
    leaf.answer = wrong()
    assert [hit.datapoint.id for hit in ask(stub).hits] == ["a", "b"]


def stream(column: str, values: pa.Array) -> bytes:
    """Return an Arrow IPC stream whose columns of names are the given one."""
    table = pa.table({column: values, "document_id": values})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def damaged(column: str) -> bytes:
    """Return a stream whose strings end far beyond their bytes, which Arrow reads without an error."""
    data, offsets = stream(column, pa.array(["abcde"])), struct.pack("<ii", 0, 5)
    for place in range(0, len(data) - len(offsets), 4):
        if data[place : place + len(offsets)] == offsets:
            far = data[:place] + struct.pack("<ii", 0, 2_000_000_000) + data[place + len(offsets) :]
            with suppress(OSError, pa.ArrowException):
                read = pa.ipc.open_stream(far).read_all().column(0).chunk(0)
                if read.buffers()[1].to_pybytes()[:8] == far[place : place + len(offsets)]:
                    return far
    raise AssertionError("no offsets")


TABLES = {
    "no stream": lambda column: b"none",
    "nothing": lambda column: b"",
    "half a stream": lambda column: stream(column, pa.array(["abcde"]))[:100],
    "offsets beyond the values": damaged,
}


@pytest.mark.parametrize("case", TABLES)
def test_a_damaged_table_of_a_leaf_is_an_error(served: tuple[AnsweringLeaf, grpc.Channel], case: str) -> None:
    leaf, search, write = served[0], SearchServiceStub(served[1]), IndexServiceStub(served[1])
    calls: dict[str, Callable[[], Any]] = {
        "value": lambda: search.Facets(FacetsRequest(index="library", attribute="show"), timeout=20),
        "id": lambda: write.Delete(DeleteRequest(index="library", ids=["d1"]), timeout=20),
    }
    for column, call in calls.items():
        leaf.table = TABLES[case](column)
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.INTERNAL, case


@pytest.mark.parametrize("values", [pa.array([1]), pa.array([None], pa.string())])
def test_rows_of_a_leaf_without_names_are_an_error(
    served: tuple[AnsweringLeaf, grpc.Channel], values: pa.Array
) -> None:
    leaf, write = served[0], IndexServiceStub(served[1])
    leaf.table = stream("id", values)
    with pytest.raises(grpc.RpcError) as caught:
        write.Delete(DeleteRequest(index="library", ids=["d1"]), timeout=20)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


VECTOR = pa.list_(pa.field("item", pa.float32(), nullable=False), 16)
RIGHT: dict[str, pa.Array] = {
    "id": pa.array(["d1"]),
    "document_id": pa.array(["doc0"]),
    "embedding": pa.array([[1.0] * 16], VECTOR),
    "_revision": pa.array([0], pa.int64()),
}
UNFIT: dict[str, dict[str, pa.Array | None]] = {
    "no id": {"id": None},
    "an empty id": {"id": pa.array([""])},
    "a long id": {"id": pa.array(["x" * 513])},
    "a document that is null": {"document_id": pa.array([None], pa.string())},
    "no vectors": {"embedding": None},
    "a vector that is null": {"embedding": pa.array([None], VECTOR)},
    "a vector that is not finite": {"embedding": pa.array([[float("nan")] * 16], VECTOR)},
    "a vector of other dimensions": {"embedding": pa.array([[1.0] * 8], pa.list_(pa.float32(), 8))},
    "an attribute of another type": {"year": pa.array([["x"]])},
    "a revision that is a text": {"_revision": pa.array(["0"])},
    "an id twice": {name: pa.concat_arrays([values, values]) for name, values in RIGHT.items()},
}


def rows_of(parts: Mapping[str, pa.Array | None]) -> bytes:
    """Return a row of a leaf with other parts than it should have; None: without."""
    columns = {**RIGHT, **parts}
    return table_bytes(pa.table({name: values for name, values in columns.items() if values is not None}))


@pytest.mark.parametrize("case", UNFIT)
def test_rows_that_do_not_fit_the_index_are_not_written(
    served: tuple[AnsweringLeaf, grpc.Channel], case: str
) -> None:
    """They would be in a record of the log that no process can read: none of them would open the index again."""
    leaf, write = served[0], IndexServiceStub(served[1])
    request = UpdateWhereRequest(
        index="library", where=Filter(), attributes={"year": Value(int_value=5)}, limit=1
    )
    leaf.table = rows_of(UNFIT[case])
    with pytest.raises(grpc.RpcError) as caught:
        write.UpdateWhere(request, timeout=20)
    assert caught.value.code() is grpc.StatusCode.INTERNAL, case
    leaf.table = rows_of({})
    assert write.UpdateWhere(request, timeout=20).updated == 1


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_a_table_that_is_much_larger_than_its_bytes_is_an_error(kind: str) -> None:
    small = pa.table({"value": np.zeros(1 << 20, np.int64)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, small.schema, options=pa.ipc.IpcWriteOptions(compression=kind)) as writer:
        writer.write_table(small)
    with pytest.raises(ServingError, match="compressed"):
        read_table(sink.getvalue().to_pybytes())
    with pytest.raises(ServingError, match="1048576 rows in"):
        read_table(table_bytes(pa.table({"value": pa.nulls(1 << 20)})))
    assert read_table(table_bytes(small)).equals(small)


@pytest.mark.parametrize("table", [b"none", damaged("id")])
def test_damaged_keys_of_rows_are_an_error(table: bytes) -> None:
    with pytest.raises(ServingError):
        decoded_keys([table])
