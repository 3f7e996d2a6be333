"""A seal finds the rows that die by their ids alone, in all shards, and reads nothing else of the version."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.indexer import (
    CorruptError,
    Manifest,
    SegmentCache,
    Store,
    commit,
    list_versions,
    read_manifest,
    read_row_ids,
    shard_of,
    verify,
)
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import server_catalog
from scannery.serving.services.write import Writes
from scannery.v1 import index_pb2, types_pb2
from tests.data import datapoints, publish
from tests.live.model import LIVE, make_store, random_row
from tests.live.test_identity import write
from tests.object_server import object_server

pytestmark = pytest.mark.system

SHARDS = 2


def stored(path: Path) -> dict[str, tuple[str, int | None]]:
    """Return the document and the revision of each id, as an index of its versions and its log has them."""
    catalog = server_catalog(Store.open(path))
    catalog.refresh()
    found: dict[str, tuple[str, int | None]] = {}
    for segment, rows_R in catalog.snapshot("live").index.live_rows():
        rows = segment.take(rows_R, ["id", "document_id"]).to_pydict()
        has_revision = "_revision" in segment.table.column_names
        revisions = (
            segment.take(rows_R, ["_revision"]).column(0).to_pylist()
            if has_revision
            else [None] * len(rows_R)
        )
        found |= dict(zip(rows["id"], zip(rows["document_id"], revisions, strict=True), strict=True))
    catalog.close()
    return found


def document_in(shard: int, start: int = 0) -> str:
    return next(name for n in range(start, 1000) if shard_of(name := f"doc{n}", SHARDS) == shard)


def test_rows_that_move_between_shards_die_in_the_former_one(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [random_row(rng, f"id{i}") | {"document_id": document_in(i % SHARDS, i)} for i in range(40)]
    path = make_store(tmp_path, rows)
    assert {entry.shard for entry in read_manifest(Store.open(path), "live").segments} == {0, 1}

    def row(number: int, shard: int) -> dict[str, object]:
        return random_row(rng, f"id{number}") | {"document_id": document_in(shard, 500)}

    with scannery.connect(path) as client:
        index = client.index("live")
        index.upsert([row(0, 1), row(1, 0), row(2, 0), row(90, 1)])  # type: ignore[list-item]  # 0 and 1 move
        index.upsert([row(0, 0), row(2, 1)])  # type: ignore[list-item]  # 0 returns, 2 moves
        index.delete(ids=["id3", "id90"])
        index.delete(document_ids=[rows[4]["document_id"], rows[5]["document_id"]])
        index.upsert([row(3, 0), row(5, 0)])  # type: ignore[list-item]
    live = stored(path)
    assert {"id4", "id90"}.isdisjoint(live) and {"id0", "id1", "id2", "id3", "id5"} <= set(live)

    report = seal(Store.open(path), "live")

    store, manifest = Store.open(path), read_manifest(Store.open(path), "live")
    assert report is not None and (report.mutations, report.rows, report.deleted) == (5, 5, 6)
    assert stored(path) == live
    checked = verify(store, "live")
    assert checked.problems == () and checked.rows == len(live) == manifest.rows
    for entry in manifest.segments:  # a row is in the shard of its document
        documents = read_row_ids(store, "live", entry).documents.to_pylist()
        assert {shard_of(name, SHARDS) for name in documents} == {entry.shard}


def test_it_reads_ids_and_leaves_the_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, names = np.random.default_rng(0), [f"id{n:05}" for n in range(400)]
    spec = LIVE.model_copy(update={"lexical": None, "attributes": {}})
    table = datapoints(spec, rng.standard_normal((400, 1024), np.float32), ids=names)
    with object_server(monkeypatch) as server:
        store = Store.open("s3://bucket/store")
        publish(store, spec, table, tmp_path, shards=SHARDS)
        size = sum(entry.size_bytes for entry in read_manifest(store, "live").segments)
        catalog = server_catalog(store, log=tmp_path / "log", cache=SegmentCache(tmp_path / "own"))
        catalog.refresh()
        vector = types_pb2.Vector(values=[1.0] * 1024)
        points = [types_pb2.Datapoint(id=name, vector=vector) for name in names[:5]]
        request = index_pb2.UpsertRequest(
            index="live", upserts=[index_pb2.Upsert(datapoint=point) for point in points]
        )
        Writes(catalog).upsert(request, Deadline.after(20))
        catalog.close()
        server.requests.clear()
        cache = SegmentCache(tmp_path / "cache")
        report = seal(store, "live", log_root=tmp_path / "log", cache=cache, fill_cache=False)
        assert report is not None and report.deleted == 5
        read = sum(sent for how, path, sent in server.requests if how == "GET" and "/segments/" in path)
        assert 0 < read < size / 4
        assert not cache.folder.exists()
        # Nor does a merge leave anything there.
        while merge(store, "live", cache=cache, fill_cache=False):
            pass
        assert not cache.folder.exists()
        assert verify(store, "live").rows == 400


def test_of_two_seals_at_once_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any lock, the conditional put of the manifest decides; the other one finds nothing left to seal."""
    rng = random.Random(0)
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(20)])
    catalog = server_catalog(Store.open(path))
    catalog.refresh()
    for name in ("id1", "new"):
        write(catalog, name)
    catalog.close()
    live, ready = stored(path), threading.Barrier(2)

    def together(store: Store, manifest: Manifest) -> Manifest:
        ready.wait(60)
        return commit(store, manifest)

    monkeypatch.setattr("scannery.live.maintenance.seal.commit", together)
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: seal(Store.open(path), "live"), range(2)))
    assert sorted(report is None for report in reports) == [False, True]
    assert list_versions(Store.open(path), "live") == [1, 2]
    assert stored(path) == live
    assert verify(Store.open(path), "live").problems == ()


def test_a_damaged_segment_is_named(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(20)])
    catalog = server_catalog(Store.open(path))
    catalog.refresh()
    write(catalog, "id1")
    catalog.close()
    entry = read_manifest(Store.open(path), "live").segments[0]
    file = path / "live" / entry.key
    file.write_bytes(file.read_bytes()[:200] + bytes(entry.size_bytes - 200))
    with pytest.raises(CorruptError, match=entry.key):
        seal(Store.open(path), "live")
    assert list_versions(Store.open(path), "live") == [1]
