"""Refine a curve of recall against cost where it is used: between the settings that miss a target and that meet it.

The settings that the tuner explores are up to a factor of two apart, and a search costs in proportion to its leaves. Of
60,000 images (784 dimensions), the cheapest explored setting that met 0.95 searched 39 leaves; 13 suffice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from scannery.indexer.manifest import CurvePoint
from scannery.indexer.tuning.settings_choice import pick_point

__all__ = ["pareto", "refine", "rising"]

TARGETS = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995)
"""Recalls at which the curve is refined."""
ROUNDS = 2
"""Settings tried for a target; each halves the ratio of leaves in which the cheapest one lies."""
CLOSE = 1.15
"""Ratio of leaves, or of candidates, below which no setting is tried between two."""

Measure = Callable[[int, int], Sequence[CurvePoint]]
"""Measures a setting (leaves, candidates): a point for each number of hits; the last one is refined."""


def refine(points: Sequence[Sequence[CurvePoint]], measure: Measure) -> list[Sequence[CurvePoint]]:
    """Return measured settings, and further ones between those that miss a target and that meet it."""
    refined = list(points)
    for target in TARGETS:
        for _ in range(ROUNDS):
            setting = _between([each[-1] for each in refined], target)
            if setting is None:
                break
            refined.append(measure(*setting))
    return refined


def _between(points: Sequence[CurvePoint], target: float) -> tuple[int, int] | None:
    """Return the leaves and candidates between the cheapest point that meets a target and the best one below it.

    None if no point meets the target, if nothing is below, or if the two are close to each other.
    """
    curve = list(pareto(points))
    point, reached = pick_point(curve, target)
    below = [other for other in curve if other.recall - other.error < target and other.leaves <= point.leaves]
    if not reached or not below:
        return None
    less = max(below, key=lambda other: (other.leaves, other.rescore))
    if point.leaves > CLOSE * less.leaves:
        setting = round(math.sqrt(less.leaves * point.leaves)), point.rescore
    elif point.rescore > CLOSE * less.rescore:
        setting = point.leaves, round(math.sqrt(less.rescore * point.rescore))
    else:
        return None
    return None if setting in {(other.leaves, other.rescore) for other in points} else setting


def pareto(points: Iterable[CurvePoint]) -> Iterable[CurvePoint]:
    """Yield the points that no cheaper one beats, by time."""
    return rising(sorted(points, key=lambda p: (p.query_us, -p.recall)))


def rising(points: Iterable[CurvePoint]) -> Iterable[CurvePoint]:
    """Yield the points, given cheapest first, whose recall is above that of all points before."""
    best = -1.0
    for point in points:
        if point.recall > best:
            best = point.recall
            yield point
