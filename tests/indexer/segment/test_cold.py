"""Cold segments: they answer as those whose vectors are unpacked, from few reads, and damage never passes."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import (
    ColdReads,
    CorruptError,
    IndexSpec,
    OpenIndex,
    Segment,
    SegmentCache,
    Store,
    StoreError,
    open_index,
    parse_spec,
)
from scannery.indexer.reader import open_manifest
from scannery.indexer.segment import segment_writer
from scannery.indexer.segment.cold import cold_vectors
from scannery.indexer.tuning.settings_choice import recall_by_score
from tests.data import clustered, datapoints, first_quick, publish
from tests.object_server import ObjectServer, object_server

ROWS, DIMENSIONS = 6_000, 32
PAGE_BYTES = 1 << 12
"""Of the segments here: 32 rows, so that a leaf has several pages, as in large segments."""
VECTOR_BYTES = ROWS * DIMENSIONS * 4


@dataclass(frozen=True)
class Built:
    store: Store
    spec: IndexSpec
    cache: Path

    def warm(self) -> Segment:
        return open_index(self.store, "t", cache=SegmentCache(self.cache)).segments[0]

    def cold(self, **options: object) -> Segment:
        return self.cold_index(**options).segments[0]

    def cold_index(self, **options: object) -> OpenIndex:
        reads = ColdReads(**options)  # type: ignore[arg-type]
        return open_index(self.store, "t", cache=SegmentCache(self.cache), cold=reads)


def spec_for(distance: str) -> IndexSpec:
    return parse_spec(
        {
            "index": "t",
            "source": {"id": "id", "vector": "v"},
            "distance": "cosine" if distance == "soar" else distance,
            "scann": {"exact_below_rows": 1_000, "soar": distance == "soar"},
            "attributes": {"part": "int"},
        }
    )


def vectors_for(distance: str) -> np.ndarray:
    vectors_ND = clustered(ROWS, DIMENSIONS, seed=3)
    vectors_ND[5::700] = vectors_ND[4]  # equal scores, which must come out by id
    return vectors_ND * (
        1 if distance == "squared_l2" else np.linspace(0.5, 2, ROWS, dtype=np.float32)[:, None]
    )


def queries(count: int) -> np.ndarray:
    return clustered(ROWS + 200, DIMENSIONS, seed=3)[ROWS : ROWS + count]


@pytest.fixture(scope="module", params=first_quick(["cosine", "soar", "dot", "squared_l2"], 2))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder, spec = tmp_path_factory.mktemp("cold"), spec_for(request.param)
    table = datapoints(spec, vectors_for(request.param), columns={"part": list(range(ROWS))})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_writer, "PAGE_BYTES", PAGE_BYTES)
        store = Store.open(folder / "store", create=True)
        publish(store, spec, table, folder)
        yield Built(store, spec, folder / "cache")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder, spec = tmp_path_factory.mktemp("one"), spec_for("squared_l2")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_writer, "PAGE_BYTES", PAGE_BYTES)
        store = Store.open(folder / "store", create=True)
        publish(store, spec, datapoints(spec, vectors_for("squared_l2")), folder)
        yield Built(store, spec, folder / "cache")


@pytest.fixture
def bucket(
    one: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ObjectServer, Built]]:
    """The same index in a bucket, with a cache of its own."""
    with object_server(monkeypatch) as server:
        root = one.store.local_root
        assert root is not None
        for path in root.rglob("*"):
            if path.is_file():
                server.objects[f"/bucket/store/{path.relative_to(root).as_posix()}"] = path.read_bytes()
        yield server, Built(Store.open("s3://bucket/store"), one.spec, tmp_path / "cache")


def segment_reads(server: ObjectServer) -> list[int]:
    return [size for method, path, size in server.requests if method == "GET" and "/segments/" in path]


@pytest.mark.system
def test_exact_search_is_that_of_an_unpacked_segment(built: Built):
    warm, cold = built.warm(), built.cold()
    assert cold.is_cold
    assert not warm.is_cold
    for count, k in ((1, 10), (3, 150), (20, 10), (2, ROWS)):
        wanted, found = warm.find(queries(count), k), cold.find(queries(count), k)
        np.testing.assert_array_equal(found.rows_QK, wanted.rows_QK)
        np.testing.assert_array_equal(found.scores_QK, wanted.scores_QK)
        assert found.plans == wanted.plans


@pytest.mark.system
@pytest.mark.parametrize("share", [0.9, 0.3, 0.02, 0.0005])
def test_exact_search_among_allowed_rows(built: Built, share: float):
    warm, cold = built.warm(), built.cold()
    mask_N = np.random.default_rng(0).random(ROWS) < share
    mask_N.setflags(write=False)
    wanted = warm.find(queries(12), 10, allowed=warm.allow(mask_N))
    found = cold.find(queries(12), 10, allowed=cold.allow(mask_N))
    np.testing.assert_array_equal(found.rows_QK, wanted.rows_QK)
    np.testing.assert_array_equal(found.scores_QK, wanted.scores_QK)


@pytest.mark.system
@pytest.mark.parametrize("target", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01])
def test_recall_reaches_the_target(built: Built, target: float, share: float):
    warm, cold = built.warm(), built.cold()
    mask_N = np.random.default_rng(1).random(ROWS) < share
    mask_N.setflags(write=False)
    allowed = None if share == 1 else mask_N
    asked_QD = queries(200)
    true = warm.find(asked_QD, 10, allowed=None if allowed is None else warm.allow(allowed))
    settings = cold.settings_for(target)
    rows = None if allowed is None else cold.allow(allowed)
    found = [
        cold.find(query_D[None], 10, settings=settings, allowed=rows, target_recall=target).scores_QK[0]
        for query_D in asked_QD
    ]
    recall_Q = recall_by_score(np.array(found), true.scores_QK)
    error = float(recall_Q.std()) / math.sqrt(len(recall_Q))  # no two builds are the same
    assert recall_Q.mean() >= target - 0.01 - 2 * error


@pytest.mark.system
def test_a_page_of_two_rounds_is_scored_once(built: Built):
    cold = built.cold()
    settings = cold.settings_for(0.95)
    assert settings is not None
    one_leaf = replace(settings, leaves=1, depths=(), growth=0.0)  # so that there are several rounds
    found = [cold.find(query_D[None], 20, settings=one_leaf) for query_D in queries(50)]
    assert max(each.leaves_Q[0] for each in found) > 2
    assert all(len(set(each.rows_QK[0].tolist())) == 20 for each in found)


@pytest.mark.system
def test_a_batch_finds_as_much_as_single_queries(built: Built):
    warm, cold = built.warm(), built.cold()
    settings, asked_QD = cold.settings_for(0.9), queries(100)
    true = warm.find(asked_QD, 10).scores_QK
    batch = cold.find(asked_QD, 10, settings=settings, target_recall=0.9).scores_QK
    single = [
        cold.find(query_D[None], 10, settings=settings, target_recall=0.9).scores_QK[0]
        for query_D in asked_QD
    ]
    # Single rows may be missed: those found in leaves of other queries can end the search of a query sooner.
    assert recall_by_score(batch, true).mean() >= recall_by_score(np.array(single), true).mean() - 0.01


@pytest.mark.system
def test_vectors_of_rows(built: Built):
    warm, cold = built.warm(), built.cold()
    rows_R = np.array([17, 3, ROWS - 1, 3, 0])
    np.testing.assert_array_equal(cold.vectors(rows_R), warm.vectors(rows_R))
    np.testing.assert_array_equal(cold.searched(rows_R), warm.searched(rows_R))
    np.testing.assert_array_equal(
        cold.scores_of(rows_R, queries(1)[0]), warm.scores_of(rows_R, queries(1)[0])
    )
    assert cold.vectors([]).shape == (0, DIMENSIONS)
    assert cold.is_scaled == warm.is_scaled
    np.testing.assert_array_equal(
        cold.search_given(queries(2), 5, None)[0], warm.search_given(queries(2), 5, None)[0]
    )
    assert cold.table.equals(warm.table)
    assert [cold.row_of(name) for name in ("d7", "none")] == [warm.row_of(name) for name in ("d7", "none")]


def test_knobs_are_the_leaves_that_are_read(built: Built):
    cold = built.cold()
    settings = cold.settings_for(0.9)
    assert settings is not None
    found = cold.find(queries(1), 10, settings=replace(settings, leaves=3, recall=0.0, depths=()))
    assert found.leaves_Q.tolist() == [3]


@pytest.mark.system
def test_a_search_reads_few_bytes_and_opening_reads_no_vectors(bucket: tuple[ObjectServer, Built]):
    server, built = bucket
    cold = built.cold(max_bytes=0)
    size = cold.entry.size_bytes
    assert sum(segment_reads(server)) < size - VECTOR_BYTES // 2
    searches = []
    for query_D in queries(7):
        server.requests.clear()
        found = cold.find(query_D[None], 10, settings=cold.settings_for(0.9), target_recall=0.9)
        reads, leaves = segment_reads(server), int(found.leaves_Q[0])
        assert 0 < len(reads) <= leaves + 1  # one range a leaf, and another one where a row group ends
        rows_per_leaf = ROWS / cold.tree_leaves
        assert sum(reads) < 4 * leaves * (rows_per_leaf + 32) * DIMENSIONS * 4
        searches.append(sum(reads))
    assert np.median(searches) < size / 4
    folders = [path for path in built.cache.rglob("*") if path.is_file()]
    assert not [path for path in folders if path.name == "vectors.npy"]
    assert sum(path.stat().st_size for path in folders) < VECTOR_BYTES


@pytest.mark.system
def test_few_allowed_rows_are_read_alone(bucket: tuple[ObjectServer, Built]):
    server, built = bucket
    cold = built.cold(max_bytes=0)
    server.requests.clear()
    rows_R = np.array([11, 12, 4_000])
    found = cold.find(queries(1), 10, settings=cold.settings_for(0.9), allowed=cold.allow(rows_R))
    assert sorted(found.rows_QK[0, :3].tolist()) == rows_R.tolist()
    assert found.rows_QK[0, 3:].tolist() == [-1] * 7
    assert found.plans == ["exact_allowed"]
    assert sum(segment_reads(server)) < 4 * PAGE_BYTES


@pytest.mark.system
def test_kept_pages_are_bounded_and_asked_for_once(bucket: tuple[ObjectServer, Built]):
    server, built = bucket
    cold = built.cold(max_bytes=64 << 20)
    settings = cold.settings_for(0.9)
    server.requests.clear()
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda _: cold.find(queries(1), 10, settings=settings).rows_QK.tolist(), range(16))
        )
    assert all(each == found[0] for each in found)
    once = segment_reads(server)
    server.requests.clear()
    cold.find(queries(1), 10, settings=settings)
    assert segment_reads(server) == []
    alone = built.cold(max_bytes=0)
    alone.find(queries(1), 10, settings=settings)
    assert sum(segment_reads(server)) == sum(once)


@pytest.mark.system
def test_an_exact_search_does_not_displace_kept_pages(bucket: tuple[ObjectServer, Built]):
    server, built = bucket
    cold = built.cold(max_bytes=VECTOR_BYTES // 2)
    settings = cold.settings_for(0.8)
    cold.find(queries(1), 1, settings=replace(settings, leaves=2, recall=0.0, depths=()))  # type: ignore[type-var]
    cold.find(queries(1), 10)
    server.requests.clear()
    cold.find(queries(1), 1, settings=replace(settings, leaves=2, recall=0.0, depths=()))  # type: ignore[type-var]
    assert segment_reads(server) == []


@pytest.mark.system
def test_damage_of_any_byte_is_an_error_or_changes_nothing(one: Built, tmp_path: Path):
    """Of the vectors: those of the end and of the columns are found when the segment is opened."""
    true = one.warm().find(queries(1), 10)
    [path] = (one.store.local_root / "t" / "segments").iterdir()  # type: ignore[operator]
    cold = one.cold(max_bytes=0)
    whole = path.read_bytes()
    pages = cold._unscaled.pages  # type: ignore[attr-defined]
    generator, caught = random.Random(5), 0
    try:
        for _ in range(120):
            page = generator.randrange(len(pages))
            # Half of the damage hits the headers, which have no checksum.
            within = min(int(pages.sizes_P[page]), 40 if generator.random() < 0.5 else 1 << 20)
            at = int(pages.offsets_P[page]) + generator.randrange(within)
            changed = bytearray(whole)
            changed[at] ^= 1 << generator.randrange(8)
            path.write_bytes(changed)
            try:
                found = cold.find(queries(1), 10)
            except CorruptError:
                caught += 1
            else:
                np.testing.assert_array_equal(found.rows_QK, true.rows_QK)
                np.testing.assert_array_equal(found.scores_QK, true.scores_QK)
        assert caught > 60
    finally:
        path.write_bytes(whole)
    np.testing.assert_array_equal(cold.find(queries(1), 10).rows_QK, true.rows_QK)


@pytest.mark.system
def test_a_damaged_end_is_an_error(one: Built, tmp_path: Path):
    [path] = (one.store.local_root / "t" / "segments").iterdir()  # type: ignore[operator]
    whole = path.read_bytes()
    tail = open_index(one.store, "t", cache=SegmentCache(one.cache)).manifest.segments[0].tail
    assert tail is not None
    try:
        for at in (tail.start, (tail.start + len(whole)) // 2, len(whole) - 1):
            changed = bytearray(whole)
            changed[at] ^= 1
            path.write_bytes(changed)
            with pytest.raises(CorruptError, match="damaged"):
                Built(one.store, one.spec, tmp_path / f"{at}").cold()
    finally:
        path.write_bytes(whole)


@pytest.mark.system
def test_a_file_of_an_earlier_release_is_unpacked(one: Built, caplog: pytest.LogCaptureFixture):
    manifest = one.cold_index().manifest
    old = manifest.model_copy(
        update={"segments": tuple(each.model_copy(update={"tail": None}) for each in manifest.segments)}
    )
    opened = open_manifest(one.store, old, cache=SegmentCache(one.cache), cold=ColdReads())
    assert not opened.segments[0].is_cold
    assert "of an earlier release" in caplog.text


@pytest.mark.system
def test_a_wait_ends_and_what_nobody_waits_for_is_not_read(
    bucket: tuple[ObjectServer, Built], monkeypatch: pytest.MonkeyPatch
):
    server, built = bucket
    monkeypatch.setattr(cold_vectors, "SPAN_BYTES", 32 * PAGE_BYTES)
    monkeypatch.setattr(cold_vectors, "PARALLEL_READS", 2)

    @contextmanager
    def impatient() -> Iterator[float]:
        try:
            yield 0.2
        except FutureTimeoutError as error:
            raise StoreError("it took too long") from error

    cold = built.cold(max_bytes=0, patience=impatient)
    server.bytes_per_s = 1e5  # 0.66 s for each request
    server.requests.clear()
    started_s = time.monotonic()
    with pytest.raises(StoreError, match="too long"):
        cold.find(queries(1), 10)
    assert time.monotonic() - started_s < 2
    server.bytes_per_s = None
    time.sleep(1.5)
    assert len(segment_reads(server)) <= 2 < VECTOR_BYTES / PAGE_BYTES / 32
    patient = built.cold(max_bytes=0)
    assert len(patient.find(queries(1), 10).rows_QK[0]) == 10


@pytest.mark.system
def test_an_error_of_the_store_reaches_every_search(
    bucket: tuple[ObjectServer, Built], monkeypatch: pytest.MonkeyPatch
):
    server, built = bucket
    cold = built.cold()
    for path in [path for path in server.objects if "/segments/" in path]:
        del server.objects[path]
    errors: list[str] = []

    def search() -> None:
        try:
            cold.find(queries(1), 10)
        except Exception as error:  # noqa: BLE001  counted
            errors.append(type(error).__name__)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == ["NotFoundError"] * 4


def test_a_small_segment_without_leaves_and_one_without_vectors(tmp_path: Path):
    spec = parse_spec({"index": "t", "source": {"id": "id", "vector": "v"}, "distance": "cosine"})
    vectors_ND = clustered(300, 8, seed=1) * 3
    store = Store.open(tmp_path / "store", create=True)
    publish(store, spec, datapoints(spec, vectors_ND), tmp_path)
    small = Built(store, spec, tmp_path / "cache")
    warm, cold = small.warm(), small.cold()
    assert cold.is_cold
    assert cold.settings_for(0.9) is None
    asked_QD = clustered(9, 8, seed=2)
    np.testing.assert_array_equal(cold.find(asked_QD, 400).rows_QK, warm.find(asked_QD, 400).rows_QK)
    np.testing.assert_array_equal(cold.search(asked_QD, 5)[1], warm.search(asked_QD, 5)[1])
