"""`scannery index …` on a real store."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.cli.commands.indexes.show import documents_of
from scannery.cli.main import main
from scannery.indexer import Store, open_index, parse_spec, read_manifest, segment_key
from scannery.pipelines import build
from tests.data import clustered, datapoints, publish
from tests.served import serving

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path) -> str:
    spec = parse_spec({"index": "pods", "source": {"vector": "v"}, "attributes": {"show": "string"}})
    publish(Store.open(tmp_path / "store", create=True), spec, datapoints(spec, clustered(200, 4)), tmp_path)
    return str(tmp_path / "store")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["index", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_list_show_and_versions(store: str, capsys: pytest.CaptureFixture[str]):
    for command, expected in [
        (["list"], ["pods", "200", "cosine"]),
        (["show", "pods"], ["version 1", "200", "4 dimensions", "show: string", "recall@10 1.000"]),
        (["versions", "pods"], ["200", "1.000"]),
    ]:
        status, out, _ = run(capsys, *command, "--store", store)
        assert status == 0
        assert all(text in out for text in expected), out


def test_show_has_the_bytes_of_a_row_where_the_cache_has_the_segments(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path))
    assert "bytes a row" not in run(capsys, "show", "pods", "--store", store)[1]
    open_index(Store.open(store), "pods")
    out = run(capsys, "show", "pods", "--store", store)[1]
    assert "needed memory" in out and "mapped files" in out and "bytes a row: vectors 1" in out


def test_what_goes_into_a_pipe_is_not_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "an-index-" + "with-a-long-name-" * 3
    spec = parse_spec({"index": name + "1", "source": {"vector": "v"}})
    publish(Store.open(tmp_path / "s[1]", create=True), spec, datapoints(spec, clustered(20, 4)), tmp_path)
    assert f"│ {name}1 │" in run(capsys, "list", "--store", str(tmp_path / "s[1]"))[1]
    (tmp_path / "none[1]").mkdir()
    assert "none[1]" in run(capsys, "list", "--store", str(tmp_path / "none[1]"))[1]


def test_show_says_how_an_index_was_tuned_and_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    spec = {
        "index": "vecs",
        "source": {"vector": "vector"},
        "scann": {"exact_below_rows": 1000, "leaves": 30, "rescore": 60},
    }
    np.save(tmp_path / "v.npy", clustered(2000, 8))
    store = str(tmp_path / "store")
    build(spec, [str(tmp_path / "v.npy")], store)
    _, out, _ = run(capsys, "show", "vecs", "--store", store)
    assert "documents   2,000" in out
    assert "a build, full: 2,000 documents read" in " ".join(out.split())
    assert "leaves 30" in out
    (line,) = (line for line in out.splitlines() if "default" in line)
    leaves = [cell.strip() for cell in line.split("│")][1]
    (segment,) = open_index(Store.open(store), "vecs").segments
    assert {point.rescore for point in segment.entry.curve} == {60}
    settings = segment.settings_for(0.95)
    assert settings is not None
    assert leaves == str(settings.leaves)
    assert "the same for other numbers of hits" in out


@pytest.fixture
def tuned(tmp_path: Path) -> str:
    spec = parse_spec({"index": "pods", "source": {"vector": "v"}, "scann": {"exact_below_rows": 1000}})
    publish(Store.open(tmp_path / "store", create=True), spec, datapoints(spec, clustered(1200, 4)), tmp_path)
    return str(tmp_path / "store")


def test_a_segment_that_is_searched_exactly_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # A code of four bits for 16 independent dimensions, and only twenty candidates.
    coarse = {"exact_below_rows": 1000, "dimensions_per_block": 16, "rescore": 20}
    spec = {"index": "odd", "source": {"vector": "v"}, "scann": coarse}
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((2000, 32)).astype(np.float32))
    store = str(tmp_path / "store")
    build(spec, [str(tmp_path / "v.npy")], store)
    _, out, _ = run(capsys, "show", "odd", "--store", store)
    assert "none reaches 0.95: searched exactly" in " ".join(out.split())
    assert "│ default" not in out
    _, out, _ = run(capsys, "verify", "odd", "--store", store)
    assert "1 segments; 1 searched exactly" in " ".join(out.split())


def test_curves_are_drawn(tuned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "curves.png"
    assert run(capsys, "show", "pods", "--store", tuned, "--plot", str(path))[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    status, _, err = run(capsys, "show", "pods", "--store", tuned, "--plot", str(tmp_path / "curves.xyz"))
    assert (status, "'xyz' is not supported" in err) == (2, True)
    status, _, err = run(capsys, "show", "pods", "--store", tuned, "--plot", str(tmp_path / "no" / "a.png"))
    assert (status, "No such file" in err) == (3, True)


def test_drawing_without_matplotlib_says_what_to_install(
    tuned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "curves.png"
    status, _, err = run(capsys, "show", "pods", "--store", tuned, "--plot", str(path))
    assert (status, "pip install 'scannery[plot]'" in err, path.exists()) == (2, True, False)


def test_documents_are_counted_over_segments(store: str, capsys: pytest.CaptureFixture[str]):
    opened = Store.open(store)
    assert json.loads(run(capsys, "list", "--store", store, "--json")[1])[0]["documents"] == 200
    # Of a shard with two segments, a document may have rows in both.
    (entry,) = read_manifest(opened, "pods").segments
    other = entry.model_copy(update={"documents": 150})
    manifest = read_manifest(opened, "pods").model_copy(update={"segments": (entry, other)})
    assert documents_of(manifest) == (350, False)
    unknown = other.model_copy(update={"documents": None})
    assert documents_of(manifest.model_copy(update={"segments": (entry, unknown)})) is None


def test_json_is_json(store: str, capsys: pytest.CaptureFixture[str]):
    assert json.loads(run(capsys, "list", "--store", store, "--json")[1])[0]["rows"] == 200
    assert json.loads(run(capsys, "show", "pods", "--store", store, "--json")[1])["dimensions"] == 4
    assert json.loads(run(capsys, "versions", "pods", "--store", store, "--json")[1])[0]["version"] == 1
    verified = json.loads(run(capsys, "verify", "pods", "--store", store, "--json")[1])
    assert (verified["rows"], verified["problems"]) == (200, [])
    collected = json.loads(run(capsys, "gc", "pods", "--store", store, "--json")[1])
    assert collected["segments"] == []
    assert (
        json.loads(run(capsys, "rollback", "pods", "--to", "1", "--store", store, "--json")[1])["version"]
        == 2
    )
    assert json.loads(run(capsys, "schema")[1])["title"] == "Scannery index spec"


def test_versions_of_a_server_are_listed_shown_and_rolled_back(
    store: str, capsys: pytest.CaptureFixture[str]
):
    with serving(Path(store)) as server:
        at = ("--target", server.address)
        with scannery.connect(server.address) as client:
            client.index("pods").alter(attributes={"year": "int"})
        listed = json.loads(run(capsys, "versions", "pods", *at, "--json")[1])
        assert [(each["version"], each["kind"]) for each in listed] == [(1, ""), (2, "alter")]
        assert "200" in run(capsys, "versions", "pods", *at)[1]
        assert "year" in run(capsys, "show", "pods", *at, "--spec")[1]
        assert "year" not in run(capsys, "show", "pods", *at, "--spec", "--version", "1")[1]
        assert json.loads(run(capsys, "rollback", "pods", "--to", "1", *at, "--json")[1])["version"] == 3
        assert "version 4" in run(capsys, "rollback", "pods", "--to", "2", "--if-version", "3", *at)[1]
        for place in (at, ("--store", store)):
            status, _, err = run(capsys, "rollback", "pods", "--to", "1", "--if-version", "3", *place)
            assert (status, "is at version 4, not 3" in err) == (2, True)
        for wrong in ((), ("--log", "x", *at)):
            assert run(capsys, "rollback", "pods", "--to", "1", *wrong)[0] == 2
    assert "a rollback to version 2" in run(capsys, "show", "pods", "--store", store)[1]


def test_verify_says_no_to_damage(store: str, capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "verify", "pods", "--store", store)[0] == 0
    opened = Store.open(store)
    key = segment_key("pods", read_manifest(opened, "pods").segments[0].key)
    opened.write(key, opened.read(key)[:-9] + b"123456789")
    status, out, _ = run(capsys, "verify", "pods", "--store", store)
    assert status == 1
    assert "SHA-256" in out
    assert json.loads(run(capsys, "verify", "pods", "--store", store, "--json")[1])["problems"]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["show", "nope"], 3, "no index 'nope'"),
        (["show", "pods", "--version", "9"], 3, "no version 9; it has 1"),
        (["rollback", "pods", "--to", "4"], 3, "no version 4"),
        (["gc", "pods", "--keep", "0"], 2, "keep"),
        (["show", "pods", "--plot", "x.png"], 2, "nothing to plot"),
    ],
)
def test_errors_are_one_line(store: str, capsys: pytest.CaptureFixture[str], arguments, status, says):
    got, _, err = run(capsys, *arguments, "--store", store)
    assert got == status
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_a_store_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, _, err = run(capsys, "list", "--store", str(tmp_path / "missing"))
    assert status == 3
    assert "there is no store at" in err


def test_drop_needs_yes_and_removes_index_and_log(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    with serving(Path(store), log=str(logs)) as server:
        with scannery.connect(server.address) as client:
            client.index("pods").upsert([{"id": "new", "vector": [1.0] * 4}])
        status, _, err = run(capsys, "drop", "pods", "--yes", "--store", store)
        assert (status, "a server has it open" in err) == (4, True)
    status, _, err = run(capsys, "drop", "pods", "--store", store)
    assert (status, "pods has 200 datapoints; --yes removes them" in err) == (2, True)
    assert (logs / "pods").exists()
    status, out, err = run(capsys, "drop", "pods", "--yes", "--store", store)
    assert (status, err) == (0, "")
    assert out.startswith("Removed pods: 1 version(s), ")
    assert list(logs.rglob("*.sqlite")) == []
    assert run(capsys, "list", "--store", store)[1].startswith("There is no index")
    assert run(capsys, "drop", "pods", "--yes", "--store", store)[0] == 3


def test_drop_removes_nothing_but_logs_outside_the_store(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("log.sqlite", "log.sqlite-wal", "turn.lock", "thesis.txt"):
        (folder / name).write_text("")
    # The registration is a file of the store, which may come from elsewhere.
    registration = {"log_id": "0" * 32, "path": str(folder), "host": socket.gethostname(), "created_at": ""}
    (Path(store) / "pods" / "log.json").write_text(json.dumps(registration))
    assert run(capsys, "drop", "pods", "--yes", "--store", store)[0] == 0
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_what_a_failed_build_left_is_cleaned(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(store).write("excel/stage/builds/a.json", b"{}")
    status, out, _ = run(capsys, "gc", "excel", "--store", store, "--min-age-hours", "0")
    assert (status, "1 record(s)" in out) == (0, True)
    status, _, err = run(capsys, "gc", "pdos", "--store", store)
    assert (status, "did you mean pods?" in err) == (3, True)
