"""Segments that are searched by vectors in 8 bits a number answer as if their vectors were what these stand for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import ColdReads, Segment, SegmentCache, Store, exact_search, open_index, search_ready
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.compact_segment import CompactSegment
from tests.data import clustered, datapoints, first_quick, publish
from tests.indexer.segment.test_cold import Built, queries, spec_for, vectors_for

pytestmark = pytest.mark.system


def compact_of(built: Built) -> CompactSegment:
    index = open_index(built.store, "t", cache=SegmentCache(built.cache), cold=ColdReads(compact=True))
    [segment] = index.segments
    assert isinstance(segment, CompactSegment)
    return segment


@pytest.fixture(scope="module", params=first_quick(["cosine", "soar", "dot", "squared_l2"], 2))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder, spec = tmp_path_factory.mktemp("compact"), spec_for(request.param)
    vectors_ND = vectors_for(request.param)
    table = datapoints(spec, vectors_ND, columns={"part": list(range(len(vectors_ND)))})
    store = Store.open(folder / "store", create=True)
    publish(store, spec, table, folder)
    yield Built(store, spec, folder / "cache")


@pytest.fixture(scope="module")
def compact(built: Built) -> CompactSegment:
    return compact_of(built)


@pytest.fixture(scope="module")
def decoded_ND(compact: CompactSegment) -> np.ndarray:  # noqa: N802  an array with a shape suffix
    decoded_ND = compact.searched(np.arange(compact.rows))
    decoded_ND.setflags(write=False)
    return decoded_ND


def test_exact_search_is_that_of_what_the_vectors_stand_for(compact: CompactSegment, decoded_ND: np.ndarray):
    for count, k in ((1, 10), (3, 150), (20, 10), (2, compact.rows)):
        asked_QD = search_ready(queries(count), compact.distance)
        wanted = exact_search(decoded_ND, asked_QD, k, compact.distance, ranks_N=compact.ties.ranks_N)
        hits = compact.find(queries(count), k)
        np.testing.assert_array_equal(hits.rows_QK, wanted[0])
        np.testing.assert_array_equal(hits.scores_QK, wanted[1])


@pytest.mark.parametrize("share", [1.0, 0.5, 0.02])
def test_searches_reach_their_recall_of_the_full_vectors(
    built: Built, compact: CompactSegment, decoded_ND: np.ndarray, share: float
):
    warm, generator = built.warm(), np.random.default_rng(0)
    mask_N = generator.random(warm.rows) < share
    mask_N.setflags(write=False)
    allowed = (None, None) if share == 1 else (warm.allow(mask_N), compact.allow(mask_N))
    asked_QD = queries(150)
    true_QK = warm.find(asked_QD, 10, allowed=allowed[0]).scores_QK
    hits = compact.find(
        asked_QD, 10, settings=compact.settings_for(0.95), allowed=allowed[1], target_recall=0.95
    )
    full_QK = np.array([
        warm.scores_of(rows_K, query_D)
        for rows_K, query_D in zip(hits.rows_QK, search_ready(asked_QD, warm.distance), strict=True)
    ])  # fmt: skip
    assert (full_QK >= true_QK[:, -1:]).mean() >= 0.93
    assert (hits.recall_Q <= compact.kept_recall).all()
    for rows_K, scores_K, query_D in zip(
        hits.rows_QK, hits.scores_QK, search_ready(asked_QD, warm.distance), strict=True
    ):
        np.testing.assert_array_equal(compact.scores_of(rows_K, query_D), scores_K)


def test_what_it_loses_is_measured(built: Built, compact: CompactSegment):
    warm, asked_QD = built.warm(), queries(150)
    true_QK, rows_QK = warm.find(asked_QD, 10).rows_QK, compact.find(asked_QD, 10).rows_QK
    kept = np.mean([np.isin(true_K, rows_K).mean() for true_K, rows_K in zip(true_QK, rows_QK, strict=True)])
    assert compact.kept_recall == pytest.approx(kept, abs=0.03)
    assert 0.9 < compact.kept_recall <= 1


def test_vectors_are_those_that_were_given(built: Built, compact: CompactSegment):
    warm, rows = built.warm(), np.array([7, 5_999, 7, 0])
    np.testing.assert_array_equal(compact.vectors(rows), warm.vectors(rows))
    assert compact.is_scaled == warm.is_scaled
    if warm.is_scaled:
        for got, wanted in zip(
            compact.search_given(queries(2), 5, None), warm.search_given(queries(2), 5, None), strict=True
        ):
            np.testing.assert_array_equal(got, wanted)


def test_the_cache_has_no_full_vectors(built: Built, compact: CompactSegment):
    folders = [path for path in (built.cache / "segments").glob("*/*-compact") if path.is_dir()]
    assert len(folders) == 1
    assert not (folders[0] / files.VECTORS).exists()
    assert not (folders[0] / files.UNSCALED).exists()
    assert (folders[0] / files.QUANTIZED).stat().st_size < compact.rows * (compact.dimensions + 13)
    assert isinstance(compact_of(built), CompactSegment)  # again, from the cache


def test_a_damaged_copy_is_made_again(built: Built, compact: CompactSegment):
    [folder] = [path for path in (built.cache / "segments").glob("*/*-compact") if path.is_dir()]
    path = folder / files.QUANTIZED
    path.chmod(0o600)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + bytes(5))
    asked_QD = queries(3)
    again = compact_of(built)
    np.testing.assert_array_equal(again.find(asked_QD, 10).rows_QK, compact.find(asked_QD, 10).rows_QK)


def test_few_dimensions_stay_in_full(tmp_path: Path):
    spec = spec_for("dot")
    store = Store.open(tmp_path / "store", create=True)
    publish(store, spec, datapoints(spec, clustered(500, 8), columns={"part": list(range(500))}), tmp_path)
    [segment] = open_index(
        store, "t", cache=SegmentCache(tmp_path / "cache"), cold=ColdReads(compact=True)
    ).segments
    assert type(segment) is Segment
    assert len(segment.find(clustered(1, 8), 3).rows_QK[0]) == 3


def test_a_segment_that_would_lose_most_hits_stays_in_full(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    spec = spec_for("squared_l2")
    vectors_ND = 1000 + clustered(3000, 16)  # a step is 8 there, more than they are apart
    store = Store.open(tmp_path / "store", create=True)
    publish(store, spec, datapoints(spec, vectors_ND, columns={"part": list(range(3000))}), tmp_path)
    for _ in range(2):  # unpacked, and from the cache
        cold = ColdReads(compact=True)
        [segment] = open_index(store, "t", cache=SegmentCache(tmp_path / "cache"), cold=cold).segments
        assert type(segment) is Segment
        nearest_Q = segment.find(vectors_ND[:3], 1).rows_QK[:, 0]
        np.testing.assert_array_equal(segment.vectors(nearest_Q), vectors_ND[:3])
    assert "stays in full" in caplog.text
