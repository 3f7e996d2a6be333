"""Queries that a server keeps: none unless it is asked to, a uniform sample, of all workers, for administrators."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.client.request.calls import search_many
from scannery.indexer import Store, read_manifest
from scannery.runtime.shared_blobs import SharedBlobs
from scannery.serving import ServerConfig
from scannery.serving.services.kept_queries import KeptQueries
from tests.served import DIMENSIONS, WIRES, connected, copied, make_library_store, serving

QUERIES_QD = np.eye(DIMENSIONS, dtype=np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library_store(tmp_path_factory.mktemp("kept"))


def kept(store: Path, most: int, blobs: SharedBlobs, slot: int) -> KeptQueries:
    manifest = read_manifest(Store.open(store), "library")
    return KeptQueries(
        most, blobs, slot, manifest_of=lambda name: manifest, known_vector=lambda index, text: None
    )


@pytest.mark.parametrize("wire", WIRES)
def test_by_default_nothing_is_kept(store: Path, wire: str) -> None:
    assert ServerConfig(store=str(store)).keep_queries == 0
    with connected(store, wire) as client:
        index = client.index("library")
        index.search(QUERIES_QD[0])
        assert index.kept_queries().shape == (0, 1)


@pytest.mark.parametrize("wire", ["gRPC", "HTTP"])
def test_kept_queries_come_back_as_they_were_asked(store: Path, wire: str) -> None:
    with serving(store, keep_queries=5, http="auto") as server:
        address = server.address if wire == "gRPC" else f"http://127.0.0.1:{server.http_port}"
        index = scannery.connect(address).index("library")
        index.search(QUERIES_QD[0])
        index.search_many(QUERIES_QD[1:3])
        found = index.kept_queries()
        assert sorted(row.argmax() for row in found) == [0, 1, 2]
        assert found.shape == (3, DIMENSIONS)
        assert len(index.kept_queries(limit=2)) == 2
        index.search_many(np.tile(QUERIES_QD, (20, 1)))
        assert len(index.kept_queries()) == 5
        assert len(scannery.connect(address).index("flat").kept_queries()) == 0
        with pytest.raises(scannery.InvalidArgumentError, match="limit: must be 1 to 10000"):
            index.kept_queries(limit=0)


def test_the_sample_is_uniform_and_of_all_workers(store: Path) -> None:
    blobs = SharedBlobs(2, 1 << 20)
    one, other = (kept(store, 200, blobs, slot) for slot in range(2))
    try:
        marked_QD = np.zeros((4000, DIMENSIONS), np.float32)
        marked_QD[:, 0], marked_QD[:, 1] = np.arange(4000), 1
        for start in range(0, 4000, 1000):
            one.offer(search_many("library", marked_QD[start : start + 1000], 3).request)
        other.offer(search_many("library", -marked_QD[1:201], 3).request)
        other._publish_changed()
        manifest = read_manifest(Store.open(store), "library")
        found_QD, seen = one.of(manifest, 10_000)
        assert (len(found_QD), seen) == (400, 4200)
        mine = found_QD[found_QD[:, 1] > 0]
        assert len(mine) == 200
        assert abs(mine[:, 0].mean() - 2000) < 350, "four standard errors"
        few = [one.of(manifest, 100)[0] for _ in range(20)]
        share = np.mean([(sample[:, 1] > 0).mean() for sample in few])
        assert share > 0.75, "a worker that was asked twenty times as much has most of the sample"
    finally:
        one.stop()
        other.stop()


def test_queries_of_a_dropped_index_are_not_given_to_another_of_its_name(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True)
    with serving(tmp_path / "store", keep_queries=5) as server:
        client = scannery.connect(server.address)
        for rows in (1, 0):
            index = client.create_index("i", dimensions=4)
            if rows:
                index.upsert([{"id": "a", "vector": [1, 0, 0, 0]}])
                index.search([1, 0, 0, 0])
            assert len(index.kept_queries()) == rows
            client.drop_index("i")


def test_it_needs_the_scope_of_administrators(store: Path) -> None:
    with serving(store, keep_queries=5) as server:
        assert server._lifecycle.methods.scope_of("/scannery.v1.IndexService/GetKeptQueries") == "admin"


def test_those_of_a_dropped_index_are_forgotten(store: Path, tmp_path: Path) -> None:
    with serving(copied(store, tmp_path), keep_queries=5) as server:
        client = scannery.connect(server.address)
        client.index("library").search(QUERIES_QD[0])
        assert len(client.index("library").kept_queries()) == 1
        kept_queries = server._kept
        assert kept_queries is not None
        client.drop_index("library")
        deadline_s = time.monotonic() + 10
        while kept_queries._reservoirs:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        kept_queries._publish_changed()
        assert QUERIES_QD[0].tobytes() not in kept_queries._blobs.read(0)
