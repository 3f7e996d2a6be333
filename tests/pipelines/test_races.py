"""Builds and compactions while others commit: nothing is lost, nothing is mixed, and it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from scannery.indexer import (
    AlreadyExistsError,
    GarbageReport,
    Manifest,
    Store,
    build_segment,
    collect_garbage,
    commit,
    list_versions,
    next_version,
    parse_spec,
    rollback,
    shard_of,
    store_segment,
    verify,
)
from scannery.pipelines import compact
from scannery.pipelines.stages import publish as publish_stage
from tests.data import clustered, datapoints, without_ids
from tests.hooks import before_call, make_old
from tests.pipelines.conftest import DIMENSIONS, VECTORS, manifest_of, rows_of, run, vector_records
from tests.pipelines.stages.test_update import expected

pytestmark = pytest.mark.system

NOW = timedelta(0)
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
    assert report.version == 4
    # All that was written while it ran is applied upon it.
    assert (manifest_of(store).log_sequence, manifest_of(store).log_reached) == (0, 12)
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
        store_segment(store, "vectors", built)
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


def test_a_compaction_leaves_shards_that_others_have_rewritten(store, write, worn, monkeypatch):
    path = write("b.jsonl", vector_records(0, 100, seed=1))

    def rebuilt() -> None:
        monkeypatch.undo()
        run(store, path, spec=SPEC)

    overtake(monkeypatch, rebuilt)
    report = compact("vectors", store.uri)
    assert rows_of(store) == expected(*vector_records(0, 100, seed=1))
    assert (report.version, list_versions(store, "vectors")) == (3, [1, 2, 3])


def test_a_compaction_does_not_undo_a_rollback(store, worn, monkeypatch):
    # d2 and d3 come back while the shards are written without them.
    overtake(monkeypatch, lambda: rollback(store, "vectors", 1))
    compact("vectors", store.uri)
    assert rows_of(store) == expected(*vector_records(0, 100))
    assert not verify(store, "vectors").problems


def test_gc_during_a_build_leaves_what_it_relies_on(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 40)), spec=SPEC)
    a, b = write("b.jsonl", vector_records(30, 50, seed=1)), write("c.jsonl", vector_records(60, 70))

    def collected() -> None:
        for name in ("d1", "d2", "d3"):
            without_ids(store, "vectors", [name])
        make_old(store)
        collect_garbage(store, "vectors", keep=1, min_age=NOW)

    overtake(monkeypatch, collected)
    report = run(store, a, spec=SPEC)
    wanted = expected(*vector_records(0, 30), *vector_records(30, 50, seed=1))
    for name in ("d1", "d2", "d3"):
        del wanted[name]
    assert rows_of(store) == wanted
    assert (report.version, report.added, report.replaced) == (5, 10, 10)
    assert store.list("vectors/leases") == []
    collect_garbage(store, "vectors", keep=1, min_age=NOW)
    assert run(store, b, spec=SPEC).version == 6
    assert not verify(store, "vectors").problems


def test_gc_leaves_segments_that_a_build_takes_up_from_one_that_was_stopped(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 40)), spec=SPEC)
    path = write("b.jsonl", vector_records(30, 50, seed=1))

    def stopped() -> None:
        raise KeyboardInterrupt

    overtake(monkeypatch, stopped)
    with pytest.raises(KeyboardInterrupt):
        run(store, path, spec=SPEC)
    monkeypatch.undo()
    make_old(store)

    # Now the segments are as old as gc removes them, and the second run finds that they are there.
    reports: list[GarbageReport] = []
    overtake(
        monkeypatch, lambda: reports.append(collect_garbage(store, "vectors", min_age=timedelta(days=1)))
    )
    assert run(store, path, spec=SPEC).version == 2
    assert [(report.segments, report.deletes, report.embeddings) for report in reports] == [((), (), ())]
    assert rows_of(store) == expected(*vector_records(0, 30), *vector_records(30, 50, seed=1))
    assert not verify(store, "vectors").problems


def test_a_build_whose_segments_are_gone_makes_them_again(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 40)), spec=SPEC)
    before = {item.key for item in store.list("vectors/segments")}

    def removed() -> None:
        for item in store.list("vectors/segments"):
            if item.key not in before:
                store.delete(item.key)

    overtake(monkeypatch, removed)
    report = run(store, write("b.jsonl", vector_records(30, 50, seed=1)), spec=SPEC)
    assert report.version == 2
    assert rows_of(store) == expected(*vector_records(0, 30), *vector_records(30, 50, seed=1))


def test_a_build_whose_parent_is_gone_goes_on_from_the_current_version(store, write, monkeypatch):
    run(store, write("a.jsonl", vector_records(0, 40)), spec=SPEC)

    def removed() -> None:
        without_ids(store, "vectors", ["d1"])
        # As if the lease had expired: the machine slept.
        store.delete("vectors/versions/00000001.json")

    before_call(monkeypatch, "create", "vectors/stage/units/", removed)
    report = run(store, write("b.jsonl", vector_records(50, 60)), spec=SPEC)
    wanted = expected(*vector_records(0, 40), *vector_records(50, 60))
    del wanted["d1"]
    assert (report.version, rows_of(store)) == (3, wanted)
