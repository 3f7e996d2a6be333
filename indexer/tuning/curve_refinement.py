"""Refine a curve of recall against cost where it is used: so that for any target, a setting just meets it.

The settings that the tuner explores are up to a factor of two apart, and a search costs in proportion to its leaves. Of
60,000 images (784 dimensions), the cheapest explored setting that met 0.95 searched 39 leaves; 13 suffice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from scannery.indexer.manifest import CurvePoint

__all__ = ["pareto", "refine", "rising"]

LEAST, MOST = 0.8, 0.999
"""Recalls between which the curve is refined."""
MEASURED = 20
"""Most settings that are measured for ten hits. The widest steps of the curve are halved first."""
CLOSE = 1.1
"""Ratio of leaves, or of candidates, below which no setting is measured between two."""

Measure = Callable[[int, int], Sequence[CurvePoint]]
"""Measures a setting (leaves, candidates): a point for each number of hits; the last one is refined."""


Cost = Callable[[CurvePoint], float]


def refine(
    points: Sequence[Sequence[CurvePoint]],
    measure: Measure,
    *,
    most: int = MEASURED,
    cost: Cost,
) -> list[Sequence[CurvePoint]]:
    """Return measured settings and at most `most` further ones, where the curve has its widest steps."""
    refined = list(points)
    tried = {(each[-1].leaves, each[-1].rescore) for each in points}
    for _ in range(most):
        setting = _between(list(pareto((each[-1] for each in refined), cost)), tried)
        if setting is None:
            break
        tried.add(setting)
        refined.append(measure(*setting))
    return refined


def _between(curve: Sequence[CurvePoint], tried: set[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the setting in the widest step of a curve, in which a target may lie; None if all steps are narrow."""
    widest: tuple[float, tuple[int, int]] | None = None
    for less, more in itertools.pairwise(curve):
        if more.recall <= LEAST or less.recall >= MOST:
            continue
        for setting, ratio in _halves(less, more):
            if ratio > CLOSE and setting not in tried and (widest is None or ratio > widest[0]):
                widest = ratio, setting
    return widest[1] if widest else None


def _halves(less: CurvePoint, more: CurvePoint) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield the settings half-way from `more` to `less`, and the ratio that each halves: of leaves, or of candidates.

    The other of the two stays that of `more`, so that recall is likely above that of `less`.
    """
    if more.leaves > less.leaves:
        leaves = round(math.sqrt(less.leaves * more.leaves))
        yield (leaves, more.rescore), more.leaves / less.leaves
    if more.rescore > less.rescore:
        candidates = round(math.sqrt(less.rescore * more.rescore))
        # Rescoring twice as many candidates takes less time than searching twice as many leaves.
        yield (more.leaves, candidates), math.sqrt(more.rescore / less.rescore)


def pareto(points: Iterable[CurvePoint], cost: Cost) -> Iterable[CurvePoint]:
    """Yield the points that no cheaper one beats, cheapest first."""
    return rising(sorted(points, key=lambda point: (cost(point), -point.recall)))


def rising(points: Iterable[CurvePoint]) -> Iterable[CurvePoint]:
    """Yield the points, given cheapest first, whose recall is above that of all points before."""
    best = -1.0
    for point in points:
        if point.recall > best:
            best = point.recall
            yield point
