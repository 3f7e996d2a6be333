"""What builds leave behind: kept while a version needs it, collected after."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import PurePosixPath

import numpy as np
import pytest

from scannery.indexer import Store, collect_garbage, verify
from tests.hooks import before_call, make_old
from tests.pipelines.conftest import manifest_of, rows_of, run, vector_records
from tests.pipelines.stages.test_update import expected

NOW = timedelta(0)


def names(store, folder: str) -> set[str]:
    return {item.key for item in store.list(f"vectors/{folder}")}


def test_embeddings_stay_while_a_version_has_documents_of_them(store, write):
    first = write("a.jsonl", vector_records(0, 30))
    run(store, first)
    run(store, write("b.jsonl", [*vector_records(30, 40), "{broken"]))
    assert len(manifest_of(store).builds) == 3  # with a mark
    report = collect_garbage(store, "vectors", keep=1, min_age=NOW)
    assert (report.versions, report.embeddings, len(names(store, "embeddings"))) == ((1,), (), 2)
    assert len(names(store, "dead-letters")) == 1
    assert run(store, first).up_to_date
    assert not verify(store, "vectors").problems


@pytest.mark.system
def test_what_a_full_build_replaced_is_collected(store, write):
    run(store, write("a.jsonl", [*vector_records(0, 30), "{broken"]))
    new = write("b.jsonl", vector_records(100, 130))
    run(store, new, mode="full")
    before = {folder: names(store, folder) for folder in ("embeddings", "stage", "dead-letters", "segments")}
    plan = collect_garbage(store, "vectors", keep=1, min_age=NOW, dry_run=True)
    assert {folder: names(store, folder) for folder in before} == before
    report = collect_garbage(store, "vectors", keep=1, min_age=NOW)
    assert report == plan
    assert len(report.embeddings) == 1
    assert len(report.segments) == 1
    left = {folder: names(store, folder) for folder in before}
    assert {folder: len(keys) for folder, keys in left.items() if folder != "stage"} == {
        "embeddings": 1, "dead-letters": 0, "segments": 1
    }  # fmt: skip
    assert len(names(store, "stage/units")) == 1
    assert len(names(store, "stage/builds")) == 1
    assert run(store, new).up_to_date
    assert rows_of(store) == expected(*vector_records(100, 130))


def test_a_build_that_was_stopped_keeps_its_units_longer(store, write):
    run(store, write("a.jsonl", vector_records(0, 3)))
    for key in (
        "vectors/embeddings/half.parquet",
        "vectors/stage/units/half.json",
        "vectors/stage/reuse/x.npy",
    ):
        store.write(key, b"")
    day = timedelta(days=1)
    age_s = 3 * day.total_seconds()
    for path in (store.local_root / "vectors").rglob("*"):
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    assert collect_garbage(store, "vectors", min_age=day).embeddings == ()
    assert not names(store, "stage/reuse")
    report = collect_garbage(store, "vectors", min_age=day / 3)
    assert report.embeddings == ("vectors/embeddings/half.parquet",)
    assert "vectors/stage/units/half.json" in report.records


def test_a_resumed_build_keeps_its_number_type(store, write, tmp_path, monkeypatch):
    path = write("a.jsonl", vector_records(0, 3))
    other = Store.open(tmp_path / "other", create=True)
    run(other, path)
    (build,) = names(other, "stage/builds")
    chosen = f"vectors/stage/units/{PurePosixPath(build).stem}.dtype.json"
    store.write(chosen, b"")
    make_old(store, age=timedelta(days=30))
    before_call(
        monkeypatch, "create", "vectors/stage/units/", lambda: collect_garbage(store, "vectors", min_age=NOW)
    )
    run(store, path)
    assert chosen in names(store, "stage/units")


def test_given_queries_stay_with_their_versions(store, write, tmp_path):
    path = write("a.jsonl", vector_records(0, 30))
    for seed in (1, 2):
        np.save(tmp_path / "q.npy", np.random.default_rng(seed).standard_normal((4, 8)).astype(np.float32))
        run(store, path, queries=tmp_path / "q.npy")
    assert len(names(store, "queries")) == 2
    collect_garbage(store, "vectors", keep=1, min_age=NOW)
    recall = manifest_of(store).recall
    assert recall is not None
    assert names(store, "queries") == {f"vectors/{recall.given_queries}"}
