"""The refinement of a curve finds settings close to the cheapest that meet a target, of a recall that is known."""

from __future__ import annotations

import math

import pytest

from scannery.indexer.manifest import CurvePoint
from scannery.indexer.tuning.curve_refinement import TARGETS, pareto, refine
from scannery.indexer.tuning.settings_choice import pick_point

EXPLORED = [(leaves, 40) for leaves in (2, 4, 8, 12, 20, 32, 48, 80, 120, 200, 400)]


def point(leaves: int, rescore: int, hardness: float) -> CurvePoint:
    """Return a point whose recall rises with leaves and candidates, and whose time is in proportion to leaves."""
    recall = (1 - math.exp(-((leaves / hardness) ** 0.7))) * (1 - 0.3 * math.exp(-rescore / 12))
    return CurvePoint(
        leaves=leaves, rescore=rescore, recall=recall, error=0.0, query_us=leaves + rescore / 100
    )


@pytest.mark.parametrize("hardness", [3.0, 11.0, 29.0, 47.0])
def test_the_setting_for_a_target_is_close_to_the_cheapest(hardness: float) -> None:
    measured = []

    def measure(leaves: int, rescore: int) -> list[CurvePoint]:
        measured.append((leaves, rescore))
        return [point(leaves, rescore, hardness)]

    coarse = [[point(*setting, hardness)] for setting in EXPLORED]
    curve = list(pareto(each[-1] for each in refine(coarse, measure)))
    assert len(measured) <= 2 * len(TARGETS)
    assert not set(measured) & set(EXPLORED)
    for target in TARGETS:
        found, reached = pick_point(curve, target)
        least = next((n for n in range(1, 401) if point(n, 40, hardness).recall >= target), None)
        assert reached == (least is not None)
        if least is not None:
            assert least <= found.leaves <= max(least + 1, 1.25 * least), (target, least)


def test_a_curve_that_meets_no_target_is_left_as_it_is() -> None:
    coarse = [[CurvePoint(leaves=n, rescore=20, recall=0.1 * n, error=0.0, query_us=n)] for n in (1, 2, 4)]

    def measure(leaves: int, rescore: int) -> list[CurvePoint]:
        raise AssertionError((leaves, rescore))

    assert refine(coarse, measure) == coarse
