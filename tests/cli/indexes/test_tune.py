"""`scannery index tune`: new curves for given queries, as a version with the same segments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Store, alter_index, altered_spec, parse_spec, read_manifest
from scannery.pipelines.tuning.index_tuning import tune_index
from scannery.serving import SecurityConfig
from scannery.serving.security import KeyFile
from tests.data import clustered, datapoints
from tests.served import copied, publish_version, serving

pytestmark = pytest.mark.system

SPEC = parse_spec(
    {
        "index": "i",
        "source": {"id": "id", "vector": "v"},
        "scann": {"exact_below_rows": 1000},
        "attributes": {"n": "int"},
    }
)
QUERIES_QD = np.random.default_rng(3).standard_normal((200, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    path = folder / "store"
    store = Store.open(path, create=True)
    publish_version(store, SPEC, datapoints(SPEC, clustered(3000, 16)), folder)
    small = parse_spec({"index": "small", "source": {"id": "id", "vector": "v"}})
    publish_version(store, small, datapoints(small, clustered(50, 16)), folder)
    return path


@pytest.fixture
def store(built: Path, tmp_path: Path) -> Path:
    return copied(built, tmp_path)


def tune(capsys: pytest.CaptureFixture[str], store: Path, *arguments: str) -> tuple[int, str, str]:
    status = main(["index", "tune", *arguments, "--store", str(store)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.system
def test_the_curves_are_measured_with_the_queries_and_the_files_stay(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Store.open(store)
    before = read_manifest(opened, "i")
    np.save(tmp_path / "q.npy", QUERIES_QD)
    status, out, err = tune(capsys, store, "i", "--queries", str(tmp_path / "q.npy"), "--json")
    assert status == 0, err
    report = json.loads(out)
    after = read_manifest(opened, "i")
    assert (report["version"], report["segments"], report["queries"]) == (2, 1, 200)
    assert (after.version, after.parent, after.statistics["mode"]) == (2, 1, "tune")
    assert [entry.content for entry in after.segments] == [entry.content for entry in before.segments]
    assert after.segments[0].curve != before.segments[0].curve
    assert after.segments[0].depth_curves
    assert after.recall is not None
    assert after.recall.given_queries is not None
    assert after.recall.whole == report["recall"] >= 0.93
    assert main(["index", "show", "i", "--store", str(store)]) == 0
    assert "given queries" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "queries", "status", "words"),
    [
        ("i", QUERIES_QD[:, :5], 2, "have 5 dimensions, the index has 16"),
        ("i", np.full((3, 16), np.nan, np.float32), 2, "must have finite vectors"),
        ("i", np.empty((0, 16), np.float32), 2, "has no queries"),
        ("i", QUERIES_QD * 1e16, 2, "vectors must be within ±1e+15"),
        ("i", np.zeros((3, 16), np.float32), 2, "a vector is all zero"),
        ("small", QUERIES_QD, 2, "no segment of index 'small' has ScaNN data"),
        ("unknown", QUERIES_QD, 3, "there is no index 'unknown'"),
        ("i", None, 3, "there is no file"),
        ("i", "texts", 2, "has texts, and the spec has no encoder"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    queries: Any,
    status: int,
    words: str,
) -> None:
    path = tmp_path / "q.npy"
    if isinstance(queries, np.ndarray):
        np.save(path, queries)
    elif queries:
        path = tmp_path / "q.txt"
        path.write_text("how do volcanoes form\n")
    files = sorted(each for each in store.rglob("*") if each.is_file())
    found, _, err = tune(capsys, store, name, "--queries", str(path))
    assert (found, words in err) == (status, True), err
    assert sorted(each for each in store.rglob("*") if each.is_file()) == files


@pytest.mark.system
def test_few_queries_are_warned_of(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "q.npy", QUERIES_QD[:2])
    found, _, err = tune(capsys, store, "i", "--queries", str(tmp_path / "q.npy"))
    assert (found, "warning: queries: 2 are few" in err) == (0, True)


@pytest.mark.system
def test_one_source_of_queries_is_needed(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(capsys, store, "i")[0] == 2
    assert tune(capsys, store, "i", "--queries", "q.npy", "--from-server", "localhost:1")[0] == 2


@pytest.mark.system
def test_a_version_that_is_published_meanwhile_stays(store: Path) -> None:
    opened = Store.open(store)
    altered: list[int] = []

    def alter(done: int, total: int) -> None:
        if not altered:
            changed = alter_index(
                opened, "i", lambda manifest: altered_spec(manifest.spec, {"target_recall": 0.9})
            )
            altered.append(changed.version)

    report = tune_index(opened, "i", QUERIES_QD, on_progress=alter)
    after = read_manifest(opened, "i")
    assert (altered, report.version, report.segments) == ([2], 3, 1), "the curves are not measured again"
    assert after.spec.target_recall == 0.9
    assert after.recall is not None
    assert after.recall.target == 0.9
    assert after.statistics["mode"] == "tune"


@pytest.mark.system
def test_a_server_takes_the_curves_over_and_keeps_its_writes(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(store, check_every_s=0.05, keep_queries=100) as server:
        index = scannery.connect(server.address).index("i")
        done = index.upsert([{"id": "new", "vector": [9.0] * 16}])
        for query_D in QUERIES_QD[:60]:
            index.search(query_D)
        status, out, err = tune(capsys, store, "i", "--from-server", server.address)
        assert status == 0, err
        assert "i is at version 2: 1 segment(s) measured with 60 queries" in out
        for _ in range(400):
            hits = index.search([9.0] * 16, k=1, min_sequence=done.sequence, explain=True)
            if hits.version == 2:
                break
        assert (hits.version, hits[0].id) == (2, "new")
        live = server._catalog.snapshot("i")
        assert live.segments[0].entry.curve == read_manifest(Store.open(store), "i").segments[0].curve


def other_store(folder: Path, dimensions: int) -> Path:
    """Return a store with another index of the same name."""
    store = Store.open(folder / "other", create=True)
    publish_version(store, SPEC, datapoints(SPEC, clustered(60, dimensions)), folder)
    return folder / "other"


@contextmanager
def server_without_methods() -> Iterator[str]:
    """Yield the address of a gRPC server that knows no method, as one of before `GetKeptQueries`."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def server_that(what: str, store: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield an address where no fitting queries can be read."""
    if what == "is not there":
        with server_without_methods() as address:
            pass
        yield address
    elif what == "is older":
        with server_without_methods() as address:
            yield address
    elif what == "asks for admin":
        file = KeyFile(folder / "keys.json")
        monkeypatch.setenv("SCANNERY_API_KEY", file.create("reader", scopes=["read", "write"])[1])
        with serving(store, keep_queries=9, security=SecurityConfig(keys_file=str(file.path))) as server:
            yield server.address
    elif what == "keeps none":
        with serving(store) as server:
            scannery.connect(server.address).index("i").search(QUERIES_QD[0])
            yield server.address
    elif what == "has no such index":
        Store.open(folder / "empty", create=True)
        with serving(folder / "empty", keep_queries=9) as server:
            yield server.address
    else:
        with serving(other_store(folder, 8), keep_queries=9) as server:
            scannery.connect(server.address).index("i").search(QUERIES_QD[0, :8])
            yield server.address


@pytest.mark.system
@pytest.mark.parametrize(
    ("what", "status", "words"),
    [
        ("is not there", 4, "127.0.0.1"),
        ("is older", 2, "is of an older version, which keeps no queries"),
        ("asks for admin", 6, "do not have the scope 'admin'"),
        ("keeps none", 2, "start it with --keep-queries"),
        ("has no such index", 3, "there is no index 'i'"),
        ("has another index", 2, "have 8 dimensions, the index has 16"),
    ],
)
def test_a_server_that_has_no_queries_for_the_index(
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    status: int,
    words: str,
) -> None:
    with server_that(what, store, tmp_path, monkeypatch) as address:
        found, _, err = tune(capsys, store, "i", "--from-server", address, "--timeout", "2")
    assert (found, words in err) == (status, True), err
    assert "Traceback" not in err
    assert read_manifest(Store.open(store), "i").version == 1
