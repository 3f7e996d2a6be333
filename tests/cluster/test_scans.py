"""Scans over a cluster: the datapoints and the order of one server, whatever root and leaf answer for a page."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.indexer import Store, latest_version
from scannery.live.leaf_index import LeafIndex
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.engine.remote.leaf_scan import group_shares
from scannery.serving.services.scan import Scans
from scannery.serving.services.shards import LocalShards
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1.search_pb2 import CountRequest, OrderBy, ScanRequest, ScanResponse
from scannery.v1.search_pb2_grpc import SearchServiceStub
from tests.cluster.processes import wait_until
from tests.cluster.questions import DIMENSIONS, INDEX, ROWS, any_filter, make_store
from tests.cluster.servers import root_server, started_cluster
from tests.data import ROOT, first_quick
from tests.tools.prepared_process import PreparedProcess

pytestmark = pytest.mark.system

TIMEOUT_S = 60
ORDERS = ["id", "document_id", "year", "show", "rating", "live", "published"]
MIXED: list[Any] = [
    None, 2**53, 2**53 + 1, 2.0**53, -0.0, 0, 1e300, -(2**63), 2**63 - 1, "a", "Ünï", "", True, False, [1, 2], {"a": 1},
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scans")
    path = make_store(folder)
    spec = {"index": "mixed", "source": {"id": "id", "vector": "v"}, "shards": 8, "dynamic": True}
    chosen = random.Random(5)
    points: list[Any] = []
    for number in range(300):
        value = chosen.choice(MIXED)
        attributes = {"x": value} if value is not None or number % 2 else {}
        points.append({"id": f"m{number}", "vector": [1, number], "attributes": attributes})
    with scannery.connect(path, create=True) as client:
        client.create_index(spec, dimensions=2).upsert(points)
        seal(Store.open(path), "mixed")
    return path


@pytest.fixture(scope="module")
def alone(store: Path) -> Iterator[Scans]:
    catalog = open_embedded_catalog(store)
    yield Scans(catalog, LocalShards(catalog))
    catalog.close()


@pytest.fixture(scope="module", params=first_quick([1, 3, 4], 2))
def cluster(store: Path, request: pytest.FixtureRequest) -> Iterator[SearchServiceStub]:
    with started_cluster(store, request.param) as (root, _), grpc.insecure_channel(root.address) as channel:
        yield SearchServiceStub(channel)


def pages(scan: Any, request: ScanRequest) -> Iterator[ScanResponse]:
    """Yield the pages of a scan."""
    given = ScanRequest()
    given.CopyFrom(request)
    while True:
        page = scan(given)
        yield page
        if not page.next_page_token:
            return
        given.page_token = page.next_page_token


def datapoints(scan: Any, request: ScanRequest) -> list[bytes]:
    """Return all datapoints of a scan, and check its totals."""
    found, total = [], None
    for page in pages(scan, request):
        total = page.total
        found += [point.SerializeToString(deterministic=True) for point in page.datapoints]
    assert len(found) == total
    return found


def of_alone(scans: Scans) -> Callable[[ScanRequest], ScanResponse]:
    return lambda request: ScanResponse.FromString(
        scans.scan(request, Deadline.after(TIMEOUT_S), QueryStats())
    )


def of_cluster(stub: SearchServiceStub) -> Callable[[ScanRequest], ScanResponse]:
    return lambda request: stub.Scan(request, timeout=TIMEOUT_S)


@pytest.mark.parametrize("seed", range(8))
def test_all_datapoints_are_returned_once(alone: Scans, cluster: SearchServiceStub, seed: int) -> None:
    chosen = random.Random(seed)
    request = ScanRequest(index=INDEX, page_size=chosen.choice([7, 100, 1000]), return_vector=seed % 2 == 0)
    if seed:
        request.where.CopyFrom(any_filter(chosen))
        request.return_fields.extend(chosen.sample(["title", "text", "show", "tags"], 2))
    found = datapoints(of_cluster(cluster), request)
    assert len(set(found)) == len(found)
    assert sorted(found) == sorted(datapoints(of_alone(alone), request))
    assert seed or len(found) == ROWS


@pytest.mark.parametrize("field", ORDERS)
@pytest.mark.parametrize("descending", [False, True])
def test_orders_are_those_of_one_server(
    alone: Scans, cluster: SearchServiceStub, field: str, descending: bool
) -> None:
    request = ScanRequest(index=INDEX, page_size=90, order_by=OrderBy(field=field, descending=descending))
    expected = datapoints(of_alone(alone), request)
    assert datapoints(of_cluster(cluster), request) == expected
    request.where.CopyFrom(any_filter(random.Random(field)))
    assert datapoints(of_cluster(cluster), request) == datapoints(of_alone(alone), request)


@pytest.mark.parametrize("descending", [False, True])
def test_dynamic_values_of_all_types_are_ordered_as_on_one_server(
    alone: Scans, cluster: SearchServiceStub, descending: bool
) -> None:
    request = ScanRequest(
        index="mixed", page_size=40, order_by=OrderBy(field="x", descending=descending), return_fields=["x"]
    )
    expected = datapoints(of_alone(alone), request)
    assert len(expected) == 300
    assert datapoints(of_cluster(cluster), request) == expected


def test_keys_come_in_several_parts(
    alone: Scans, cluster: SearchServiceStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LEAF_KEYS", 64)
    request = ScanRequest(index=INDEX, order_by=OrderBy(field="rating"), return_fields=["rating", "year"])
    assert datapoints(of_cluster(cluster), request) == datapoints(of_alone(alone), request)


def test_samples_have_the_exact_number_and_are_the_same_for_a_seed(
    alone: Scans, cluster: SearchServiceStub
) -> None:
    everything = set(datapoints(of_alone(alone), ScanRequest(index=INDEX)))
    scan = of_cluster(cluster)
    first = datapoints(scan, ScanRequest(index=INDEX, sample=200, seed=1, page_size=33))
    assert len(set(first)) == 200
    assert set(first) <= everything
    assert datapoints(scan, ScanRequest(index=INDEX, sample=200, seed=1)) == first
    assert datapoints(scan, ScanRequest(index=INDEX, sample=200, seed=2)) != first
    assert set(datapoints(scan, ScanRequest(index=INDEX, sample=10_000))) == everything
    ordered = ScanRequest(index=INDEX, sample=200, seed=1, order_by=OrderBy(field="year", descending=True))
    by_year = ScanRequest(index=INDEX, order_by=ordered.order_by)
    assert datapoints(scan, ordered) == [
        each for each in datapoints(of_alone(alone), by_year) if each in set(first)
    ]


def test_each_datapoint_is_equally_likely_in_a_sample(cluster: SearchServiceStub) -> None:
    counts = dict.fromkeys(range(300), 0)
    for seed in range(100):
        page = cluster.Scan(
            ScanRequest(index="mixed", sample=60, seed=seed, return_fields=["x"]), timeout=TIMEOUT_S
        )
        for point in page.datapoints:
            counts[int(point.id[1:])] += 1
    assert sum(counts.values()) == 100 * 60
    assert min(counts.values()) >= 3  # 20 expected, standard deviation 4
    assert max(counts.values()) <= 40


def test_errors_are_those_of_one_server(
    alone: Scans, cluster: SearchServiceStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cluster.Scan(ScanRequest(index=INDEX, page_size=5), timeout=TIMEOUT_S)
    head = first.page_token.rpartition(".")[0]
    wrong = [
        ScanRequest(index=INDEX, page_token="nonsense"),
        ScanRequest(index=INDEX, page_token=f"{head}.{ROWS + 1}"),
        ScanRequest(index=INDEX, page_token=first.page_token, sample=3),
        ScanRequest(index=INDEX, page_size=10_001),
        ScanRequest(index=INDEX, order_by=OrderBy(field="tags")),
        ScanRequest(index=INDEX, return_fields=["nothing"]),
    ]
    for request in wrong:
        with pytest.raises(InvalidRequestError) as expected:
            of_alone(alone)(request)
        with pytest.raises(grpc.RpcError) as caught:
            cluster.Scan(request, timeout=TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == str(expected.value)
    monkeypatch.setattr(limits, "MAX_SORTED_ROWS", 100)
    with pytest.raises(grpc.RpcError, match="at most 100 datapoints can be sorted, not 1200"):
        cluster.Scan(ScanRequest(index=INDEX, order_by=OrderBy(field="live"), seed=7), timeout=TIMEOUT_S)


@pytest.mark.parametrize("order", [None, OrderBy(field="show")])
def test_a_scan_continues_with_another_root_after_a_new_version(
    store: Path, tmp_path: Path, order: OrderBy | None
) -> None:
    own = tmp_path / "store"
    shutil.copytree(store, own)
    request = ScanRequest(index=INDEX, page_size=100, order_by=order)
    with started_cluster(own, 3) as (root, [leaves]):
        target = ",".join(leaf.address for leaf in leaves)
        with grpc.insecure_channel(root.address) as channel:
            scan = of_cluster(SearchServiceStub(channel))
            expected = datapoints(scan, request)
            before = scan(request)
            with scannery.connect(own) as client:
                client.index(INDEX).delete([f"d{row}" for row in range(0, ROWS, 2)])
            seal(Store.open(own), INDEX)
            until(lambda: channel_count(channel) == ROWS // 2)
            first = [point.SerializeToString(deterministic=True) for point in before.datapoints]
            request.page_token = before.next_page_token
            assert first + datapoints_from(scan, request) == expected
        with root_server(own, target) as other, grpc.insecure_channel(other.address) as channel:
            rest = datapoints_from(of_cluster(SearchServiceStub(channel)), request)
            assert first + rest == expected


def test_a_scan_of_a_version_that_is_gone_says_so(store: Path, tmp_path: Path) -> None:
    own = tmp_path / "store"
    shutil.copytree(store, own)
    with started_cluster(own, 2) as (root, _), grpc.insecure_channel(root.address) as channel:
        stub = SearchServiceStub(channel)
        token = stub.Scan(ScanRequest(index=INDEX, page_size=10), timeout=TIMEOUT_S).next_page_token
        version = latest_version(Store.open(own), INDEX)
        with scannery.connect(own) as client:
            client.index(INDEX).delete(["d0"])
        seal(Store.open(own), INDEX)
        until(lambda: channel_count(channel) == ROWS - 1)
        (manifest,) = own.glob(f"**/{INDEX}/**/*{version:06d}*.json")
        manifest.unlink()
    with started_cluster(own, 2) as (root, _), grpc.insecure_channel(root.address) as channel:
        with pytest.raises(grpc.RpcError, match="start again without a token") as caught:
            SearchServiceStub(channel).Scan(ScanRequest(index=INDEX, page_token=token, page_size=10))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("order", [None, OrderBy(field="rating", descending=True)])
def test_another_leaf_continues_when_one_is_killed(store: Path, order: OrderBy | None) -> None:
    request = ScanRequest(index=INDEX, page_size=50, order_by=order)
    with (
        started_cluster(store, 2) as (_, [leaves]),
        leaf_process(store, "1/2") as (process, address),
        root_server(store, f"{leaves[0].address},{address}") as first,
        root_server(store, ",".join([leaves[0].address, leaves[1].address, address])) as both,
    ):
        found: list[bytes] = []
        with grpc.insecure_channel(first.address) as channel:
            scan = of_cluster(SearchServiceStub(channel))
            expected = datapoints(scan, request)
            for page in pages(scan, request):
                found += [point.SerializeToString(deterministic=True) for point in page.datapoints]
                if len(found) >= ROWS // 2:
                    break
            process.kill()
            process.wait()
            request.page_token = page.next_page_token
            with pytest.raises(grpc.RpcError) as caught:
                datapoints_from(scan, request)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with grpc.insecure_channel(both.address) as channel:
            found += datapoints_from(of_cluster(SearchServiceStub(channel)), request)
        assert found == expected


def test_a_scan_begins_at_a_state_that_all_leaves_have(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "store"
    shutil.copytree(store, own)
    with started_cluster(own, 2) as (root, _), grpc.insecure_channel(root.address) as channel:
        with scannery.connect(root.address) as client, scannery.connect(root.address) as writer:
            read = writer.index(INDEX).delete(["d0"]).sequence
            asked = client.index(INDEX)
            wait_until(lambda: asked.search([1.0] * DIMENSIONS, 1).sequence == read)
            # The leaves cannot read the log now, as while its database is away.
            monkeypatch.setattr(LeafIndex, "catch_up", lambda *_, **__: False)
            point: Any = {"id": "new", "vector": [1.0] * DIMENSIONS}
            assert writer.index(INDEX).upsert([point]).sequence == read + 1
            assert asked.search([1.0] * DIMENSIONS, 1).sequence == read
        for order in (None, OrderBy(field="year")):
            page = of_cluster(SearchServiceStub(channel))(ScanRequest(index=INDEX, order_by=order))
            assert (page.sequence, page.total) == (read, ROWS - 1)


def datapoints_from(scan: Any, request: ScanRequest) -> list[bytes]:
    """Return the datapoints from a token on."""
    return [
        point.SerializeToString(deterministic=True)
        for page in pages(scan, request)
        for point in page.datapoints
    ]


def channel_count(channel: grpc.Channel) -> int:
    return int(SearchServiceStub(channel).Count(CountRequest(index=INDEX), timeout=TIMEOUT_S).count)


def until(done: Any) -> None:
    """Wait until something is the case."""
    end_s = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@contextmanager
def leaf_process(store: Path, group: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Give a leaf as a process of its own, and its address."""
    command = [
        sys.executable, "-m", "scannery.cli.main", "serve", "--store", str(store), "--role", "leaf", "--group", group,
        "--listen", "127.0.0.1:0", "--http", "off",
    ]  # fmt: skip
    process = PreparedProcess(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )
    try:
        assert process.stdout is not None
        served = re.search(r"Serving on (\S+);", process.stdout.readline())
        assert served is not None
        yield process, served[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("scale", [1, 1000, 400_000_000])
def test_shares_are_those_of_a_random_choice(scale: int) -> None:
    """Of a billion datapoints and more, too, which NumPy's distribution refuses."""
    counts_G, chosen = np.array([1, 0, 3, 6]) * scale, 10 if scale == 1 else 5000
    random = np.random.Generator(np.random.PCG64(3))
    drawn = np.array([group_shares(counts_G, chosen, random) for _ in range(30)])
    assert (drawn.sum(axis=1) == chosen).all()
    assert (drawn <= counts_G).all()
    assert drawn.mean(axis=0) == pytest.approx(counts_G / counts_G.sum() * chosen, rel=0.02)
