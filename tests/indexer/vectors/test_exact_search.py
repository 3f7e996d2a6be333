"""Exact search against an oracle that scores and sorts one row after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.indexer import Distance, exact_search, unit_length
from scannery.indexer.vectors import exact_search as exact


def oracle(vectors: np.ndarray, query: np.ndarray, k: int, distance: str, allowed: np.ndarray) -> list[int]:
    if distance == "squared_l2":
        scores = [-float(((v - query).astype(np.float64) ** 2).sum()) for v in vectors]
    else:
        scores = [float(v.astype(np.float64) @ query.astype(np.float64)) for v in vectors]
    rows = [row for row in range(len(vectors)) if allowed[row]]
    return sorted(rows, key=lambda row: (-scores[row], row))[:k]


@pytest.mark.system
@settings(max_examples=200)
@given(
    st.integers(0, 40),
    st.integers(1, 5),
    st.integers(1, 50),
    st.sampled_from(["cosine", "dot", "squared_l2"]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([3, 9]),
    st.sampled_from([(1 << 14, 256), (7, 256), (7, 2)]),
)
def test_it_finds_what_the_oracle_finds(rows, dimensions, k, distance: Distance, seed, count, sizes):
    generator = np.random.default_rng(seed)
    # Small integers: scores are exact in float32, and ties are common.
    vectors = generator.integers(-2, 3, (rows, dimensions)).astype(np.float32)
    queries = generator.integers(-2, 3, (count, dimensions)).astype(np.float32)
    allowed = generator.random(rows) < 0.6
    kept, (exact.BLOCK_ROWS, exact.MANY_BETTER) = (exact.BLOCK_ROWS, exact.MANY_BETTER), sizes
    try:
        found, scores = exact_search(vectors, queries, k, distance, allowed)
    finally:
        exact.BLOCK_ROWS, exact.MANY_BETTER = kept
    for query, rows_K, scores_K in zip(queries, found, scores, strict=True):
        expected = oracle(vectors, query, k, distance, allowed)
        # Which of several tied rows make the last places is free; their scores are not.
        assert (rows_K >= 0).sum() == len(expected)
        assert np.isneginf(scores_K[len(expected) :]).all()
        got = rows_K[: len(expected)].tolist()
        assert len(set(got)) == len(got)
        assert allowed[got].all()
        best = [scores_K[i] for i in range(len(expected))]
        true = exact_search(vectors[expected], query[None], max(len(expected), 1), distance)[1][0][
            : len(expected)
        ]
        np.testing.assert_array_equal(best, true)


def test_squared_l2_does_not_cancel():
    # Far from the origin the expansion of the square has an error larger than these distances.
    offsets = np.array([[0, 0], [0.25, 0], [0.5, 0]], np.float32)
    vectors = np.float32(1e4) + offsets
    rows, scores = exact_search(vectors, vectors[1:2], 3, "squared_l2")
    assert rows[0, 0] == 1
    np.testing.assert_allclose(scores[0], [0, -0.0625, -0.0625], rtol=1e-3)


def test_unit_length():
    vectors = np.array([[3, 4], [0, 0], [1e15, 1e15]], np.float32)
    expected = np.array([[0.6, 0.8], [0, 0], [2**-0.5, 2**-0.5]])
    np.testing.assert_allclose(unit_length(vectors), expected, rtol=1e-6)
    assert vectors[0, 0] == 3


@pytest.mark.parametrize("queries", [0, 300])
def test_any_number_of_queries(queries: int):
    rows, scores = exact_search(np.eye(4, dtype=np.float32), np.ones((queries, 4), np.float32), 2, "dot")
    assert rows.shape == scores.shape == (queries, 2)
