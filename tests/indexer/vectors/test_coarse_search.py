"""Search by way of a copy in bytes finds what a scan of the vectors finds, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.indexer import exact_search, unit_length
from scannery.indexer.vectors.coarse_search import CoarseRows

NO_RANKS = np.empty(0, np.int64)


def check(vectors_ND: np.ndarray, queries_QD: np.ndarray, k: int, ranks_N: np.ndarray = NO_RANKS) -> None:
    expected = exact_search(vectors_ND, queries_QD, k, "cosine", ranks_N=ranks_N)
    for most in (len(vectors_ND), len(vectors_ND) // 8, 0):
        coarse = CoarseRows(vectors_ND, ranks_N)
        coarse._limit = most
        for got, wanted in zip(coarse.search(queries_QD, k), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.system
@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 300),
    dimensions=st.sampled_from([1, 3, 16, 40, 130]),
    k=st.sampled_from([1, 2, 10, 100]),
    spread=st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 10.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_finds_what_a_scan_finds(rows: int, dimensions: int, k: int, spread: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    # Near each other: the bounds decide nothing, and scores tie.
    middle_D = generator.standard_normal(dimensions)
    vectors_ND = unit_length(
        (middle_D + spread * generator.standard_normal((rows, dimensions))).astype(np.float32)
    )
    vectors_ND[generator.random(rows) < 0.1] = 0
    # One component outweighs the others, which their bytes then hardly tell apart.
    vectors_ND[generator.random(rows) < 0.1, 0] = 1
    queries_QD = unit_length(generator.standard_normal((3, dimensions)).astype(np.float32))
    queries_QD[1], queries_QD[2] = vectors_ND[0], 0
    check(vectors_ND, queries_QD, k)


def test_equal_scores_come_by_rank() -> None:
    vectors_ND = np.repeat(unit_length(np.random.default_rng(0).standard_normal((30, 8), np.float32)), 10, 0)
    ranks_N = np.random.default_rng(1).permutation(300).astype(np.int64)
    check(vectors_ND, vectors_ND[[5, 200]], 15, ranks_N)


def test_few_rows_are_scored_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors_ND = unit_length(np.random.default_rng(0).standard_normal((2000, 64), np.float32))
    coarse = CoarseRows(vectors_ND, NO_RANKS)
    spoilt_ND = np.full_like(vectors_ND, np.nan)
    query_1D = vectors_ND[7:8]
    scores_N = vectors_ND @ query_1D[0]
    near_N = np.flatnonzero(scores_N > np.sort(scores_N)[-10] - 0.1)
    spoilt_ND[near_N] = vectors_ND[near_N]
    monkeypatch.setattr(coarse, "_vectors_ND", spoilt_ND)
    assert len(near_N) < 200
    np.testing.assert_array_equal(
        coarse.search(query_1D, 10)[0], exact_search(vectors_ND, query_1D, 10, "cosine")[0]
    )


def test_a_cluster_near_the_query_is_scanned_without_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    near_ND = np.full(32, 1, np.float32) + generator.standard_normal((2000, 32), np.float32) * np.float32(
        1e-3
    )
    near_ND = unit_length(near_ND)
    coarse, far_1D = CoarseRows(near_ND, NO_RANKS), unit_length(generator.standard_normal((1, 32)))
    nearest = coarse._nearest
    calls: list[int] = []

    def counted(*arguments: object) -> bool:
        calls.append(len(calls))
        return nearest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(coarse, "_nearest", counted)
    for _ in range(64):
        for got, wanted in zip(
            coarse.search(far_1D, 10), exact_search(near_ND, far_1D, 10, "cosine"), strict=True
        ):
            np.testing.assert_array_equal(got, wanted)
    # The copy is tried again now and then: other queries may be far from the cluster.
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("rows", "dimensions", "fits"),
    [(255, 16, False), (256, 16, True), (256, 15, False), (1 << 14, 1 << 10, True), (1 << 14, 1025, False)],
)
def test_a_copy_is_made_where_it_is_worth_its_memory(rows: int, dimensions: int, *, fits: bool) -> None:
    assert CoarseRows.fits(rows, dimensions) == fits
