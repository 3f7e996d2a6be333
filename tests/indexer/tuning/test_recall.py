"""Recall: how it is counted, what it is measured with, and which settings follow from it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from scannery.indexer import CurvePoint, SegmentEntry, exact_search
from scannery.indexer.kernels import leaf_kernels
from scannery.indexer.manifest import DepthCurve
from scannery.indexer.planning import plan_timing
from scannery.indexer.planning.leaves import measure_leaves
from scannery.indexer.tuning.held_out_queries import held_out_queries
from scannery.indexer.tuning.settings_choice import (
    Depth,
    SearchSettings,
    expected_recall,
    magnitudes,
    near,
    pick_settings,
    recall_by_score,
    score_to_reach,
)
from scannery.indexer.vectors.exact_search import unit_length
from scannery.indexer.vectors.quantized_vectors import ScoredVectors
from scannery.indexer.vectors.vector_files import far_middle
from tests.data import clustered

GENERATOR = np.random.default_rng(3)


@pytest.mark.system
@pytest.mark.parametrize("scale", [1e-12, 1e-5, 1.0, 1e9])
def test_recall_does_not_depend_on_the_scale_of_vectors(scale: float) -> None:
    vectors_ND, queries_QD = (
        clustered(2000, 8) * np.float32(scale),
        clustered(20, 8, seed=1) * np.float32(scale),
    )
    for distance in ("dot", "squared_l2"):
        _, true_QK = exact_search(vectors_ND, queries_QD, 10, distance)
        _, found_QK = exact_search(vectors_ND[::2].copy(), queries_QD, 10, distance)
        recalls_Q = recall_by_score(found_QK, true_QK, magnitudes(queries_QD, distance))
        assert 0.3 < recalls_Q.mean() < 0.7, "about half of the true hits are in half of the rows"
        assert (recall_by_score(true_QK, true_QK) == 1).all()


@pytest.mark.system
@pytest.mark.parametrize("dimensions", [64, 4096])
def test_equal_rows_count_as_found_whatever_the_order_of_the_sum(dimensions: int) -> None:
    """A matrix product and a kernel sum the same products in different orders, and sums may nearly cancel."""
    vectors_ND = GENERATOR.standard_normal((300, dimensions)).astype(np.float32)
    queries_QD = GENERATOR.standard_normal((40, dimensions)).astype(np.float32)
    for k in (10, 150):  # of 300, the 150th score is about 0
        rows_QK, product_QK = exact_search(vectors_ND, queries_QD, k, "dot")
        kernel_QK = np.concatenate([exact_search(vectors_ND, one[None], k, "dot")[1] for one in queries_QD])
        lengths_Q = np.linalg.norm(vectors_ND[rows_QK[:, -1]], axis=1)
        for one_QK, other_QK in ((product_QK, kernel_QK), (kernel_QK, product_QK)):
            assert (recall_by_score(one_QK, other_QK, magnitudes(queries_QD, "dot", lengths_Q)) == 1).all()


def test_where_there_are_fewer_hits_than_wanted_any_will_do() -> None:
    assert score_to_reach(np.array([[1.0, -np.inf]]))[0, 0] == -np.inf


@pytest.mark.parametrize("offset", [0.0, 100.0, 3000.0])
def test_queries_near_vectors_are_near_them_wherever_these_lie(offset: float) -> None:
    vectors_ND = (offset + GENERATOR.standard_normal((200, 32))).astype(np.float32)
    queries_QD = near(vectors_ND, np.random.default_rng(0))
    moved_Q = np.linalg.norm(queries_QD - vectors_ND, axis=1)
    np.testing.assert_allclose(np.median(moved_Q), 0.3 * np.sqrt(32), rtol=0.1)


def test_queries_near_vectors_of_any_length_keep_to_the_length_of_each() -> None:
    vectors_ND = unit_length(GENERATOR.standard_normal((200, 16))) * np.geomspace(1e-6, 1e6, 200)[:, None]
    moved_Q = np.linalg.norm(near(vectors_ND, GENERATOR) - vectors_ND, axis=1)
    assert (moved_Q <= 0.301 * np.linalg.norm(vectors_ND, axis=1)).all()


def test_the_middle_counts_only_where_it_is_far() -> None:
    vectors_ND = clustered(500, 8)
    assert far_middle(lambda: [vectors_ND]) is None
    middle_D = far_middle(lambda: [vectors_ND[:200] + 50, vectors_ND[200:] + 50])
    assert middle_D is not None
    np.testing.assert_allclose(middle_D, (vectors_ND + 50).mean(axis=0), rtol=1e-5)


def test_zero_vectors_are_no_queries() -> None:
    vectors_ND = clustered(1000, 8)
    vectors_ND[50:] = 0
    held_out = held_out_queries(vectors_ND, "dot", seed=0)
    for kind in held_out.kinds:
        assert len(kind.queries_QD) == 50
        assert kind.queries_QD.any(axis=1).all()
    assert len(held_out_queries(np.zeros((30, 4), np.float32), "dot", seed=0).alike.queries_QD) == 30


def point(leaves: int, rescore: int, recall: float) -> CurvePoint:
    return CurvePoint(leaves=leaves, rescore=rescore, recall=recall, error=0.001, query_us=1.0)


def entry_of(curve: tuple[CurvePoint, ...], **curves: tuple[CurvePoint, ...]) -> SegmentEntry:
    return SegmentEntry(
        key=f"segments/{'0' * 64}.parquet",
        shard=0,
        rows=100_000,
        size_bytes=1,
        sha256="0" * 64,
        kind="scann",
        curve=curve,
        depth_curves=tuple(
            DepthCurve(k=int(name.removeprefix("k")), curve=each) for name, each in curves.items()
        ),
    )


MEASURED = entry_of(
    (point(5, 20, 0.8), point(10, 40, 0.96)),
    k1=(point(5, 20, 0.97),),
    k100=(point(20, 200, 0.9), point(40, 300, 0.96)),
    k1000=(point(160, 2000, 0.96),),
)


def test_settings_follow_the_number_of_hits() -> None:
    settings = pick_settings(MEASURED, 0.95)
    assert settings is not None
    measured = [(settings.leaves_for(k), settings.rescored_for(k)) for k in (1, 10, 100, 1000)]
    assert measured == [(10, 40), (10, 40), (40, 300), (160, 2000)]
    for less, more in (
        (1, 5),
        (10, 11),
        (11, 30),
        (30, 99),
        (99, 100),
        (100, 500),
        (999, 1000),
        (1000, 3000),
    ):
        assert settings.leaves_for(less) <= settings.leaves_for(more)
        assert more <= settings.rescored_for(more) >= settings.rescored_for(less)
    assert settings.rescored_for(3000) == 6000
    assert all(settings.reaches(k) for k in (1, 10, 1000, 10_000))


def test_where_no_setting_reaches_the_target_the_search_is_exact() -> None:
    assert pick_settings(MEASURED, 0.97) is None
    closest = pick_settings(MEASURED, 0.97, anyway=True)
    assert closest is not None
    assert (closest.leaves_for(10), closest.leaves_for(1000)) == (10, 160)
    no_many = pick_settings(MEASURED.model_copy(update={"curve": (point(10, 40, 0.999),)}), 0.975)
    assert no_many is not None
    assert [no_many.reaches(k) for k in (1, 9, 10, 11, 100)] == [False, False, True, False, False]
    recall = expected_recall([MEASURED], 0.97)
    assert (recall.measured, recall.whole, recall.reached) == (1.0, 1.0, False)
    assert expected_recall([MEASURED], 0.95).measured == 0.96
    # No search by vector finds rows without vectors, so they do not raise it.
    bare = MEASURED.model_copy(update={"kind": "exact", "curve": (), "depth_curves": (), "vectors": False})
    assert expected_recall([MEASURED, bare], 0.95).measured == 0.96


def test_segments_of_earlier_versions_search_more_leaves_for_more_hits() -> None:
    settings = pick_settings(entry_of((point(10, 40, 0.96),)), 0.95)
    assert settings is not None
    assert (settings.leaves_for(1), settings.leaves_for(10), settings.rescored_for(1000)) == (10, 10, 4000)
    assert settings.leaves_for(1000) >= 100
    # What a caller sets stands.
    assert SearchSettings(leaves=7, rescore=50).at(100) == Depth(k=100, leaves=7, rescore=500, recall=0.0)


@pytest.mark.parametrize("spreads", [-np.inf, -1e30, -3.0, 0.0, 2.9, 7e16, 1e30, np.inf, np.nan])
def test_no_score_is_outside_of_a_tail(spreads: float) -> None:
    assert 0 <= leaf_kernels._step(np.float32(spreads), 512) < 512


@pytest.mark.system
def test_leaves_far_from_the_origin_predict_what_they_do_at_it() -> None:
    vectors_ND = clustered(2000, 16)
    leaf_N = np.sort(GENERATOR.integers(0, 20, 2000))
    queries_QD = clustered(12, 16, seed=5)
    near_by = measure_leaves(vectors_ND, leaf_N, "squared_l2", seed=0).predict(queries_QD, "squared_l2")
    far_out = measure_leaves(vectors_ND + 1000, leaf_N, "squared_l2", seed=0)
    for some in (slice(None), slice(0, 1)):
        _, scores_QL, spreads_QL = far_out.predict(queries_QD[some] + 1000, "squared_l2")
        np.testing.assert_allclose(scores_QL, near_by[1][some], rtol=0.01)
        np.testing.assert_allclose(spreads_QL, near_by[2][some], rtol=0.01)


def test_a_scan_is_timed_with_rows_that_no_scan_before_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors_ND = clustered(40_000, 4)
    seen: list[np.ndarray] = []

    def search(
        vectors: ScoredVectors, queries_QD: np.ndarray, k: int, distance: str, rows_R: np.ndarray
    ) -> None:
        seen.append(rows_R)

    monkeypatch.setattr(plan_timing, "exact_search", search)
    scored = plan_timing._ScoringTimer(ScoredVectors(vectors_ND), np.random.default_rng(0))
    cold = [scored._single, scored._few, scored._many]
    plan_timing.Clock().run(cold)
    assert len(seen) == plan_timing.TIMED_ROUNDS * len(cold)
    for one, other in itertools.pairwise(seen):
        assert not set(one.tolist()) & set(other.tolist())
        assert (np.diff(one) > 0).all()


def test_manifests_keep_the_curves_of_all_numbers_of_hits() -> None:
    assert SegmentEntry.model_validate_json(MEASURED.model_dump_json()) == MEASURED
