"""Named vectors on the command line: create, alter, show, upsert, get, scan, search, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scannery
from scannery.cli.main import main
from tests.served import MINILM

pytestmark = pytest.mark.system

ROWS: list[dict[str, Any]] = [
    {"id": "one", "text": "a red square", "vectors": {"colour": [1, 0], "shape": [0, 0, 1]}},
    {"id": "two", "text": "a green square", "vectors": {"colour": [0, 1], "shape": [0, 0, 1]}},
    {"id": "three", "text": "a red circle", "vectors": {"colour": [1, 0.5]}},
]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A store with the rows, written by the command."""
    path = tmp_path / "store"
    dot = '{"dimensions": 3, "distance": "dot"}'
    named = ("--named-vector", "colour=2", "--named-vector", f"shape={dot}")
    status, _, err = run(capsys, "index", "create", "figures", *named, "--lexical", "--store", path)
    assert status == 0, err
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    status, out, err = run(capsys, "upsert", file, "--index", "figures", "--store", path)
    assert (status, out) == (0, "3 datapoints written, 3 rows; sequence 1.\n"), err
    return path


def vectors(store: Path, index: str = "figures") -> dict[str, dict[str, list[float]]]:
    with scannery.connect(store) as client:
        points = client.index(index).scan(vectors=True)
        return {point.id: {name: each.tolist() for name, each in point.vectors.items()} for point in points}


def test_a_search_names_vectors_and_weights(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(vector: list[float], *options: str) -> Any:
        found = run(capsys, "search", "--index", "figures", "--vector", json.dumps(vector), "--json",
                    "--store", store, *options)  # fmt: skip
        assert found[0] == 0, found
        return json.loads(found[1])["hits"]

    assert [hit["id"] for hit in asked([1, 0], "--vectors", "colour")] == ["one", "three", "two"]
    [best, *_] = asked([0, 0, 1], "--vectors", "shape")
    assert best["vector_scores"] == {"shape": 1.0}
    question = ("search", "--index", "figures", "--like", "two", "--store", store)
    status, out, _ = run(capsys, *question, "--vectors", "colour=5, shape")
    assert status == 0 and "colour" in out and "shape 1.0000" in out


@pytest.mark.parametrize(
    ("vectors", "told"),
    [
        ("colour=much", "--vectors must be NAME or NAME=WEIGHT"),
        ("colour,colour", "--vectors names 'colour' twice"),
        ("color", "colour"),
    ],
)
def test_a_wrong_choice_is_explained(
    store: Path, capsys: pytest.CaptureFixture[str], vectors: str, told: str
) -> None:
    question = ("search", "--index", "figures", "--vector", "[1, 0]", "--store", store)
    status, _, err = run(capsys, *question, "--vectors", vectors)
    assert status == 2 and told in err


@pytest.mark.parametrize(
    ("named", "modes"), [({"colour": 2}, {"lexical"}), ({"body": MINILM}, {"dense", "lexical", "hybrid"})]
)
def test_an_index_of_named_vectors_alone_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: dict[str, Any], modes: set[str]
) -> None:
    with scannery.connect(tmp_path, create=True) as client:
        index = client.create_index("figures", named_vectors=named, lexical=True)
        index.upsert([{"id": row["id"], "text": row["text"]} for row in ROWS])
    status, out, err = run(
        capsys, "evaluate", "--index", "figures", "--derive", 3, "--store", tmp_path, "--json"
    )
    assert status == 0, err
    answer = json.loads(out)
    assert (answer["queries"], answer["modes"].keys()) == (3, modes)
    assert {mode["metrics"]["MRR@10"]["mean"] for mode in answer["modes"].values()} == {1}


def test_named_vectors_are_evaluated_each_and_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        named: dict[str, str | int] = {"body": MINILM, "other": MINILM, "colour": 2}
        index = client.create_index("figures", named_vectors=named, lexical=True)
        index.upsert([{"id": row["id"], "text": row["text"], "vectors": {"colour": [1, 0]}} for row in ROWS])
    queries, qrels = tmp_path / "queries.tsv", tmp_path / "qrels.tsv"
    queries.write_text("q\ta ring painted red\n")
    qrels.write_text("q\tthree\t1\n")

    def evaluated(*options: str) -> dict[str, Any]:
        files = ("--queries", queries, "--qrels", qrels, "--store", tmp_path / "store")
        status, out, err = run(capsys, "evaluate", "--index", "figures", *files, *options, "--json")
        assert status == 0, err
        return json.loads(out)["modes"]

    assert list(evaluated("--vectors", "body")) == ["dense", "lexical", "hybrid"]
    assert list(evaluated("--vectors", "colour")) == ["lexical"]  # a text has no colour
    modes = evaluated("-m", "dense,lexical", "--sweep", "vectors=body,body=3+other")
    assert list(modes) == ["dense vectors=body", "dense vectors=body=3+other", "lexical"]


def test_an_index_of_named_vectors_alone_is_not_tuned(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "queries.npy", np.ones((100, 2), np.float32))
    status, _, err = run(
        capsys, "index", "tune", "figures", "--store", store, "--queries", tmp_path / "queries.npy"
    )
    assert status == 2 and "index 'figures' has no unnamed vector" in err


def test_an_index_is_described_and_altered(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "index", "seal", "figures", "--store", store)[0] == 0
    status, out, _ = run(capsys, "index", "show", "figures", "--store", store)
    assert status == 0
    assert "2 dimensions, cosine, given; 3 in segments" in out
    assert "3 dimensions, dot, given; 2 in segments" in out
    altered = ("index", "alter", "figures", "--store", store, "--json")
    status, out, err = run(capsys, *altered, "--named-vector", "size=4")
    assert status == 0, err
    assert json.loads(out)["spec"]["named_vectors"]["size"] == {"dimensions": 4, "distance": "cosine"}
    status, _, err = run(capsys, *altered, "--named-vector", "size")
    assert status == 2 and "--named-vector must be NAME=MODEL" in err


def test_what_get_and_scan_print_can_be_written_again(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = vectors(store)
    assert before["three"] == {"colour": [1, 0.5]}
    printed = json.loads(
        run(capsys, "get", "one", "--index", "figures", "--store", store, "--vectors", "--json")[1]
    )
    assert printed[0]["vectors"] == {"colour": [1, 0], "shape": [0, 0, 1]}
    out = run(capsys, "scan", "figures", "--vectors", "--store", store)[1]
    file = tmp_path / "scanned.jsonl"
    file.write_text(out.replace("[1.0, 0.5]", "[0.5, 0.5]"))
    status, _, err = run(capsys, "upsert", file, "--index", "figures", "--store", store)
    assert (status, err) == (0, "")
    assert vectors(store) == before | {"three": {"colour": [0.5, 0.5]}}


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_what_export_writes_can_be_written_again(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    before = vectors(store)
    target = tmp_path / f"out.{kind}"
    status, _, err = run(
        capsys, "index", "export", "figures", "--store", store, "--output", target, "--format", kind
    )
    assert status == 0, err
    status, _, err = run(capsys, "delete", "--index", "figures", "--store", store, "one", "two", "three")
    assert status == 0, err
    status, out, err = run(capsys, "upsert", target, "--index", "figures", "--store", store)
    assert (status, err) == (0, ""), out
    assert vectors(store) == before


def test_columns_and_fields_of_the_spec_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    with scannery.connect(path, create=True) as client:
        client.create_index(
            {
                "index": "figures",
                "source": {"id": "key"},
                "named_vectors": {"colour": {"dimensions": 2, "vector": "rgb"}, "shape": {"dimensions": 3}},
            }
        )
    fixed = pa.array(np.ones(4, np.float32)).cast(pa.float32())
    colours = pa.FixedSizeListArray.from_arrays(fixed, 2)
    shapes = pa.array([[1.0, 2.0, 3.0], None])
    pq.write_table(
        pa.table({"key": ["a", "b"], "rgb": colours, "vectors.shape": shapes}), tmp_path / "a.parquet"
    )
    status, _, err = run(capsys, "upsert", tmp_path / "a.parquet", "--index", "figures", "--store", path)
    assert (status, err) == (0, "")
    (tmp_path / "b.jsonl").write_text(
        json.dumps({"key": "c", "rgb": [3, 4], "vectors": {"shape": [0, 0, 1]}})
    )
    status, _, err = run(capsys, "upsert", tmp_path / "b.jsonl", "--index", "figures", "--store", path)
    assert (status, err) == (0, "")
    assert vectors(path) == {
        "a": {"colour": [1, 1], "shape": [1, 2, 3]},
        "b": {"colour": [1, 1]},
        "c": {"colour": [3, 4], "shape": [0, 0, 1]},
    }


def test_a_build_suggests_a_search_that_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, file = tmp_path / "spec.yaml", tmp_path / "a.jsonl"
    spec.write_text(
        "index: talks\nsource: {id: id, title: title, text: text}\n"
        "named_vectors: {title: {encoder: {model: sentence-transformers/all-MiniLM-L6-v2}}, image: {dimensions: 3}}\n"
    )
    file.write_text(json.dumps({"id": "a", "title": "Bees", "text": "hives"}))
    status, out, err = run(capsys, "build", spec, "--input", file, "--store", tmp_path / "store")
    assert (status, err) == (0, "")
    assert 'Next: scannery search "…" --index talks' in out
    status, out, err = run(capsys, "search", "insects", "--index", "talks", "--store", tmp_path / "store")
    assert (status, "Bees" in out) == (0, True), err


def test_the_curves_of_named_vectors_are_drawn_and_recall_asks_for_queries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plot, queries = tmp_path / "store", tmp_path / "curves.svg", tmp_path / "queries.jsonl"
    rows = np.random.default_rng(0).standard_normal((1_200, 4)).astype(np.float32)
    spec: dict[str, Any] = {"index": "points", "source": {"id": "id"}, "scann": {"exact_below_rows": 1_000}}
    with scannery.connect(path, create=True) as client:
        points = client.create_index(spec, named_vectors={"colour": 4})
        points.upsert_many([{"id": i, "vectors": {"colour": row}} for i, row in enumerate(rows)])
    assert run(capsys, "index", "seal", "points", "--store", path)[0] == 0
    status, _, err = run(capsys, "index", "show", "points", "--store", path, "--plot", plot)
    assert (status, plot.exists()) == (0, True), err
    assert "colour, shard 0" in plot.read_text()
    status, _, err = run(capsys, "recall", "--index", "points", "--store", path)
    assert (status, "has no unnamed vector" in err) == (2, True), err
    queries.write_text(json.dumps({"vector": [1, 0, 0, 0]}))
    status, _, err = run(capsys, "recall", "--index", "points", "--store", path, "--queries", queries)
    assert status == 0, err


def test_hits_are_diverse_and_limited_by_several_attributes(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*options: str) -> list[str]:
        question = ("search", "--index", "figures", "--vector", "[1, 0.1]", "--vectors", "colour", "--json")
        status, out, err = run(capsys, *question, "--store", store, *options)
        assert status == 0, err
        return [hit["id"] for hit in json.loads(out)["hits"]]

    assert asked() == ["one", "three", "two"]
    assert asked("--diversity", "0.9") == ["one", "two", "three"]
    assert asked("--max-per-group", "1") == ["one", "three", "two"]
    assert asked("--max-per-group", "2", "--max-per-group", "document_id=1", "-k", "1") == ["one"]


def test_more_like_these_and_less_like_those(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("search", "--index", "figures", "--vectors", "colour", "--store", store)
    status, out, err = run(capsys, *question, "--like", "one", "--unlike", "two", "--json")
    assert status == 0, err
    assert [hit["id"] for hit in json.loads(out)["hits"]] == ["three"]
    status, _, err = run(capsys, *question, "--unlike", "two")
    assert status == 2 and "--unlike needs --like" in err
