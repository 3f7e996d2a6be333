"""Cold segments in a bucket of an S3 server that others wrote, which fails, breaks off and damages what it sends."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import ColdReads, CorruptError, Segment, SegmentCache, Store, StoreError, open_index
from scannery.indexer.segment import segment_writer
from scannery.indexer.segment.cold import cold_vectors
from scannery.indexer.store import bucket_backend
from tests.buckets.servers import BUCKET, Fault, FaultyProxy, bucket_environment, faulty_proxy, started_server
from tests.cluster.processes import wait_until
from tests.data import clustered, datapoints, publish
from tests.indexer.segment.test_cold import spec_for

pytestmark = pytest.mark.system

VECTORS = clustered(3_000, 32, seed=8)
QUERIES = clustered(3_020, 32, seed=8)[3_000:]


@pytest.fixture(scope="module", params=["moto", "localbucket"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with started_server(request.param, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store in a folder with the segment that tests read from a bucket."""
    folder = tmp_path_factory.mktemp("built")
    store = Store.open(folder / "store", create=True)
    spec = spec_for("squared_l2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "PAGE_BYTES", 1 << 13)
        publish(store, spec, datapoints(spec, VECTORS), folder)
    return store


@pytest.fixture
def proxy(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    monkeypatch.setattr(cold_vectors, "SPAN_BYTES", 1 << 15)
    monkeypatch.setattr(bucket_backend, "PAUSE_FACTOR", 1.1)
    with faulty_proxy(port) as running:
        for name, value in bucket_environment(running.server_port).items():
            monkeypatch.setenv(name, value)
        yield running


def opened(built: Store, cache: Path) -> Segment:
    """Copy the store into a bucket, and return its segment."""
    bucket = Store.open(f"s3://{BUCKET}/{uuid.uuid4().hex}")
    for each in built.list():
        bucket.write(each.key, built.read(each.key))
    [segment] = open_index(bucket, "t", cache=SegmentCache(cache), cold=ColdReads(max_bytes=0)).segments
    assert segment.is_cold
    return segment


@pytest.fixture
def segment(built: Store, proxy: FaultyProxy, tmp_path: Path) -> Segment:
    return opened(built, tmp_path / "cache")


def nearest(query_D: np.ndarray) -> list[int]:
    distances_N = np.square(VECTORS.astype(np.float64) - query_D).sum(axis=1)
    return sorted(np.argsort(distances_N)[:10].tolist())


def found_by(segment: Segment, query_D: np.ndarray) -> list[int]:
    rows_K = segment.find(query_D[None], 10).rows_QK[0]
    return sorted(int(name[1:]) for name in segment.ids_of(rows_K))


@pytest.mark.parametrize("what", ["503", "500", "reset", "short"])
def test_searches_survive(what: str, segment: Segment, proxy: FaultyProxy):
    proxy.faults = [Fault(what, path="/segments/", times=3)]
    assert found_by(segment, QUERIES[0]) == nearest(QUERIES[0])
    assert proxy.faults[0].times == 0


def test_a_bucket_that_does_not_recover(
    built: Store, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bucket_backend, "MOST_RETRIES", 1)
    segment = opened(built, tmp_path / "cache")
    proxy.faults = [Fault("500", path="/segments/", times=10_000)]
    with pytest.raises(StoreError, match="segments"):
        found_by(segment, QUERIES[1])
    proxy.faults = []
    wait_until(lambda: recovers(segment, QUERIES[1]))


def test_damage_on_the_way_is_an_error_and_no_wrong_answer(segment: Segment, proxy: FaultyProxy):
    proxy.faults = [Fault("corrupt", path="/segments/", times=1)]
    assert found_by(segment, QUERIES[2]) == nearest(QUERIES[2])  # it was read again
    proxy.faults = [Fault("corrupt", path="/segments/", times=10_000)]
    with pytest.raises(CorruptError, match="segments"):
        found_by(segment, QUERIES[2])
    proxy.faults = []
    wait_until(lambda: recovers(segment, QUERIES[2]))


def recovers(segment: Segment, query_D: np.ndarray) -> bool:
    """Return whether a search succeeds. It may wait for reads that others began, which still fail; never wrongly."""
    try:
        assert found_by(segment, query_D) == nearest(query_D)
    except (CorruptError, StoreError):
        return False
    return True
