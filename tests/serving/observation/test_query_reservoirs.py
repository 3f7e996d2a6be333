"""Queries that a server keeps: none unless it is asked to, a uniform sample, of all workers, for administrators."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client.request.calls import search, search_many
from scannery.indexer import Manifest, Store, read_manifest
from scannery.runtime.errors import UnknownIndexError
from scannery.runtime.sharing import SharedBlobs
from scannery.serving import SecurityConfig, ServerConfig
from scannery.serving.observation import query_reservoirs
from scannery.serving.observation.query_observer import QueryObserver
from scannery.serving.observation.query_reservoirs import QueryReservoirs
from scannery.serving.scheduling import spare_time
from scannery.serving.scheduling.spare_time import SpareTime
from scannery.serving.security import KeyFile
from scannery.serving.security.principal import Scope
from scannery.v1 import search_pb2
from tests.served import DIMENSIONS, WIRES, connected, copied, make_library_store, serving

QUERIES_QD = np.eye(DIMENSIONS, dtype=np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library_store(tmp_path_factory.mktemp("kept"))


def reservoirs_of(*manifests: Manifest, size: int, blobs: SharedBlobs, slot: int = 0) -> QueryReservoirs:
    by_name = {each.index: each for each in manifests}
    return QueryReservoirs(
        size, blobs, slot, manifest_of=by_name.__getitem__, known_vector=lambda index, text: None
    )


def observe(reservoirs: QueryReservoirs, index: str, queries_QD: np.ndarray) -> None:
    """Have an observer see a batch of queries that was answered."""
    observer = QueryObserver([], SpareTime(lambda: 0), reservoirs=reservoirs)
    observer.observe(index, len(queries_QD), lambda: search_many(index, queries_QD, 3).request)


@pytest.mark.system
@pytest.mark.parametrize("wire", WIRES)
def test_by_default_nothing_is_kept(store: Path, wire: str) -> None:
    assert ServerConfig(store=str(store)).keep_queries == 0
    with connected(store, wire) as client:
        index = client.index("library")
        index.search(QUERIES_QD[0])
        assert index.kept_queries().shape == (0, 1)


@pytest.mark.system
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
    blobs, manifest = SharedBlobs(2, 1 << 20), read_manifest(Store.open(store), "library")
    one, other = (reservoirs_of(manifest, size=200, blobs=blobs, slot=slot) for slot in range(2))
    marked_QD = np.zeros((4000, DIMENSIONS), np.float32)
    marked_QD[:, 0], marked_QD[:, 1] = np.arange(4000), 1
    for start in range(0, 4000, 1000):
        observe(one, "library", marked_QD[start : start + 1000])
    observe(other, "library", -marked_QD[1:201])
    other.publish()
    sample_QD, seen = one.sample(manifest, 10_000)
    assert (len(sample_QD), seen) == (400, 4200)
    mine = sample_QD[sample_QD[:, 1] > 0]
    assert len(mine) == 200
    assert abs(mine[:, 0].mean() - 2000) < 350, "four standard errors"
    few_QD, _ = one.sample(manifest, 100)
    assert (few_QD[:, 1] > 0).mean() > 0.75, (
        "a worker that was asked twenty times as much has most of the sample"
    )


def test_a_request_is_parsed_only_if_one_of_its_queries_is_kept(store: Path) -> None:
    manifest = read_manifest(Store.open(store), "library")
    reservoirs = reservoirs_of(manifest, size=10, blobs=SharedBlobs(1, 1 << 20))
    keys, parsed = iter(np.linspace(0, 0.9, 2000).tolist()), list[int]()
    observer = QueryObserver([], SpareTime(lambda: 0), reservoirs=reservoirs, random=lambda: next(keys))

    def request() -> search_pb2.SearchRequest:
        parsed.append(1)
        return search("library", QUERIES_QD[0], 3).request

    for _ in range(2000):
        observer.observe("library", 1, request)
    assert len(parsed) == 10
    assert reservoirs.sample(manifest, 100)[1] == 2000


@pytest.mark.system
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


@pytest.mark.system
def test_they_are_forgotten_in_memory_with_their_index(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True)
    asked_D = np.array([0.12345, 0.5, 0.25, 0.75], np.float32)
    with serving(tmp_path / "store", keep_queries=5, recall_share=1.0) as server:
        client = scannery.connect(server.address)
        index = client.create_index("i", dimensions=4)
        index.upsert([{"id": "a", "vector": [1, 0, 0, 0]}])
        index.search(asked_D)
        assert len(index.kept_queries()) == 1
        reservoirs = server._reservoirs
        assert reservoirs is not None
        assert asked_D.tobytes() in reservoirs._blobs._memory[:]
        assert server._observer.samples
        client.drop_index("i")
        assert not reservoirs._reservoirs
        assert asked_D.tobytes() not in reservoirs._blobs._memory[:]
        assert not server._observer.samples


@pytest.mark.parametrize("until", ["its manifest is read", "the vector of its text is looked for"])
def test_an_index_that_is_dropped_before_its_query_is_kept_changes_nothing(store: Path, until: str) -> None:
    manifest = read_manifest(Store.open(store), "library")

    def gone(*_: str) -> Any:
        raise UnknownIndexError("there is no such index", field="index")

    manifest_of = gone if until == "its manifest is read" else lambda _: manifest
    reservoirs = QueryReservoirs(5, SharedBlobs(1, 1 << 16), 0, manifest_of=manifest_of, known_vector=gone)
    observer = QueryObserver([], SpareTime(lambda: 0), reservoirs=reservoirs)
    request = search("library", QUERIES_QD[0], 3).request
    request.query.text = "a text"
    observer.observe("library", 1, lambda: request)
    reservoirs.forget("library")
    assert not reservoirs._reservoirs


def test_their_memory_is_bounded_and_the_samples_stay_uniform(store: Path) -> None:
    base, blobs = read_manifest(Store.open(store), "library"), SharedBlobs(1, 1 << 16)
    large, small = (base.model_copy(update={"index": name}) for name in ("large", "small"))
    reservoirs = reservoirs_of(large, small, size=10_000, blobs=blobs)
    marked_QD = np.zeros((6000, DIMENSIONS), np.float32)
    marked_QD[:, 0] = np.arange(6000)
    for start in range(0, 6000, 500):
        observe(reservoirs, "large", marked_QD[start : start + 500])
    observe(reservoirs, "small", marked_QD[:50])
    large_QD, seen = reservoirs.sample(large, 10_000)
    assert 100 < len(large_QD) < (1 << 16) / DIMENSIONS / 4
    assert seen == 6000
    assert len(blobs.read(0)) <= blobs.most_bytes
    error = 6000 / np.sqrt(12 * len(large_QD))
    assert abs(large_QD[:, 0].mean() - 3000) < 4 * error
    assert len({*large_QD[:, 0].tolist()}) == len(large_QD)
    assert len(reservoirs.sample(small, 10_000)[0]) == 50, "the largest sample gives way"


@pytest.mark.system
def test_they_are_in_no_file_and_no_log(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    place = copied(store, tmp_path)
    asked_D = np.zeros(DIMENSIONS, np.float32)
    asked_D[:3] = 0.271828, 0.314159, 0.577215
    with serving(place, keep_queries=5, recall_share=1.0) as server:
        index = scannery.connect(server.address).index("library")
        index.search(asked_D)
        assert len(index.kept_queries()) == 1
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert files
    assert not [each for each in files if asked_D.tobytes()[:12] in each.read_bytes()]
    assert not [number for number in ("0.27182", "0.31415") if number in caplog.text]


@pytest.mark.system
@pytest.mark.parametrize("scope", ["read", "write", "admin"])
def test_only_administrators_of_the_index_can_read_them(store: Path, tmp_path: Path, scope: Scope) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, mine = file.create("mine", scopes=[scope], indexes=["library"])
    _, others = file.create("others", scopes=["admin"], indexes=["flat"])
    security = SecurityConfig(keys_file=str(file.path))
    with serving(store, keep_queries=5, security=security) as server:
        with (
            scannery.connect(server.address, api_key=others) as client,
            pytest.raises(scannery.NotFoundError),
        ):
            client.index("library").kept_queries()
        with scannery.connect(server.address, api_key=mine) as client:
            if scope == "admin":
                assert len(client.index("library").kept_queries()) == 0
            else:
                with pytest.raises(scannery.PermissionDeniedError, match="admin"):
                    client.index("library").kept_queries()


def test_a_query_costs_the_same_beside_thousands_of_samples(store: Path) -> None:
    template = read_manifest(Store.open(store), "library")
    manifests = [
        template.model_copy(update={"index": f"i{number}", "index_id": str(number)}) for number in range(3000)
    ]
    reservoirs = reservoirs_of(*manifests, size=1000, blobs=SharedBlobs(1, 1 << 24))
    for each in manifests:
        observe(reservoirs, each.index, QUERIES_QD[:1])
    started_s = time.thread_time()
    observe(reservoirs, "i0", np.tile(QUERIES_QD, (60, 1)))
    assert time.thread_time() - started_s < 1.0, "as long as it takes to look at all samples for each query"
    assert reservoirs._bytes == sum(each.size_bytes for each in reservoirs._reservoirs.values())
    for each in manifests:
        reservoirs._remove(each.index)
    assert reservoirs._bytes == 0


def test_publishing_large_samples_leaves_time_for_other_work(store: Path) -> None:
    manifest = read_manifest(Store.open(store), "library").model_copy(update={"dimensions": 1024})
    reservoirs = reservoirs_of(manifest, size=10_000, blobs=SharedBlobs(1, 64 << 20))
    for _ in range(10):
        observe(reservoirs, "library", np.random.default_rng(1).random((1000, 1024), np.float32))
    spare = SpareTime(lambda: 0)
    wait_s = reservoirs.run({}, spare)
    assert -spare._saved_s / wait_s <= query_reservoirs.SHARE * 1.1
    assert query_reservoirs.SHARE < spare_time.SHARE
