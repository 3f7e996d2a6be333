"""The store in a bucket of S3 servers that others wrote: what it does in a folder, it does there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from scannery.indexer import AlreadyExistsError, NotFoundError, Store
from tests.buckets.servers import BUCKET, bucket_environment, started_server
from tests.indexer.store.test_object_store import (  # noqa: F401
    test_a_range_of_an_object,
    test_a_stamp_tells_that_an_object_was_replaced,
    test_missing_objects,
    test_objects_come_back,
    test_of_many_creators_exactly_one_wins,
)


@pytest.fixture(scope="module", params=["moto", "localbucket"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with started_server(request.param, tmp_path_factory.mktemp("server")) as port:
        yield port


@pytest.fixture
def store(server: int, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in bucket_environment(server).items():
        monkeypatch.setenv(name, value)
    return Store.open(f"s3://{BUCKET}/{uuid.uuid4().hex}")


def test_bytes_are_shared(store: Store):
    store.write("a/some file", b"bytes")
    store.share("a/some file", "b/1")
    store.share("a/some file", "b/1")
    store.delete("a/some file")
    assert store.read("b/1") == b"bytes"
    with pytest.raises(NotFoundError, match="a/some file"):
        store.share("a/some file", "b/2")


def test_an_object_is_replaced_by_one_of_those_who_read_it(store: Store, request: pytest.FixtureRequest):
    if "localbucket" in request.node.name:
        pytest.skip("localbucket 1.2.1 has no If-Match for puts")
    store.replace("a", b"1", stored=None)
    store.replace("a", b"2", stored=b"1")
    for wrong in (None, b"1"):
        with pytest.raises(AlreadyExistsError):
            store.replace("a", b"3", stored=wrong)
    assert store.read("a") == b"2"
