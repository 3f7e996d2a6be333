"""Quantiles of histograms."""

from __future__ import annotations

import pytest

from scannery.runtime.histograms import quantile

BOUNDS = (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 0.5),
        ((5, 5, 0, 0), 0.5, 1.0),
        ((0, 0, 10, 0), 0.25, 2.5),
        ((0, 0, 0, 3), 0.99, 4.0),  # above all bounds, the last one is what is known
        ((1, 1, 1, 1), 0.75, 4.0),
    ],
)
def test_a_quantile_lies_within_its_bucket(
    counts: tuple[int, ...], share: float, value: float | None
) -> None:
    assert quantile(BOUNDS, counts, share) == value
