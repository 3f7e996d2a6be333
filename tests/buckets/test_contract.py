"""The store in a bucket of S3 servers that others wrote: what it does in a folder, it does there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from scannery.indexer import (
    AlreadyExistsError,
    NotFoundError,
    Store,
    collect_garbage,
    parse_spec,
    read_manifest,
    verify,
)
from scannery.indexer.versions.dropping import drop_index
from scannery.live.maintenance.copies import branch
from tests.buckets.servers import BUCKET, bucket_environment, started_server
from tests.data import clustered, datapoints, publish, without_ids
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


def test_a_branch_shares_what_the_bucket_copies(store: Store, tmp_path: Path):
    spec = parse_spec({"index": "t", "source": {"vector": "v"}, "shards": 2})
    ids = [f"d{row}" for row in range(100)]
    rows = datapoints(spec, clustered(100, 8), ids=ids, columns={"document_id": ids})
    published = without_ids(store, publish(store, spec, rows, tmp_path, shards=2).index, ids[:2])
    report = branch(store, "t", "trial")
    assert (report.version, report.sequence) == (published.version, 0)
    drop_index(store, "t")
    assert verify(store, "trial").problems == ()
    assert collect_garbage(store, "trial", min_age=timedelta(0)).freed_bytes == 0
    assert read_manifest(store, "trial").rows == published.rows == 98
    branch(store, "trial", "again")
    with pytest.raises(AlreadyExistsError):
        branch(store, "again", "trial")
    assert store.folders() == ["again", "trial"]


def test_an_object_is_replaced_by_one_of_those_who_read_it(store: Store, request: pytest.FixtureRequest):
    if "localbucket" in request.node.name:
        pytest.skip("localbucket 1.2.1 has no If-Match for puts")
    store.replace("a", b"1", stored=None)
    store.replace("a", b"2", stored=b"1")
    for wrong in (None, b"1"):
        with pytest.raises(AlreadyExistsError):
            store.replace("a", b"3", stored=wrong)
    assert store.read("a") == b"2"
