"""`scannery index export`: what it prints, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scannery.cli.main import main
from scannery.indexer import Store, parse_spec
from tests.data import clustered, datapoints, publish


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
