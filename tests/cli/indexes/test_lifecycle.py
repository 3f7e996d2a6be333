"""`scannery index create | alter | alias | drop | show --spec`, on a server and in a store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import scannery
from scannery.cli.main import main
from scannery.indexer import Store, parse_spec, spec_json_schema, spec_yaml
from tests.served import LIBRARY, MINILM, TEXTS, serving
from tests.tools.generate_spec_docs import example_spec, keys_of

pytestmark = pytest.mark.system


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["index", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(params=["--store", "--target"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    store = tmp_path / "store"
    if request.param == "--store":
        yield "--store", str(store)
        return
    Store.open(store, create=True)
    with serving(store) as server:
        yield "--target", server.address


def test_an_index_from_its_creation_to_its_end(
    where: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ("--dimensions", "4", "--distance", "dot", "--attribute", "show=string", "-a", "tags=string_list")
    status, out, err = run(capsys, "create", "blue", *made, "--dynamic", *where)
    assert (status, out) == (0, "blue is at version 1, with 0 datapoints.\n"), err
    status, _, err = run(capsys, "create", "blue", "--dimensions", "4", *where)
    assert (status, "there is an index 'blue' already" in err) == (4, True)
    status, out, _ = run(
        capsys, "create", "blue", "--dimensions", "4", "--distance", "dot", "--if-exists", "keep", *where
    )
    assert status == 0
    status, _, err = run(
        capsys, "create", "blue", "--dimensions", "5", "--distance", "dot", "--if-exists", "keep", *where
    )
    assert (status, "dimensions: index 'blue' exists with 4, got 5" in err) == (4, True)
    status, out, err = run(
        capsys, "alter", "blue", "--attribute", "year=int", "--target-recall", "0.9", *where
    )
    assert (status, out) == (0, "blue is at version 2, with 0 datapoints.\n"), err
    status, _, err = run(capsys, "alter", "blue", "--attribute", "year=string", *where)
    assert (status, "has type int, which stays" in err) == (2, True)
    assert run(capsys, "alias", "live", "blue", *where)[1] == "live stands for blue.\n"
    assert json.loads(run(capsys, "alias", "--list", "--json", *where)[1]) == {"live": "blue"}
    status, out, _ = run(capsys, "show", "live", "--spec", *where)
    assert yaml.safe_load(out) == {
        "index": "blue",
        "source": {"id": "id", "text": "text", "vector": "vector"},
        "distance": "dot",
        "attributes": {"show": "string", "tags": "string_list", "year": "int"},
        "dynamic": True,
        "vectors": "optional",
        "target_recall": 0.9,
    }
    # The printed spec makes an equal index.
    file = tmp_path / "spec.yaml"
    file.write_text(out.replace("index: blue", "index: green"))
    status, _, err = run(capsys, "create", "--spec", str(file), "--dimensions", "4", *where)
    assert status == 0, err
    assert run(capsys, "show", "green", "--spec", *where)[1] == file.read_text()
    status, out, _ = run(capsys, "alias", "live", "green", *where)
    assert out == "live stands for green, and no longer for blue.\n"
    status, _, err = run(capsys, "drop", "green", "--yes", *where)
    assert (status, "has the aliases live" in err) == (2, True)
    assert run(capsys, "drop", "blue", "--yes", *where)[0] == 0
    assert run(capsys, "alias", "live", "--delete", *where)[1] == "Deleted the alias live.\n"
    assert run(capsys, "drop", "green", "--yes", *where)[0] == 0
    assert run(capsys, "drop", "green", "--yes", *where)[0] == 3
    with scannery.connect(where[1]) as client:
        assert client.indexes() == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("create", "--dimensions", "4"), "give either INDEX or --spec FILE"),
        (("create", "x", "--attribute", "year"), "--attribute must be NAME=TYPE"),
        (("create", "x", "--if-exists", "replace"), "--if-exists must be error or keep"),
        (("create", "x", "--live", "{"), "--live is not valid JSON"),
        (("create", "x"), "dimensions"),
        (("alter", "x"), "give at least one of"),
        (("alias", "a"), "give ALIAS and INDEX"),
        (("alias", "a", "b", "--list"), "give ALIAS and INDEX"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    Store.open(tmp_path / "store", create=True)
    status, _, err = run(capsys, *arguments, "--store", str(tmp_path / "store"))
    assert status == 2
    assert told in err


def test_every_key_is_printed_as_it_was() -> None:
    for section, key, _, _ in keys_of(spec_json_schema()):
        spec = parse_spec(example_spec(section, key))
        assert parse_spec(yaml.safe_load(spec_yaml(spec))) == spec, (section, key)


def test_a_printed_spec_has_no_defaults() -> None:
    assert list(yaml.safe_load(spec_yaml(LIBRARY))) == ["index", "source", "attributes", "shards"]
    assert yaml.safe_load(spec_yaml(TEXTS))["encoder"] == {"model": MINILM}


def test_an_empty_index_is_a_version_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    where = ("--store", str(store))
    with scannery.connect(store, create=True) as client:
        client.create_index("notes", dimensions=4).alter(attributes={"year": "int"})
        client.alias("live", "notes")
    for command in (
        ("list",),
        ("show", "live"),
        ("versions", "live"),
        ("verify", "live"),
        ("gc", "live", "--min-age-hours", "0"),
        ("compact", "live"),
        ("seal", "live"),
        ("merge", "live"),
        ("log", "live"),
        ("export", "live", "--output", str(tmp_path / "out.jsonl")),
        ("rollback", "live", "--to", "1"),
        ("snapshot", "live", "--to", str(copy)),
        ("alias", "live", "--delete"),
        ("drop", "notes", "--yes"),
        ("restore", "notes", "--from", str(copy)),
    ):
        status, _, err = run(capsys, *command, *where)
        assert status == 0, (command, err)
    with scannery.connect(store) as client:
        index = client.index("notes")
        assert (index.stats().version, index.stats().attributes) == (3, {})
        index.upsert([{"id": "a", "vector": [1, 2, 3, 4]}])
        assert [hit.id for hit in index.search([1, 2, 3, 4])] == ["a"]
    # A restored index cannot take the name of an alias.
    run(capsys, "drop", "notes", "--yes", *where)
    run(capsys, "create", "other", "--dimensions", "4", *where)
    run(capsys, "alias", "notes", "other", *where)
    status, _, err = run(capsys, "restore", "notes", "--from", str(copy), *where)
    assert (status, "is an alias" in err) == (2, True)


def test_indexes_are_listed_and_take_vectors_or_none(
    where: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "There is no index" in run(capsys, "list", *where)[1] or where[0] == "--store"
    assert run(capsys, "create", "notes", "--dimensions", "2", "--vectors", "required", *where)[0] == 0
    [listed] = json.loads(run(capsys, "list", "--json", *where)[1])
    assert (listed["index"], listed["version"], listed["rows"]) == ("notes", 1, 0)
    assert "notes" in run(capsys, "list", *where)[1]
    assert run(capsys, "alter", "notes", "--optional-vectors", *where)[0] == 0
    assert "vectors: optional" in run(capsys, "show", "notes", "--spec", *where)[1]
    assert run(capsys, "list")[0] == 2


def test_live_updates_are_told_before_they_are_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--store", str(tmp_path))
    with scannery.connect(tmp_path) as client:
        client.create_index("notes", dimensions=2).upsert([{"id": 1, "vector": [1, 0]}])
    status, _, err = run(capsys, "drop", "notes", *where)
    assert status == 2
    assert "notes has 0 datapoints in segments and 1 batches of live updates; --yes removes them" in err
    [listed] = json.loads(run(capsys, "list", "--json", *where)[1])
    assert (listed["rows"], listed["live_batches"]) == (0, 1)
    out = run(capsys, "list", *where)[1]
    assert "0*" in out
    assert "*: and live updates that are in no segment yet" in out
