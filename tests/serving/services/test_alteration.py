"""AlterIndex: new attributes and settings of an index that is served, and what stays or is refused."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store, alter_index, altered_spec, read_manifest, verify
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.pipelines import SpecConflictError, build, compact, export
from scannery.serving import SecurityConfig
from scannery.serving.security.api_keys import KeyFile
from tests.served import MINILM, PAUSE_S, WIRES, connected, copied, serving

pytestmark = pytest.mark.usefixtures("merges_by_hand")

VECTORS = np.random.default_rng(4).normal(size=(60, 8)).astype(np.float32)
Points = list[Any]


def points(start: int, stop: int, **attributes: Any) -> Points:
    return [{"id": f"p{i}", "vector": VECTORS[i], "attributes": attributes} for i in range(start, stop)]


def ids(hits: list[scannery.Hit]) -> set[str]:
    return {hit.id for hit in hits}


@pytest.fixture(params=WIRES)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[scannery.Client]:
    with connected(tmp_path / "store", request.param) as client:
        yield client


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.mark.system
def test_a_new_attribute_is_null_before_and_takes_values_at_once(client: scannery.Client) -> None:
    index = client.create_index("notes", dimensions=8, attributes={"show": "string"})
    index.upsert(points(0, 10, show="a"))
    info = index.alter(attributes={"year": "int", "tags": "string_list"}, target_recall=0.9)
    assert (info.version, info.attributes) == (2, {"show": "string", "tags": "string_list", "year": "int"})
    assert info.spec["target_recall"] == 0.9
    index.upsert(points(10, 15, show="a", year=2020, tags=["x"]))
    index.update([{"id": "p3", "attributes": {"year": 1999}}])
    assert ids(index.search(VECTORS[0], 30)) == {f"p{i}" for i in range(15)}
    assert ids(index.search(VECTORS[0], 30, where={"year": {"$gte": 2000}})) == {
        f"p{i}" for i in range(10, 15)
    }
    assert ids(index.search(VECTORS[0], 30, where={"year": {"$exists": False}})) == {
        f"p{i}" for i in range(10) if i != 3
    }
    old, changed, new = index.get(["p0", "p3", "p12"])
    assert old is not None and changed is not None and new is not None
    assert old.attributes == {"show": "a"}
    assert changed.attributes == {"show": "a", "year": 1999}
    assert new.attributes == {"show": "a", "year": 2020, "tags": ["x"]}
    # The same change again is no new version.
    assert index.alter(attributes={"year": "int"}).version == 2


@pytest.mark.system
def test_rows_of_a_build_stay_through_seal_merge_compaction_and_export(library: Path, tmp_path: Path) -> None:
    path = copied(library, tmp_path)
    store = Store.open(path)
    rows = read_manifest(store, "library").rows

    def check(index: scannery.Index) -> None:
        query = VECTORS[0].repeat(2)
        found = index.search(query, 5, where={"lang": "de"})
        assert [(hit.id, hit.attributes["stars"]) for hit in found] == [("new", 4.5)]
        assert len(index.search(query, 700, where={"lang": {"$exists": False}})) == index.stats().rows - 1
        grouped = index.search(query, 700, group_by="lang", max_per_group=1)
        assert [hit.id for hit in grouped if hit.attributes.get("lang")] == ["new"]

    with scannery.connect(path) as client:
        index = client.index("library")
        index.alter(attributes={"lang": "string", "stars": "float"}, live={"merge_segments": 2})
        index.upsert(
            [{"id": "new", "vector": VECTORS[0].repeat(2), "attributes": {"lang": "de", "stars": 4.5}}]
        )
        check(index)
    assert seal(store, "library") is not None
    with scannery.connect(path) as client:
        check(client.index("library"))
        client.index("library").upsert([{"id": "other", "vector": VECTORS[1].repeat(2)}])
    seal(store, "library")
    assert merge(store, "library") is not None
    while merge(store, "library") is not None:
        pass
    with scannery.connect(path) as client:
        check(client.index("library"))
    compact("library", str(path))
    with scannery.connect(path) as client:
        check(client.index("library"))
        assert client.index("library").stats().rows == rows + 2
    assert not verify(store, "library").problems
    export("library", str(path), str(tmp_path / "out.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {line["id"]: line.get("lang") for line in lines if line.get("lang")} == {"new": "de"}


@pytest.mark.system
def test_a_rollback_to_before_and_another_type_of_the_same_name(store: Store) -> None:
    with scannery.connect(store.uri) as client:
        index = client.create_index("notes", dimensions=8)
        index.upsert(points(0, 3))
        seal(store, "notes")
    with scannery.connect(store.uri) as client:
        index = client.index("notes")
        index.alter(attributes={"year": "timestamp"})
        day = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
        index.upsert(points(3, 5, year=day))
        assert ids(index.search(VECTORS[0], 10, where={"year": {"$gte": day}})) == {"p3", "p4"}
        rollback(store, "notes", 2)
        moved(index, 4)
        assert index.stats().attributes == {}
        assert len(index.search(VECTORS[0], 10)) == 5
        with pytest.raises(scannery.InvalidArgumentError, match="seal them first") as caught:
            index.alter(attributes={"year": "string"})
        assert caught.value.field == "changes.attributes.year"
        seal(store, "notes")
        moved(index, 5)
        index.alter(attributes={"year": "string"})
        index.upsert(points(5, 6, year="MMXX"))
        assert ids(index.search(VECTORS[0], 10, where={"year": "MMXX"})) == {"p5"}
        assert ids(index.search(VECTORS[0], 10, where={"year": {"$gt": "A"}})) == {"p5"}
        assert len(index.search(VECTORS[0], 10, where={"year": {"$exists": False}})) == 5


DYNAMIC = {"index": "notes", "source": {"id": "id", "vector": "v"}, "dynamic": True}


@pytest.mark.system
def test_a_name_that_datapoints_have_as_a_dynamic_attribute_cannot_be_declared(
    client: scannery.Client,
) -> None:
    index = client.create_index(DYNAMIC, dimensions=8)
    index.upsert([*points(0, 2, year=5), *points(2, 3, year=None), *points(3, 4, nested={"month": 1})])
    for _ in range(2):
        with pytest.raises(scannery.FailedPreconditionError, match="3 datapoints have it") as caught:
            index.alter(attributes={"year": "int"})
        assert caught.value.field == "changes.attributes.year"
    index.update(where={}, attributes={"year": None})
    assert index.alter(attributes={"year": "int", "month": "int"}).attributes == {
        "year": "int",
        "month": "int",
    }
    index.update(where={}, attributes={"year": 6})
    assert index.count({"year": 6}) == 4


@pytest.mark.system
def test_a_dynamic_attribute_written_while_its_name_is_declared_is_found(store: Store) -> None:
    with scannery.connect(store.uri) as one, scannery.connect(store.uri) as other:
        index = one.create_index(DYNAMIC, dimensions=8)
        late = other.index("notes")
        late.upsert(points(0, 1))
        index.alter(attributes={"year": "int"})
        late.upsert(points(1, 3, year=7, page=1))  # checked against the spec before
        for each in (index, late):
            moved(each, 2)
            assert each.count({"year": 7}) == 2
            assert each.count({"page": 1}) == 2
        late.update([{"id": "p1", "attributes": {"year": 8}}])
        point = index.get(["p1"])[0]
        assert point is not None
        assert point.attributes == {"year": 8, "page": 1}
    seal(store, "notes")
    with scannery.connect(store.uri) as one:
        assert one.index("notes").count({"year": {"$exists": True}}) == 2


@pytest.mark.system
def test_a_build_that_declares_a_dynamic_attribute_moves_its_values(store: Store, tmp_path: Path) -> None:
    spec = {**DYNAMIC, "attributes": {"year": "int"}, "vectors": "optional"}
    with scannery.connect(store.uri) as client:
        index = client.create_index({**DYNAMIC, "vectors": "optional"}, dimensions=8)
        index.upsert([*points(0, 2, year=5), *points(2, 3, year="x"), {"id": "w", "attributes": {"year": 5}}])
    seal(store, "notes")
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"id": "p9", "v": VECTORS[9].tolist(), "year": 5}))
    with pytest.raises(SpecConflictError, match="1 datapoints of the index have this dynamic") as caught:
        build(spec, [str(file)], store.uri)
    assert caught.value.field == "attributes.year"
    with scannery.connect(store.uri) as client:
        client.index("notes").update([{"id": "p2", "attributes": {"year": None, "page": 1}}])
    seal(store, "notes")
    build(spec, [str(file)], store.uri)
    with scannery.connect(store.uri) as client:
        index = client.index("notes")
        assert index.count({"year": 5}) == 4
        assert index.get(["p2", "w"])[0].attributes == {"page": 1}  # type: ignore[union-attr]


@pytest.mark.system
def test_a_rollback_keeps_rows_without_a_vector_that_are_not_sealed(store: Store) -> None:
    with scannery.connect(store.uri) as client:
        index = client.create_index("notes", dimensions=8, vectors="required")
        index.upsert(points(0, 3))
        index.alter(vectors="optional", attributes={"year": "int"})
        index.upsert([{"id": "w"}, *points(3, 4)])
        index.upsert([{"id": "only"}])
        assert rollback(store, "notes", 1).spec.vectors == "optional"
    with scannery.connect(store.uri) as client:
        index = client.index("notes")
        assert index.stats().attributes == {}
        assert {point.id for point in index.scan()} == {"p0", "p1", "p2", "p3", "w", "only"}
    seal(store, "notes")
    assert verify(store, "notes").problems == ()


def moved(index: scannery.Index, version: int) -> None:
    """Wait until an embedded client, which looks once a second, has a version."""
    end_s = time.monotonic() + 5
    while index.stats().version < version and time.monotonic() < end_s:
        time.sleep(0.05)


@pytest.mark.system
def test_an_update_by_a_build_keeps_the_attribute_or_is_refused(tmp_path: Path) -> None:
    path, spec = tmp_path / "store", {"index": "grown", "source": {"id": "id", "vector": "v"}}
    file = tmp_path / "data.jsonl"
    lines = [{"id": f"p{i}", "v": VECTORS[i].tolist(), "year": i} for i in range(30)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines[:20]))
    build(spec, [str(file)], str(path))
    with scannery.connect(path) as client:
        info = client.index("grown").alter(attributes={"year": "int"})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines[15:]))
    with pytest.raises(SpecConflictError, match="attributes.year: the index has it.*index show grown --spec"):
        build(spec, [str(file)], str(path))
    assert read_manifest(Store.open(path), "grown").version == info.version
    build(info.spec, [str(file)], str(path))
    with scannery.connect(path) as client:
        index = client.index("grown")
        assert index.stats().rows == 30
        assert ids(index.search(VECTORS[0], 50, where={"year": {"$exists": True}})) == {
            f"p{i}" for i in range(15, 30)
        }


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"attributes": {"show": "int"}}, "changes.attributes.show"),
        ({"attributes": {"show": None}}, "changes.attributes.show"),
        ({"attributes": {"year": "nubmer"}}, "changes.attributes.year"),
        ({"attributes": {"a b": "int"}}, "changes.attributes"),
        ({"target_recall": 2}, "changes.target_recall"),
        ({"search": {"mode": "lexical"}}, "changes"),
        ({"live": {"seal_row": 5}}, "changes.live.seal_row"),
        ({"vectors": "none"}, "changes.vectors"),
        ({}, "changes"),
        ({"target_recall": float("nan")}, "changes"),
        ({"if_version": 0, "target_recall": 0.9}, "if_version"),
    ],
)
def test_what_is_wrong_is_named(store: Store, changes: Any, field: str) -> None:
    with scannery.connect(store.uri) as client:
        index = client.create_index("notes", dimensions=8, attributes={"show": "string"})
        with pytest.raises(scannery.InvalidArgumentError) as caught:
            index.alter(**changes)
        assert caught.value.field == field
        assert index.stats().version == 1


@pytest.mark.parametrize(
    ("changes", "field", "told"),
    [
        ({"distance": "dot"}, "changes.distance", "move an alias"),
        ({"encoder": {"model": "m"}}, "changes.encoder", "--full"),
        ({"lexical": True}, "changes.lexical", "--full"),
        ({"source": {"chunk": {"max_tokens": 32}}}, "changes.source", "--full"),
        ({"index": "other"}, "changes.index", "alias"),
        ({"dynamic": False}, "changes.dynamic", "cannot be taken back"),
        ({"shard": 2}, "changes.shard", "did you mean `shards`"),
        ([], "changes_json", "mapping"),
    ],
)
def test_what_needs_a_new_build_says_so(store: Store, changes: Any, field: str, told: str) -> None:
    from scannery.client.request.calls import Call
    from scannery.client.request.lifecycle_calls import ALTER_INDEX
    from scannery.v1 import index_pb2

    with scannery.connect(store.uri) as client:
        client.create_index("notes", dimensions=8, dynamic=True)
        request = index_pb2.AlterIndexRequest(index="notes", changes_json=json.dumps(changes))
        with pytest.raises(scannery.InvalidArgumentError, match=told) as caught:
            client._run(Call(ALTER_INDEX, request, lambda response: response))
        assert caught.value.field == field


@pytest.mark.system
def test_a_version_that_is_not_current_is_refused(client: scannery.Client) -> None:
    index = client.create_index("notes", dimensions=8)
    assert index.alter(target_recall=0.9, if_version=1).version == 2
    with pytest.raises(scannery.FailedPreconditionError, match="is at version 2, not 1") as caught:
        index.alter(target_recall=0.8, if_version=1)
    assert caught.value.field == "if_version"
    with pytest.raises(scannery.NotFoundError):
        client.index("nobody").alter(target_recall=0.9)


@pytest.mark.system
def test_another_version_that_wins_is_built_upon(store: Store) -> None:
    with scannery.connect(store.uri) as client:
        client.create_index("notes", dimensions=8)
    calls = 0

    def change(manifest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            alter_index(store, "notes", lambda other: altered_spec(other.spec, {"attributes": {"a": "int"}}))
        return altered_spec(manifest.spec, {"attributes": {"b": "int"}})

    manifest = alter_index(store, "notes", change)
    assert (calls, manifest.version, list(manifest.spec.attributes)) == (2, 3, ["a", "b"])


@pytest.mark.system
def test_queries_and_writes_go_on_while_it_is_altered(store: Store) -> None:
    failures: list[Exception] = []
    with (
        serving(Path(store.uri), check_every_s=0.05) as one,
        serving(Path(store.uri), check_every_s=0.05) as other,
        scannery.connect(one.address) as first,
        scannery.connect(other.address) as second,
    ):
        index = first.create_index("notes", dimensions=8)
        index.upsert(points(0, 20))
        end_s = time.monotonic() + 30
        while not second.indexes() and time.monotonic() < end_s:  # until the other server has seen it
            time.sleep(0.02)
        done = threading.Event()

        def work(client: scannery.Client, name: str) -> None:
            try:
                for number in range(10_000):
                    client.index("notes").upsert([{"id": f"{name}{number}", "vector": VECTORS[number % 60]}])
                    assert len(client.index("notes").search(VECTORS[0], 10)) == 10
                    written[name] = number + 1
                    if done.wait(PAUSE_S):
                        return
            except Exception as error:  # noqa: BLE001
                failures.append(error)

        written: dict[str, int] = {}
        threads = [threading.Thread(target=work, args=(c, n)) for c, n in ((first, "a"), (second, "b"))]
        for thread in threads:
            thread.start()
        for number in range(10):
            index.alter(attributes={f"n{number}": "int"})
            index.upsert([{"id": "p0", "vector": VECTORS[0], "attributes": {f"n{number}": number}}])
        done.set()
        for thread in threads:
            thread.join()
        assert not failures
        # The other server follows, and has what was written here since.
        end_s = time.monotonic() + 5
        while second.index("notes").stats().version < 11 and time.monotonic() < end_s:
            time.sleep(0.02)
        found = second.index("notes").search(
            VECTORS[0], 5, where={"n9": 9}, min_sequence=index.stats().sequence
        )
        assert ids(found) == {"p0"}
        assert second.index("notes").stats().rows == 20 + sum(written.values())


@pytest.mark.system
def test_only_allowed_models_and_the_scope_admin(texts: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _, admin = KeyFile(path).create("admin", scopes=["admin", "read"])
    _, writer = KeyFile(path).create("writer", scopes=["read", "write"])
    _, narrow = KeyFile(path).create("narrow", scopes=["admin"], indexes=["mine"])
    with serving(
        copied(texts, tmp_path), device="cpu", security=SecurityConfig(keys_file=str(path))
    ) as server:

        def index(key: str) -> scannery.Index:
            return scannery.connect(server.address, api_key=key).index("texts")

        with pytest.raises(scannery.FailedPreconditionError, match="not among the models") as caught:
            index(admin).alter(reranker="evil/model")
        assert caught.value.field == "changes.reranker.model"
        # A model that is served is allowed, though it is no reranker.
        assert index(admin).alter(reranker=MINILM).spec["reranker"]["model"] == MINILM
        with pytest.raises(scannery.PermissionDeniedError):
            index(writer).alter(target_recall=0.9)
        with pytest.raises(scannery.NotFoundError):
            index(narrow).alter(target_recall=0.9)


@pytest.mark.system
async def test_the_asynchronous_client_alters_too(tmp_path: Path) -> None:
    async with scannery.aio.connect(tmp_path / "store", create=True) as client:
        index = await client.create_index("notes", dimensions=8)
        assert (await index.alter(dynamic=True)).dynamic


def test_a_key_that_a_spec_or_a_change_has_twice_is_refused(store: Store) -> None:
    from scannery.client.request.calls import Call
    from scannery.client.request.lifecycle_calls import ALTER_INDEX, CREATE_INDEX
    from scannery.v1 import index_pb2

    attributes = '"attributes": {"year": "int", "year": "string"}'
    spec = f'{{"index": "other", "source": {{"vector": "v"}}, {attributes}}}'
    with scannery.connect(store.uri) as client:
        client.create_index("notes", dimensions=8)
        for path, request, field in (
            (CREATE_INDEX, index_pb2.CreateIndexRequest(spec_json=spec, dimensions=8), "spec_json"),
            (
                ALTER_INDEX,
                index_pb2.AlterIndexRequest(index="notes", changes_json=f"{{{attributes}}}"),
                "changes_json",
            ),
        ):
            with pytest.raises(scannery.InvalidArgumentError, match="the key 'year' twice") as caught:
                client._run(Call(path, request, lambda response: response))
            assert caught.value.field == field
