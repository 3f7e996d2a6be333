"""Sets of rows against masks, at a size at which lists, ranges and masks all occur."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.indexer import RowsBetween, ValueOrder
from scannery.serving.snapshot.row_sets import (
    ListedRows,
    MaskedRows,
    OtherRows,
    RangeOfRows,
    RowSet,
    rows_in_all,
    rows_in_any,
)

ROWS = 70_000
GENERATOR = np.random.default_rng(0)
ORDERS = [
    ValueOrder(GENERATOR.permutation(ROWS)[:present].astype(np.int32), ROWS) for present in (ROWS, 50_000)
]
SIZES = (0, 1, 39, 900, 1_500, 20_000, 50_000)
Both = tuple[RowSet, np.ndarray]
"""A set, and what it is to be."""


def marked(rows_R: np.ndarray) -> np.ndarray:
    mask_N = np.zeros(ROWS, bool)
    mask_N[rows_R] = True
    return mask_N


@st.composite
def conditions(draw: st.DrawFn) -> Both:
    size, seed = draw(st.sampled_from(SIZES)), draw(st.integers(0, 100))
    kind = draw(st.sampled_from(["list", "range", "range", "mask"]))
    if kind == "range":
        order = draw(st.sampled_from(ORDERS))
        start = seed * (len(order.rows_P) - size) // 100
        between = RowsBetween(order, start, start + size)
        return RangeOfRows(between, ROWS), marked(between.rows)
    rows_R = np.random.default_rng(seed).integers(0, ROWS, size)  # some several times
    listed = ListedRows(rows_R, ROWS)
    return (listed if kind == "list" else MaskedRows(listed.mask())), marked(rows_R)


def joined(parts: list[Both], *, every: bool) -> Both:
    sets, masks = zip(*parts, strict=True)
    combined = rows_in_all(sets, ROWS) if every else rows_in_any(sets, ROWS)
    return combined, np.logical_and.reduce(masks) if every else np.logical_or.reduce(masks)


def filters() -> st.SearchStrategy[Both]:
    return st.recursive(
        conditions(),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: joined(parts, every=True)),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: joined(parts, every=False)),
            inner.map(lambda part: (OtherRows(part[0]), ~part[1])),
        ),
        max_leaves=5,
    )


@pytest.mark.system
@given(filters())
def test_sets_are_what_masks_are(both: Both) -> None:
    rows, expected_N = both
    asked_R = GENERATOR.integers(0, ROWS, 200)
    assert (rows.holds(asked_R) == expected_N[asked_R]).all()
    assert (rows.mask() == expected_N).all()
    assert rows.numbers.tolist() == np.flatnonzero(expected_N).tolist()
    assert rows.limit >= np.count_nonzero(expected_N)


def test_all_of_no_sets_are_all_rows() -> None:
    assert rows_in_all([], ROWS).mask().all()


def test_a_window_of_two_bounds_is_one_range() -> None:
    order = ORDERS[0]
    bounds = [RowsBetween(order, 10_000, ROWS), RowsBetween(order, 0, 30_000), RowsBetween(order, 5, 60_000)]
    window = rows_in_all([RangeOfRows(each, ROWS) for each in bounds], ROWS)
    assert isinstance(window, RangeOfRows)
    assert (window.between.start, window.between.stop) == (10_000, 30_000)
    none = rows_in_all([RangeOfRows(RowsBetween(order, *each), ROWS) for each in ((9, 10), (3, 4))], ROWS)
    assert (none.limit, none.numbers.tolist()) == (0, [])


def test_a_mask_is_the_callers_to_change() -> None:
    for part in (MaskedRows(np.ones(ROWS, bool)), RangeOfRows(RowsBetween(ORDERS[0], 0, ROWS), ROWS)):
        part.mask()[:] = False
        assert part.mask().all()
