"""Long-running operations: kept in the store, answered by every process, also after the one that ran them is gone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty

from scannery.bridges.vertex.shared import operations as module
from scannery.bridges.vertex.shared.calls import Call
from scannery.bridges.vertex.shared.operations import LOST_AFTER_S, OPERATIONS_KEY, Operations
from scannery.bridges.vertex.shared.state import JsonDocument
from scannery.indexer import Store
from scannery.runtime.errors import InvalidRequestError, UnknownResourceError
from scannery.runtime.retry import Deadline
from scannery.serving.security.access import parse_access
from scannery.serving.security.principal import CURRENT, Principal
from scannery.vertex.v1 import index_pb2 as pb

PLACE = "projects/p/locations/l/indexes/1"
CALL = Call("google.cloud.aiplatform.v1", Deadline.after(None))
METADATA = pb.UpdateIndexOperationMetadata()


class Clock:
    now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


def operations(folder: Path, clock: Clock | None = None) -> Operations:
    store = Store.open(folder / "store", create=True)
    return Operations(JsonDocument(store, OPERATIONS_KEY), clock=clock or Clock())


def test_other_processes_answer_for_an_operation_that_has_ended(tmp_path: Path):
    begun = operations(tmp_path).finished(
        CALL, PLACE, index="", metadata=METADATA, response=pb.Index(name=PLACE)
    )
    found = operations(tmp_path).get(begun.name)
    assert found == begun
    assert found.done
    assert found.response.type_url == "type.googleapis.com/google.cloud.aiplatform.v1.Index"
    assert pb.Index.FromString(found.response.value).name == PLACE
    assert found.metadata.type_url.endswith(".v1.UpdateIndexOperationMetadata")
    assert begun.name.startswith(f"{PLACE}/operations/")


def test_a_running_operation_ends_with_its_response_and_metadata(tmp_path: Path):
    mine, others = operations(tmp_path), operations(tmp_path)
    told, go_on = threading.Event(), threading.Event()

    def work(progress):
        progress(
            pb.UpdateIndexOperationMetadata(
                nearest_neighbor_search_operation_metadata=pb.NearestNeighborSearchOperationMetadata(
                    data_bytes_count=7
                )
            )
        )
        told.set()
        assert go_on.wait(30)
        return Empty()

    begun = mine.begin(CALL, PLACE, index="", metadata=METADATA, work=work)
    assert not begun.done
    assert not others.get(begun.name).done
    assert told.wait(30)  # one that tells its progress while it is closed is ended
    go_on.set()
    mine.close()
    ended = others.get(begun.name)
    assert ended.done
    assert ended.response.type_url == "type.googleapis.com/google.protobuf.Empty"
    metadata = pb.UpdateIndexOperationMetadata.FromString(ended.metadata.value)
    assert metadata.nearest_neighbor_search_operation_metadata.data_bytes_count == 7


def test_an_error_of_the_work_is_that_of_the_operation(tmp_path: Path):
    mine = operations(tmp_path)

    def work(progress):
        raise InvalidRequestError.at("index", "is wrong")

    begun = mine.begin(CALL, PLACE, index="", metadata=METADATA, work=work)
    mine.close()
    ended = operations(tmp_path).get(begun.name)
    assert (ended.done, ended.error.code, ended.error.message) == (True, 3, "index: is wrong")


def test_an_operation_whose_worker_is_gone_is_aborted(tmp_path: Path):
    clock = Clock()
    mine, go_on = operations(tmp_path, clock), threading.Event()

    def work(progress):
        assert go_on.wait(30)
        return Empty()

    begun = mine.begin(CALL, PLACE, index="", metadata=METADATA, work=work)
    later = Clock()
    later.now_s = clock.now_s + LOST_AFTER_S + 1
    lost = operations(tmp_path, later).get(begun.name)
    assert (lost.done, lost.error.code) == (True, 10)
    go_on.set()
    mine.close()


@pytest.mark.parametrize("index", ["theirs", ""])
@pytest.mark.parametrize(
    "rights", [{"indexes": frozenset({"mine"})}, {"access": parse_access([{"index": "mine"}])}]
)
def test_operations_are_unknown_to_callers_who_do_not_see_their_index(
    tmp_path: Path, index: str, rights: Any
):
    mine = operations(tmp_path)
    begun = mine.finished(CALL, PLACE, index=index, metadata=METADATA, response=Empty())
    token = CURRENT.set(Principal("me", frozenset({"read"}), **rights))
    try:
        with pytest.raises(UnknownResourceError):
            mine.get(begun.name)
        assert [*mine.below("projects/p/locations/l")] == []
    finally:
        CURRENT.reset(token)
    assert len([*mine.below("projects/p/locations/l")]) == 1


@pytest.mark.parametrize(
    "name", ["", "operations/", "projects/p/locations/l/operations/1", f"{PLACE}/operations/../1"]
)
def test_unknown_operations(tmp_path: Path, name: str):
    with pytest.raises(UnknownResourceError):
        operations(tmp_path).get(name)


def test_an_operation_has_one_name(tmp_path: Path):
    mine = operations(tmp_path)
    begun = mine.finished(CALL, PLACE, index="", metadata=METADATA, response=Empty())
    with pytest.raises(UnknownResourceError):
        mine.get(begun.name.replace("indexes/1", "indexes/2"))


def test_old_operations_are_forgotten(tmp_path: Path):
    clock = Clock()
    mine = operations(tmp_path, clock)
    old = mine.finished(CALL, PLACE, index="", metadata=METADATA, response=Empty())
    clock.now_s += 8 * 86400
    new = mine.finished(CALL, PLACE, index="", metadata=METADATA, response=Empty())
    assert [operation.name for _, operation in mine.below(PLACE)] == [new.name]
    assert old.name != new.name


def test_large_operations_of_one_index_do_not_displace_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 10_000)
    mine, large = operations(tmp_path), pb.Index(description="x" * 1000)
    kept = mine.finished(CALL, PLACE, index="small", metadata=METADATA, response=Empty())
    for _ in range(20):
        last = mine.finished(CALL, PLACE, index="large", metadata=METADATA, response=large)
    names = [operation.name for _, operation in mine.below(PLACE)]
    assert {kept.name, last.name} <= {*names}
    assert len(names) < 10
    assert (tmp_path / "store" / OPERATIONS_KEY).stat().st_size < 20_000


def test_a_server_that_stops_ends_the_operation_that_runs(tmp_path: Path):
    mine = operations(tmp_path)
    runs, stops = threading.Event(), threading.Event()

    def work(progress):
        runs.set()
        assert stops.wait(30)
        while True:
            progress(METADATA)

    begun = mine.begin(CALL, PLACE, index="", metadata=METADATA, work=work)
    assert runs.wait(30)
    threading.Timer(0.05, stops.set).start()
    mine.close()
    ended = operations(tmp_path).get(begun.name)
    assert ended.done
    assert "begin it again" in ended.error.message
