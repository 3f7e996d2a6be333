"""Compaction: one segment a shard, the same datapoints, a new version."""

from __future__ import annotations

import pytest

import scannery
from scannery.indexer import CorruptError, NotFoundError, list_versions, verify
from scannery.live.maintenance.seal import seal
from scannery.pipelines import compact
from tests.pipelines.conftest import VECTORS, manifest_of, rows_of, run, vector_records

pytestmark = pytest.mark.system

SPEC = VECTORS | {"shards": 2, "scann": {"exact_below_rows": 1000}}


def test_it_merges_the_segments_of_each_shard(store, write):
    run(store, write("a.jsonl", vector_records(0, 2400)), spec=SPEC)
    assert compact("vectors", store.uri).up_to_date
    run(store, write("b.jsonl", vector_records(2400, 2500)), spec=SPEC)
    before, rows = manifest_of(store), rows_of(store)
    assert [entry.shard for entry in before.segments] == [0, 0, 1, 1]
    report = compact("vectors", store.uri)
    assert (report.shards, report.segments_before, report.segments, report.version) == ((0, 1), 4, 2, 3)
    assert rows_of(store) == rows
    assert not verify(store, "vectors").problems
    assert manifest_of(store).spec == before.spec
    assert compact("vectors", store.uri).up_to_date
    assert list_versions(store, "vectors") == [1, 2, 3]
    again = run(store, write("b.jsonl", vector_records(2400, 2500)), spec=SPEC)
    assert (again.up_to_date, again.unchanged) == (True, 100)


def test_it_refuses_what_is_not_there_or_damaged(store, write):
    with pytest.raises(NotFoundError, match="no index"):
        compact("vectors", store.uri)
    spec = SPEC | {"shards": 1}
    run(store, write("a.jsonl", vector_records(0, 1200)), spec=spec)
    run(store, write("b.jsonl", vector_records(1200, 1250)), spec=spec)
    entry = manifest_of(store).segments[1]
    store.write(f"vectors/{entry.key}", b"x" * entry.size_bytes)
    with pytest.raises(CorruptError, match="SHA-256"):
        compact("vectors", store.uri)
    assert list_versions(store, "vectors") == [1, 2]


def test_revisions_of_live_rows_outlive_it_and_an_update(store, write):
    records = vector_records(0, 40)
    spec = SPEC | {"scann": {"exact_below_rows": 10_000}}
    run(store, write("a.jsonl", records), spec=spec)

    def revisions():
        with scannery.connect(store.uri) as client:
            return [
                point and point.revision for point in client.index("vectors").get([f"d{i}" for i in range(5)])
            ]

    with scannery.connect(store.uri) as client:
        for record in records[:4]:
            attributes = {"show": record["show"], "n": record["n"]}
            client.index("vectors").upsert(
                [{"id": record["id"], "vector": record["vector"], "attributes": attributes}]
            )
    assert seal(store, "vectors") is not None
    assert revisions() == [1, 2, 3, 4, 0]
    assert not compact("vectors", store.uri).up_to_date
    assert revisions() == [1, 2, 3, 4, 0]
    # The same record again is no change; another one is, and not a write.
    changed = vector_records(1, 2, seed=1) + records[2:3] + vector_records(40, 60)
    report = run(store, write("b.jsonl", changed), spec=spec)
    assert (report.replaced, report.unchanged, report.added) == (1, 1, 20)
    assert revisions() == [1, 0, 3, 4, 0]
    with scannery.connect(store.uri) as client:
        index = client.index("vectors")
        with pytest.raises(scannery.FailedPreconditionError, match="has revision 3, not 2"):
            index.delete(["d2"], if_revision=2)
        assert index.delete(["d2"], if_revision=3).deleted == 1
