"""Measure recall against cost after a build, so that a target recall can be met.

Shapes: Q queries, K hits, C candidates in the order in which ScaNN proposes them.

Refine a curve of recall against cost where it is used: so that for any target, a setting just meets it.

The settings that the tuner explores are up to a factor of two apart, and a search costs in proportion to its leaves. Of
60,000 images (784 dimensions), the cheapest explored setting that met 0.95 searched 39 leaves; 13 suffice.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from scannery.indexer.manifest import CurvePoint, DepthCurve
from scannery.indexer.scann.search import ScannSearcher
from scannery.indexer.tuning.config_trial import SearchCost
from scannery.indexer.tuning.held_out_queries import HeldOut, LabelledQueries
from scannery.indexer.tuning.settings_choice import TUNED_K
from scannery.indexer.vectors.exact_search import NO_ROW

__all__ = ["DEEPER", "Curves", "measure_curves", "pareto", "refine", "rising"]


LEAST_RECALL, MOST_RECALL = 0.8, 0.999
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
    steps: int = MEASURED,
    cost: Cost,
) -> list[Sequence[CurvePoint]]:
    """Return measured settings and at most `steps` further ones, where the curve has its widest steps."""
    refined = list(points)
    tried = {(each[-1].leaves, each[-1].rescore) for each in points}
    for _ in range(steps):
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
        if more.recall <= LEAST_RECALL or less.recall >= MOST_RECALL:
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


WORTHWHILE = 0.001
"""Least gain of recall for which more candidates or leaves are tried."""
LEAF_SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0)
"""Shares of leaves that are tried."""
RESCORED = (20, 40, 80, 160, 320, 640, 1280, 2560, 5120)
"""Numbers of candidates that are tried, for ten hits."""
TIERS = (160, 640, RESCORED[-1])
"""Numbers of candidates requested from ScaNN: the next tier only if the last candidates of a tier still help."""
MOST_SHARE = 0.25
"""Largest share of a segment's rows to rescore: above it, scoring all rows in their order is as fast."""
EXPLORED = 3
"""Every third query explores the settings; those that seem best are then measured with all queries."""
ALIKE_ERROR = 0.1
"""Standard error of a recall if all queries have the same hits; smaller in proportion to `LabelledQueries.alike`."""
DEEPER = (20, 50, 100, 200, 500, 1000)
"""Numbers of hits above ten that are measured."""
PER_HIT = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of candidates per hit that are tried for more than ten hits."""
MOST_PER_HIT = (4, PER_HIT[-1])
"""Numbers of candidates per hit up to which they are tried: the second only if the last of the first still help."""
LEVELS = (0.6, 0.8, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99, 0.999)
"""The setting estimated cheapest for each of these recalls is measured."""
DEEPER_MEASURED = 3
"""Most settings that are measured between these, for each number of hits."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Measured settings of a segment."""

    ten: tuple[CurvePoint, ...]
    """Settings for ten hits."""
    depth_curves: tuple[DepthCurve, ...]
    """Settings for other numbers of hits, ascending."""


def measure_curves(
    searcher: ScannSearcher,
    queries: HeldOut,
    deep: HeldOut,
    *,
    cost: SearchCost,
    threads: int,
    rescore: int | None = None,
) -> Curves:
    """Return for each number of hits the settings that no cheaper one beats, cheapest first.

    "Cheap" is by `cost` and not by measured time: a moment at which other processes run would decide otherwise. Each
    has its recall and its processor time. Settings are tried with more candidates and more leaves until recall gains
    less than WORTHWHILE. A third of the queries explores them; those that seem best are measured with all queries, and
    further ones between them (recall_curve.py).

    Args:
        searcher: of the segment.
        queries: for one hit and ten.
        deep: fewer queries, for more hits.
        cost: of searches of the segment.
        threads: searches that run at once.
        rescore: number of candidates of all settings, for ten hits (in proportion for more); None: several are tried.

    """
    with ThreadPoolExecutor(threads) as pool:
        tuner = _Tuner(searcher, pool, threads, cost)
        first, ten = tuner.first_ten(queries, rescore)
        deeper = [DepthCurve(k=k, curve=curve) for k, curve in tuner.deeper(deep, rescore).items() if curve]
    return Curves(ten=ten, depth_curves=(DepthCurve(k=1, curve=first), *deeper))


@dataclass(frozen=True, slots=True)
class _Setting:
    leaves: int
    rescore: int
    recall: float


class _Tuner:
    """Tries settings of one searcher."""

    def __init__(self, searcher: ScannSearcher, pool: Executor, parts: int, cost: SearchCost) -> None:
        self._searcher, self._pool, self._parts = searcher, pool, parts
        self._search_cost, self._leaves, self._rows = cost, cost.config.leaves, cost.rows

    def first_ten(
        self, queries: HeldOut, rescore: int | None
    ) -> tuple[tuple[CurvePoint, ...], tuple[CurvePoint, ...]]:
        """Return the curves for one hit and for ten, of the same settings."""
        settings: list[_Setting] = []
        for leaves in _leaves_searched(self._leaves):
            settings += self._worthwhile(queries, leaves, rescore)
            if settings[-1].recall >= 1 - WORTHWHILE:
                break
        ks = (1, queries.k)

        def measure(leaves: int, candidates: int) -> Sequence[CurvePoint]:
            return self._measure(queries, leaves, candidates, ks, self._pool)

        points: list[Sequence[CurvePoint]] = [
            measure(setting.leaves, setting.rescore) for setting in self._likely(settings)
        ]
        points = refine(points, measure, cost=self._cost)
        setting, ten = (
            tuple(pareto((each[number] for each in points), self._cost)) for number in range(len(ks))
        )
        return setting, ten

    def deeper(self, queries: HeldOut, rescore: int | None) -> dict[int, tuple[CurvePoint, ...]]:
        """Return the curves for all numbers of hits in DEEPER up to `queries.k`."""
        depths = [k for k in DEEPER if k <= queries.k]
        tried: dict[int, list[_Setting]] = {k: [] for k in depths}
        open_ks = list(depths)
        for leaves in _leaves_searched(self._leaves):
            # Only leaves that together have at least k rows are tried.
            open_ks = [k for k in open_ks if not tried[k] or tried[k][-1].recall < 1 - WORTHWHILE]
            ks = [k for k in open_ks if leaves * self._rows >= k * self._leaves]
            if not ks:
                continue
            for k, settings in self._by_depth(queries, leaves, ks, rescore).items():
                tried[k] += settings
        # The deepest first: they take the most time.
        curves = self._pool.map(lambda k: self._deep_curve(queries, k, tried[k]), reversed(depths))
        return dict(sorted(zip(reversed(depths), curves, strict=True)))

    def _by_depth(
        self, queries: HeldOut, leaves: int, ks: Sequence[int], rescore: int | None
    ) -> dict[int, list[_Setting]]:
        """Return the settings with `leaves` leaves for each number of hits: with many candidates only if they help."""
        for per_hit in MOST_PER_HIT:
            depths = {k: self._depths(k, rescore, per_hit) for k in ks}
            proposed = self._proposed(queries, leaves, max(depths[ks[-1]]))
            by_k = {k: _settings(queries.first(k), proposed, leaves, depths[k]) for k in ks}
            if rescore is not None or all(
                len(_helpful(settings)) < len(settings) for settings in by_k.values()
            ):
                break
        return by_k

    def _deep_curve(self, queries: HeldOut, k: int, tried: Sequence[_Setting]) -> tuple[CurvePoint, ...]:
        """Return the settings for k hits that no cheaper one beats, cheapest first; in one thread."""

        def measure(leaves: int, candidates: int) -> Sequence[CurvePoint]:
            return self._measure(queries, leaves, candidates, (k,))

        points: list[Sequence[CurvePoint]] = [
            measure(setting.leaves, setting.rescore) for setting in self._likely(tried)
        ]
        points = refine(points, measure, steps=DEEPER_MEASURED, cost=self._cost)
        return tuple(pareto((point for [point] in points), self._cost))

    def _cost(self, setting: CurvePoint | _Setting) -> float:
        return self._search_cost.query_us(setting.leaves, setting.rescore)

    def _depths(self, k: int, rescore: int | None, most_per_hit: float) -> list[int]:
        """Return the numbers of candidates to try for k hits."""
        if rescore is not None:
            return [max(k, math.ceil(rescore * k / TUNED_K))]
        maximum = max(k, int(MOST_SHARE * self._rows))
        return sorted({min(math.ceil(each * k), maximum) for each in PER_HIT if each <= most_per_hit})

    def _likely(self, settings: Sequence[_Setting]) -> list[_Setting]:
        """Return the setting estimated cheapest for each of LEVELS, and the one of highest recall."""
        chosen = (
            {max(settings, key=lambda setting: (setting.recall, -self._cost(setting)))} if settings else set()
        )
        for level in LEVELS:
            if good := [setting for setting in settings if setting.recall >= level]:
                chosen.add(min(good, key=self._cost))
        return sorted(chosen, key=self._cost)

    def _worthwhile(self, queries: HeldOut, leaves: int, rescore: int | None) -> list[_Setting]:
        """Return the settings with `leaves` leaves, up to the first that gains less than WORTHWHILE."""
        if rescore is not None:
            return _settings(queries, self._proposed(queries, leaves, rescore), leaves, [rescore])
        maximum = max(TIERS[0], int(MOST_SHARE * self._rows))
        for tier in TIERS:
            depths = [depth for depth in RESCORED if depth <= min(tier, maximum)]
            settings = _settings(queries, self._proposed(queries, leaves, depths[-1]), leaves, depths)
            helpful = _helpful(settings)
            if len(helpful) < len(settings) or tier >= maximum:
                break
        return helpful

    def _proposed(self, queries: HeldOut, leaves: int, count: int) -> list[np.ndarray]:
        """Return the scores of each kind's candidates (Q, C), minus infinity for a query's own row.

        One search for many candidates estimates what searches for fewer would find, from their order. It is an estimate
        because with rows in two leaves (SOAR), a search for few candidates also loses some of the first ones.
        """

        def part(sample: LabelledQueries) -> np.ndarray:
            rows_QC, scores_QC = self._searcher.propose(sample.queries_QD, count, leaves=leaves)
            scores_QC[(rows_QC == NO_ROW) | (rows_QC == sample.own_Q[:, None])] = -np.inf
            return scores_QC

        kinds = [kind.every(EXPLORED) for kind in queries.kinds]
        parts = [kind.parts(self._parts) for kind in kinds]
        proposals = list(self._pool.map(part, itertools.chain(*parts)))
        return [np.concatenate(proposals[: len(parts[0])]), np.concatenate(proposals[len(parts[0]) :])]

    def _measure(
        self,
        queries: HeldOut,
        leaves: int,
        rescore: int,
        ks: Sequence[int],
        pool: Executor | None = None,
    ) -> Sequence[CurvePoint]:
        """Return the measured point of a setting for each number of hits in `ks`.

        `pool` searches for parts of the queries at once; None: this thread searches.
        """

        def search(sample: LabelledQueries) -> tuple[np.ndarray, np.ndarray, float]:
            started = time.thread_time()
            hits = self._searcher.search(sample.queries_QD, max(ks) + 1, rescore=rescore, leaves=leaves)
            return *hits, time.thread_time() - started

        divided = [kind.parts(self._parts if pool else 1) for kind in queries.kinds]
        parts = list(itertools.chain(*divided))
        done = list(pool.map(search, parts) if pool else map(search, parts))
        both = done[: len(divided[0])], done[len(divided[0]) :]
        hits_of_kind = [
            tuple(np.concatenate([part[part_number] for part in kind]) for part_number in (0, 1))
            for kind in both
        ]
        query_us = sum(part[2] for part in done) / sum(len(part[0]) for part in done) * 1e6
        points = []
        for k in ks:
            kinds = [kind.first(k) for kind in queries.kinds]
            measured = [
                _mean_and_error(kind.recalls(rows_QK, scores_QK), kind.alike)
                for kind, (rows_QK, scores_QK) in zip(kinds, hits_of_kind, strict=True)
            ]
            recall, error = min(measured)
            points.append(
                CurvePoint(
                    leaves=leaves,
                    rescore=rescore,
                    recall=round(recall, 5),
                    error=round(error, 5),
                    query_us=round(query_us, 1),
                    recalls={
                        name: round(mean, 5) for name, (mean, _) in zip(queries.names, measured, strict=True)
                    },
                )
            )
        return points


def _settings(
    queries: HeldOut, proposed: Sequence[np.ndarray], leaves: int, depths: Sequence[int]
) -> list[_Setting]:
    """Return the settings with `leaves` leaves and each of `depths` candidates (ascending), with estimated recalls."""
    kinds = [kind.every(EXPLORED) for kind in queries.kinds]
    hits = [scores_QC >= kind.reach_Q1 for kind, scores_QC in zip(kinds, proposed, strict=True)]
    return [
        _Setting(
            leaves,
            depth,
            min(_share(hits_QC[:, :depth], kind.truth_QK) for kind, hits_QC in zip(kinds, hits, strict=True)),
        )
        for depth in depths
    ]


def _helpful(settings: list[_Setting]) -> list[_Setting]:
    """Return the settings up to the first that gains less than WORTHWHILE over the one before."""
    for number, (less, more) in enumerate(itertools.pairwise(settings), 2):
        if more.recall - less.recall < WORTHWHILE:
            return settings[:number]
    return settings


def _share(hits_QC: np.ndarray, true_QK: np.ndarray) -> float:
    """Return the share of the true hits that are found; infinite scores are no hits."""
    wanted_Q = np.isfinite(true_QK).sum(axis=1)
    return float(np.minimum(hits_QC.sum(axis=1), wanted_Q).sum() / max(wanted_Q.sum(), 1))


def _mean_and_error(recalls_Q: np.ndarray, alike: float) -> tuple[float, float]:
    """Return the mean and its standard error, at least ALIKE_ERROR times `alike` (see `LabelledQueries.alike`).

    If vectors are far from the origin, the same rows have the largest inner products with every query. Then all queries
    have no more information than one, and none about rows that a filter allows.
    """
    error = float(recalls_Q.std() / math.sqrt(len(recalls_Q)))
    return float(recalls_Q.mean()), max(error, ALIKE_ERROR * alike)


def _leaves_searched(leaves: int) -> list[int]:
    return sorted({max(1, round(share * leaves)) for share in LEAF_SHARES})
