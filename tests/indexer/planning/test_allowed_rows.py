"""Rows by number, by mask, and by a range of values are the same rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scannery.indexer import AllowedRows, RowsBetween, ValueOrder
from scannery.indexer.planning.allowed_rows import NUMBERED
from scannery.indexer.planning.leaves import Leaves

ROWS, LEAVES = 70_000, 60
GENERATOR = np.random.default_rng(0)
SIZES_L = np.full(LEAVES, ROWS // LEAVES)
SIZES_L[-1] += ROWS - SIZES_L.sum()
LEAF_N = np.repeat(np.arange(LEAVES), SIZES_L)


@pytest.fixture(scope="module")
def leaves() -> Leaves:
    starts_L, nothing_LD = np.cumsum(SIZES_L) - SIZES_L, np.zeros((LEAVES, 1), np.float32)
    nothing_L = nothing_LD[:, 0]
    return Leaves(
        starts_L, SIZES_L, nothing_L[:1], nothing_LD, nothing_L, nothing_L, np.ones((7, 512), np.float32)
    )


def order_by(values_N: np.ndarray, present: int = ROWS) -> ValueOrder:
    """Return the order of the rows by their values; those with the greatest values have none."""
    return ValueOrder(np.argsort(values_N, kind="stable")[:present].astype(np.int32), ROWS)


def alive_rows(leaves: Leaves) -> AllowedRows:
    mask_N = GENERATOR.random(ROWS) < 0.9
    mask_N.setflags(write=False)
    return AllowedRows(mask_N, leaves, ROWS)


@pytest.mark.parametrize("bounds", [(0, 0), (0, 1), (17, 900), (500, 30_000), (40_000, 60_000), (0, 60_000)])
@pytest.mark.parametrize("with_deleted", [False, True])
def test_a_range_is_the_rows_at_its_positions(
    leaves: Leaves, bounds: tuple[int, int], with_deleted: bool
) -> None:
    order = order_by(GENERATOR.random(ROWS), 60_000)
    expected_N = np.zeros(ROWS, bool)
    expected_N[order.rows_P[slice(*bounds)]] = True
    allowed = AllowedRows(RowsBetween(order, *bounds), leaves, ROWS)
    if with_deleted:
        alive = alive_rows(leaves)
        allowed, expected_N = allowed.within(alive), expected_N & alive.mask_N
    rows_R = np.flatnonzero(expected_N)
    assert (allowed.count, allowed.share) == (len(rows_R), len(rows_R) / ROWS)
    assert (allowed.mask_N == expected_N).all()
    scored = allowed.in_any_order()
    if scored.dtype == bool:
        assert (len(rows_R) / ROWS > NUMBERED, (scored == expected_N).all()) == (True, True)
    else:
        in_order_R = order.rows_P[slice(*bounds)]
        assert scored.tolist() == in_order_R[expected_N[in_order_R]].tolist(), (
            "rows are looked for, or sorted"
        )
    assert allowed.rows.tolist() == rows_R.tolist()
    some_RR = GENERATOR.integers(0, ROWS, (3, 50))
    assert (allowed.holds(some_RR) == expected_N[some_RR]).all()
    test = allowed.test
    passes_N = (test.positions_N >= test.start) & (test.positions_N < test.stop)
    assert ((passes_N & test.mask_N if len(test.mask_N) else passes_N) == expected_N).all()


@pytest.mark.parametrize("kind", ["mask", "numbers"])
def test_deleted_rows_are_left_out(leaves: Leaves, kind: str) -> None:
    mask_N = GENERATOR.random(ROWS) < 0.3
    mask_N.setflags(write=False)
    alive = alive_rows(leaves)
    left = AllowedRows(mask_N if kind == "mask" else np.flatnonzero(mask_N), leaves, ROWS).within(alive)
    assert left.rows.tolist() == np.flatnonzero(mask_N & alive.mask_N).tolist()
    assert left.per_leaf.tolist() == np.bincount(LEAF_N[left.rows], minlength=LEAVES).tolist()


def by_leaf() -> np.ndarray:
    """As new rows are about new subjects."""
    return LEAF_N + GENERATOR.random(ROWS)


@pytest.mark.parametrize("values", [lambda: GENERATOR.random(ROWS), by_leaf], ids=["apart", "by leaf"])
@pytest.mark.parametrize("width", [1, 40, 1000, 7_000, 60_000])
def test_rows_of_a_range_are_estimated_for_each_leaf(
    leaves: Leaves, values: Callable[[], np.ndarray], width: int
) -> None:
    order = order_by(values())
    for start in GENERATOR.integers(0, ROWS - width, 5).tolist():
        allowed = AllowedRows(RowsBetween(order, start, start + width), leaves, ROWS)
        exact_L = np.bincount(LEAF_N[allowed.rows], minlength=LEAVES)
        assert (allowed.per_leaf[exact_L > 0] > 0).all(), "a leaf with allowed rows would be left out"
        # At each end of the range, the rows of a part of a bucket are not known.
        assert np.abs(allowed.per_leaf - exact_L).sum() <= min(2 * ROWS / 128 + LEAVES, 2 * width + LEAVES)
        if width >= 7_000:
            assert abs(int(allowed.per_leaf.sum()) - width) <= LEAVES
