"""Builds of named vectors: given and encoded ones, updates, compaction, exports, with the real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import scannery
from scannery.indexer import Store, VectorsInfo, create_index, open_index, parse_spec, rollback, verify
from scannery.indexer.versions.creation import given_vectors
from scannery.live.maintenance.seal import seal
from scannery.pipelines import SpecConflictError, compact, export
from tests.data import first_quick
from tests.pipelines.conftest import Write, letters_of, manifest_of, run, vector_records
from tests.pipelines.test_races import overtake

pytestmark = pytest.mark.system

GIVEN: dict[str, Any] = {
    "index": "vectors",
    "source": {"vector": "vector"},
    "named_vectors": {
        "title": {"vector": "title_vector", "dimensions": 4, "distance": "dot"},
        "image": {"vector": "image", "dimensions": 3},
    },
}


def given_records(start: int, end: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return records of which every third has no title vector, and every second no image."""
    records = vector_records(start, end, seed=seed)
    for number, record in enumerate(records, start):
        generator = np.random.default_rng([seed, number, 1])
        if number % 3:
            record["title_vector"] = generator.standard_normal(4).round(3).tolist()
        if number % 2:
            record["image"] = generator.standard_normal(3).round(3).tolist()
    return records


def named_of(store: Store, index: str = "vectors") -> dict[str, dict[str, list[float]]]:
    """Return the named vectors of every datapoint of the current version: id → name → vector."""
    opened = open_index(store, index)
    rows: dict[str, dict[str, list[float]]] = {}
    for segment, rows_R in opened.live_rows():
        ids = segment.take(rows_R, ["id"]).column(0).to_pylist()
        for identifier in ids:
            assert identifier not in rows
            rows[identifier] = {}
        for name, named in segment.named.items():
            for identifier, vector in zip(ids, named.vectors(rows_R), strict=True):
                if vector is not None:
                    rows[identifier][name] = [round(float(x), 3) for x in vector]
    return rows


def expected(records: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    fields = {"title": "title_vector", "image": "image"}
    return {
        record["id"]: {name: record[field] for name, field in fields.items() if field in record}
        for record in records
    }


@pytest.mark.parametrize("shards", [1, 3])
def test_given_vectors_of_names_are_built_updated_compacted_and_rolled_back(
    store: Store, write: Write, shards: int
):
    spec = {**GIVEN, "shards": shards}
    records = given_records(0, 60)
    report = run(store, write("a.jsonl", records), spec=spec)
    assert (report.passages, report.dead_letters_key) == (60, None)
    assert named_of(store) == expected(records)
    manifest = manifest_of(store)
    assert {name: info.dimensions for name, info in manifest.named_vectors.items()} == {
        "title": 4,
        "image": 3,
    }
    assert run(store, write("a.jsonl", records), spec=spec).up_to_date
    changed = given_records(50, 70, seed=1)
    assert run(store, write("b.jsonl", changed), spec=spec).replaced == 10
    want = expected(records) | expected(changed)
    assert named_of(store) == want
    run(store, spec=spec, deletes=["d1", "d69"])
    want = {name: vectors for name, vectors in want.items() if name not in ("d1", "d69")}
    assert named_of(store) == want
    compact("vectors", store.uri)
    assert compact("vectors", store.uri).up_to_date
    assert named_of(store) == want
    assert verify(store, "vectors").problems == ()
    rollback(store, "vectors", 1)
    assert named_of(store) == expected(records)


def test_a_changed_vector_of_a_name_replaces_its_datapoint_alone(store: Store, write: Write):
    records = given_records(0, 30)
    run(store, write("a.jsonl", records), spec=GIVEN)
    records[1]["title_vector"][0] += 0.001
    del records[3]["image"]
    report = run(store, write("a.jsonl", records), spec=GIVEN)
    assert (report.replaced, report.unchanged) == (2, 28)
    assert named_of(store) == expected(records)


def test_a_wrong_vector_of_a_name_is_a_dead_letter(store: Store, write: Write):
    records = given_records(0, 8)
    records[1]["title_vector"] = [1.0]
    records[2]["image"] = [0, 0, 0]
    records[4]["image"] = "none"
    report = run(store, write("a.jsonl", records), spec=GIVEN)
    letters = {letter.id: (letter.reason, letter.field) for letter in letters_of(store, report)}
    assert letters == {
        "d1": ("vector_size", "title_vector"),
        "d2": ("vector_value", "image"),
        "d4": ("vector", "image"),
    }
    assert set(named_of(store)) == {"d0", "d3", "d5", "d6", "d7"}


def test_names_that_an_update_cannot_change(store: Store, write: Write):
    path = write("a.jsonl", given_records(0, 12))
    run(store, path, spec=GIVEN)
    title = GIVEN["named_vectors"]["title"]
    for named, field in [
        ({"title": title}, "named_vectors.image"),
        (GIVEN["named_vectors"] | {"title": {**title, "distance": "cosine"}}, "named_vectors.title.distance"),
        (GIVEN["named_vectors"] | {"title": {**title, "dimensions": 5}}, "named_vectors.title.dimensions"),
    ]:
        with pytest.raises(SpecConflictError, match="--full") as refused:
            run(store, path, spec={**GIVEN, "named_vectors": named})
        assert refused.value.field == field
    run(store, path, spec={**GIVEN, "named_vectors": {"title": title}}, mode="full")
    manifest = manifest_of(store)
    assert set(manifest.named_vectors) == {"title"}
    assert all(set(entry.named) == {"title"} for entry in manifest.segments)
    assert all(set(vectors) <= {"title"} for vectors in named_of(store).values())


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_an_export_has_the_vectors_of_names_and_builds_an_equal_index(
    store: Store, write: Write, tmp_path: Path, format: str
):
    records = given_records(0, 40)
    run(store, write("a.jsonl", records), spec=GIVEN)
    run(store, spec=GIVEN, deletes=["d3"])
    output = tmp_path / "export" / f"rows.{format}"
    report = export("vectors", store.uri, output)
    want = expected([record for record in records if record["id"] != "d3"])
    if format == "parquet":
        rows = pq.read_table(output).to_pylist()
    else:
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert all(None not in row.get("vectors", {}).values() for row in rows)
    got = {
        row["id"]: {
            name: [round(x, 3) for x in vector]
            for name, vector in (row.get("vectors") or {}).items()
            if vector
        }
        for row in rows
    }
    assert got == want
    assert report.spec is not None
    run(store, str(output), spec={**report.spec, "index": "copy"})
    assert named_of(store, "copy") == want
    assert manifest_of(store, "copy").named_vectors == manifest_of(store).named_vectors


@pytest.mark.parametrize("mode", ["upsert", "full"])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_build_after_live_writes_keeps_and_replaces_named_vectors(
    store: Store, write: Write, sealed: bool, mode: str
):
    records = given_records(0, 30)
    run(store, write("a.jsonl", records), spec=GIVEN)
    title, image = [0.5, 1.0, 2.0, 4.0], [1.0, 0.25, 0.5]
    with scannery.connect(store.uri) as client:
        index = client.index("vectors")
        points: list[Any] = [
            {"id": name, "vector": [1.0] * 8, "vectors": {"title": title, "image": image}}
            for name in ("d1", "d40")
        ]
        index.upsert(points)
        index.delete(["d2"])
    if sealed:
        seal(store, "vectors")
    changed = given_records(0, 6, seed=1)
    run(store, write("b.jsonl", changed), spec=GIVEN, mode=mode, before=seal)
    kept = {} if mode == "full" else expected(records) | {"d40": {"title": title, "image": image}}
    assert named_of(store) == kept | expected(changed)
    compact("vectors", store.uri)
    assert named_of(store) == kept | expected(changed)
    assert verify(store, "vectors").problems == ()


@pytest.mark.parametrize("mode", ["upsert", "full"])
def test_named_vectors_that_are_sealed_while_a_build_runs_win(
    store: Store, write: Write, monkeypatch: pytest.MonkeyPatch, mode: str
):
    records = given_records(0, 20)
    run(store, write("a.jsonl", records), spec=GIVEN)

    def written() -> None:
        with scannery.connect(store.uri) as client:
            point: Any = {"id": "d1", "vector": [1.0] * 8, "vectors": {"image": [1.0, 0.25, 0.5]}}
            client.index("vectors").upsert([point])
        seal(store, "vectors")

    overtake(monkeypatch, written)
    changed = given_records(0, 10, seed=1)
    run(store, write("b.jsonl", changed), spec=GIVEN, mode=mode)
    with scannery.connect(store.uri) as client:
        points = client.index("vectors").get([record["id"] for record in records], vectors=True)
    found = {
        point.id: {name: vector.tolist() for name, vector in point.vectors.items()}
        for point in points
        if point is not None
    }
    want = (
        ({} if mode == "full" else expected(records))
        | expected(changed)
        | {"d1": {"image": [1.0, 0.25, 0.5]}}
    )
    assert _rounded(found) == _rounded(want)


def _rounded(rows: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    return {
        id: {name: [round(x, 3) for x in vector] for name, vector in vectors.items()}
        for id, vectors in rows.items()
    }


def test_a_full_build_keeps_segments_whose_rows_are_equal(store: Store, write: Write):
    records = given_records(0, 30)
    run(store, write("a.jsonl", records), spec=GIVEN)
    before = manifest_of(store).segments
    with scannery.connect(store.uri) as client:
        client.index("vectors").delete(["d29"])
    seal(store, "vectors")
    run(store, write("a.jsonl", records[:-1]), spec=GIVEN, mode="full")
    assert [entry.content for entry in manifest_of(store).segments] == [entry.content for entry in before]
    assert named_of(store) == expected(records[:-1])


@pytest.mark.parametrize("shards", first_quick([1, 2]))
def test_large_segments_of_names_are_tuned_and_verified(store: Store, write: Write, shards: int):
    records = given_records(0, 1800 * shards)
    spec = {**GIVEN, "shards": shards, "scann": {"exact_below_rows": 1000}, "target_recall": 0.9}
    report = run(store, write("a.jsonl", records), spec=spec)
    entries = [entry.named for entry in manifest_of(store).segments]
    assert {named["title"].kind for named in entries} == {"scann"}
    own = report.named_vectors["title"]
    assert (own.vectors, own.dimensions, own.recall_reached) == (1200 * shards, 4, True)
    assert own.recall > 0.85
    found = verify(store, "vectors")
    assert found.problems == ()
    assert set(found.named_recall) == {"title", "image"}
    path = Path(store.local_root or "") / "vectors" / entries[0]["title"].key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    (problem,) = verify(store, "vectors").problems
    assert "is damaged" in problem
    # A full build repairs it.
    run(store, write("a.jsonl", records), spec=spec, mode="full")
    assert verify(store, "vectors").problems == ()


def test_an_index_of_named_vectors_alone(store: Store, write: Write):
    spec = {key: value for key, value in GIVEN.items() if key != "source"} | {"source": {"id": "id"}}
    records = given_records(0, 20)
    report = run(store, write("a.jsonl", records), spec=spec)
    assert (report.passages, report.dimensions) == (20, 0)
    assert named_of(store) == expected(records)
    assert verify(store, "vectors").problems == ()


def test_a_full_build_without_the_unnamed_vector_makes_an_index_of_the_names_alone(
    store: Store, write: Write
):
    file = write("a.jsonl", given_records(0, 20))
    run(store, file, spec=GIVEN)
    report = run(store, file, spec={**GIVEN, "source": {"id": "id"}}, mode="full")
    assert (report.dimensions, manifest_of(store).vector_names) == (0, ["title", "image"])
    with scannery.connect(store.uri) as client:
        hits = client.index("vectors").search([1, 0, 0], k=3)
        assert {name for hit in hits for name in hit.vector_scores} == {"image"}


def test_a_full_build_keeps_the_dimensions_of_vectors_that_are_only_written_live(store: Store, write: Write):
    spec = parse_spec({**GIVEN, "source": {"id": "id"}})
    names = {name: given_vectors(spec, name) for name in spec.named_vectors}
    create_index(store, spec, vectors={"": VectorsInfo(dimensions=8), **names})
    report = run(
        store, write("a.jsonl", given_records(0, 20)), spec=spec.model_dump(mode="json"), mode="full"
    )
    assert report.dimensions == 8


@pytest.mark.parametrize("mode", ["upsert", "full"])
def test_vectors_that_move_to_another_name_are_a_change(store: Store, write: Write, mode: str):
    named = {name: {"vector": f"{name}_vector", "dimensions": 8} for name in ("title", "image")}
    spec = {**GIVEN, "named_vectors": named}
    records = vector_records(0, 20)
    for name in named:
        written = [record | {f"{name}_vector": record["vector"]} for record in records]
        report = run(store, write("a.jsonl", written), spec=spec, mode=mode)
        assert not report.up_to_date
        assert {name for vectors in named_of(store).values() for name in vectors} == {name}


def test_a_compaction_keeps_named_vectors_that_a_build_has_changed_meanwhile(
    store: Store, write: Write, monkeypatch: pytest.MonkeyPatch
):
    spec = {**GIVEN, "vectors": "optional"}
    records = given_records(0, 30)
    textless = [
        {key: value for key, value in record.items() if key != "vector"} for record in given_records(30, 60)
    ]
    run(store, write("a.jsonl", [*records, *textless]), spec=spec)
    with scannery.connect(store.uri) as client:
        client.index("vectors").delete(["d59"])
    seal(store, "vectors")
    changed = [record | {"image": [1.0, 2.0, float(number)]} for number, record in enumerate(records)]
    overtake(monkeypatch, lambda: run(store, write("b.jsonl", changed), spec=spec))
    compact("vectors", store.uri)
    assert named_of(store) == expected([*changed, *textless[:-1]])
    assert verify(store, "vectors").problems == ()
