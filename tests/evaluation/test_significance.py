"""Bootstrap intervals: their coverage, pairing, and agreement with scipy's."""

from __future__ import annotations

import numpy as np
import pytest

from scannery.evaluation.measures import RESAMPLES, interval_of, intervals_of, paired_bootstrap


@pytest.mark.system
def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    generator = np.random.default_rng(4)
    held = 0
    for _ in range(100):
        interval = interval_of(generator.normal(0.5, 0.2, 60))
        assert interval.low < interval.mean < interval.high
        held += interval.low <= 0.5 <= interval.high
    assert 88 <= held <= 99
    constant = interval_of(np.full(10, 0.1))
    assert (constant.low, constant.high) == pytest.approx((0.1, 0.1))
    assert constant.low <= constant.mean <= constant.high


@pytest.mark.system
@pytest.mark.parametrize("count", [2, 30, 225, 5000])
def test_intervals_agree_with_those_of_scipy(count: int) -> None:
    values_Q = np.random.default_rng(count).beta(0.4, 0.6, count)
    mine = interval_of(values_Q)
    # Scipy takes a second to import, in each process that collects tests.
    from scipy import stats

    theirs = stats.bootstrap(
        (values_Q,),
        np.mean,
        n_resamples=RESAMPLES,
        method="percentile",
        batch=100,
        rng=np.random.default_rng(1),
    ).confidence_interval
    close = 4 * values_Q.std() / np.sqrt(count) / np.sqrt(RESAMPLES) * 3
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), abs=close)


def test_a_small_difference_shows_when_queries_are_paired() -> None:
    generator = np.random.default_rng(7)
    hardness_Q = generator.uniform(0, 0.9, 200)
    one_Q = hardness_Q + generator.uniform(0, 0.06, 200)
    other_Q = hardness_Q + generator.uniform(0, 0.04, 200)
    difference = paired_bootstrap(one_Q, other_Q)
    assert difference.mean == pytest.approx((one_Q - other_Q).mean())
    assert difference.excludes_zero
    assert difference.low > 0
    # The intervals of the means overlap: by them, no difference could be seen.
    assert interval_of(one_Q).low < interval_of(other_Q).high
    back = paired_bootstrap(other_Q, one_Q)
    assert (back.low, back.high) == pytest.approx((-difference.high, -difference.low))


@pytest.mark.system
def test_equal_configurations_do_not_differ() -> None:
    generator = np.random.default_rng(3)
    excluded = sum(
        paired_bootstrap(generator.uniform(size=80), generator.uniform(size=80)).excludes_zero
        for _ in range(200)
    )
    assert 2 <= excluded <= 22  # 5 % of 200, two-sided
    values_Q = generator.uniform(size=50)
    assert not paired_bootstrap(values_Q, values_Q).excludes_zero


def test_series_share_their_draws() -> None:
    values_MQ = np.random.default_rng(0).uniform(size=(3, 40))
    one, alone = intervals_of(values_MQ)[1], interval_of(values_MQ[1])
    assert (one.mean, one.low, one.high) == pytest.approx((alone.mean, alone.low, alone.high))


@pytest.mark.system
def test_many_queries_are_resampled_in_parts() -> None:
    values_Q = np.random.default_rng(0).uniform(size=9000)
    interval = interval_of(values_Q)
    error = values_Q.std() / np.sqrt(9000)
    assert (interval.high - interval.low) / 2 == pytest.approx(1.96 * error, rel=0.1)


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((0,), (0,)), ((2, 2), (2, 2))])
def test_values_that_are_no_pairs_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="two values for each query"):
        paired_bootstrap(np.zeros(shapes[0]), np.zeros(shapes[1]))
