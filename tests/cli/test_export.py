"""`scannery index export`: what it prints, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Store, load_spec, parse_spec
from scannery.pipelines import build
from tests.data import clustered, datapoints, publish
from tests.served import serving

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path) -> str:
    spec = parse_spec({"index": "films", "source": {"vector": "v"}, "shards": 2})
    opened = Store.open(tmp_path / "store", create=True)
    publish(opened, spec, datapoints(spec, clustered(40, 8)), tmp_path, shards=2)
    return opened.uri


def test_the_commands_of_the_docs(tmp_path, store, capsys):
    folder = str(tmp_path / "out")
    assert main(["index", "export", "films", "--store", store, "--output", folder]) == 0
    said = capsys.readouterr().out
    assert "films, version 1: 40 datapoints in 2 file(s)" in said
    assert f"scannery build {folder}/_spec.yaml --input {folder}" in said
    assert main(["build", f"{folder}/_spec.yaml", "--input", folder, "--store", str(tmp_path / "again")]) == 0
    assert main(["index", "verify", "films", "--store", str(tmp_path / "again")]) == 0


def test_the_report_as_json(tmp_path, store, capsys):
    arguments = ["--store", store, "--output", str(tmp_path / "films.jsonl.gz"), "--no-vectors", "--json"]
    assert main(["index", "export", "films", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["vectors"], report["spec"], report["format"]) == (
        40,
        False,
        None,
        "jsonl.gz",
    )


@pytest.mark.parametrize("form", ["out", "out.jsonl"])
def test_live_updates_are_exported_before_they_are_sealed(tmp_path, store, capsys, form):
    with scannery.connect(store) as client:
        index = client.index("films")
        before = {hit.id: hit for hit in index.search(np.ones(8), 40)}
        first, second = sorted(before)[:2]
        index.delete([first])
        index.upsert([{"id": second, "vector": [9.0] * 8}, {"id": "new", "vector": [7.0] * 8}])
        index.upsert([{"id": "gone", "vector": [5.0] * 8}])
        index.delete(document_ids=["gone"])
    output = str(tmp_path / form)
    assert main(["index", "export", "films", "--store", store, "--output", output]) == 0
    assert "version 1 with 4 batch(es) of live updates: 40 datapoints" in capsys.readouterr().out
    spec = {"index": "again", "source": {"format": "datapoints"}}
    build(spec, [output], str(tmp_path / "again"))
    with scannery.connect(str(tmp_path / "again")) as client:
        found = {hit.id: hit for hit in client.index("again").search(np.ones(8), 99, vectors=True)}
    assert found.keys() == (before.keys() | {"new"}) - {first}
    vector = found[second].vector
    assert vector is not None
    assert vector.tolist() == [9.0] * 8
    # What a version contains is exported without them.
    old = str(tmp_path / "old.jsonl")
    assert main(["index", "export", "films", "--store", store, "--output", old, "--version", "1"]) == 0
    assert {json.loads(line)["id"] for line in Path(old).read_text().splitlines()} == before.keys()


def test_an_export_without_the_log_is_refused(tmp_path, store, capsys):
    logs = tmp_path / "logs"
    with (
        serving(Path(store.removeprefix("file://")), log=str(logs)) as server,
        scannery.connect(server.address) as client,
    ):
        client.index("films").upsert([{"id": "new", "vector": [7.0] * 8}])
    output = str(tmp_path / "out.jsonl")
    assert main(["index", "export", "films", "--store", store, "--output", output]) == 2
    assert "has live updates in a log" in capsys.readouterr().err
    assert not Path(output).exists()
    assert main(["index", "export", "films", "--store", store, "--output", output, "--log", str(logs)]) == 0
    assert len(Path(output).read_text().splitlines()) == 41


def test_the_spec_of_an_export_keeps_how_texts_are_cut(tmp_path, capsys):
    spec = parse_spec(
        {
            "index": "talks",
            "source": {"text": "text", "chunk": {"max_tokens": 64, "overlap_tokens": 8}},
            "encoder": {"model": "sentence-transformers/all-MiniLM-L6-v2"},
            "lexical": True,
        }
    )
    opened = Store.open(tmp_path / "store", create=True)
    publish(opened, spec, datapoints(spec, clustered(40, 8)), tmp_path)
    folder = tmp_path / "out"
    assert main(["index", "export", "talks", "--store", opened.uri, "--output", str(folder)]) == 0
    again = load_spec(folder / "_spec.yaml")
    assert again.source.chunk == spec.source.chunk
    assert again.lexical is not None


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["films", "--output", "{}/x.parquet", "--format", "jsonl"], 2, "x.parquet ends like parquet"),
        (["films", "--output", "{}/x.parquet", "--version", "9"], 3, "no version 9"),
        (["films", "--output", "{}/x.csv"], 2, "x.csv ends like a file"),
        (["books", "--output", "{}/x.parquet"], 3, "no index 'books'"),
    ],
)
def test_what_goes_wrong_is_one_line(tmp_path, store, capsys, arguments, code, says):
    arguments = [argument.format(tmp_path) for argument in arguments]
    assert main(["index", "export", *arguments, "--store", store]) == code
    assert says in capsys.readouterr().err


def test_an_export_is_not_replaced_unasked(tmp_path, store, capsys):
    arguments = ["index", "export", "films", "--store", store, "--output", str(tmp_path / "films.parquet")]
    assert [main(arguments), main(arguments), main([*arguments, "--overwrite"])] == [0, 2, 0]
    assert "films.parquet exists already" in capsys.readouterr().err
