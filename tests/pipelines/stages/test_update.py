"""Updates of an index that exists: what is added, replaced, removed and kept, and what is not touched at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import CorruptError, NotFoundError, list_versions, open_index, rollback, verify
from scannery.indexer.spec.spec import shard_of
from scannery.live.maintenance.seal import seal
from scannery.pipelines import ModeError, NothingToIndexError, SpecConflictError, compact
from tests.pipelines.conftest import VECTORS, manifest_of, rows_of, run, vector_records

pytestmark = pytest.mark.system


def expected(*records: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    return {r["id"]: tuple(np.asarray(r["vector"], np.float32).tolist()) for r in records}


def values_of(store, name: str) -> dict[str, Any]:
    """Return an attribute of every datapoint."""
    values: dict[str, Any] = {}
    for segment, rows_R in open_index(store, "vectors").live_rows():
        values |= dict(zip(*segment.take(rows_R, ["id", name]).to_pydict().values(), strict=True))
    return values


def test_an_update_adds_and_replaces_and_keeps_the_rest(store, write):
    first = vector_records(0, 60)
    run(store, write("a.jsonl", first))
    changed = vector_records(50, 70, seed=1)
    report = run(store, write("b.jsonl", changed))
    assert rows_of(store) == expected(*first) | expected(*changed)
    assert (report.mode, report.version, report.passages) == ("upsert", 2, 70)
    assert (report.added, report.replaced, report.unchanged, report.removed) == (10, 10, 0, 0)
    assert report.not_in_input == 50
    assert not verify(store, "vectors").problems


def test_a_full_build_removes_what_its_input_leaves_out(store, write):
    run(store, write("a.jsonl", vector_records(0, 60)))
    report = run(store, write("b.jsonl", vector_records(50, 70)), mode="full")
    assert rows_of(store) == expected(*vector_records(50, 70))
    assert (report.mode, report.not_in_input) == ("full", None)


def test_what_did_not_change_makes_no_version(store, write):
    run(store, write("a.jsonl", vector_records(0, 60)))
    report = run(store, write("part.jsonl", vector_records(20, 30)))
    assert (report.up_to_date, report.version, report.unchanged) == (True, 1, 10)
    assert report.not_in_input == 50
    changed = [vector_records(5, 6)[0] | {"n": 99}]
    assert run(store, write("part.jsonl", changed)).replaced == 1
    again = run(store, write("part.jsonl", changed))
    assert (again.up_to_date, again.version, again.unchanged) == (True, 2, 1)
    assert values_of(store, "n")["d5"] == 99


def test_segments_of_untouched_shards_are_the_same_files(store, write):
    spec = VECTORS | {"shards": 4}
    run(store, write("a.jsonl", vector_records(0, 200)), spec=spec)
    before = {entry.shard: entry for entry in manifest_of(store).segments}
    (touched,) = {shard_of("d7", 4)}
    run(store, write("b.jsonl", vector_records(7, 8, seed=3)), spec=spec)
    after = {entry.shard: entry for entry in manifest_of(store).segments}
    assert {shard for shard in before if before[shard] != after[shard]} == {touched}


def test_deletes_with_and_without_input(store, write):
    spec = VECTORS | {"shards": 3}
    first = vector_records(0, 40)
    run(store, write("a.jsonl", first), spec=spec)
    report = run(store, spec=spec, deletes=["d0", "d1", "never"])
    assert (report.removed, report.unknown_deletes, report.version) == (2, 1, 2)
    assert rows_of(store) == expected(*first[2:])
    report = run(store, write("b.jsonl", vector_records(38, 44, seed=1)), spec=spec, deletes=["d2", "d43"])
    assert rows_of(store) == expected(*first[3:38], *vector_records(38, 43, seed=1))
    assert (report.added, report.replaced, report.removed, report.unknown_deletes) == (3, 2, 2, 0)
    again = run(store, spec=spec, deletes=["d2", "d43"])
    assert (again.up_to_date, again.unknown_deletes) == (True, 2)
    assert not verify(store, "vectors").problems


def test_everything_can_be_deleted_and_come_back(store, write):
    path = write("a.jsonl", vector_records(0, 5))
    run(store, path)
    report = run(store, deletes=[f"d{i}" for i in range(5)])
    assert (report.passages, rows_of(store)) == (0, {})
    assert run(store, path).added == 5
    assert rows_of(store) == expected(*vector_records(0, 5))


def test_replacing_a_document_replaces_all_of_its_rows(store, write):
    spec = VECTORS | {"source": {"vector": "vector", "document_id": "doc"}}
    first = [record | {"doc": f"e{i % 4}"} for i, record in enumerate(vector_records(0, 20))]
    run(store, write("a.jsonl", first), spec=spec)
    new = [record | {"doc": "e1"} for record in vector_records(100, 102)]
    report = run(store, write("b.jsonl", new), spec=spec)
    assert rows_of(store) == expected(*[r for r in first if r["doc"] != "e1"], *new)
    assert (report.replaced, report.added, report.not_in_input) == (1, 0, 3)
    assert run(store, spec=spec, deletes=["e2"]).removed == 1
    assert rows_of(store) == expected(*[r for r in first if r["doc"] in ("e0", "e3")], *new)


@pytest.mark.parametrize("shards", [1, 4])
def test_an_id_that_moves_to_another_document_is_in_the_index_once(store, write, shards):
    spec = VECTORS | {"source": {"vector": "vector", "document_id": "doc"}, "shards": shards}
    first = [record | {"doc": f"e{i}"} for i, record in enumerate(vector_records(0, 30))]
    run(store, write("a.jsonl", first), spec=spec)
    moved = [record | {"doc": f"other{i}"} for i, record in enumerate(vector_records(0, 10, seed=1))]
    run(store, write("b.jsonl", moved), spec=spec)
    assert rows_of(store) == expected(*first) | expected(*moved)
    assert not verify(store, "vectors").problems


def foreign(names: Sequence[str], shards: int) -> dict[str, str]:
    """Return for each id a document in another shard than the id itself would be in."""
    return {
        name: next(f"x{i}" for i in range(100) if shard_of(f"x{i}", shards) != shard_of(name, shards))
        for name in names
    }


@pytest.mark.parametrize("mode", ["upsert", "full"])
def test_an_id_that_a_live_update_put_into_another_shard_is_in_the_index_once(store, write, mode):
    spec, records = VECTORS | {"shards": 2}, vector_records(0, 20)
    run(store, write("a.jsonl", records), spec=spec)
    documents = foreign(["d3", "d50"], 2)
    with scannery.connect(store.uri) as client:
        client.index("vectors").upsert(
            [{"id": name, "document_id": other, "vector": [1.0] * 8} for name, other in documents.items()]
        )
    assert seal(store, "vectors") is not None
    new = [*records[:5], *vector_records(50, 51)]
    report = run(store, write("b.jsonl", new), spec=spec, mode=mode)
    assert rows_of(store) == expected(*(new if mode == "full" else [*records, *new]))
    assert not verify(store, "vectors").problems
    assert run(store, write("b.jsonl", new), spec=spec, mode=mode).version == report.version


def test_an_id_in_another_shard_is_found_though_all_was_done_before(store, write):
    spec, records = VECTORS | {"shards": 2}, vector_records(0, 20)
    run(store, write("a.jsonl", records), spec=spec)
    path = write("b.jsonl", vector_records(50, 51))
    run(store, path, spec=spec)
    rollback(store, "vectors", 1)
    [(name, other)] = foreign(["d50"], 2).items()
    with scannery.connect(store.uri) as client:
        client.index("vectors").upsert([{"id": name, "document_id": other, "vector": [1.0] * 8}])
    assert seal(store, "vectors") is not None
    # The shard of d50 is as it was when it was first built, so its segment is there.
    run(store, path, spec=spec)
    assert rows_of(store) == expected(*records, *vector_records(50, 51))
    assert not verify(store, "vectors").problems


def test_a_small_addition_to_a_large_shard_leaves_its_segment(store, write):
    spec = VECTORS | {"scann": {"exact_below_rows": 1000}}
    run(store, write("a.jsonl", vector_records(0, 2100)), spec=spec)
    (big,) = manifest_of(store).segments
    assert big.kind == "scann"
    run(store, write("b.jsonl", vector_records(2100, 2200)), spec=spec)
    assert [entry.rows for entry in manifest_of(store).segments] == [2100, 100]
    assert manifest_of(store).segments[0] == big
    changed = vector_records(2150, 2300, seed=1)  # only rows of the small segment, and new ones
    run(store, write("c.jsonl", changed), spec=spec)
    assert [entry.rows for entry in manifest_of(store).segments] == [2100, 200]
    assert manifest_of(store).segments[0] == big
    run(store, deletes=["d0"])
    run(store, write("d.jsonl", vector_records(1, 3, seed=1)), spec=spec)  # replaces two rows of the big one
    after = manifest_of(store).segments
    assert [(entry.key == big.key, entry.rows, entry.live_rows) for entry in after] == [
        (True, 2100, 2097), (False, 202, 202),
    ]  # fmt: skip
    assert [entry.documents for entry in after] == [2097, 202]
    assert manifest_of(store).rows == 2299
    wanted = expected(*vector_records(1, 2150), *changed, *vector_records(1, 3, seed=1))
    assert rows_of(store) == wanted
    assert run(store, write("d.jsonl", vector_records(1, 3, seed=1)), spec=spec).up_to_date
    assert compact("vectors", store.uri).segments == 1
    (merged,) = manifest_of(store).segments
    assert (merged.rows, merged.deleted, merged.kind) == (2299, None, "scann")
    assert rows_of(store) == wanted


def test_a_segment_is_rewritten_when_a_fifth_of_it_is_deleted(store, write):
    run(store, write("a.jsonl", vector_records(0, 100)))
    (first,) = manifest_of(store).segments
    run(store, deletes=[f"d{i}" for i in range(20)])
    (marked,) = manifest_of(store).segments
    assert (marked.key, marked.live_rows) == (first.key, 80)
    run(store, deletes=["d20"])
    (anew,) = manifest_of(store).segments
    assert (anew.key != first.key, anew.rows, anew.deleted) == (True, 79, None)
    assert rows_of(store) == expected(*vector_records(21, 100))


def test_a_full_build_marks_a_few_rows_too(store, write):
    spec = VECTORS | {"scann": {"exact_below_rows": 1000}}
    run(store, write("a.jsonl", vector_records(0, 1500)), spec=spec)
    (first,) = manifest_of(store).segments
    new = [*vector_records(10, 1490), *vector_records(1490, 1530, seed=1)]
    assert run(store, write("a.jsonl", new), spec=spec, mode="full").version == 2
    assert rows_of(store) == expected(*new)
    big, small = manifest_of(store).segments
    assert (big.key, big.live_rows, small.rows) == (first.key, 1480, 40)
    assert run(store, write("a.jsonl", new), spec=spec, mode="full").up_to_date
    run(store, write("a.jsonl", vector_records(0, 1500)), spec=spec, mode="full")
    assert manifest_of(store).segments == (first,), "known from its first time"
    for item in store.list("vectors/segments"):
        store.write(item.key, store.read(item.key)[:-1] + b"x")
    run(store, write("a.jsonl", new), spec=spec, mode="full")
    assert not verify(store, "vectors").problems, "a full build repairs"


def test_new_attributes_are_null_in_older_rows(store, write):
    path = write("a.jsonl", vector_records(0, 20))
    run(store, path, spec=VECTORS | {"shards": 2})
    spec = VECTORS | {"shards": 2, "attributes": {**VECTORS["attributes"], "extra": "string_list"}}
    run(store, write("b.jsonl", [vector_records(20, 21)[0] | {"extra": ["x"]}]), spec=spec)
    assert values_of(store, "extra") == {f"d{i}": None for i in range(20)} | {"d20": ["x"]}
    assert values_of(store, "n") == {f"d{i}": i for i in range(21)}


@pytest.mark.parametrize(("change", "words"), [
    ({"distance": "dot"}, "distance: the spec has dot, the index has cosine"),
    ({"shards": 3}, "shards: the spec has 3, the index has 1"),
    ({"attributes": {"show": "string", "n": "float"}}, r"attributes\.n: the spec has float, the index has int"),
    ({"attributes": {"n": "int"}}, r"attributes\.show: the index has it, and the spec has not"),
])  # fmt: skip
def test_a_spec_that_does_not_mix_is_refused_unless_the_build_is_full(store, write, change, words):
    path = write("a.jsonl", vector_records(0, 9))
    run(store, path)
    with pytest.raises(SpecConflictError, match=f"{words}; --full"):
        run(store, path, spec=VECTORS | change)
    assert list_versions(store, "vectors") == [1]
    assert run(store, path, spec=VECTORS | change, mode="full").version == 2


def test_arguments_that_do_not_go_together(store, write):
    path = write("a.jsonl", vector_records(0, 3))
    with pytest.raises(ModeError, match="upsert, full, got 'merge'"):
        run(store, path, mode="merge")
    with pytest.raises(ModeError, match="full build removes"):
        run(store, path, mode="full", deletes=["d1"])
    with pytest.raises(ModeError, match="inputs, ids to delete"):
        run(store)
    with pytest.raises(NotFoundError, match="no index 'vectors'"):
        run(store, deletes=["d1"])
    run(store, path, deletes=["d1"])
    with pytest.raises(NothingToIndexError):
        run(store, write("empty.jsonl", []))


def test_an_update_refuses_a_damaged_segment(store, write):
    run(store, write("a.jsonl", vector_records(0, 300)))
    (item,) = store.list("vectors/segments")
    data = bytearray(store.read(item.key))
    data[len(data) // 2] ^= 1
    store.write(item.key, bytes(data))
    with pytest.raises(CorruptError, match="SHA-256"):
        run(store, write("b.jsonl", vector_records(5, 9, seed=1)))
    assert list_versions(store, "vectors") == [1]
