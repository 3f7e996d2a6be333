"""The refinement of a curve finds settings close to the cheapest for any target, of a recall that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scannery.indexer.manifest import CurvePoint
from scannery.indexer.tuning.recall_curve import MEASURED, pareto, refine
from scannery.indexer.tuning.settings_choice import pick_point

EXPLORED = [(leaves, 40) for leaves in (2, 4, 8, 12, 20, 32, 48, 80, 120, 200, 400)]


def cost(one: CurvePoint) -> float:
    """Return the time of a point."""
    return one.query_us


def point(leaves: int, rescore: int, hardness: float) -> CurvePoint:
    """Return a point whose recall rises with leaves and candidates, and whose time is in proportion to leaves."""
    recall = (1 - math.exp(-((leaves / hardness) ** 0.7))) * (1 - 0.3 * math.exp(-rescore / 12))
    return CurvePoint(
        leaves=leaves, rescore=rescore, recall=recall, error=0.0, query_us=leaves + rescore / 100
    )


@pytest.mark.parametrize("hardness", [3.0, 11.0, 29.0, 47.0])
def test_the_setting_for_any_target_is_close_to_the_cheapest(hardness: float) -> None:
    measured = []

    def measure(leaves: int, rescore: int) -> list[CurvePoint]:
        measured.append((leaves, rescore))
        return [point(leaves, rescore, hardness)]

    coarse = [[point(*setting, hardness)] for setting in EXPLORED]
    curve = list(pareto((each[-1] for each in refine(coarse, measure, cost=cost)), cost))
    assert len(measured) <= MEASURED
    assert len(set(measured)) == len(measured)
    assert not set(measured) & set(EXPLORED)
    for target in np.linspace(0.8, 0.989, 60):
        found, reached = pick_point(curve, target)
        least = next((n for n in range(1, 401) if point(n, 40, hardness).recall >= target), None)
        assert reached == (least is not None)
        if least is not None:
            assert least <= found.leaves <= max(least + 1, 1.35 * least), (target, least)


def test_candidates_are_refined_where_leaves_are_equal() -> None:
    coarse = [[point(40, candidates, 10.0)] for candidates in (20, 320)]
    refined = refine(coarse, lambda leaves, candidates: [point(leaves, candidates, 10.0)], cost=cost)
    measured = refined[len(coarse) :]
    assert measured
    assert {each[-1].leaves for each in measured} == {40}
    assert all(20 < each[-1].rescore < 320 for each in measured)


def test_a_curve_below_all_targets_is_left_as_it_is() -> None:
    coarse = [[CurvePoint(leaves=n, rescore=20, recall=0.1 * n, error=0.0, query_us=n)] for n in (1, 2, 4)]

    def measure(leaves: int, rescore: int) -> list[CurvePoint]:
        raise AssertionError((leaves, rescore))

    assert refine(coarse, measure, cost=cost) == coarse
