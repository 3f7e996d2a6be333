"""One score for a row and a query, to the last bit, whichever kernel computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.indexer import Distance, exact_search
from scannery.indexer.kernels import row_kernels
from scannery.indexer.kernels.row_kernels import CHAINS, NARROW, WIDE
from scannery.indexer.vectors import exact_search as exact
from scannery.indexer.vectors.exact_search import BY_ROW
from scannery.indexer.vectors.quantized_vectors import NOT_QUANTIZED

DISTANCES: list[Distance] = ["dot", "squared_l2"]


def in_order(row_D: np.ndarray, query_D: np.ndarray, distance: Distance) -> np.float32:
    """Return the score by the order of additions that scoring.py promises, in NumPy's float32."""
    terms_D = -np.square(row_D - query_D) if distance == "squared_l2" else row_D * query_D
    done, sums = 0, []
    for width, chains in ((WIDE, CHAINS), (WIDE, 1), (NARROW, 1), (1, 1)):
        chained = np.zeros((chains, width), np.float32)
        while len(terms_D) - done >= width * chains:
            chained += terms_D[done : done + width * chains].reshape(chains, width)
            done += width * chains
        sums.append(chained)
    total = (sums[0][0] + sums[0][1]) + sums[1][0]
    for width, own in ((NARROW, sums[2][0]), (1, sums[3][0])):
        while len(total) > width:
            total = total[: len(total) // 2] + total[len(total) // 2 :]
        total = total + own
    return np.float32(total[0])


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("dimensions", [1, 3, 4, 7, 15, 16, 33, 64, 100, 384, 1027])
def test_additions_come_in_the_order_that_is_written_down(dimensions: int, distance: Distance) -> None:
    vectors_ND = np.random.default_rng(dimensions).standard_normal((50, dimensions)).astype(np.float32)
    vectors_ND.setflags(write=False)
    query_D, scores_N = vectors_ND[7] + np.float32(0.1), np.empty(50, np.float32)
    row_kernels.score_rows(
        vectors_ND, NOT_QUANTIZED, np.arange(50), query_D, distance == "squared_l2", scores_N
    )
    expected = [in_order(row_D, query_D, distance) for row_D in vectors_ND]
    assert scores_N.tobytes() == np.array(expected, np.float32).tobytes()


def every_row(vectors_ND: np.ndarray, query_D: np.ndarray, distance: Distance) -> np.ndarray:
    scores_N = np.empty(len(vectors_ND), np.float32)
    rows_N = np.arange(len(vectors_ND))
    row_kernels.score_rows(vectors_ND, NOT_QUANTIZED, rows_N, query_D, distance == "squared_l2", scores_N)
    return scores_N


def ranked(scores_N: np.ndarray, ranks_N: np.ndarray, k: int, allowed: Any) -> tuple[list[int], list[float]]:
    rows = np.arange(len(scores_N)) if allowed is None else np.flatnonzero(allowed)
    order = rows[np.lexsort((ranks_N[rows], -scores_N[rows]))][:k]
    return order.tolist(), scores_N[order].tolist()


@pytest.mark.system
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 400),
    dimensions=st.sampled_from([1, 2, 5, 17, 40]),
    queries=st.sampled_from([1, 3, 8, 20]),
    k=st.sampled_from([1, 2, 10, 60, 101, 500]),
    distance=st.sampled_from(["cosine", "dot", "squared_l2"]),
    scale=st.sampled_from([1e-25, 1e-5, 1.0, 1e15]),
    offset=st.sampled_from([0.0, 1.0, 1e4]),
    grid=st.booleans(),
    filtered=st.booleans(),
    block=st.sampled_from([7, 50, 1 << 14]),
)
def test_batches_and_single_queries_have_the_same_rows_and_bits(
    seed, rows, dimensions, queries, k, distance, scale, offset, grid, filtered, block
):
    rng = np.random.default_rng(seed)
    drawn = rng.integers(-1, 2, (rows, dimensions)) if grid else rng.standard_normal((rows, dimensions))
    drawn[rng.integers(0, rows, rows // 2)] = drawn[0]  # equal vectors
    vectors_ND = (scale * (drawn + offset)).astype(np.float32)
    queries_QD = (scale * (rng.standard_normal((queries, dimensions)) + offset)).astype(np.float32)
    queries_QD[0] = vectors_ND[0]
    if distance == "cosine":
        vectors_ND, queries_QD = exact.unit_length(vectors_ND), exact.unit_length(queries_QD)
    vectors_ND.setflags(write=False)
    ranks_N = rng.permutation(rows).astype(np.int32)
    ranks_N.setflags(write=False)
    allowed = rng.random(rows) < 0.5 if filtered else None
    if allowed is not None:
        allowed.setflags(write=False)
    kept = exact.BLOCK_ROWS, exact.MANY_BETTER
    exact.BLOCK_ROWS, exact.MANY_BETTER = block, 3
    try:
        found_QK, scores_QK = exact_search(vectors_ND, queries_QD, k, distance, allowed, ranks_N)
    finally:
        exact.BLOCK_ROWS, exact.MANY_BETTER = kept
    for query_D, rows_K, scores_K in zip(queries_QD, found_QK, scores_QK, strict=True):
        expected = ranked(every_row(vectors_ND, query_D, distance), ranks_N, k, allowed)
        count = len(expected[0])
        assert (rows_K[:count].tolist(), scores_K[:count].tolist()) == expected
        assert (rows_K[count:] == exact.NO_ROW).all()
        assert np.isneginf(scores_K[count:]).all()


@pytest.mark.system
def test_without_ranks_equal_scores_come_by_row() -> None:
    vectors_ND = np.ones((40, 3), np.float32)
    for queries in (1, 9):
        for k in (1, 7, 40, 200):
            rows_QK, _ = exact_search(vectors_ND, np.ones((queries, 3), np.float32), k, "dot")
            assert all(rows.tolist()[:40] == list(range(40))[:k] for rows in rows_QK)
    assert not len(BY_ROW.ranks_N)
