"""Builds from vectors: the whole chain on real Beam, without an encoder."""

from __future__ import annotations

import errno
import json
from typing import Any

import numpy as np
import pytest

from scannery.indexer import Store, StoreError, list_versions
from scannery.pipelines import (
    NothingToIndexError,
    Progress,
    RunnerError,
    SpecConflictError,
    TooManyDeadLettersError,
)
from tests.pipelines.conftest import (
    DIMENSIONS,
    VECTORS,
    letters_of,
    manifest_of,
    rows_of,
    run,
    vector_records,
)

pytestmark = pytest.mark.system


def expected(records: list[dict[str, Any]]) -> dict[str, tuple[float, ...]]:
    return {r["id"]: tuple(np.asarray(r["vector"], np.float32).tolist()) for r in records}


def small_units(monkeypatch) -> None:
    """Cut the input into many units; the driver alone decides that."""
    monkeypatch.setattr("scannery.pipelines.state.work_units.MIN_VECTOR_UNIT_BYTES", 4096)


def test_every_record_is_indexed_with_its_vector(store, write, monkeypatch):
    small_units(monkeypatch)
    records = vector_records(0, 700)
    report = run(store, write("a.jsonl", records[:300]), write("b.jsonl", records[300:]))
    assert rows_of(store) == expected(records)
    assert (report.version, report.documents, report.passages, report.dead) == (1, 700, 700, 0)
    assert (report.dimensions, report.shards, report.recall) == (DIMENSIONS, 1, 1.0)
    manifest = manifest_of(store)
    assert manifest.encoder is None
    assert manifest.statistics["documents"] == 700
    assert manifest.statistics["units"] > 10


def test_shards_hold_each_document_once(store, write):
    records = vector_records(0, 400)
    report = run(store, write("a.jsonl", records), spec=VECTORS | {"shards": 3})
    manifest = manifest_of(store)
    assert report.shards == 3
    assert sorted(entry.shard for entry in manifest.segments) == [0, 1, 2]
    assert all(entry.rows > 80 for entry in manifest.segments)
    assert rows_of(store) == expected(records)


def test_a_rerun_with_nothing_new_commits_nothing(store, write, monkeypatch):
    path = write("a.jsonl", [*vector_records(0, 50), {"id": "bad"}])
    first = run(store, path)
    files = {item.key: item.size_bytes for item in store.list("vectors")}
    again = run(store, path)
    assert (first.up_to_date, again.up_to_date) == (False, True)
    assert again.version == 1
    assert again.dead_letters == {"missing_vector": 1}
    assert list_versions(store, "vectors") == [1]
    assert {item.key for item in store.list("vectors")} == files.keys()


def test_changed_input_makes_a_new_version_and_touches_only_its_units(store, write, monkeypatch):
    small_units(monkeypatch)
    records = vector_records(0, 300)
    path = write("a.jsonl", records)
    run(store, path)
    before = {item.key for item in store.list("vectors/embeddings")}
    records[-1] = {**records[-1], "n": -1}
    write("a.jsonl", records)
    report = run(store, path)
    after = {item.key for item in store.list("vectors/embeddings")}
    assert (report.version, report.up_to_date) == (2, False)
    assert len(after - before) == 1
    assert manifest_of(store).parent == 1
    write("a.jsonl", vector_records(0, 300))
    assert run(store, path, mode="full").version == 3
    assert {item.key for item in store.list("vectors/embeddings")} == after


def test_of_duplicates_the_first_in_input_order_wins(store, write, monkeypatch):
    small_units(monkeypatch)
    one, two = vector_records(0, 200), vector_records(100, 260, seed=1)
    report = run(store, write("b.jsonl", one), write("a.jsonl", two), spec=VECTORS | {"shards": 2})
    assert rows_of(store) == expected(two) | expected(one)
    assert report.dead_letters == {"duplicate_id": 100}
    assert (report.documents, report.passages) == (260, 260)
    letters = letters_of(store, report)
    assert {(d.id, d.line) for d in letters} == {(f"d{100 + i}", i + 1) for i in range(100)}
    assert {d.source.rsplit("/", 1)[1] for d in letters} == {"a.jsonl"}


def test_every_bad_record_is_in_the_dead_letters_with_its_place(store, write):
    good = vector_records(0, 20)
    lines = [
        *good,
        "{broken",
        {"vector": good[0]["vector"]},
        {"id": "x"},
        {"id": "y", "vector": [1.0]},
        {"id": "z", "vector": [float("nan")] * DIMENSIONS},
        {"id": "w", "vector": good[0]["vector"], "n": "many"},
        {"id": "d0", "vector": good[1]["vector"]},
    ]
    report = run(store, write("a.jsonl", lines))
    reasons = [
        "malformed", "missing_id", "missing_vector", "vector_size", "vector_value", "attribute", "duplicate_id",
    ]  # fmt: skip
    assert [(d.reason, d.line) for d in letters_of(store, report)] == list(
        zip(reasons, range(21, 28), strict=True)
    )
    assert report.dead_letters == dict.fromkeys(sorted(reasons), 1)
    assert manifest_of(store).statistics["dead_letters"] == report.dead_letters
    assert rows_of(store) == expected(good)


def test_the_size_of_vectors_is_that_of_most(store, write):
    report = run(store, write("a.jsonl", [{"id": "odd", "vector": [1.0]}, *vector_records(0, 5)]))
    assert report.dimensions == DIMENSIONS
    assert report.dead_letters == {"vector_size": 1}


def test_an_index_keeps_its_size_of_vectors(store, write):
    run(store, write("a.jsonl", vector_records(0, 5)))
    with pytest.raises(SpecConflictError, match="dimensions: the spec has 2, the index has 8; --full"):
        run(store, write("b.jsonl", [{"id": "a", "vector": [1.0, 2.0]}]))
    assert list_versions(store, "vectors") == [1]


def test_when_every_record_is_bad_there_is_no_version(store, write):
    with pytest.raises(NothingToIndexError, match=r"2 × missing_id.*dead-letters/"):
        run(store, write("a.jsonl", [{"vector": [1.0]}] * 2))
    assert list_versions(store, "vectors") == []
    (item,) = store.list("vectors/dead-letters")
    assert len(store.read(item.key).splitlines()) == 2
    with pytest.raises(NothingToIndexError, match="the input is empty"):
        run(store, write("empty.jsonl", []))


@pytest.mark.parametrize(("limit", "fails"), [(0, True), (1, True), (2, False), (0.1, True), (0.3, False)])
def test_too_many_dead_letters_fail_without_a_version(store, write, limit, fails):
    path = write("a.jsonl", [*vector_records(0, 8), {"id": "x"}, {"id": "y"}])
    if fails:
        with pytest.raises(TooManyDeadLettersError, match="2 dead letters"):
            run(store, path, max_dead_letters=limit)
    else:
        run(store, path, max_dead_letters=limit)
    assert list_versions(store, "vectors") == ([] if fails else [1])


def test_one_damaged_file_costs_only_itself(store, write, tmp_path):
    write("a.jsonl", vector_records(0, 10))
    (tmp_path / "input" / "b.parquet").write_bytes(b"PAR1 not really")
    report = run(store, str(tmp_path / "input"))
    assert report.dead_letters == {"damaged_file": 1}
    assert (report.files, report.documents) == (2, 10)


def test_publishing_twice_is_publishing_once(store, write, monkeypatch):
    from scannery.pipelines.execution.chain import Publish

    real = Publish.process

    def repeated(self, element: Any) -> Any:
        element = (element[0], list(element[1]))
        list(real(self, element))
        yield from real(self, element)

    monkeypatch.setattr(Publish, "process", repeated)
    report = run(store, write("a.jsonl", vector_records(0, 10)))
    assert (report.version, report.up_to_date) == (1, False)
    assert list_versions(store, "vectors") == [1]


def test_files_of_a_build_that_went_missing_are_made_again(store, write):
    path = write("a.jsonl", vector_records(0, 30))
    run(store, path)
    rows = rows_of(store)
    for folder in ("embeddings", "segments"):
        for item in store.list(f"vectors/{folder}"):
            store.delete(item.key)
        run(store, path, mode="full")
        assert rows_of(store) == rows


@pytest.mark.parametrize(
    "damage", ["flip", "header", "footer", "cut", "gone", "other", "record", "no record"]
)
def test_damaged_stage_output_is_made_again_and_never_used(store, write, tmp_path, damage):
    path = write("a.jsonl", vector_records(0, 1000))
    run(store, path, mode="full")
    (item,) = store.list("vectors/embeddings")
    (record,) = (x for x in store.list("vectors/stage/units") if x.key.endswith(".json"))
    sound = store.read(item.key)
    data = bytearray(sound)
    if damage in ("flip", "header", "footer"):
        data[{"flip": len(data) // 2, "header": 1, "footer": -60}[damage]] ^= 0xFF
    elif damage == "cut":
        del data[-1000:]
    elif damage == "other":  # the file of another build, of any size
        other = Store.open(tmp_path / "other", create=True)
        run(other, write("b.jsonl", vector_records(0, 1000, seed=1)))
        data = bytearray(other.read(other.list("vectors/embeddings")[0].key))
    if damage == "gone":
        store.delete(item.key)
    elif damage == "no record":
        store.delete(record.key)
    elif damage == "record":
        store.write(record.key, store.read(record.key).replace(b'"documents": 1000', b'"documents": 1009'))
    else:
        store.write(item.key, bytes(data))
    for segment in store.list("vectors/stage/segments"):
        store.delete(segment.key)
    report = run(store, path, mode="full")
    assert store.read(item.key) == sound
    assert (report.documents, rows_of(store)) == (1000, expected(vector_records(0, 1000)))


def test_distances_and_passages_grouped_by_the_source(store, write):
    records = [record | {"doc": f"e{i % 7}"} for i, record in enumerate(vector_records(0, 70))]
    records.append(records[0] | {"n": 5})
    spec = VECTORS | {"source": {"vector": "vector", "document_id": "doc"}, "distance": "squared_l2"}
    report = run(store, write("a.jsonl", records), spec=spec)
    assert rows_of(store) == expected(records[:70])
    assert report.dead_letters == {"duplicate_id": 1}


def test_a_duplicate_in_another_document_is_found_across_shards(store, write):
    records = [record | {"doc": f"e{i}"} for i, record in enumerate(vector_records(0, 40))]
    records += [record | {"doc": f"other{i}"} for i, record in enumerate(vector_records(0, 40, seed=1))]
    spec = VECTORS | {"source": {"vector": "vector", "document_id": "doc"}, "shards": 4}
    report = run(store, write("a.jsonl", records), spec=spec)
    assert rows_of(store) == expected(records[:40])
    assert report.dead_letters == {"duplicate_id": 40}


def test_csv_and_parquet_make_the_same_index_as_jsonl(store, write, tmp_path):
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    records = vector_records(0, 40)
    run(store, write("a.jsonl", records))
    table = pa.Table.from_pylist(records)
    pq.write_table(table, tmp_path / "a.parquet")
    texts = [json.dumps(record["vector"]) for record in records]
    pacsv.write_csv(
        table.drop_columns(["vector"]).append_column("vector", pa.array(texts)), tmp_path / "a.csv"
    )
    for name in ("a.parquet", "a.csv"):
        index = name.replace(".", "-")
        report = run(store, str(tmp_path / name), spec=VECTORS | {"index": index})
        assert rows_of(store, index) == rows_of(store)
        assert report.input_bytes == (tmp_path / name).stat().st_size


def test_progress_counts_units_and_segments(store, write, monkeypatch):
    small_units(monkeypatch)
    monkeypatch.setattr("scannery.pipelines.state.progress.INTERVAL_S", 0.01)
    seen: list[Progress] = []
    run(store, write("a.jsonl", [*vector_records(0, 300), "{"]), progress=seen.append)
    assert seen[0].stage == "plan"
    assert all(progress.done <= progress.total for progress in seen)
    assert seen[-1] == Progress(stage="done", done=1, total=1, passages=300, dead=1)


def test_unknown_runners_are_refused(store, write):
    with pytest.raises(RunnerError, match=r"unknown runner 'prism'.*local, portable"):
        run(store, write("a.jsonl", vector_records(0, 3)), runner="prism")


def test_an_encoder_for_queries_must_fit_the_vectors(store, write):
    spec = VECTORS | {"encoder": {"model": "all-MiniLM-L6-v2"}}
    with pytest.raises(SpecConflictError, match="384 dimensions.*have 8"):
        run(store, write("a.jsonl", vector_records(0, 3)), spec=spec)


def test_a_full_temporary_folder_is_an_error_that_says_so(store, write, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    monkeypatch.setattr("scannery.pipelines.stages.embed.write_embeddings", full)
    with pytest.raises(StoreError, match=r"temporary files in /.*: No space left on device"):
        run(store, write("a.jsonl", vector_records(0, 3)))


def test_a_store_in_the_input_folder_is_not_its_input(tmp_path, store):
    (tmp_path / "a.jsonl").write_text(json.dumps(vector_records(0, 1)[0]) + "\n")
    assert store.local_root.parent == tmp_path
    for _ in range(2):
        assert run(store, str(tmp_path)).documents == 1
