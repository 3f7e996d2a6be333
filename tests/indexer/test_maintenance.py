from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import (
    CorruptError,
    NotFoundError,
    SegmentCache,
    Store,
    build_segment,
    collect_garbage,
    commit,
    list_versions,
    next_version,
    open_index,
    parse_spec,
    read_manifest,
    rollback,
    segment_key,
    store_segment,
    verify,
)
from tests.data import clustered, datapoints, publish

SPEC = parse_spec({"index": "t", "source": {"vector": "v"}, "distance": "dot"})
NOW = timedelta(0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store", create=True)
    publish(store, SPEC, datapoints(SPEC, clustered(300, 4)), tmp_path, shards=3)
    return store


def publish_next(store: Store, folder: Path, rows: int) -> None:
    """Commit a version with other segments."""
    vectors = clustered(rows, 4, seed=rows)
    built = build_segment(datapoints(SPEC, vectors), spec=SPEC, shard=0, directory=folder)
    store_segment(store, "t", built)
    current = read_manifest(store, "t")
    commit(store, current.model_copy(update={"parent": current.version, "segments": (built.entry,)}))


@pytest.mark.system
def test_a_sound_index_verifies(store: Store):
    report = verify(store, "t")
    assert (report.version, report.segments, report.rows, report.problems) == (1, 3, 300, ())
    assert report.recall == 1


@pytest.mark.system
def test_damage_is_found_in_the_store_although_the_cache_is_sound(store: Store, tmp_path: Path):
    manifest = read_manifest(store, "t")
    open_index(store, "t", cache=SegmentCache(tmp_path / "cache"))
    key = segment_key("t", manifest.segments[1].key)
    data = bytearray(store.read(key))
    data[len(data) // 2] ^= 1
    store.write(key, bytes(data))
    report = verify(store, "t")
    assert report.recall is None
    assert len(report.problems) == 1
    assert "SHA-256" in report.problems[0]
    store.delete(key)
    assert "there is no" in verify(store, "t").problems[0]


@pytest.mark.system
def test_repeated_ids_and_wrong_counts_are_found(store: Store, tmp_path: Path):
    manifest = read_manifest(store, "t")
    # Segments of a second hash partition: the ids of shard 0 stand twice.
    table = datapoints(SPEC, clustered(1, 4), ids=[_some_id(store)])
    built = build_segment(table, spec=SPEC, shard=0, directory=tmp_path)
    store_segment(store, "t", built)
    wrong = manifest.segments[1].model_copy(update={"rows": 7})
    segments = (*manifest.segments[:1], wrong, *manifest.segments[2:], built.entry)
    commit(store, manifest.model_copy(update={"parent": 1, "segments": segments}))
    problems = " ".join(verify(store, "t").problems)
    assert f"id '{_some_id(store)}' is in" in problems
    assert "7 in the manifest" in problems


def _some_id(store: Store) -> str:
    manifest = read_manifest(store, "t", 1)
    with store.open_file(segment_key("t", manifest.segments[0].key)) as path:
        import pyarrow.parquet as pq

        return str(pq.read_table(path, columns=["id"])["id"][0])


def test_rollback_publishes_the_old_content_as_a_new_version(store: Store, tmp_path: Path):
    publish_next(store, tmp_path, 50)
    back = rollback(store, "t", 1)
    assert (back.version, back.parent) == (3, 2)
    assert back.segments == read_manifest(store, "t", 1).segments
    assert open_index(store, "t", cache=SegmentCache(tmp_path / "cache")).manifest.rows == 300
    with pytest.raises(NotFoundError, match="no version 9; it has 1, 2, 3"):
        rollback(store, "t", 9)


def test_a_rollback_keeps_the_position_in_the_log(store: Store, tmp_path: Path):
    current = read_manifest(store, "t")
    commit(store, next_version(store, current, dead_rows={current.segments[0].key: [1]}, log_sequence=8))
    back = rollback(store, "t", 1)
    assert (back.segments, back.log_sequence) == (current.segments, 8), (
        "mutation 8 is undone, not to come again"
    )
    store.write("t/versions/00000003.json", b"damaged")
    assert rollback(store, "t", 1).log_sequence == 8


@pytest.mark.system
def test_garbage_is_what_no_kept_version_names(store: Store, tmp_path: Path):
    for rows in (50, 60, 70):
        publish_next(store, tmp_path, rows)
    orphan = f"t/segments/{'0' * 64}.parquet"
    store.write(orphan, b"left by a killed build")
    (tmp_path / "store" / "t" / "segments" / ".tmp-1").write_bytes(b"half")

    assert collect_garbage(store, "t").segments == (), "all is younger than a day"
    plan = collect_garbage(store, "t", keep=2, min_age=NOW, dry_run=True)
    assert list_versions(store, "t") == [1, 2, 3, 4]
    report = collect_garbage(store, "t", keep=2, min_age=NOW)
    assert report == plan
    assert report.versions == (1, 2)
    assert orphan in report.segments
    assert len(report.segments) == 5
    left = {item.key for item in store.list("t/segments")}
    named = {segment_key("t", e.key) for v in (3, 4) for e in read_manifest(store, "t", v).segments}
    assert left == named
    assert not list((tmp_path / "store").rglob(".tmp-*"))
    assert verify(store, "t").problems == ()


@pytest.mark.system
def test_garbage_shared_with_a_kept_version_stays(store: Store):
    rollback(store, "t", 1)
    assert collect_garbage(store, "t", keep=1, min_age=NOW).segments == ()
    assert list_versions(store, "t") == [2]
    assert verify(store, "t").problems == ()


def test_nothing_is_removed_while_a_kept_manifest_cannot_be_read(store: Store, tmp_path: Path):
    publish_next(store, tmp_path, 50)
    publish_next(store, tmp_path, 60)
    store.write("t/versions/00000002.json", b"{}")
    before = store.list()
    with pytest.raises(CorruptError):
        collect_garbage(store, "t", keep=2, min_age=NOW)
    assert store.list() == before
    with pytest.raises(NotFoundError):
        collect_garbage(store, "u")


def test_a_running_reader_survives_the_removal_of_its_version(store: Store, tmp_path: Path):
    opened = open_index(store, "t", 1, cache=SegmentCache(tmp_path / "cache"))
    publish_next(store, tmp_path, 50)
    collect_garbage(store, "t", keep=1, min_age=NOW)
    assert list_versions(store, "t") == [2]
    rows, _ = opened.segments[0].search(np.ones((1, 4), np.float32), 3)
    assert len(opened.segments[0].take(rows[0])) == 3
