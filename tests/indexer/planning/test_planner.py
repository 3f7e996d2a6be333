"""Which plan a filter's searches take, and how plans are timed."""

import numpy as np
import pytest

from scannery.indexer import AllowedRows, Segment
from scannery.indexer.planning.plan_costs import SHARES, Costs
from scannery.indexer.planning.plan_timing import TIMED_ROUNDS, Clock, Way
from scannery.indexer.planning.planner import TRIED_EVERY
from tests.data import clustered
from tests.indexer.segment.test_segment import build

ROWS, DIMENSIONS = 12_000, 16
PROPOSES = Costs(
    row_us=1.0,
    cached_row_us=1.0,
    row_bytes=64,
    gather_us=1.0,
    product_us=1.0,
    scan_us=[100.0] * len(SHARES),
    proposed_us=[10.0] * len(SHARES),
    leaves_reached=[4] * len(SHARES),
)
"""By which ScaNN is always asked first."""


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    folder = tmp_path_factory.mktemp("planner")
    opened = build(folder, "dot", clustered(ROWS, DIMENSIONS)).open(folder / "cache")
    assert opened.planner is not None
    opened.planner.book._start(PROPOSES)
    return opened


def plans(segment: Segment, allowed: AllowedRows, count: int) -> list[str]:
    """Ask the queries with the largest first component; return their plans."""
    vectors_ND = np.asarray(segment.searched_ND)
    queries_QD = vectors_ND[np.argsort(-vectors_ND[:, 0])[:count]]
    settings = segment.settings_for(0.9)
    return [
        segment.find(query_D[None], 10, settings=settings, allowed=allowed).plans[0] for query_D in queries_QD
    ]


def side(segment: Segment, largest: bool) -> AllowedRows:
    """Return the half of the rows with the larger, or the smaller first component."""
    first_N = segment.searched_ND[:, 0]
    mask_N = (first_N > np.median(first_N)) == largest
    mask_N.setflags(write=False)
    return segment.allow(mask_N)


@pytest.mark.system
def test_a_filter_that_refuses_what_scann_proposes_is_not_asked_of_it_again(segment: Segment) -> None:
    assert segment.planner is not None
    proposed = []
    propose = segment.planner.propose

    def counted(*arguments: object, **options: object) -> object:
        proposed.append(arguments)
        return propose(*arguments, **options)  # type: ignore[arg-type]

    segment.planner.propose = counted  # type: ignore[method-assign, assignment]
    try:
        against, along = side(segment, largest=False), side(segment, largest=True)
        assert set(plans(segment, against, 100)) == {"leaves"}
        first = len(proposed)
        assert first <= 8 + 100 / TRIED_EVERY + 1
        # Another filter is not affected.
        assert set(plans(segment, along, 100)) == {"scann_allowed"}
        assert len(proposed) == first + 100
    finally:
        segment.planner.propose = propose  # type: ignore[method-assign]


@pytest.mark.system
def test_a_scan_by_leaves_ends_early_and_finds_the_best(segment: Segment) -> None:
    assert segment.planner is not None
    vectors_ND = np.asarray(segment.searched_ND)
    # Of all leaves: neighbouring rows are of one, and which they are differs between builds, whose trees do.
    queries_QD = vectors_ND[np.random.default_rng(1).choice(ROWS, 400, replace=False)]
    for largest in (True, False):
        allowed = side(segment, largest)
        scores_QN = np.where(allowed.mask_N, queries_QD @ vectors_ND.T, -np.inf)
        least_Q1 = np.sort(scores_QN, axis=1)[:, -10][:, None]
        found = [segment.planner.scan(query_D[None], 10, allowed, 0.95) for query_D in queries_QD]
        scores_QK = np.concatenate([each.scores_QK for each in found])
        assert (scores_QK >= least_Q1 - 1e-4).mean() >= 0.95
        assert np.mean([each.candidates_Q[0] for each in found]) < 0.3 * allowed.count


@pytest.mark.system
def test_plans_are_timed_with_another_filter_in_each_call(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers have filters of their own: the rows of the last one, which are in the caches, are not theirs."""
    planner, calls = segment.planner, dict[tuple[bytes, float], list[np.ndarray]]()
    assert planner is not None
    scan = planner.scan

    def noted(queries_QD: np.ndarray, k: int, allowed: AllowedRows, target_recall: float) -> object:
        if len(queries_QD) == 1:
            share = min(SHARES, key=lambda each: abs(each - allowed.share))
            calls.setdefault((queries_QD.tobytes(), share), []).append(allowed.mask_N)
        return scan(queries_QD, k, allowed, target_recall)

    monkeypatch.setattr(planner, "scan", noted)
    assert segment.time_plans() is not None
    assert {share for _, share in calls} == {*SHARES}
    for masks in calls.values():
        assert len(masks) >= TIMED_ROUNDS
        assert len({mask_N.tobytes() for mask_N in masks}) >= TIMED_ROUNDS


def test_a_slow_moment_affects_one_round_of_all_ways() -> None:
    asked: list[str] = []
    ways = [Way(lambda _, name=name: asked.append(name), np.zeros((2, 4), np.float32)) for name in "ab"]  # type: ignore[misc]
    assert Clock().run(ways)
    assert "".join(asked) == "aabb" * TIMED_ROUNDS
    assert not Clock().run(ways, stopped=lambda: True)
    assert len(asked) == 4 * TIMED_ROUNDS
