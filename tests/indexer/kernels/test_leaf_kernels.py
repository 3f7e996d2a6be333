import numpy as np
import pytest

from scannery.indexer.kernels import leaf_kernels
from scannery.indexer.vectors.quantized_vectors import NOT_QUANTIZED, quantized
from scannery.indexer.vectors.row_test import ALL_ROWS, NO_MASK, NO_NUMBERS, RowTest

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("leaves", [1, 2, 3, 16, 490, 1414])
@pytest.mark.parametrize("kind", ["even", "tied", "outlier", "infinite", "negative"])
def test_leaves_are_ordered_by_prediction_then_number(leaves: int, kind: str) -> None:
    predicted_L = GENERATOR.standard_normal(leaves).astype(np.float32)
    if kind == "tied":
        predicted_L = np.round(predicted_L)
    elif kind == "outlier":
        predicted_L[0] = 1e9
    elif kind == "infinite":
        predicted_L[-1] = -np.inf
    elif kind == "negative":
        predicted_L = -np.abs(predicted_L) - 1000
    order_L = np.empty(leaves, np.int64)
    leaf_kernels.order_leaves(predicted_L, order_L)
    assert sorted(order_L) == list(range(leaves))
    steps = predicted_L[order_L]
    if kind in {"even", "negative"} and leaves > 1:
        step = (predicted_L.max() - predicted_L.min()) / (leaves - 1)
        assert (np.diff(steps) <= 1.01 * step).all()
    leaf_kernels.sort_leaves(predicted_L, order_L, 0, leaves)
    np.testing.assert_array_equal(order_L, np.argsort(-predicted_L, kind="stable"))


@pytest.mark.system
@pytest.mark.parametrize("share", [1.0, 0.5, 0.05])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("has_quantized", [False, True])
def test_rows_by_number_by_mask_and_by_position_give_the_same_hits(
    share: float, *, squared: bool, has_quantized: bool
) -> None:
    rows, leaves, dimensions, k = 600, 20, 8, 10
    vectors_ND = GENERATOR.standard_normal((rows, dimensions)).astype(np.float32)
    quantized_NB = quantized(vectors_ND) if has_quantized else NOT_QUANTIZED
    query_D = vectors_ND[5] + np.float32(0.1)
    starts_L = np.arange(leaves) * (rows // leaves)
    sizes_L = np.full(leaves, rows // leaves)
    mask_N = GENERATOR.random(rows) < share
    mask_N[:30] = True  # a leaf of which all are allowed
    mask_N[30:60] = False  # and one of which none is
    allowed_L = np.add.reduceat(mask_N, starts_L, dtype=np.int64)
    before_L = np.cumsum(allowed_L) - allowed_L
    predicted_L, spread_L = np.zeros(leaves, np.float32), np.ones(leaves, np.float32)
    tails_BT = np.ones((leaves.bit_length() + 1, 512), np.float32)
    found = []
    # The allowed rows at a range of positions of an order, and those of a mask at any position.
    allowed_R = GENERATOR.permutation(np.flatnonzero(mask_N))
    positions_N = np.full(rows, -1, np.int32)
    positions_N[allowed_R] = np.arange(len(allowed_R), dtype=np.int32) + 7
    range_of_positions = (7, 7 + len(allowed_R))
    everywhere_N = np.arange(rows, dtype=np.int32)
    for test, numbers in (
        (RowTest(mask_N), NO_NUMBERS),
        (ALL_ROWS, np.flatnonzero(mask_N)),
        (RowTest(NO_MASK, positions_N, *range_of_positions), NO_NUMBERS),
        (RowTest(mask_N, everywhere_N, 0, rows), NO_NUMBERS),
    ):
        rows_K, scores_K = np.empty(k, np.int64), np.empty(k, np.float32)
        searched, scanned, missed = leaf_kernels.scan_leaves(
            vectors_ND, quantized_NB, query_D, squared, starts_L, predicted_L, spread_L, sizes_L, *test, numbers,
            before_L, allowed_L, tails_BT, 0.0, np.zeros(0, np.int64), rows_K, scores_K,
        )  # fmt: skip
        assert (scanned, missed) == (mask_N.sum(), 0)
        assert searched >= 0.9 * leaves
        found.append((rows_K, scores_K))
    scores_N = -np.square(vectors_ND - query_D).sum(axis=1) if squared else vectors_ND @ query_D
    scores_N[~mask_N] = -np.inf
    for rows_K, scores_K in found:
        np.testing.assert_array_equal(rows_K, np.argsort(-scores_N, kind="stable")[:k])
        np.testing.assert_allclose(scores_K, scores_N[rows_K], rtol=1e-4, atol=1e-4)


@pytest.mark.system
def test_fewer_hits_than_wanted_end_with_no_row() -> None:
    vectors_ND = np.ones((4, 8), np.float32)
    one_L, rows_K, scores_K = np.array([4]), np.empty(3, np.int64), np.empty(3, np.float32)
    leaf_kernels.scan_leaves(
        vectors_ND, NOT_QUANTIZED, vectors_ND[0], False, np.array([0]), np.zeros(1, np.float32), np.ones(1, np.float32),
        one_L, *ALL_ROWS, np.array([2]), np.array([0]), np.array([1]), np.ones((2, 512), np.float32), 0.0,
        np.zeros(0, np.int64), rows_K, scores_K,
    )  # fmt: skip
    assert rows_K.tolist() == [2, -1, -1]
    assert scores_K.tolist() == [8, -np.inf, -np.inf]


def test_rows_that_tie_with_the_last_hit_do_not_end_a_scan() -> None:
    """Rows with equal scores are as many as the tails predict, though few of them are among the hits."""
    k, others = 100, 10
    sizes_L = np.array([50, 2000, *[20] * others])
    scores_N = np.concatenate([np.ones(50), np.zeros(2000), np.tile([0.5, -0.5], 10 * others)]).astype(
        np.float32
    )
    starts_L = np.cumsum(sizes_L) - sizes_L
    predicted_L = np.array([1, 0, *[-0.01] * others], np.float32)
    spread_L = np.array([0.1, 0.1, *[1] * others], np.float32)
    tails_BT = np.full((5, 512), 0.5, np.float32)
    rows_K, found_K = np.empty(k, np.int64), np.empty(k, np.float32)
    _, _, missed = leaf_kernels.scan_leaves(
        scores_N[:, None], NOT_QUANTIZED, np.ones(1, np.float32), False, starts_L, predicted_L, spread_L, sizes_L,
        *RowTest(np.ones(len(scores_N), bool)), NO_NUMBERS, starts_L, sizes_L, tails_BT, 20.0,
        np.zeros(0, np.int64), rows_K, found_K,
    )  # fmt: skip
    assert found_K.min() == 0.5
    assert missed <= 20
