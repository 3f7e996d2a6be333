"""Tombstones: rows that a version has no more, though their segment still has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.indexer import (
    CorruptError,
    Manifest,
    NotFoundError,
    OpenIndex,
    SegmentCache,
    SegmentEntry,
    Store,
    build_segment,
    collect_garbage,
    commit,
    corpus_statistics,
    next_version,
    open_index,
    parse_spec,
    read_deleted,
    read_manifest,
    rollback,
    segment_key,
    store_segment,
    verify,
    with_deleted,
)
from tests.data import clustered, datapoints, publish
from tests.indexer.test_maintenance import NOW

SPEC = parse_spec({"index": "t", "source": {"vector": "v"}, "distance": "dot"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store", create=True)
    publish(store, SPEC, datapoints(SPEC, clustered(300, 4)), tmp_path, shards=2)
    return store


def opened(store: Store, folder: Path, reuse: OpenIndex | None = None) -> OpenIndex:
    return open_index(store, "t", cache=SegmentCache(folder / "cache"), reuse=reuse)


def remove(store: Store, rows: list[int], segment: int = 0) -> Manifest:
    """Commit a version without some rows."""
    parent = read_manifest(store, "t")
    dead = {parent.segments[segment].key: rows}
    return commit(store, next_version(store, parent, dead_rows=dead, log_sequence=parent.log_sequence))


@pytest.mark.system
def test_a_version_without_some_rows(store: Store, tmp_path: Path):
    before = opened(store, tmp_path)
    manifest = remove(store, [5, 3, 3])
    entry = manifest.segments[0]
    assert entry.deleted is not None
    assert (entry.deleted.rows, entry.live_rows, manifest.rows) == (2, entry.rows - 2, 298)
    assert manifest.size_bytes > before.manifest.size_bytes
    assert read_deleted(store, "t", entry).tolist() == [3, 5]
    with store.open_file(segment_key("t", entry.deleted.key)) as path:
        assert pq.read_table(path).to_pydict() == {"row": [3, 5]}

    after = opened(store, tmp_path, reuse=before)
    assert after.segments == before.segments, "the very same objects: nothing is opened again"
    first, second = after.alive
    assert first is not None
    assert np.flatnonzero(~first.mask_N).tolist() == [3, 5]
    assert second is None
    assert before.alive == (None, None)
    assert verify(store, "t").problems == ()
    assert verify(store, "t").rows == 298


@pytest.mark.system
def test_rows_join_those_that_are_deleted_already(store: Store):
    once = remove(store, [3])
    again = remove(store, [3])
    assert again.segments == once.segments, "nothing new, no new file"
    more = remove(store, [9, 0])
    assert read_deleted(store, "t", more.segments[0]).tolist() == [0, 3, 9]
    assert read_deleted(store, "t", read_manifest(store, "t", 1).segments[0]).tolist() == []


def test_live_rows_stay_the_same_object_while_they_are_the_same(store: Store, tmp_path: Path):
    remove(store, [3])
    one = opened(store, tmp_path)
    remove(store, [4], segment=1)
    other = opened(store, tmp_path, reuse=one)
    assert other.alive[0] is one.alive[0]
    assert other.alive[1] is not None


def test_a_segment_without_rows_is_dropped(store: Store, tmp_path: Path):
    parent = read_manifest(store, "t")
    first, second = parent.segments
    manifest = remove(store, list(range(first.rows)))
    assert manifest.segments == (second,)
    assert opened(store, tmp_path).manifest.rows == second.rows


@pytest.mark.system
def test_mutations_bring_segments_and_a_sequence(store: Store, tmp_path: Path):
    parent = read_manifest(store, "t")
    table = datapoints(SPEC, clustered(2, 4, seed=9), ids=["new", "newer"])
    built = build_segment(table, spec=SPEC, shard=1, directory=tmp_path)
    store_segment(store, "t", built)
    key = parent.segments[1].key
    following = next_version(
        store,
        parent,
        added=[built.entry],
        dead_rows={key: [1], built.entry.key: np.array([0])},
        log_sequence=7,
    )
    manifest = commit(store, following)
    assert (manifest.version, manifest.log_sequence, manifest.rows) == (2, 7, 300)
    assert [entry.live_rows for entry in manifest.segments][1:] == [parent.segments[1].rows - 1, 1]
    with pytest.raises(ValueError, match="at least 7, got 6"):
        next_version(store, manifest, dead_rows={}, log_sequence=6)
    with pytest.raises(ValueError, match="no segment segments/x"):
        next_version(store, manifest, dead_rows={"segments/x": [1]}, log_sequence=7)
    with pytest.raises(ValueError, match="rows of segments/.* must be 0 to "):
        next_version(store, manifest, dead_rows={key: [parent.segments[1].rows]}, log_sequence=7)


@pytest.mark.system
def test_damage_is_an_error_and_never_another_answer(store: Store, tmp_path: Path):
    entry = remove(store, [3, 4, 5]).segments[0]
    assert entry.deleted is not None
    key = segment_key("t", entry.deleted.key)
    good = store.read(key)
    for position in range(0, len(good), 7):
        data = bytearray(good)
        data[position] ^= 1
        store.write(key, bytes(data))
        with pytest.raises(CorruptError, match="deletes/.* is damaged"):
            opened(store, tmp_path)
    assert "is damaged" in verify(store, "t").problems[0]
    store.write(key, good[:-1])
    with pytest.raises(CorruptError, match="is damaged"):
        opened(store, tmp_path)
    other = remove_of_other(store, tmp_path, entry)
    with pytest.raises(CorruptError, match="does not name 3 of the 3 rows"):
        read_deleted(store, "t", other)
    store.delete(key)
    with pytest.raises(NotFoundError):
        opened(store, tmp_path)


def remove_of_other(store: Store, folder: Path, entry: SegmentEntry) -> SegmentEntry:
    """Return a segment of three rows with the tombstones of a larger one."""
    assert entry.deleted is not None
    scratch = Store.open(folder / "scratch", create=True)
    made = with_deleted(scratch, "t", entry.model_copy(update={"deleted": None}), [3, 4, 5])
    assert made.deleted is not None
    store.write(segment_key("t", made.deleted.key), scratch.read(segment_key("t", made.deleted.key)))
    return made.model_copy(update={"rows": 3})


@pytest.mark.system
def test_an_id_may_stand_again_where_it_is_deleted(store: Store, tmp_path: Path):
    index = opened(store, tmp_path)
    identifier = index.segments[0].ids[3].as_py()
    built = build_segment(
        datapoints(SPEC, clustered(1, 4), ids=[identifier]), spec=SPEC, shard=0, directory=tmp_path
    )
    store_segment(store, "t", built)
    parent = index.manifest
    commit(store, next_version(store, parent, added=[built.entry], dead_rows={}, log_sequence=0))
    assert f"id '{identifier}' is in" in verify(store, "t").problems[0]
    remove(store, [3])
    assert verify(store, "t").problems == ()


@pytest.mark.system
def test_old_tombstones_are_garbage_and_kept_ones_are_not(store: Store, tmp_path: Path):
    for row in range(4):
        remove(store, [row])
    rollback(store, "t", 3)
    report = collect_garbage(store, "t", keep=2, min_age=NOW)
    assert len(report.deletes) == 2
    left = {item.key for item in store.list("t/deletes")}
    kept = {entry.deleted for v in (5, 6) for entry in read_manifest(store, "t", v).segments if entry.deleted}
    assert left == {segment_key("t", deleted.key) for deleted in kept}
    assert verify(store, "t").problems == ()
    for key in left:
        store.delete(key)
    with pytest.raises(NotFoundError, match="deletes/"):
        rollback(store, "t", 6)


@pytest.mark.system
def test_rows_of_a_document(tmp_path: Path):
    store = Store.open(tmp_path / "store", create=True)
    names = [f"doc{row % 40}" for row in range(200)]
    publish(
        store, SPEC, datapoints(SPEC, clustered(200, 4), columns={"document_id": names}), tmp_path, shards=1
    )
    [segment] = opened(store, tmp_path).segments
    for name in ("doc0", "doc39"):
        rows = segment.rows_of_document(name)
        assert rows.dtype == np.int64
        assert len(rows) == 5
        assert segment.take(rows, ["document_id"]).column(0).to_pylist() == [name] * 5
        assert (np.diff(rows) > 0).all()
    assert segment.rows_of_document("doc40").tolist() == []
    [plain] = open_index(_plain(tmp_path), "t", cache=SegmentCache(tmp_path / "cache")).segments
    assert plain.rows_of_document("d7").tolist() == [plain.row_of("d7")]


def _plain(folder: Path) -> Store:
    store = Store.open(folder / "plain", create=True)
    publish(store, SPEC, datapoints(SPEC, clustered(20, 4)), folder, shards=1)
    return store


@pytest.mark.system
def test_hits_are_found_beyond_deleted_ones(tmp_path: Path):
    spec = parse_spec({"index": "t", "source": {"vector": "v"}, "scann": {"exact_below_rows": 1000}})
    vectors_ND = clustered(3000, 8)
    store = Store.open(tmp_path / "store", create=True)
    publish(store, spec, datapoints(spec, vectors_ND), tmp_path)
    segment = opened(store, tmp_path).segments[0]
    query_1D = segment.vectors([5])
    nearest_R = segment.search(query_1D, 200)[0][0]
    others_R = np.setdiff1d(np.arange(0, 3000, 60), nearest_R)
    for dead, plan in ((others_R, "scann_allowed"), (nearest_R, "leaves exact_allowed scann_allowed")):
        remove(store, dead.tolist())
        [alive] = opened(store, tmp_path).alive
        assert alive is not None
        found = segment.find(query_1D, 10, settings=segment.settings_for(0.95), allowed=alive)
        right = segment.find(query_1D, 10, allowed=alive)
        assert found.plans[0] in plan
        assert alive.mask_N[found.rows_QK].all()
        assert len(set(found.rows_QK[0].tolist())) == 10
        assert (found.scores_QK[0] >= right.scores_QK[0, -1] - 1e-5).sum() >= 9
    assert alive is not None
    nobody = segment.allow(np.arange(3000) > 2996)
    assert (
        segment.find(query_1D, 10, settings=segment.settings_for(0.95), allowed=nobody).rows_QK[0, 3:] == -1
    ).all()
    all_QK = segment.find(query_1D, 3000, settings=segment.settings_for(0.95), allowed=alive).rows_QK
    assert np.count_nonzero(all_QK >= 0) == alive.count


@pytest.mark.system
@given(st.sets(st.integers(0, 99), max_size=99))
def test_any_rows_come_back(tmp_path_factory: pytest.TempPathFactory, rows: set[int]):
    store = Store.open(tmp_path_factory.mktemp("any"), create=True)
    digest = "0" * 64
    entry = SegmentEntry(
        key=f"segments/{digest}.parquet", shard=0, rows=100, size_bytes=1, sha256=digest, kind="exact"
    )
    made = with_deleted(store, "t", entry, list(rows))
    assert read_deleted(store, "t", made).tolist() == sorted(rows)
    assert made.live_rows == 100 - len(rows)


@pytest.mark.system
def test_statistics_of_words_are_those_of_live_rows(tmp_path: Path):
    spec = parse_spec({"index": "t", "source": {"vector": "v", "text": "text"}, "lexical": True})
    texts = ["red fox", "red hen and a red cow", "blue whale", None]
    table = datapoints(spec, clustered(4, 4), columns={"text": texts})
    store = Store.open(tmp_path / "store", create=True)
    publish(store, spec, table, tmp_path)
    remove(store, [1])
    index = opened(store, tmp_path)
    postings = index.segments[0].postings
    assert postings is not None
    corpus = corpus_statistics([postings], ["red", "whale", "hen"], index.alive)
    kept = [texts[row] for row in (0, 2)]
    alone = Store.open(tmp_path / "alone", create=True)
    publish(alone, spec, datapoints(spec, clustered(2, 4), columns={"text": kept}), tmp_path)
    [other] = open_index(alone, "t", cache=SegmentCache(tmp_path / "cache")).segments
    assert other.postings is not None
    assert corpus == corpus_statistics([other.postings], ["red", "whale", "hen"])
