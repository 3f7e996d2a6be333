"""`isCompleteOverwrite`: new contents take the place of the old ones at once, and later stream updates stay."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

import scannery
from scannery.indexer import Store, read_manifest
from scannery.indexer.contents import ContentsRecord
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.replacement import Replacement
from scannery.live.maintenance.seal import seal
from scannery.pipelines.sources.managed.managed_contents import read_contents
from scannery.serving import Server
from scannery.serving.config import VertexConfig
from scannery.vertex.v1 import index_pb2, operations_pb2
from tests.bridges.vertex.facade_client import Caller, facade, ids_of, write_lines
from tests.served import PAUSE_S

pytestmark = pytest.mark.system

ROWS = 1200  # more than a batch of contents has


def records(front: str, rows: int = ROWS) -> list[dict[str, Any]]:
    return [{"id": f"{front}{row:04}", "embedding": [row + 1.0, 0, 0, 1]} for row in range(rows)]


def everything(caller: Caller, endpoint: str) -> list[str]:
    """Return the ids of all datapoints, sorted."""
    query = {"neighbor_count": 10_000, "datapoint": {"feature_vector": [0, 0, 0, 1]}}
    [found] = caller.find(endpoint, query)
    return sorted(ids_of(found))


def ids(front: str, rows: int = ROWS) -> list[str]:
    return [f"{front}{row:04}" for row in range(rows)]


class Paused:
    """Reads contents, and waits before the last record of the second reading, which is the one that is written."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.readings = 0
        self.added: ContentsRecord | None = None
        """What the folder has when it is read for the second time."""

    def __call__(self, uri: str) -> Iterator[ContentsRecord]:
        self.readings += 1
        last = None
        for record in read_contents(uri):
            if last is not None:
                yield last
            last = record
        if self.readings == 2:
            self.reached.set()
            assert self.go_on.wait(60)
            if self.added is not None:
                yield self.added
        if last is not None:
            yield last


def overwrite(caller: Caller, index: str, folder: Path) -> operations_pb2.Operation:
    """Begin to overwrite an index."""
    metadata = {"contentsDeltaUri": str(folder), "isCompleteOverwrite": True}
    given = index_pb2.Index(name=index, metadata=ParseDict(metadata, Value()))
    return caller.send(index_pb2.UpdateIndexRequest(index=given))


Paused_t = tuple[Server, Caller, str, str, Paused]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Paused_t]:
    """An index with old datapoints, deployed, and a server whose overwrite waits in the middle."""
    write_lines(tmp_path / "contents" / "new" / "a.json", records("new"))
    reader = Paused()
    vertex = VertexConfig(contents=(str(tmp_path / "contents"),), reader=reader)
    with facade(tmp_path, vertex=vertex) as server, Caller(server.address) as caller:
        index = caller.create_index().name
        for start in (0, 600):
            points = [
                {"datapoint_id": record["id"], "feature_vector": record["embedding"]}
                for record in records("old")[start : start + 600]
            ]
            caller.upsert(index, points)
        try:
            yield server, caller, index, caller.deploy(index), reader
        finally:
            reader.go_on.set()


def test_queries_see_the_old_contents_or_the_new_ones(served: Paused_t, tmp_path: Path):
    server, caller, index, endpoint, reader = served
    old, new, seen, stop = ids("old"), ids("new"), list[list[str]](), threading.Event()

    def ask() -> None:
        with Caller(server.address) as other:
            while not stop.wait(PAUSE_S):
                seen.append(everything(other, endpoint))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        operation = overwrite(caller, index, tmp_path / "contents" / "new")
        assert reader.reached.wait(60)
        assert everything(caller, endpoint) == old
        reader.go_on.set()
        caller.end(operation, index_pb2.Index)
        assert everything(caller, endpoint) == new
    finally:
        stop.set()
        asking.join()
    assert seen
    assert all(found in (old, new) for found in seen)


@pytest.mark.parametrize("maintained", [False, True])
def test_stream_updates_meanwhile_are_applied_to_the_new_contents(
    served: Paused_t, tmp_path: Path, maintained: bool
):
    _, caller, index, endpoint, reader = served
    name = index.rpartition("/")[2]
    operation = overwrite(caller, index, tmp_path / "contents" / "new")
    # Acknowledged as soon as the operation has a name, and while it runs.
    caller.remove(index, ["new0001"])
    caller.upsert(index, [{"datapoint_id": "stream", "feature_vector": [1, 2, 3, 4]}])
    if maintained:
        store = Store.open(tmp_path / "store")
        assert seal(store, name) is not None
        caller.upsert(index, [{"datapoint_id": "later", "feature_vector": [1, 2, 3, 4]}])
        # Two more: the log is cut up to the one before the last.
        assert seal(store, name) is not None
        caller.upsert(index, [{"datapoint_id": "last", "feature_vector": [1, 2, 3, 4]}])
        assert seal(store, name) is not None
        merge(store, name)
    assert reader.reached.wait(60)
    caller.upsert(index, [{"datapoint_id": "new0002", "feature_vector": [1, 2, 3, 4]}])
    reader.go_on.set()
    caller.end(operation, index_pb2.Index)
    expected = {*ids("new"), "stream"} - {"new0001"} | ({"later", "last"} if maintained else set())
    assert everything(caller, endpoint) == sorted(expected)
    [changed] = caller.read(endpoint, ["new0002"])
    assert list(changed.feature_vector) == [1, 2, 3, 4]
    caller.upsert(index, [{"datapoint_id": "after", "feature_vector": [1, 2, 3, 4]}])
    assert everything(caller, endpoint) == sorted({*expected, "after"})


def test_it_survives_a_restart(served: Paused_t, tmp_path: Path):
    server, caller, index, endpoint, reader = served
    reader.go_on.set()
    operation = overwrite(caller, index, tmp_path / "contents" / "new")
    caller.upsert(index, [{"datapoint_id": "stream", "feature_vector": [1, 2, 3, 4]}])
    caller.end(operation, index_pb2.Index)
    server.stop()
    with facade(tmp_path) as again, Caller(again.address) as after:
        assert everything(after, endpoint) == sorted([*ids("new"), "stream"])
    store, name = Store.open(tmp_path / "store"), index.rpartition("/")[2]
    seal(store, name)
    manifest = read_manifest(store, name)
    assert manifest.rows == ROWS + 1


def fails_at_the_end(path: Path) -> None:
    write_lines(path, [*records("new", 700), {"id": "new0001", "embedding": [1, 1, 1, 1]}])


def has_a_record_that_a_write_refuses(path: Path) -> None:
    write_lines(path, [*records("new", 700), {"id": "x" * 600, "embedding": [1, 1, 1, 1]}])


@pytest.mark.parametrize("prepare", [fails_at_the_end, has_a_record_that_a_write_refuses])
def test_a_failure_leaves_the_old_contents(served: Paused_t, tmp_path: Path, prepare: Callable[[Path], None]):
    _, caller, index, endpoint, reader = served
    reader.go_on.set()
    prepare(tmp_path / "contents" / "new" / "a.json")
    failed = caller.update_contents(index, tmp_path / "contents" / "new", overwrite=True)
    assert failed.error.code == 3
    assert "contentsDeltaUri" in failed.error.message
    assert "upserts[" not in failed.error.message
    assert everything(caller, endpoint) == ids("old")


def test_of_two_overwrites_the_one_that_ends_last_stays_whole(served: Paused_t, tmp_path: Path):
    _, caller, index, endpoint, reader = served
    operation = overwrite(caller, index, tmp_path / "contents" / "new")
    assert reader.reached.wait(60)
    store, name = Store.open(tmp_path / "store"), index.rpartition("/")[2]
    with Replacement(store, name) as other:
        other.publish()
    assert_eventually_empty(caller, endpoint)
    reader.go_on.set()
    caller.end(operation, index_pb2.Index)
    assert everything(caller, endpoint) == ids("new")


def assert_eventually_empty(caller: Caller, endpoint: str) -> None:
    """Wait until the server has opened a version without datapoints, that another process has published."""
    until_s = time.monotonic() + 60
    while everything(caller, endpoint):
        assert time.monotonic() < until_s, "it never came true"
        time.sleep(0.05)


def test_contents_that_change_while_they_are_read_replace_nothing(served: Paused_t, tmp_path: Path):
    _, caller, index, endpoint, reader = served
    reader.added = ContentsRecord(source="b.json", fields=records("new")[7])
    reader.go_on.set()
    failed = caller.update_contents(index, tmp_path / "contents" / "new", overwrite=True)
    assert (failed.error.code, "then 1201" in failed.error.message) == (3, True), failed
    assert everything(caller, endpoint) == ids("old")


@pytest.mark.parametrize("declared", ["year", "other"])
def test_an_attribute_that_is_declared_meanwhile(served: Paused_t, tmp_path: Path, declared: str):
    server, caller, index, endpoint, reader = served
    new = [
        {**record, "numeric_restricts": [{"namespace": "year", "value_int": 1990}]}
        for record in records("new", 20)
    ]
    write_lines(tmp_path / "contents" / "new" / "a.json", new)
    operation = overwrite(caller, index, tmp_path / "contents" / "new")
    assert reader.reached.wait(60)
    with scannery.connect(server.address) as client:
        client.index(index.rpartition("/")[2]).alter(attributes={declared: "int"})
        reader.go_on.set()
        wait = operations_pb2.WaitOperationRequest(name=operation.name)
        ended = caller.send(wait)
        if declared == "year":  # no filter would find the values of the new datapoints
            assert (ended.error.code, "'year'" in ended.error.message) == (6, True), ended
            assert everything(caller, endpoint) == ids("old")
        else:
            assert client.index(index.rpartition("/")[2]).count(where={"year": 1990}) == 20


def test_a_file_that_is_gone_when_it_is_written_replaces_nothing(tmp_path: Path):
    folder, readings = tmp_path / "contents" / "new", list[str]()
    for name in "abc":
        write_lines(folder / f"{name}.json", records(name, 5))

    def reader(uri: str) -> Iterator[ContentsRecord]:
        readings.append(uri)
        if len(readings) == 2:
            (folder / "b.json").unlink()
        yield from read_contents(uri)

    vertex = VertexConfig(contents=(str(tmp_path / "contents"),), reader=reader)
    with facade(tmp_path, vertex=vertex) as server, Caller(server.address) as caller:
        index = caller.create_index().name
        caller.upsert(index, [{"datapoint_id": "old", "feature_vector": [1, 2, 3, 4]}])
        failed = caller.update_contents(index, folder, overwrite=True)
        assert (failed.error.code, "it had 15 records, then 10" in failed.error.message) == (3, True), failed
        assert everything(caller, caller.deploy(index)) == ["old"]


def test_an_empty_folder_of_records_empties_the_index(served: Paused_t, tmp_path: Path):
    _, caller, index, endpoint, reader = served
    reader.go_on.set()
    write_lines(tmp_path / "contents" / "new" / "a.json", [])
    done = caller.update_contents(index, tmp_path / "contents" / "new", overwrite=True)
    assert done.HasField("response"), done.error
    assert everything(caller, endpoint) == []
