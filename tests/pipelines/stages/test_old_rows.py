"""Rows of segments in a bucket: single columns are read by ranges, and damage is found there too."""

from __future__ import annotations

from pathlib import Path

import pytest

from scannery.indexer import CorruptError, Store, read_manifest
from scannery.indexer.datapoints.named_vectors import NAMED_TYPE, vector_column
from scannery.indexer.versions.versions import segment_key
from scannery.pipelines.stages.old_rows import read_live_rows
from scannery.pipelines.state.job import Job
from tests.counting import CountingBucket
from tests.pipelines.conftest import VECTORS, run, vector_records


@pytest.fixture
def built(write, tmp_path):
    store = Store.open(tmp_path / "store", create=True)
    run(store, write("a.jsonl", vector_records(0, 8000)), spec=VECTORS)
    manifest = read_manifest(store, "vectors", 1)
    job = Job(store_uri="unused", spec=manifest.spec, vectors=manifest.vectors, shards=1, recipe={},
              build_id="b", parent=1)  # fmt: skip
    return store, job, manifest.segments[0]


@pytest.mark.system
def test_ids_of_a_bucket_are_read_without_the_rest(built):
    store, job, entry = built
    bucket = CountingBucket(Path(store.uri))
    ids, rows_N = read_live_rows(entry, job, Store(store.uri, bucket), ["id"])
    expected, expected_N = read_live_rows(entry, job, store, ["id"])
    assert ids.equals(expected)
    assert rows_N.tolist() == expected_N.tolist()
    assert 0 < bucket.read_bytes["segments"] < entry.size_bytes / 2


@pytest.mark.system
def test_damage_in_a_column_is_found(built):
    store, job, entry = built
    path = Path(store.uri) / segment_key("vectors", entry.key)
    data = path.read_bytes()
    bucket = Store(store.uri, CountingBucket(Path(store.uri)))
    expected, _ = read_live_rows(entry, job, store, ["id"])
    found = 0
    for at in range(0, len(data), len(data) // 60):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            ids, _ = read_live_rows(entry, job, bucket, ["id"])
        except CorruptError:
            found += 1
        else:  # in another column
            assert ids.equals(expected)
    assert found
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptError, match="size"):
        read_live_rows(entry, job, bucket, ["id"])


def test_named_vectors_of_a_bucket_are_those_of_their_datapoints(write, tmp_path):
    store = Store.open(tmp_path / "store", create=True)
    records = [
        record | ({"other": record["vector"][:3]} if record["n"] % 3 else {})
        for record in vector_records(0, 60)
    ]
    run(
        store,
        write("a.jsonl", records),
        spec={**VECTORS, "named_vectors": {"other": {"vector": "other", "dimensions": 3}}},
    )
    manifest = read_manifest(store, "vectors", 1)
    job = Job(store_uri="unused", spec=manifest.spec, vectors=manifest.vectors, shards=1, recipe={},
              build_id="b", parent=1)  # fmt: skip
    bucket = Store(store.uri, CountingBucket(Path(store.uri)))
    columns = ["id", vector_column("other")]
    table, _ = read_live_rows(manifest.segments[0], job, bucket, columns)
    assert table.equals(read_live_rows(manifest.segments[0], job, store, columns)[0])
    assert table.schema.field(columns[1]).type == NAMED_TYPE
    found = {row["id"]: row[columns[1]] for row in table.to_pylist()}
    assert found.keys() == {record["id"] for record in records}
    for record in records:
        assert found[record["id"]] == pytest.approx(record.get("other"))
