"""Compaction: one segment a shard, the same datapoints, a new version."""

from __future__ import annotations

import pytest

from scannery.indexer import CorruptError, NotFoundError, list_versions, verify
from scannery.pipelines import compact
from tests.pipelines.conftest import VECTORS, manifest_of, rows_of, run, vector_records

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
    run(store, write("a.jsonl", vector_records(0, 2400)), spec=SPEC)
    run(store, write("b.jsonl", vector_records(2400, 2500)), spec=SPEC)
    entry = manifest_of(store).segments[1]
    store.write(f"vectors/{entry.key}", b"x" * entry.size_bytes)
    with pytest.raises(CorruptError, match="SHA-256"):
        compact("vectors", store.uri)
    assert list_versions(store, "vectors") == [1, 2]
