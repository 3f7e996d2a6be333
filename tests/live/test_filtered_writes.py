"""Deletions and changes by filter: what they write, and what they leave alone, against a dictionary of rows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client import Index
from scannery.indexer import Store, parse_spec
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.live.writing import resolve
from scannery.pipelines import build
from scannery.runtime.retry import Deadline
from scannery.serving import SecurityConfig
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.security.api_keys import KeyFile
from scannery.serving.services.write import FilteredWrites, Writes
from scannery.v1 import index_pb2 as pb
from scannery.v1 import types_pb2
from tests.live.model import DIMENSIONS, LIVE, Row, make_store, random_row
from tests.served import serving

pytestmark = pytest.mark.system

ROWS = 60
RNG = random.Random(7)
BUILT = {f"id{i}": random_row(RNG, f"id{i}") for i in range(ROWS)}
VECTOR = [1.0, *[0.0] * (DIMENSIONS - 1)]
GOTIME: dict[str, Any] = {"show": "gotime"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path, list(BUILT.values()))


@pytest.fixture
def index(store: Path) -> Iterator[Index]:
    with scannery.connect(store) as client:
        yield client.index("live")


@pytest.fixture(params=["embedded", "gRPC", "HTTP"])
def each(request: pytest.FixtureRequest, store: Path) -> Iterator[Index]:
    """The index, embedded and over each wire."""
    if request.param == "embedded":
        with scannery.connect(store) as client:
            yield client.index("live")
        return
    with serving(store) as server:
        target = server.address if request.param == "gRPC" else f"http://127.0.0.1:{server.http_port}"
        with scannery.connect(target, http=request.param != "gRPC") as client:
            yield client.index("live")


def found(index: Index) -> dict[str, dict[str, Any]]:
    """Return the attributes of all datapoints that may be there, by id."""
    points = index.get([f"id{i}" for i in range(2 * ROWS)])
    return {point.id: point.attributes for point in points if point is not None}


def attributes(rows: dict[str, Row]) -> dict[str, dict[str, Any]]:
    return {
        name: {key: value for key, value in row["attributes"].items() if value is not None}
        for name, row in rows.items()
    }


def of_show(show: str | None, rows: dict[str, Row]) -> list[str]:
    return [name for name, row in rows.items() if row["attributes"]["show"] == show]


@pytest.mark.parametrize("batch_size", [1, 7, 10_000])
def test_what_a_filter_allows_is_deleted_in_batches(each: Index, batch_size: int) -> None:
    names = of_show("gotime", BUILT)
    reported: list[int] = []
    assert each.delete(where=GOTIME, dry_run=True).deleted == len(names)
    assert each.count() == ROWS
    done = each.delete(where=GOTIME, batch_size=batch_size, progress=reported.append)
    assert done.deleted == len(names) > 7
    assert reported == [*range(batch_size, len(names), batch_size), len(names)]
    assert found(each) == attributes({name: row for name, row in BUILT.items() if name not in names})
    assert (each.count(), each.count(GOTIME)) == (ROWS - len(names), 0)
    # What is not there costs no sequence.
    assert each.delete(where=GOTIME) == scannery.client.Deleted(done.sequence, 0)


@pytest.mark.parametrize("batch_size", [1, 7, 10_000])
def test_what_a_filter_allows_is_changed_in_batches(each: Index, batch_size: int) -> None:
    names = of_show("gotime", BUILT)
    new = {"show": "other", "year": 1999, "tags": None}
    assert each.update(where=GOTIME, attributes=new, dry_run=True).written == len(names)
    done = each.update(where=GOTIME, attributes=new, batch_size=batch_size)
    assert done.written == len(names)
    expected = attributes(BUILT) | {name: {"show": "other", "year": 1999} for name in names}
    assert found(each) == expected
    # Vectors, texts and words stay.
    before = BUILT[names[0]]
    [point] = each.get(names[:1], vectors=True)
    assert point is not None
    assert (point.text, point.payload, point.document_id) == (
        before["text"],
        before["payload"],
        before["document_id"],
    )
    np.testing.assert_array_equal(point.vector, np.array(before["vector"], np.float32))
    word = before["text"].split()[0]
    assert names[0] in [hit.id for hit in each.search(word, 60, mode="lexical")]


async def test_the_asynchronous_client_does_the_same(store: Path) -> None:
    async with scannery.aio.connect(store) as client:
        index = client.index("live")
        changed = await index.update(where=GOTIME, attributes={"show": "x"}, batch_size=5)
        assert changed.written == len(of_show("gotime", BUILT)) == await index.count({"show": "x"})
        assert (await index.delete(where={"show": "x"}, batch_size=5)).deleted == changed.written
        assert (await index.facets("show")).missing == len(of_show(None, BUILT))
        assert (await index.attribute_stats("year")).rows == sum(
            row["attributes"]["year"] is not None and row["attributes"]["show"] != "gotime"
            for row in BUILT.values()
        )


def test_a_change_that_keeps_matching_ends(index: Index) -> None:
    """The changed rows match the filter still: they are told apart by their revision."""
    assert index.update(where={}, attributes={"year": 2000}, batch_size=7).written == ROWS
    assert index.update(where={"year": 2000}, attributes={"year": 2000}, batch_size=7).written == ROWS
    assert index.attribute_stats("year").max == 2000


def test_live_sealed_merged_and_rolled_back_rows_are_all_reached(store: Path) -> None:
    rows = dict(BUILT)
    opened = Store.open(store)
    with scannery.connect(store) as client:
        index = client.index("live")
        for step in range(3):
            new = {f"id{i}": random_row(RNG, f"id{i}") for i in range(20 * step, 20 * step + 40)}
            index.upsert(list(new.values()))  # type: ignore[arg-type]  # a dictionary with these keys
            rows |= new
            names = of_show("gotime", rows)
            assert index.update(where=GOTIME, attributes={"show": "jsparty"}, batch_size=5).written == len(
                names
            )
            for name in names:
                rows[name] = {**rows[name], "attributes": {**rows[name]["attributes"], "show": "jsparty"}}
            gone = [name for name, row in rows.items() if (row["attributes"]["year"] or 0) > 2027]
            assert index.delete(where={"year": {"$gt": 2027}}, batch_size=3).deleted == len(gone)
            for name in gone:
                del rows[name]
            assert found(index) == attributes(rows)
            seal(opened, "live")
            assert found(index) == attributes(rows)
        merge(opened, "live")
        assert found(index) == attributes(rows)
        assert index.delete(where={"show": "jsparty"}, batch_size=10).deleted == len(of_show("jsparty", rows))
    seal(opened, "live")  # a rollback keeps what is in no version yet
    rollback(opened, "live", 1)
    with scannery.connect(store) as client:
        index = client.index("live")
        assert index.count(GOTIME) == len(of_show("gotime", BUILT))
        assert index.delete(where=GOTIME).deleted == len(of_show("gotime", BUILT))


def test_an_index_that_a_pipeline_built_from_documents_is_changed_passage_by_passage(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    vectors = np.random.default_rng(0).normal(size=(30, 4)).tolist()
    source.write_text(
        "\n".join(
            json.dumps({"id": f"p{i}", "doc": f"doc{i // 3}", "vector": vectors[i], "n": i})
            for i in range(30)
        )
    )
    spec = {
        "index": "built",
        "source": {"id": "id", "vector": "vector", "document_id": "doc"},
        "attributes": {"n": "int"},
    }
    build(spec, [str(source)], str(tmp_path / "store"))
    with scannery.connect(tmp_path / "store") as client:
        index = client.index("built")
        assert index.delete(where={"document_id": "doc0", "n": {"$gte": 1}}).deleted == 2
        assert index.facets("document_id", {"document_id": {"$in": ["doc0", "doc1"]}}) == [
            ("doc1", 3),
            ("doc0", 1),
        ]
        assert index.update(where={}, attributes={"n": -1}, batch_size=10).written == 28
        assert index.facets("n") == [(-1, 28)]


class Handlers:
    """The handlers of one process over a store."""

    def __init__(self, store: Path) -> None:
        self.catalog = open_embedded_catalog(str(store), device="cpu")
        self._filtered, self._writes = FilteredWrites(self.catalog), Writes(self.catalog)

    def delete(self, **parts: Any) -> pb.DeleteWhereResponse:
        condition = types_pb2.Condition(
            field="show", operator=types_pb2.OPERATOR_EQ, values=[types_pb2.Value(string_value="gotime")]
        )
        where = types_pb2.Filter(condition=condition)
        return self._filtered.delete(
            pb.DeleteWhereRequest(index="live", where=where, **parts), Deadline.after(30)
        )

    def update(self, **parts: Any) -> pb.UpdateWhereResponse:
        request = pb.UpdateWhereRequest(
            index="live", where=types_pb2.Filter(), attributes={"year": types_pb2.Value(int_value=1)}, **parts
        )
        return self._filtered.update(request, Deadline.after(30))

    def add(self, name: str, **values: types_pb2.Value) -> int:
        point = types_pb2.Datapoint(id=name, vector=types_pb2.Vector(values=VECTOR), attributes=values)
        request = pb.UpsertRequest(index="live", upserts=[pb.Upsert(datapoint=point)])
        return self._writes.upsert(request, Deadline.after(30)).sequence


@pytest.fixture
def handlers(store: Path) -> Iterator[Handlers]:
    made = Handlers(store)
    yield made
    made.catalog.close()


def test_rows_that_others_write_meanwhile_are_left_alone(handlers: Handlers) -> None:
    matching = len(of_show("gotime", BUILT))
    first = handlers.delete(limit=3)
    assert (first.deleted, first.remaining, first.until_sequence) == (3, matching - 3, 0)
    show = types_pb2.Value(string_value="gotime")
    handlers.add("id100", show=show)
    second = handlers.delete(limit=3, until_sequence=first.until_sequence)
    assert (second.deleted, second.remaining) == (3, matching - 6)
    rest = handlers.delete(until_sequence=first.until_sequence)
    assert (rest.deleted, rest.remaining) == (matching - 6, 0)
    assert handlers.delete(until_sequence=first.until_sequence).deleted == 0
    assert handlers.delete().deleted == 1


def test_a_repeated_request_writes_nothing_and_is_answered_as_before(handlers: Handlers) -> None:
    sequence = handlers.add("id100")
    first = handlers.update(limit=5, request_id="a")
    again = handlers.update(limit=5, request_id="a")
    assert again == first
    assert (first.updated, first.sequence, first.until_sequence) == (5, sequence + 1, sequence)
    assert first.remaining == ROWS + 1 - 5
    with pytest.raises(scannery.serving.InvalidRequestError, match="request_id"):
        handlers.update(limit=6, request_id="a")


def test_a_batch_is_chosen_from_what_other_processes_wrote_before_it(store: Path, handlers: Handlers) -> None:
    assert handlers.delete(dry_run=True).deleted == len(of_show("gotime", BUILT))
    with scannery.connect(store) as client:
        other = client.index("live")
        other.upsert([{"id": "id100", "vector": VECTOR, "attributes": {"show": "gotime"}}])
        other.delete(of_show("gotime", BUILT)[:4])
        assert handlers.delete(dry_run=True).deleted == len(of_show("gotime", BUILT)) - 3
        other.delete(of_show("gotime", BUILT)[4:5])
    assert handlers.delete().deleted == len(of_show("gotime", BUILT)) - 4


@pytest.mark.parametrize(
    ("ask", "field", "message"),
    [
        (lambda i: i.delete(where={}), "where", "must have a condition"),
        (lambda i: i.delete(where={"$and": [{}]}), "where", "must have a condition"),
        (lambda i: i.delete(where={"$not": {"$not": {}}}), "where", "must have a condition"),
        (lambda i: i.delete(where={"yaer": 1}), "where.yaer", "did you mean year"),
        (lambda i: i.delete(["a"], where=GOTIME), "ids", "cannot be given together with where"),
        (lambda i: i.delete(document_ids=["a"], where=GOTIME), "document_ids", "cannot be given"),
        (lambda i: i.delete(where=GOTIME, if_revision=1), "if_revision", "cannot be given"),
        (lambda i: i.delete(where=GOTIME, request_id="a"), "request_id", "cannot be given"),
        (lambda i: i.delete(["a"], dry_run=True), "where", "is required with dry_run"),
        (lambda i: i.delete(where=GOTIME, batch_size=0), "limit", "must be 1 to 10000, got 0"),
        (lambda i: i.delete(where=GOTIME, batch_size="5"), "batch_size", "must be an integer"),
        (lambda i: i.update(attributes={"year": 1}), "where", "is required with attributes"),
        (lambda i: i.update([{"id": "a"}], where={}), "points", "cannot be given"),
        (lambda i: i.update(where={}), "attributes", "must name at least one"),
        (lambda i: i.update(where={}, attributes={"yaer": 1}), "attributes.yaer", "did you mean year"),
        (lambda i: i.update(where={}, attributes={"year": "soon"}), "attributes.year", "soon"),
        (lambda i: i.update(where={}, attributes={"id": "x"}), "attributes.id", "no such attribute"),
        (lambda i: i.update(where={}, attributes=[1]), "attributes", "must be a mapping"),
    ],
)
def test_bad_input_is_named(index: Index, ask: Callable[[Index], Any], field: str, message: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match=message) as caught:
        ask(index)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)
    assert index.stats().sequence == 0


def test_a_change_needs_a_filter_on_the_wire(handlers: Handlers) -> None:
    request = pb.UpdateWhereRequest(index="live", attributes={"year": types_pb2.Value(int_value=1)})
    with pytest.raises(scannery.serving.InvalidRequestError, match="where: is required"):
        handlers._filtered.update(request, Deadline.after(30))


def test_a_failure_part_way_says_how_many_datapoints_are_left(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline of the third batch has passed: the calls are real ones."""
    matching = len(of_show("gotime", BUILT))

    def progress(done: int) -> None:
        if done == 6:
            monkeypatch.setattr(index._client, "_timeout_s", 1e-9)

    with pytest.raises(
        scannery.DeadlineExceededError, match=f"6 datapoints are done, and {matching - 6} are left"
    ):
        index.delete(where=GOTIME, batch_size=3, progress=progress)
    monkeypatch.undo()
    assert index.count(GOTIME) == matching - 6


def test_a_batch_of_large_rows_is_cut_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scannery.live.writing import filtered_write

    monkeypatch.setattr(filtered_write, "MAX_BATCH_BYTES", 1 << 20)
    spec = parse_spec({**LIVE.model_dump(), "lexical": False})
    with scannery.connect(make_store(tmp_path, [], spec=spec)) as client:
        index = client.index("live")
        for start in range(0, 600, 200):
            index.upsert(
                [{"id": f"id{i}", "vector": VECTOR, "payload": "x" * 4096} for i in range(start, start + 200)]
            )
        steps: list[int] = []
        assert index.update(where={}, attributes={"year": 1}, progress=steps.append).written == 600
        assert sum(steps[-1:]) == 600
        assert 200 < steps[0] < 256  # 1 MiB of 4 KiB payloads


@pytest.mark.parametrize("large", ["rows", "named", "declared", "dynamic"])
def test_no_more_rows_are_copied_than_a_batch_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: str
) -> None:
    from scannery.live.writing import filtered_write

    copied: list[int] = []

    def changed_rows(places: Any, *rest: Any) -> Any:
        copied.extend(len(rows_R) for _, rows_R in places)
        return resolve.changed_rows(places, *rest)

    monkeypatch.setattr(filtered_write, "MAX_BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(filtered_write, "changed_rows", changed_rows)
    named = {name: {"dimensions": 16_384} for name in "abc"} if large == "named" else {}
    vectors = dict.fromkeys(named, np.ones(16_384, np.float32))
    spec = parse_spec({**LIVE.model_dump(), "lexical": False, "dynamic": True, "named_vectors": named})
    text = "x" * 200_000
    with scannery.connect(make_store(tmp_path, [], spec=spec)) as client:
        index = client.index("live")
        payload = text if large == "rows" else ""
        index.upsert(
            [{"id": f"id{i}", "vector": VECTOR, "vectors": vectors, "payload": payload} for i in range(20)]
        )
        changes: dict[str, dict[str, Any]] = {
            "rows": {"year": 1},
            "named": {"year": 1},
            "declared": {"show": text},
            "dynamic": {"more": text},
        }
        change = changes[large]
        assert index.update(where={}, attributes=change).written == 20
        assert copied == [5, 5, 5, 5]
        # A row of its own is changed, however large it is.
        monkeypatch.setattr(filtered_write, "MAX_BATCH_BYTES", 1000)
        assert index.update(where={"id": {"$in": ["id3", "id4"]}}, attributes=change).written == 2
        assert copied[4:] == [1, 1]


def test_dynamic_attributes_are_changed_and_removed(tmp_path: Path) -> None:
    spec = parse_spec({**LIVE.model_dump(), "dynamic": True})
    path = make_store(tmp_path, [], spec=spec)
    with scannery.connect(path) as client:
        index = client.index("live")
        index.upsert(
            [
                {
                    "id": f"id{i}",
                    "vector": VECTOR,
                    "attributes": {"year": i, "mood": i % 2, "kept": [i, None]},
                }
                for i in range(20)
            ]
        )
        change = {"mood": "calm", "year": 7, "new": {"deep": 1}}
        assert index.update(where={"mood": 1}, attributes=change, batch_size=3).written == 10
        assert found(index)["id1"] == {"kept": [1, None], **change}
        assert found(index)["id2"] == {"year": 2, "mood": 0, "kept": [2, None]}
        seal(Store.open(path), "live")
        assert index.update(where={"mood": "calm"}, attributes={"mood": None}).written == 10
        assert found(index)["id1"] == {"kept": [1, None], "year": 7, "new": {"deep": 1}}
        assert index.delete(where={"mood": {"$exists": False}}, batch_size=4).deleted == 10
        assert index.delete(where={"kept": {"$gte": 10}}).deleted == 5
        assert sorted(found(index)) == ["id0", "id2", "id4", "id6", "id8"]
        with pytest.raises(scannery.InvalidArgumentError, match="attributes"):
            index.update(where={}, attributes={"": 1})


@pytest.mark.long
def test_a_change_of_more_rows_than_fit_in_memory_waits_for_seals(tmp_path: Path) -> None:
    live = {"seal_rows": 500, "max_rows": 1000}
    spec = parse_spec({**LIVE.model_dump(), "lexical": False, "live": live})
    rows = [random_row(RNG, f"id{i}") for i in range(1500)]
    with scannery.connect(make_store(tmp_path, rows, spec=spec), timeout_s=60) as client:
        index = client.index("live")
        assert index.update(where={}, attributes={"year": 1}, batch_size=300).written == 1500
        assert index.facets("year") == [(1, 1500)]
        assert index.stats().version > 1


def test_a_dry_run_counts_only_for_keys_that_may_read(store: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    _, writer = keys.create("writer", scopes=["write"])
    _, both = keys.create("both", scopes=["read", "write"])
    with serving(store, security=SecurityConfig(keys_file=str(tmp_path / "keys.json"))) as server:
        with scannery.connect(server.address, api_key=writer) as client:
            index = client.index("live")
            for asked in (
                lambda: index.delete(where=GOTIME, dry_run=True),
                lambda: index.update(where=GOTIME, attributes={"year": 1}, dry_run=True),
            ):
                with pytest.raises(scannery.PermissionDeniedError, match="dry_run.*scope 'read'") as caught:
                    asked()
                assert caught.value.field == "dry_run"
        with scannery.connect(server.address, api_key=both) as client:
            count = client.index("live").delete(where=GOTIME, dry_run=True).deleted
        with scannery.connect(server.address, api_key=writer) as client:
            assert client.index("live").delete(where=GOTIME).deleted == count > 0
