"""Builds and compactions while others commit: nothing is lost, nothing is mixed, and it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scannery.indexer import (
    AlreadyExistsError,
    Manifest,
    Store,
    build_segment,
    commit,
    list_versions,
    next_version,
    parse_spec,
    segment_key,
    shard_of,
    verify,
)
from scannery.pipelines import compact, publish_stage
from tests.data import clustered, datapoints, without_ids
from tests.pipelines.conftest import DIMENSIONS, VECTORS, manifest_of, rows_of, run, vector_records
from tests.pipelines.test_update import expected

SPEC = VECTORS | {"shards": 2}


def overtake(monkeypatch: pytest.MonkeyPatch, first: Callable[[], object], times: int = 1) -> None:
    """Let something happen right before a build commits."""
    left = list(range(times))

    def overtaken(store: Store, manifest: Manifest) -> Manifest:
        if left:
            left.pop()
            first()
        return commit(store, manifest)

    monkeypatch.setattr(publish_stage, "commit", overtaken)


def test_of_two_builders_at_once_both_changes_are_there(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 40)), spec=SPEC)
    paths = [write("b.jsonl", vector_records(30, 50, seed=1)), write("c.jsonl", vector_records(50, 60))]
    both, waited = threading.Barrier(2), threading.local()

    def together(store: Store, manifest: Manifest) -> Manifest:
        if not hasattr(waited, "once"):
            waited.once = both.wait(60)
        return commit(store, manifest)

    monkeypatch.setattr(publish_stage, "commit", together)
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda path: run(store, path, spec=SPEC), paths))
    assert sorted(report.version for report in reports) == [2, 3]
    assert rows_of(store) == expected(
        *vector_records(0, 30), *vector_records(30, 50, seed=1), *vector_records(50, 60)
    )
    assert not verify(store, "vectors").problems


def test_two_first_builds_at_once_make_one_index_of_both(store, write, monkeypatch):
    path = write("b.jsonl", vector_records(10, 20))
    overtake(monkeypatch, lambda: run(store, path))
    report = run(store, write("a.jsonl", vector_records(0, 10)))
    assert (report.version, report.mode, report.added) == (2, "upsert", 10)
    assert rows_of(store) == expected(*vector_records(0, 20))


def test_deletes_that_come_in_between_stay_deleted(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 100)), spec=SPEC)

    def mutated() -> None:
        without_ids(store, "vectors", {"d1", "d95"})
        parent = manifest_of(store)
        commit(store, next_version(store, parent, dead_rows={}, log_sequence=12))

    overtake(monkeypatch, mutated)
    report = run(store, write("b.jsonl", vector_records(90, 105, seed=1)), spec=SPEC)
    wanted = expected(*vector_records(0, 90), *vector_records(90, 105, seed=1))
    del wanted["d1"]  # d95 came again with the build
    assert rows_of(store) == wanted
    assert (report.version, manifest_of(store).log_sequence) == (4, 12)
    assert (report.added, report.replaced) == (6, 9)


def test_a_build_that_is_overtaken_each_time_gives_up(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 10)))
    overtake(monkeypatch, lambda: without_ids(store, "vectors", ["none"]), times=100)
    with pytest.raises(AlreadyExistsError, match="run this one again"):
        run(store, write("b.jsonl", vector_records(10, 11)))
    assert list_versions(store, "vectors") == [1, 2, 3, 4, 5]
    assert rows_of(store) == expected(*vector_records(0, 10))


@pytest.fixture
def worn(store, write) -> dict[str, Any]:
    """An index that is worth compacting; return its rows."""
    run(store, write("a.jsonl", vector_records(0, 100)), spec=SPEC)
    without_ids(store, "vectors", ["d2", "d3"])
    return {name: row for name, row in expected(*vector_records(0, 100)).items() if name not in ("d2", "d3")}


def test_a_compaction_takes_along_what_was_mutated_meanwhile(store, worn, monkeypatch, tmp_path):
    def mutated() -> None:
        without_ids(store, "vectors", {"d4", "d5", "d6"})
        parent = manifest_of(store)
        vectors_ND = clustered(1, DIMENSIONS)
        table = datapoints(parse_spec(SPEC), vectors_ND, ids=["d4"])
        built = build_segment(table, spec=parent.spec, shard=shard_of("d4", 2), directory=tmp_path)
        store.write_file(segment_key("vectors", built.entry.key), built.path)
        commit(store, next_version(store, parent, added=[built.entry], dead_rows={}, log_sequence=3))
        worn["d4"] = tuple(vectors_ND[0].tolist())
        del worn["d5"], worn["d6"]

    overtake(monkeypatch, mutated)
    report = compact("vectors", store.uri)
    manifest = manifest_of(store)
    assert rows_of(store) == worn
    assert (report.version, manifest.log_sequence, report.rows, manifest.rows) == (5, 3, 96, 96)
    assert sum(entry.documents or 0 for entry in manifest.segments) == 96
    assert not verify(store, "vectors").problems
    compact("vectors", store.uri)
    assert [entry.deleted for entry in manifest_of(store).segments] == [None, None]
    assert rows_of(store) == worn


def test_a_compaction_leaves_shards_that_somebody_has_rewritten(store, write, worn, monkeypatch):
    path = write("b.jsonl", vector_records(0, 100, seed=1))

    def rebuilt() -> None:
        monkeypatch.undo()
        run(store, path, spec=SPEC)

    overtake(monkeypatch, rebuilt)
    report = compact("vectors", store.uri)
    assert rows_of(store) == expected(*vector_records(0, 100, seed=1))
    assert (report.version, list_versions(store, "vectors")) == (3, [1, 2, 3])
