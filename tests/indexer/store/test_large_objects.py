"""Objects that are large for the network: parts, deadlines, broken connections and memory."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from scannery.indexer import AlreadyExistsError, CorruptError, NotFoundError, Store, StoreError, StoreUriError
from scannery.indexer.store import bucket_backend, object_store
from scannery.indexer.store.bucket_backend import BucketBackend
from tests.data import ROOT
from tests.object_server import ObjectServer, object_server

PART = 1 << 19
MOST_RESUMES = 10  # of obstore, for one request


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setattr(bucket_backend, "UPLOAD_BYTES", PART)
    monkeypatch.setattr(bucket_backend, "PART_BYTES", PART)
    with object_server(monkeypatch) as running:
        yield running


@pytest.fixture
def data() -> bytes:
    return random.Random(7).randbytes(8 * PART + 4321)


def got(store: Store, key: str) -> bytes:
    with store.open_file(key) as path:
        return path.read_bytes()


@pytest.mark.system
def test_large_objects_go_in_parts_both_ways(server, data, tmp_path):
    store = Store.open("s3://bucket/some/store")
    (tmp_path / "file").write_bytes(data)
    store.write_file("index/a", tmp_path / "file")
    store.write("index/b", data)
    sent = [size for method, _, size in server.requests if method == "PUT"]
    assert len(sent) == 18
    assert max(sent) == PART
    server.requests.clear()
    assert got(store, "index/a") == store.read("index/b") == data
    assert store.read_range("index/a", 5, len(data) - 10) == data[5:-5]
    assert bytes(store.map_range("index/a", 5, 7)) == data[5:12]
    asked = [size for method, _, size in server.requests if method == "GET"]
    # Reading an object whole begins with a request for all of it, since its size is not known; it is dropped.
    assert sorted(asked)[-2:] == [PART, len(data)]
    with pytest.raises(NotFoundError), store.open_file("index/c"):
        pass


@pytest.mark.system
def test_small_and_empty_objects_are_one_request(server):
    store = Store.open("s3://bucket/store")
    for size in (0, 10, PART):
        store.write("a", bytes(size))
        server.requests.clear()
        assert store.read("a") == bytes(size)
        assert len(server.requests) == 1
        assert got(store, "a") == bytes(size)
    store.create("b", bytes(3 * PART))
    with pytest.raises(AlreadyExistsError):
        store.create("b", b"")


@pytest.mark.system
def test_files_do_not_replace_objects(server, data, tmp_path):
    (tmp_path / "file").write_bytes(data)
    for uri in ("s3://bucket/store", tmp_path / "store"):
        store = Store.open(uri, create=True)
        store.create_file("a", tmp_path / "file")
        (tmp_path / "other").touch()
        with pytest.raises(AlreadyExistsError):
            store.create_file("a", tmp_path / "other")
        assert store.read("a") == data


@pytest.mark.system
def test_a_bucket_shares_bytes_itself_or_gets_them_sent(server, data):
    store = Store.open("s3://bucket/some/store")
    store.write("index/a", data)
    server.requests.clear()
    store.share("index/a", "other/a")
    assert server.requests == [("PUT", "/bucket/some/store/other/a", 0)]
    server.most_copied = len(data) - 1
    store.share("index/a", "other/b")
    assert store.read("other/a") == store.read("other/b") == data
    with pytest.raises(NotFoundError, match="index/none"):
        store.share("index/none", "other/none")


@pytest.mark.system
def test_an_object_that_takes_longer_than_a_request_may_arrives_in_parts(server, data, monkeypatch, tmp_path):
    monkeypatch.setenv("SCANNERY_STORE_TIMEOUT_S", "1")
    server.bytes_per_s = 4 * PART  # a part takes a quarter of a second; four at once, the whole 0.6 s
    server.objects["/bucket/store/a"] = data
    store = Store.open("s3://bucket/store")
    server.cut_after = PART // 2
    assert got(store, "a") == data
    server.cut_after = None
    server.bytes_per_s = PART
    (tmp_path / "file").write_bytes(data[: 3 * PART])
    monkeypatch.setenv("SCANNERY_STORE_TIMEOUT_S", "2")
    Store.open("s3://bucket/store").write_file("b", tmp_path / "file")
    assert server.objects["/bucket/store/b"] == data[: 3 * PART]


@pytest.mark.system
def test_a_connection_that_breaks_again_and_again_is_resumed_by_part(server, data, monkeypatch):
    server.objects["/bucket/store/a"] = data
    server.cut_after = 1 << 18
    # As one request it would be cut more often than obstore resumes one.
    assert len(data) / server.cut_after > MOST_RESUMES
    assert got(Store.open("s3://bucket/store"), "a") == data
    assert Store.open("s3://bucket/store").read("a") == data


@pytest.mark.system
def test_parts_of_two_objects_are_never_mixed(server, data, monkeypatch):
    server.objects["/bucket/store/a"] = data
    store, real = Store.open("s3://bucket/store"), bucket_backend.BucketBackend._part

    def replaced(self: bucket_backend.BucketBackend, key: str, start: int, *more: Any) -> memoryview:
        if start == 5 * PART:
            server.objects["/bucket/store/a"] = data[::-1]
        return real(self, key, start, *more)

    monkeypatch.setattr(bucket_backend.BucketBackend, "_part", replaced)
    with pytest.raises(StoreError, match="was replaced while it was read"), store.open_file("a"):
        pass


@pytest.mark.parametrize("value", ["0", "-1", "soon", "inf", "nan"])
def test_a_timeout_that_is_none(value, monkeypatch):
    monkeypatch.setenv("SCANNERY_STORE_TIMEOUT_S", value)
    with pytest.raises(StoreUriError, match="SCANNERY_STORE_TIMEOUT_S must be a number of seconds"):
        Store.open("s3://bucket/store")


MEMORY = """
import resource, sys
from scannery.indexer import Store
store = Store.open("s3://bucket/store")
store.read("small")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with store.open_file("large") as path:
    assert path.stat().st_size == int(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.system
def test_a_file_is_fetched_in_the_memory_of_a_few_parts(monkeypatch, tmp_path):
    size = 160 << 20
    with object_server(monkeypatch) as server:
        server.objects |= {"/bucket/store/small": b"1", "/bucket/store/large": bytes(size)}
        environment = (
            os.environ | server.environment | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
        )
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(size)],
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    most_bytes = int(done.stdout) * 1024
    print(f"{most_bytes / 2**20:.0f} MiB more for an object of {size / 2**20:.0f} MiB")
    assert most_bytes < 2 * bucket_backend.PARALLEL * bucket_backend.PART_BYTES
    assert not list(Path(tmp_path).glob("**/object"))


def test_a_length_beyond_the_object_takes_no_memory():
    bucket = BucketBackend(MemoryStore())
    bucket.write("a", b"x" * 100, only_if_absent=False)
    for length in (1 << 32, 1 << 62):
        assert bucket.read_range("a", 10, length) == b"x" * 90
    with pytest.raises(StoreError):
        bucket.read_range("a", 200, 1 << 62)


@pytest.mark.system
def test_a_file_is_hashed_while_it_arrives(server, data, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "file_sha256", lambda path: pytest.fail("the file is read once more"))
    store, sha256 = Store.open("s3://bucket/store"), hashlib.sha256(data).hexdigest()
    server.objects["/bucket/store/a"] = data
    with store.open_checked("a", sha256=sha256, size_bytes=len(data), folder=tmp_path) as path:
        assert path.parent == tmp_path
        assert path.read_bytes() == data
    assert not list(tmp_path.iterdir())
    # Its size is known, so there is no request for it.
    assert {method for method, _, _ in server.requests} == {"GET"}
    assert sum(size for _, _, size in server.requests) == len(data)
    with store.open_checked("a", sha256=sha256) as path:
        assert path.read_bytes() == data


@pytest.mark.system
def test_a_file_that_arrives_damaged_is_fetched_once_more(server, data, tmp_path):
    store, sha256 = Store.open("s3://bucket/store"), hashlib.sha256(data).hexdigest()
    damaged = bytearray(data)
    damaged[5 * PART] ^= 1
    server.objects["/bucket/store/a"] = bytes(damaged)

    class Healing(list[tuple[str, str, int]]):
        def append(self, item):
            super().append(item)
            if len(self) == 9:
                server.objects["/bucket/store/a"] = data

    server.requests = Healing()
    with store.open_checked("a", sha256=sha256, size_bytes=len(data), folder=tmp_path) as path:
        assert path.read_bytes() == data
    assert len(server.requests) == 18
    server.objects["/bucket/store/a"] = bytes(damaged)
    with (
        pytest.raises(CorruptError, match="a is damaged: its SHA-256"),
        store.open_checked("a", sha256=sha256, size_bytes=len(data), folder=tmp_path),
    ):
        pass
    for wrong in (data[:-1], data + b"1", data[: 3 * PART]):
        server.objects["/bucket/store/a"] = wrong
        with (
            pytest.raises(CorruptError, match=r"a has \d+ bytes"),
            store.open_checked("a", sha256=sha256, size_bytes=len(data), folder=tmp_path),
        ):
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.system
def test_the_parts_of_a_process_are_bounded(monkeypatch):
    counting, now, most = threading.Lock(), 0, 0

    def fetch(start: int, end: int) -> memoryview:
        nonlocal now, most
        with counting:
            now += 1
            most = max(most, now)
        time.sleep(0.001)
        with counting:
            now -= 1
        if start == failing:
            raise StoreError("no answer")
        return memoryview(bytes(end - start))

    def read() -> int:
        return sum(len(data) for _, data in bucket_backend.ordered_parts(fetch, 3, 1003))

    failing = -1
    monkeypatch.setattr(bucket_backend, "PART_BYTES", 10)
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda _: read(), range(12))) == [1000] * 12
        assert bucket_backend.PARALLEL < most <= bucket_backend.MOST_PARTS
        failing = 503
        for outcome in [pool.submit(read) for _ in range(12)]:
            with pytest.raises(StoreError, match="no answer"):
                outcome.result()
        failing = -1
        assert list(pool.map(lambda _: read(), range(12))) == [1000] * 12
    # Readers that give up before the end leave their room to others.
    for _ in range(bucket_backend.MOST_PARTS):
        next(bucket_backend.ordered_parts(fetch, 0, 1000))
    assert read() == 1000
