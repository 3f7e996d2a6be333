"""Collections in trouble: crashes in the middle, repeated requests, several workers, limited keys."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import scannery
from scannery.bridges.vertex.shared.calls import Call
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.operations import OPERATIONS_KEY
from scannery.bridges.vertex.shared.state import RESOURCES_KEY
from scannery.bridges.vertex.v2.collections import ABANDONED_AFTER_S, Births, Collections
from scannery.bridges.vertex.v2.data_objects.store import Objects
from scannery.bridges.vertex.v2.resource_names import CollectionName
from scannery.indexer import Store, read_manifest
from scannery.live.log_follower import LogFollower
from scannery.runtime.errors import StaleEtagError
from scannery.runtime.retry import Deadline
from scannery.serving import SecurityConfig, Server
from scannery.serving.bridging import Engine
from scannery.serving.security.api_keys import KeyFile
from scannery.v1 import index_pb2
from scannery.vertex.v2 import collections_pb2
from tests.bridges.vertex.collection_client import (
    CollectionCaller,
    collection_name,
    collections_served,
    dense,
    dimensions,
    names,
)
from tests.bridges.vertex.facade_client import PARENT, write_lines
from tests.serving.process.test_supervisor import children, started, wait_until

pytestmark = pytest.mark.system

ONE = dimensions(v=2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with collections_served(tmp_path) as server:
        yield server


@pytest.fixture
def caller(server: Server) -> Iterator[CollectionCaller]:
    with CollectionCaller(server.address) as caller:
        yield caller


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code()


def changed(folder: Path, key: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON object of the store."""
    store = Store.open(folder / "store")
    content = json.loads(store.read(key))
    change(content["resources"])
    store.write(key, json.dumps(content).encode())


def forget(folder: Path, id: str) -> None:
    """Leave what a server leaves that dies after it has created the index of a collection."""
    changed(
        folder,
        RESOURCES_KEY,
        lambda kinds: [kinds["collections"].pop(id), kinds.pop("collection-requests", None)],
    )


def age(folder: Path, id: str, seconds: float) -> None:
    """Make an index older."""
    first = read_manifest(Store.open(folder / "store"), id, 1)
    older = first.model_copy(update={"created_at": first.created_at - timedelta(seconds=seconds)})
    [path] = (folder / "store" / id / "versions").iterdir()
    draft = folder / "older.json"
    draft.write_bytes(older.to_json())
    draft.replace(path)  # a server may read it now


def test_the_same_request_takes_over_the_index_of_a_creation_that_was_cut_short(
    caller: CollectionCaller, tmp_path: Path
) -> None:
    caller.create("films", vector_schema=ONE)
    forget(tmp_path, "films")
    assert caller.listed() == []
    assert not caller.create("films", vector_schema=ONE).HasField("error")
    caller.write("films", {"a": {"vectors": {"v": dense(1, 2)}}})
    assert caller.count("films") == 1
    assert code_of(lambda: caller.create("films", vector_schema=ONE)) is grpc.StatusCode.ALREADY_EXISTS
    assert caller.count("films") == 1


def test_another_request_replaces_the_index_of_a_creation_that_was_cut_short(
    caller: CollectionCaller, tmp_path: Path
) -> None:
    caller.create("films", vector_schema=ONE)
    forget(tmp_path, "films")
    other = dimensions(v=3)
    # Its creator may still be at work.
    assert code_of(lambda: caller.create("films", vector_schema=other)) is grpc.StatusCode.ALREADY_EXISTS
    age(tmp_path, "films", ABANDONED_AFTER_S + 1)
    caller.create("films", vector_schema=other)
    caller.write("films", {"a": {"vectors": {"v": dense(1, 2, 3)}}})
    assert names(
        caller.search("films", vector_search={"search_field": "v", "vector": {"values": [1, 2, 3]}})
    ) == ["a"]


def test_an_index_that_is_no_abandoned_one_is_kept(
    caller: CollectionCaller, server: Server, tmp_path: Path
) -> None:
    caller.create("written", vector_schema=ONE)
    caller.write("written", {"a": {}})
    forget(tmp_path, "written")
    age(tmp_path, "written", ABANDONED_AFTER_S + 1)
    other = dimensions(v=3)
    assert code_of(lambda: caller.create("written", vector_schema=other)) is grpc.StatusCode.ALREADY_EXISTS
    assert not caller.create("written", vector_schema=ONE).HasField("error")
    assert caller.count("written") == 1
    with scannery.connect(server.address) as client:
        client.create_index("own", dimensions=2)
    age(tmp_path, "own", ABANDONED_AFTER_S + 1)
    assert code_of(lambda: caller.create("own", vector_schema=ONE)) is grpc.StatusCode.ALREADY_EXISTS


def test_what_another_process_has_just_written_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogFollower, "look", lambda self: 0.1)  # it is late
    with collections_served(tmp_path) as server, CollectionCaller(server.address) as caller:
        for name in ("recorded", "unrecorded"):
            caller.create(name, vector_schema=ONE)
        forget(tmp_path, "unrecorded")
        age(tmp_path, "unrecorded", ABANDONED_AFTER_S + 1)
        with scannery.connect(tmp_path / "store") as other:
            for name in ("recorded", "unrecorded"):
                other.index(name).upsert([{"id": "a"}])
            recorded = code_of(lambda: caller.delete_collection("recorded"))
            assert recorded is grpc.StatusCode.FAILED_PRECONDITION
            unrecorded = code_of(lambda: caller.create("unrecorded", vector_schema=dimensions(v=3)))
            assert unrecorded is grpc.StatusCode.ALREADY_EXISTS
            assert [other.index(name).count() for name in ("recorded", "unrecorded")] == [1, 1]


def test_of_a_repeated_creation_and_one_that_would_replace_it_one_succeeds(
    caller: CollectionCaller, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "last"):
        caller.create(name, vector_schema=ONE)
        forget(tmp_path, name)
        age(tmp_path, name, ABANDONED_AFTER_S + 1)
    other = dimensions(v=3)

    def repeated_before(births: Births, index: str) -> bool:
        answer = is_abandoned(births, index)
        with CollectionCaller(server.address) as repeating:
            repeating.create(index, vector_schema=ONE)
            repeating.write(index, {"a": {}})
        return answer

    def repeated_after(collections: Collections, name: CollectionName, mark: str) -> None:
        claim(collections, name, mark)
        with CollectionCaller(server.address) as repeating:
            refused.append(code_of(lambda: repeating.create(name.id, vector_schema=ONE)))

    is_abandoned, claim, refused = Births._is_abandoned, Collections.claim, list[grpc.StatusCode]()
    with monkeypatch.context() as patch:
        patch.setattr(Births, "_is_abandoned", repeated_before)
        assert code_of(lambda: caller.create("first", vector_schema=other)) is grpc.StatusCode.ALREADY_EXISTS
    assert caller.count("first") == 1
    with monkeypatch.context() as patch:
        patch.setattr(Collections, "claim", repeated_after)
        caller.create("last", vector_schema=other)
    assert refused == [grpc.StatusCode.ALREADY_EXISTS]
    caller.write("last", {"a": {"vectors": {"v": dense(1, 2, 3)}}})


def test_a_deletion_that_was_cut_short_is_repeated(caller: CollectionCaller, server: Server) -> None:
    caller.create("films", vector_schema=ONE)
    with scannery.connect(server.address) as client:
        client.drop_index("films")
    assert caller.listed() == ["films"]
    assert code_of(lambda: caller.count("films")) is grpc.StatusCode.NOT_FOUND
    caller.delete_collection("films")
    assert caller.listed() == []
    caller.create("films", vector_schema=ONE)
    with scannery.connect(server.address) as client:
        client.drop_index("films")
    caller.create("films", vector_schema=dimensions(w=3))
    assert caller.count("films") == 0


def test_a_repeated_request_is_done_once(caller: CollectionCaller) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(
            threads.map(lambda _: caller.create("films", request_id="r1", vector_schema=ONE), range(4))
        )
    assert len({each.response.value for each in made}) == 1
    caller.write("films", {"a": {}})
    assert not caller.create("films", request_id="r1", vector_schema=ONE).HasField("error")
    assert caller.count("films") == 1
    for other in (
        lambda: caller.create("films", request_id="r1", vector_schema=ONE, description="other"),
        lambda: caller.create("more", request_id="r1", vector_schema=ONE),
        lambda: caller.create("more", request_id="x" * 65, vector_schema=ONE),
        lambda: caller.delete_collection("films", request_id="r1"),
    ):
        assert code_of(other) is grpc.StatusCode.INVALID_ARGUMENT
    assert caller.listed() == ["films"]
    caller.delete_collection("films", request_id="r2", force=True)
    caller.create("films", vector_schema=ONE)
    caller.delete_collection("films", request_id="r2", force=True)
    assert caller.listed() == ["films"]


@pytest.mark.parametrize("name", ["", "é", "1a", "a/b", "x" * 64])
def test_every_vector_field_has_a_name_that_a_named_vector_can_have(
    caller: CollectionCaller, name: str
) -> None:
    schemas: list[dict[str, Any]] = [dimensions(**{name: 2}), {name: {"sparse_vector": {}}}]
    for schema in schemas:
        create = partial(caller.create, "films", vector_schema=schema)
        assert code_of(create) is grpc.StatusCode.INVALID_ARGUMENT
    caller.create("films", vector_schema=ONE)
    grown = {"name": collection_name("films"), "vector_schema": ONE | dimensions(**{name: 2})}
    change = {"collection": grown, "update_mask": "vectorSchema"}
    update = partial(caller.operate, collections_pb2.UpdateCollectionRequest, change)
    assert code_of(update) is grpc.StatusCode.INVALID_ARGUMENT


def test_filters_lead_into_objects_of_any_name(caller: CollectionCaller) -> None:
    caller.create("films", vector_schema=ONE)
    data: dict[str, Any] = {
        "own": {"id": "x"},
        "inner": {"data": {"id": "x"}},
        "outer": {"id": {"part": "x"}},
        "dotted": {"id.part": "x"},
    }
    caller.write("films", {key: {"data": each, "vectors": {"v": dense(1, 2)}} for key, each in data.items()})

    def found(name: str) -> list[str]:
        search = {"search_field": "v", "vector": {"values": [1, 1]}, "filter": {name: "x"}}
        return names(caller.search("films", vector_search=search))

    assert found("id") == ["own"]
    assert found("data.id") == ["inner"]
    assert found("id.part") == ["dotted", "outer"]
    assert {key: each["data"] for key, each in caller.all_objects("films").items()} == data


def test_a_batch_of_deletions_is_all_or_none(caller: CollectionCaller) -> None:
    caller.create("films", vector_schema=ONE)
    a, b, _ = caller.write("films", {"a": {"data": {"n": 1}}, "b": {"data": {"n": 1}}, "c": {}})
    b = caller.update("films", "b", data={"n": 2})
    assert a.etag != b.etag
    stale = {"a": a.etag, "b": a.etag, "c": ""}
    assert code_of(lambda: caller.delete_objects("films", stale)) is grpc.StatusCode.ABORTED
    unknown = {"a": a.etag, "none": ""}
    assert code_of(lambda: caller.delete_objects("films", unknown)) is grpc.StatusCode.NOT_FOUND
    assert caller.count("films") == 3
    caller.delete_objects("films", {"a": a.etag, "b": b.etag, "c": ""})
    assert caller.count("films") == 0


class InterruptedEngine(Engine):
    """Has something happen just before its first deletion."""

    def __init__(self, real: Engine, between: Callable[[], object]) -> None:
        super().__init__(real._methods, checks=False)
        self._between = [between]

    def delete(self, request: index_pb2.DeleteRequest, deadline: Deadline) -> index_pb2.DeleteResponse:
        if self._between:
            self._between.pop()()
        return super().delete(request, deadline)


def test_a_write_between_the_check_and_the_deletion_is_noticed(
    caller: CollectionCaller, server: Server
) -> None:
    caller.create("films", vector_schema=ONE)
    a, b = (caller.write("films", {name: {"data": {"n": 0}}})[0] for name in "ab")
    facade: Facade = server._bridges["vertex"].facade
    collection = Collections(facade.state).get(CollectionName(PARENT, "films"), "name")
    call = Call("google.cloud.vectorsearch.v1", Deadline.after(30))

    def delete(between: Callable[[], object], etags: dict[str, str]) -> None:
        engine = InterruptedEngine(facade.engine, between)
        Objects(replace(facade, engine=engine)).delete(collection, etags, call)

    with pytest.raises(StaleEtagError):
        delete(lambda: caller.update("films", "b", data={"n": 1}), {"a": a.etag, "b": b.etag})
    assert caller.count("films") == 2
    # Without an etag, it is deleted as it is then.
    delete(lambda: caller.update("films", "b", data={"n": 2}), {"a": a.etag, "b": ""})
    assert caller.count("films") == 0


def test_workers_see_a_collection_and_its_objects_at_once_or_not_at_all(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True)
    with started(tmp_path / "store", "--vertex", "--workers", "2") as (_, address):
        callers = [
            CollectionCaller(address, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(8)
        ]
        try:
            callers[0].create("films", vector_schema=ONE)
            callers[0].write("films", {f"f{i}": {"vectors": {"v": dense(1, i)}} for i in range(50)})
            search = {"search_field": "v", "vector": {"values": [1, 0]}, "top_k": 50}

            def complete(caller: CollectionCaller) -> bool:
                try:
                    found = caller.search("films", vector_search=search)
                except grpc.RpcError as error:
                    assert error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED)
                    return False
                assert len(found) in (0, 50)
                return len(found) == 50

            for caller in callers:
                wait_until(lambda caller=caller: complete(caller))
                assert caller.listed() == ["films"]
        finally:
            for caller in callers:
                caller.channel.close()


def test_a_killed_import_is_reported_as_failed_and_can_be_repeated(tmp_path: Path) -> None:
    rows = 12_000
    write_lines(
        tmp_path / "contents" / "in" / "x.jsonl",
        [{"id": f"f{i}", "data": {"n": i}, "vectors": {"v": dense(1, i)}} for i in range(rows)],
    )
    Store.open(tmp_path / "store", create=True)
    places = ("films", tmp_path / "contents" / "in", tmp_path / "contents" / "errors")
    options = ("--vertex", "--vertex-contents", str(tmp_path / "contents"))
    with started(tmp_path / "store", *options) as (process, address), CollectionCaller(address) as caller:
        caller.create("films", vector_schema=ONE)
        name = caller.begin_import(*places)
        wait_until(lambda: caller.count("films") > 0)
        workers = children(process.pid)
        process.send_signal(signal.SIGSTOP)  # or it would start others
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        process.kill()
        for worker in workers:
            wait_until(lambda worker=worker: not Path(f"/proc/{worker}").exists())
    changed(
        tmp_path,
        OPERATIONS_KEY,
        lambda kinds: [each.update(updated_s=time.time() - 60) for each in kinds["operations"].values()],
    )
    with collections_served(tmp_path) as server, CollectionCaller(server.address) as caller:
        assert 0 < caller.count("films") < rows
        ended = caller.ended(name)
        assert (ended.done, ended.error.code) == (True, grpc.StatusCode.ABORTED.value[0])
        assert not caller.import_from(*places).HasField("error")
        assert caller.count("films") == rows


def test_a_limited_key_learns_nothing_of_other_collections(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    _, admin = keys.create("admin", scopes=["read", "write", "admin"])
    _, mine = keys.create("mine", scopes=["read", "write", "admin"], indexes=["mine"])
    _, reader = keys.create("reader", scopes=["read"], indexes=["mine"])
    security = SecurityConfig(keys_file=str(tmp_path / "keys.json"))
    with collections_served(tmp_path, security=security) as server:

        def as_(key: str) -> CollectionCaller:
            return CollectionCaller(server.address, metadata=(("authorization", f"Bearer {key}"),))

        with as_(admin) as all_, as_(mine) as limited, as_(reader) as reading:
            for name in ("mine", "other"):
                all_.create(name, vector_schema=ONE, request_id=f"make-{name}")
                all_.write(name, {"a": {"vectors": {"v": dense(1, 1)}}})
            assert (all_.listed(), limited.listed(), reading.listed()) == (
                ["mine", "other"],
                ["mine"],
                ["mine"],
            )
            place = tmp_path / "contents"
            write_lines(place / "in" / "x.jsonl", [{"id": "b"}])
            search = {"search_field": "v", "vector": {"values": [1, 1]}}

            def answers(caller: CollectionCaller, name: str) -> list[tuple[str, str]]:
                calls: list[Callable[[], object]] = [
                    lambda: caller.read(name, "a"),
                    lambda: caller.count(name),
                    lambda: caller.all_objects(name),
                    lambda: caller.search(name, vector_search=search),
                    lambda: caller.write(name, {"x": {}}),
                    lambda: caller.update(name, "a", data={"n": 1}),
                    lambda: caller.delete_objects(name, {"a": ""}),
                    lambda: caller.export_to(name, place / "out"),
                    lambda: caller.import_from(name, place / "in", place / "errors"),
                    lambda: caller.delete_collection(name, force=True),
                ]
                found = []
                for call in calls:
                    with pytest.raises(grpc.RpcError) as caught:
                        call()
                    found.append(
                        (caught.value.code().name, str(caught.value.details()).replace(name, "NAME"))
                    )
                return found

            # What exists and may not be seen is told as what does not exist.
            assert answers(limited, "other") == answers(limited, "missing")
            assert {code for code, _ in answers(limited, "other")} == {"NOT_FOUND"}
            refused = [
                code_of(partial(limited.create, name, vector_schema=ONE, request_id="make-other"))
                for name in ("other", "missing")
            ]
            assert refused == [grpc.StatusCode.PERMISSION_DENIED] * 2
            operations = limited.operations()
            assert all("other" not in each for each in operations)
            assert limited.count("mine") == reading.count("mine") == 1
            calls: list[Callable[[], object]] = [
                lambda: reading.write("mine", {"x": {}}),
                lambda: reading.delete_objects("mine", {"a": ""}),
                lambda: reading.create("mine", vector_schema=ONE),
                lambda: reading.export_to("mine", place / "out"),
            ]
            for call in calls:
                assert code_of(call) is grpc.StatusCode.PERMISSION_DENIED
            assert all_.count("other") == 1
            assert not (place / "out").exists()
