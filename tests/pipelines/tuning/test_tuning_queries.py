"""Queries that a user gives: read from any of the formats, kept, tuned for, and measured with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer import open_index
from scannery.indexer.maintenance import measure_recall
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.tuning import index_tuning
from scannery.pipelines.tuning.tuning_queries import (
    _values,
    load_queries,
    measuring_half,
    read_queries,
    tuning_half,
)
from tests.pipelines.conftest import DIMENSIONS, VECTORS, manifest_of, rows_of, run, vector_records

SPEC = VECTORS | {"shards": 2, "scann": {"exact_below_rows": 1000}}
QUERIES_QD = np.random.default_rng(1).standard_normal((40, DIMENSIONS)).astype(np.float32)


def written(folder: Path, kind: str) -> Path:
    path = folder / f"queries.{kind}"
    vectors = QUERIES_QD.tolist()
    if kind == "npy":
        np.save(path, QUERIES_QD)
    elif kind == "parquet":
        pq.write_table(pa.table({"n": range(40), "embedding": vectors}), path)
    else:
        lines: list[Any] = vectors[:20] + [{"vector": vector} for vector in vectors[20:]]
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


@pytest.mark.parametrize("kind", ["npy", "parquet", "jsonl"])
def test_files_of_vectors(tmp_path, kind):
    np.testing.assert_array_equal(read_queries(written(tmp_path, kind), None), QUERIES_QD)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.csv", "id,text\n1,boats\n2,bread\n"),
        ("q.tsv", "1\tboats\n2\tbread\n"),
        ("q.json", '[{"id": "1", "text": "boats"},\n {"id": "2", "text": "bread"}]'),
        ("q.txt", "\ufeffboats\nbread\n"),
    ],
)
def test_files_of_texts_are_read_as_by_a_search(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert _values(tmp_path / name) == ["boats", "bread"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "id,other\n1,2\n", "a.csv, line 2: needs `text`"),
        ("a.jsonl", "[1, 2]\n[1]\n", "vectors of one length"),
        ("a.jsonl", "[1, 2]\n[1, NaN]\n", "finite"),
        ("a.jsonl", '{"other": 1}\n', "one length|finite"),
        ("a.jsonl", "{broken\n", "cannot read"),
        ("a.txt", "\n \n", "has no queries"),
        ("a.jsonl", "[" * 100_000, "cannot read .*: it is damaged"),
        ("a.txt", "what is this\n", "no encoder"),
        ("a.npy", "no array", "cannot read"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(CollectionError, match=words) as caught:
        read_queries(tmp_path / name, None)
    assert caught.value.field == "queries"


@pytest.mark.system
def test_an_index_is_tuned_for_given_queries_and_stays_so(store, write, tmp_path):
    path, given = write("a.jsonl", vector_records(0, 2600)), written(tmp_path, "npy")
    plain = run(store, path, spec=SPEC)
    first = manifest_of(store)
    assert first.recall is not None
    assert first.recall.given_queries is None
    assert first.recall.whole_queries >= 200
    assert plain.whole_recall == first.recall.whole
    assert 0.9 <= (plain.whole_recall or 0) <= 1

    tuned = run(store, path, spec=SPEC, queries=given)
    manifest = manifest_of(store)
    assert manifest.recall is not None
    assert tuned.version == 2
    assert manifest.recall.whole_queries == 20
    assert {entry.key for entry in manifest.segments}.isdisjoint(entry.key for entry in first.segments)
    key = manifest.recall.given_queries
    assert key is not None
    np.testing.assert_array_equal(load_queries(store, "vectors", key), QUERIES_QD)
    assert run(store, path, spec=SPEC).up_to_date
    assert run(store, path, spec=SPEC, queries=given).up_to_date
    run(store, deletes=["d1"])
    after = manifest_of(store).recall
    assert after is not None
    assert (after.given_queries, after.whole_queries) == (key, 20)
    assert len(rows_of(store)) == 2599


@pytest.mark.system
def test_queries_of_other_dimensions_are_refused(store, write, tmp_path):
    np.save(tmp_path / "q.npy", QUERIES_QD[:, :3])
    with pytest.raises(CollectionError, match=f"have 3 dimensions, the index has {DIMENSIONS}"):
        run(store, write("a.jsonl", vector_records(0, 3)), queries=tmp_path / "q.npy")


def test_no_query_both_tunes_and_measures():
    tuned, measured = (set(map(tuple, half(QUERIES_QD).tolist())) for half in (tuning_half, measuring_half))
    assert (len(tuned), len(measured), tuned & measured) == (20, 20, set())


@pytest.mark.system
def test_what_is_too_large_or_exact_is_not_measured(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 30)))
    recall = manifest_of(store).recall
    assert recall is not None
    assert (recall.whole, recall.whole_queries) == (1.0, 0)
    monkeypatch.setattr(index_tuning, "MOST_BYTES", 1000)
    run(store, write("b.jsonl", vector_records(0, 2400)), spec=SPEC, mode="full")
    recall = manifest_of(store).recall
    assert recall is not None
    assert recall.whole is None


@pytest.mark.system
def test_one_new_segment_was_measured_by_its_tuner(store, write, monkeypatch):
    monkeypatch.setattr(index_tuning, "open_manifest", None)  # opening the index fails
    spec = SPEC | {"shards": 1}
    report = run(store, write("a.jsonl", vector_records(0, 1200)), spec=spec)
    manifest = manifest_of(store)
    assert manifest.recall is not None
    assert manifest.recall.whole_queries == 200
    assert 0.9 <= (report.whole_recall or 0) <= 1
    monkeypatch.undo()
    measured = measure_recall(open_index(store, "vectors"))
    assert measured == pytest.approx(report.whole_recall, abs=0.05)
    # With deleted rows, or another target, it says nothing any more.
    run(store, deletes=["d1"])
    after = manifest_of(store).recall
    assert after is not None
    assert after.whole_queries == 201
    run(store, write("a.jsonl", vector_records(0, 1200)), spec=spec | {"target_recall": 0.8}, mode="full")
    after = manifest_of(store).recall
    assert after is not None
    assert after.whole_queries == 201
