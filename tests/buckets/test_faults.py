"""A bucket that throttles, fails, breaks off, stalls and damages what it sends."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from scannery.indexer import AlreadyExistsError, CorruptError, Store, StoreError
from scannery.indexer.store import bucket_backend
from tests.buckets.servers import BUCKET, Fault, FaultyProxy, bucket_environment, faulty_proxy, started_server

pytestmark = pytest.mark.system

PART = 1 << 16
DATA = random.Random(3).randbytes(5 * PART + 77)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with started_server("moto", tmp_path_factory.mktemp("server")) as port:
        yield port


@pytest.fixture
def proxy(moto: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    monkeypatch.setattr(bucket_backend, "PART_BYTES", PART)
    with faulty_proxy(moto) as running:
        for name, value in bucket_environment(running.server_port).items():
            monkeypatch.setenv(name, value)
        yield running


def opened(uri: str = "") -> Store:
    return Store.open(uri or f"s3://{BUCKET}/{uuid.uuid4().hex}")


def fetched(store: Store, folder: Path) -> bytes:
    with store.open_checked("a", sha256=SHA256, size_bytes=len(DATA), folder=folder) as path:
        return path.read_bytes()


@pytest.mark.parametrize("what", ["503", "500", "reset", "short", "corrupt", "stall"])
def test_a_file_arrives_in_spite_of(
    what: str, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bucket_backend, "STALL_S", 0.5)
    store = opened()
    store.write("a", DATA)
    fault = Fault(what, times=1 if what == "corrupt" else 3)
    proxy.faults = [fault]
    assert fetched(store, tmp_path) == DATA
    assert fault.times == 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_arrives_and_is_sent_although_the_bucket_throttles_for_long(
    proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bucket_backend, "PAUSE_FACTOR", 1.01)  # all pauses are about 0.1 s
    store = opened()
    (tmp_path / "sent").write_bytes(DATA)
    # Each of the six parts is refused more often than requests for small objects are repeated.
    for method, times in (("PUT", 15), ("GET", 6 * 15)):
        proxy.faults = [Fault("503", method, times=times)]
        if method == "PUT":
            store.write_file("a", tmp_path / "sent")
        else:
            assert fetched(store, tmp_path) == DATA
        assert proxy.faults[0].times == 0


@pytest.mark.parametrize("what", ["503", "500", "reset", "short", "corrupt"])
def test_what_does_not_end_is_an_error(
    what: str, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bucket_backend, "MOST_RETRIES", 1)
    monkeypatch.setattr(bucket_backend, "MOST_PATIENT_RETRIES", 1)
    store = opened()
    store.write("a", DATA)
    proxy.faults = [Fault(what, times=10_000)]
    with pytest.raises(CorruptError if what == "corrupt" else StoreError, match="a"):
        fetched(store, tmp_path)
    assert list(tmp_path.iterdir()) == []
    proxy.faults = []
    assert fetched(store, tmp_path) == DATA


def test_a_put_that_was_done_although_its_answer_is_an_error(proxy: FaultyProxy):
    store = opened()
    proxy.faults = [Fault("500 after", "PUT"), Fault("503", "PUT"), Fault("500 after", "PUT")]
    store.create("a", b"ours")
    assert store.read("a") == b"ours"
    with pytest.raises(AlreadyExistsError):
        store.create("a", b"ours")  # by another who has the same bytes
    proxy.faults = [Fault("500 after", "PUT")]
    with pytest.raises(AlreadyExistsError):
        store.create("a", b"others")
    proxy.faults = [Fault("500 after", "PUT", times=2)]
    store.replace("a", b"new", stored=b"ours")
    assert store.read("a") == b"new"
    proxy.faults = [Fault("reset", "PUT")]
    store.replace("a", b"newer", stored=b"new")
    assert store.read("a") == b"newer"


def test_a_put_that_meets_its_own_first_attempt(proxy: FaultyProxy):
    store = opened()
    # S3 answers 409 while a put of the same key is under way, here the one whose answer was lost.
    proxy.faults = [Fault("500", "PUT"), Fault("409", "PUT")]
    store.create("a", b"1")
    assert store.read("a") == b"1"


def test_a_put_that_fails_for_long_is_an_error(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bucket_backend, "RETRY_S", 0.5)
    store = opened()
    proxy.faults = [Fault("503", "PUT", times=1000)]
    with pytest.raises(StoreError, match="a: .*503"):
        store.create("a", b"1")
    proxy.faults = []
    store.create("a", b"1")
