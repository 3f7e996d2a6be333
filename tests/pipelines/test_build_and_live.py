"""Builds of an index that takes live updates: which change to a row wins does not depend on when it is sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import verify
from scannery.serving.live.sealing import seal
from tests.pipelines.conftest import VECTORS, rows_of, run, vector_records
from tests.pipelines.test_races import overtake
from tests.pipelines.test_update import expected

SPEC = VECTORS | {"shards": 2}
LIVE = [1.0] * 8


def live(store, *ids: str, delete: tuple[str, ...] = ()) -> None:
    with scannery.connect(store.uri) as client:
        index = client.index("vectors")
        if ids:
            index.upsert([{"id": name, "vector": LIVE} for name in ids])
        if delete:
            index.delete(delete)


def served(store) -> dict[str, tuple[float, ...]]:
    with scannery.connect(store.uri) as client:
        points = client.index("vectors").get([f"d{i}" for i in range(60)], vectors=True)
        return {p.id: tuple(p.vector.tolist()) for p in points if p is not None and p.vector is not None}


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "index: vectors\nsource: {vector: vector}\nattributes: {show: string, n: int}\nshards: 2\n"
    )
    return str(path)


@pytest.mark.parametrize("mode", ["upsert", "full"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_build_replaces_what_was_written_before_it(store, write, spec, mode, elsewhere, tmp_path):
    records = vector_records(0, 20)
    run(store, write("a.jsonl", records), spec=SPEC)
    live(store, "d1", "d30", delete=("d2",))
    options = []
    if elsewhere:
        (store.local_root / "vectors" / "log").rename(tmp_path / "log")
        (tmp_path / "logs" / "vectors").mkdir(parents=True)
        (tmp_path / "log").rename(tmp_path / "logs" / "vectors" / "log")
        options = ["--log", str(tmp_path / "logs")]
    arguments = ["build", spec, "--input", write("a.jsonl", records), "--store", store.uri, "--mode", mode]
    assert main([*arguments, *options]) == 0
    if elsewhere:  # who reads the store looks for the log where it was
        (tmp_path / "logs" / "vectors" / "log").rename(store.local_root / "vectors" / "log")
    wanted: dict[str, Any] = expected(*records)
    assert served(store) == wanted | ({"d30": tuple(LIVE)} if mode == "upsert" else {})
    assert not verify(store, "vectors").problems


@pytest.mark.parametrize("mode", ["upsert", "full"])
@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_written_while_a_build_runs_wins(store, write, monkeypatch, mode, sealed):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)
    live(store, "d5")
    seal(store, "vectors")

    def written() -> None:
        live(store, "d1", "d40", "d50")
        if sealed:
            seal(store, "vectors")

    overtake(monkeypatch, written)
    new = [*vector_records(0, 10, seed=1), *vector_records(40, 42)]
    report = run(store, path := write("b.jsonl", new), spec=SPEC, mode=mode)
    wanted: dict[str, Any] = expected(*([] if mode == "full" else vector_records(0, 20)), *new)
    wanted |= dict.fromkeys(("d1", "d40", "d50"), tuple(LIVE))
    assert served(store) == wanted
    assert not verify(store, "vectors").problems
    # The same build again has seen all of this, and replaces it.
    if sealed:
        again = run(store, path, spec=SPEC, mode=mode)
        wanted = expected(*([] if mode == "full" else vector_records(0, 20)), *new)
        assert rows_of(store) == wanted | ({} if mode == "full" else {"d50": tuple(LIVE)})
        assert again.version == report.version + 1


@pytest.mark.parametrize("mode", ["upsert", "full"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_row_that_goes_to_another_document_while_a_build_runs_wins(store, write, monkeypatch, mode, shards):
    spec = VECTORS | {"shards": shards}
    run(store, write("a.jsonl", vector_records(0, 20)), spec=spec)
    points: list[Any] = [{"id": f"d{i}", "vector": LIVE, "document_id": "another"} for i in range(5)]

    def written() -> None:
        with scannery.connect(store.uri) as client:
            client.index("vectors").upsert(points)
        seal(store, "vectors")

    overtake(monkeypatch, written)
    new = vector_records(0, 10, seed=1)
    run(store, write("b.jsonl", new), spec=spec, mode=mode)
    wanted: dict[str, Any] = expected(*([] if mode == "full" else vector_records(0, 20)), *new)
    assert served(store) == wanted | {f"d{i}": tuple(LIVE) for i in range(5)}
    assert not verify(store, "vectors").problems


@pytest.mark.parametrize("shards", [1, 3])
def test_a_record_of_a_document_that_is_deleted_takes_its_id_along(store, write, shards):
    source = {"vector": "vector", "document_id": "document"}
    spec = VECTORS | {"shards": shards, "source": source}

    def records(start: int, end: int, document: str) -> list[dict[str, Any]]:
        return [record | {"document": document} for record in vector_records(start, end)]

    run(store, write("a.jsonl", [row for i in range(9) for row in records(i, i + 1, f"doc{i}")]), spec=spec)
    run(store, write("b.jsonl", records(2, 7, "gone")), spec=spec, deletes=["gone"])
    assert served(store).keys() == {"d0", "d1", "d7", "d8"}


def test_a_full_build_repairs_an_index_that_cannot_be_sealed(store, write, spec, monkeypatch, tmp_path):
    records = vector_records(0, 20)
    path = write("a.jsonl", records)
    run(store, path, spec=SPEC)
    live(store, "d1")
    for item in store.list("vectors/segments"):
        store.write(item.key, b"x" * item.size_bytes)
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / "empty"))
    arguments = ["build", spec, "--input", path, "--store", store.uri]
    assert main(arguments) != 0
    assert main([*arguments, "--full"]) == 0
    assert served(store) == expected(*records) | {"d1": tuple(LIVE)}
