"""`scannery upsert | delete` and `scannery index seal | merge | snapshot | restore`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import apsw
import pytest

import scannery
from scannery.cli.main import main
from tests.served import DIMENSIONS, copied, serving


def lines(points: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(point) for point in points) + "\n\n"


def point(number: int) -> dict[str, Any]:
    return {"id": f"new{number}", "vector": [1.0 + number] * DIMENSIONS, "attributes": {"year": number}}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Path:
    return copied(library, tmp_path)


def test_a_file_is_written_in_batches_and_rows_are_deleted(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.jsonl"
    file.write_text(lines([point(i) for i in range(25)]))
    with serving(store) as server:
        where = ("--index", "library", "--target", server.address)
        status, out, _ = run(capsys, "upsert", str(file), *where, "--batch", "10")
        assert (status, out) == (0, "25 datapoints written, 25 rows; sequence 3.\n")
        file.write_text(lines([{"id": "new3", "attributes": {"year": 1999}}]))
        status, out, _ = run(capsys, "upsert", str(file), *where, "--update", "--json")
        assert (status, json.loads(out)) == (0, {"datapoints": 1, "written": 1, "sequence": 4})
        with scannery.connect(server.address) as client:
            found = client.index("library").get(["new3"])[0]
            assert found is not None and found.attributes["year"] == 1999
        status, out, _ = run(capsys, "delete", "new1", "new2", "nobody", *where)
        assert (status, out) == (0, "2 datapoints deleted; sequence 5.\n")
        status, out, _ = run(capsys, "delete", "--document", "new3", *where, "--json")
        assert (status, json.loads(out)) == (0, {"deleted": 1, "sequence": 6})


def test_what_is_wrong_is_said_with_what_was_written(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--index", "library", "--store", str(store))
    wrong = [point(0), point(1), {"id": "new2", "vector": [1.0]}]
    monkeypatch.setattr("sys.stdin", io.StringIO(lines(wrong)))
    status, _, err = run(capsys, "upsert", "-", *where, "--batch", "2")
    assert status == 2
    assert "2 datapoints were written\n" in err
    assert "error: standard input, line 3: vector: must have 16 dimensions, got 1" in err
    file = tmp_path / "broken.jsonl"
    file.write_text('{"id": "a"\n')
    status, _, err = run(capsys, "upsert", str(file), *where)
    assert (status, "broken.jsonl, line 1: not JSON: Expecting ',' delimiter at column 11" in err) == (
        2,
        True,
    )
    assert "--help" not in err
    file.write_text('[\n{"id": "a"}\n]')
    status, _, err = run(capsys, "upsert", str(file), *where)
    assert (status, "a JSON list is read from a file that ends with .json" in err) == (2, True)
    status, _, err = run(capsys, "delete", *where)
    assert (status, "at least one id" in err) == (2, True)


@pytest.mark.system
def test_seal_merge_snapshot_and_restore(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scannery.connect(store) as client:
        client.index("library").upsert([point(i) for i in range(5)])  # type: ignore[misc]
    status, out, _ = run(capsys, "index", "show", "library", "--store", str(store))
    assert status == 0
    assert "live updates: 1 mutations, up to 1, in the log are not sealed" in out
    status, out, _ = run(capsys, "index", "seal", "library", "--store", str(store))
    assert status == 0
    assert "is at version 2: 1 mutations, 5 new rows, 0 rows replaced or deleted" in out
    status, out, _ = run(capsys, "index", "seal", "library", "--store", str(store))
    assert (status, out) == (0, "library has no live updates that are not in its current version.\n")
    status, out, _ = run(capsys, "index", "merge", "library", "--store", str(store), "--json")
    assert status == 0
    with scannery.connect(store) as client:
        client.index("library").delete(["new0"])
    copy, back = tmp_path / "snapshot", tmp_path / "back"
    status, out, _ = run(capsys, "index", "snapshot", "library", "--store", str(store), "--to", str(copy))
    assert status == 0
    assert "its mutations up to 2" in out
    status, out, _ = run(capsys, "index", "restore", "library", "--store", str(back), "--from", str(copy))
    assert status == 0
    with scannery.connect(back) as client:
        assert client.index("library").stats().rows == 604
        assert client.index("library").get(["new0"]) == [None]
    status, _, err = run(capsys, "index", "restore", "library", "--store", str(back), "--from", str(copy))
    assert status == 2
    assert "there is an index 'library' already" in err
    assert run(capsys, "index", "seal", "nobody", "--store", str(store))[0] == 3
    assert not (store / "nobody").exists()


def test_branch(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("index", "branch", "library")
    with serving(store, log=str(tmp_path / "logs")) as server:
        with scannery.connect(server.address) as client:
            client.index("library").upsert([point(0)])  # type: ignore[list-item]
        status, out, _ = run(capsys, *command, "served", "--target", server.address)
        text = "both share their files until they differ.\n"
        assert (status, out) == (0, f"served is a branch of library; {text}")
        with scannery.connect(server.address) as client:
            assert client.index("served").count() == 601
    where = ("--store", str(store), "--log", str(tmp_path / "logs"))
    status, out, _ = run(capsys, *command, "trial", *where)
    content = "of version 1 and mutations up to 1"
    assert (status, out) == (0, f"trial is a branch of library, {content}; {text}")
    status, out, _ = run(capsys, "index", "show", "trial", "--store", str(store))
    assert "branch of  library, version 1" in out
    status, out, _ = run(capsys, *command, "first", *where, "--version", "1", "--json")
    assert (status, json.loads(out)["sequence"]) == (0, 0)
    assert run(capsys, *command, "now", *where, "--time", "0s")[0] == 0
    for options, code, message in (
        (("trial", *where), 2, "there is an index 'trial' already"),
        (("A", *where), 2, "branch: must match"),
        (("new",), 2, "give either --target HOST:PORT or --store URI"),
        (("new", *where, "--version", "1", "--time", "1h"), 2, "give either --version or --time"),
        (("new", *where, "--time", "soon"), 2, "must be a time in ISO 8601"),
        (("new", *where, "--time", "2020-01-01"), 3, "has no version of 2020-01-01T00:00:00+00:00 or before"),
        (("new", "--target", "localhost:1", "--log", "logs"), 2, "--log is for --store"),
    ):
        status, _, err = run(capsys, *command, *options)
        assert (status, message in " ".join(err.split())) == (code, True), err
    assert not (store / "new").exists()


def test_a_log_that_an_earlier_release_made_is_shown(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scannery.connect(store) as client:
        client.index("library").upsert([point(0)])  # type: ignore[list-item]
    (store / "library" / "log.json").unlink()  # earlier releases registered none
    status, out, _ = run(capsys, "index", "log", "library", "--store", str(store))
    assert (status, "has a log made by an earlier release" in out, "no log" in out) == (0, True, False)
    assert "1 mutations, up to 1, are not sealed" in out


@pytest.mark.system
def test_a_log_is_shown_and_forgotten(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ("index", "log", "library", "--store", str(store))
    assert run(capsys, *log)[:2] == (0, "library has no log yet.\n")
    with scannery.connect(store) as client:
        client.index("library").upsert([point(0)])  # type: ignore[list-item]
    status, out, _ = run(capsys, *log)
    assert (status, "has its live updates in the store." in out) == (0, True)
    assert "1 mutations, up to 1, are not sealed" in out
    assert f"written by SQLite {apsw.sqlite_lib_version()}" in out
    status, out, _ = run(capsys, *log, "--json")
    assert (status, json.loads(out)["status"]["mutations"]) == (0, 1)
    assert f"written by SQLite {apsw.sqlite_lib_version()}" in run(capsys, *("index", "show", *log[2:]))[1]
    status, _, err = run(capsys, *log, "--forget")
    assert (status, "has a log already" in err) == (2, True)
    (store / "library" / "log").rename(tmp_path / "lost")
    status, _, err = run(capsys, *log)
    assert (status, "is gone" in err and "--forget" in err) == (5, True)
    status, _, err = run(capsys, *log, "--log", str(tmp_path / "elsewhere"))
    assert (status, "a log in the store" in err and "--log" in err) == (2, True)
    status, out, _ = run(capsys, *log, "--forget")
    assert (status, "begins a new log" in out) == (0, True)
    with scannery.connect(store) as client:
        assert client.index("library").upsert([point(1)]).sequence == 1  # type: ignore[list-item]
