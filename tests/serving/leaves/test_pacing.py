"""When a second call is sent, and which leaf is asked: with given latencies and times."""

from __future__ import annotations

import random

import pytest

from scannery.serving.leaves.leaf import FIRST_DELAY_S, HedgeBudget, LatencyAverage, LatencyWindow


def test_second_calls_are_a_twentieth_of_the_calls() -> None:
    budget = HedgeBudget()
    taken = 0
    for _ in range(10_000):
        budget.save()
        taken += budget.take()
    assert taken == pytest.approx(0.05 * 10_000 + 10, abs=1)


def test_what_was_saved_is_bounded() -> None:
    budget = HedgeBudget()
    for _ in range(10_000):
        budget.save()
    assert sum(budget.take() for _ in range(100)) == 10


def test_a_call_is_slow_after_the_95th_percentile_of_the_latest() -> None:
    window = LatencyWindow()
    for _ in range(10):
        window.add(5.0)
    assert window.slow_after_s == FIRST_DELAY_S
    values = [number / 1000 for number in range(1, 257)]
    random.Random(1).shuffle(values)
    for value in values * 2:
        window.add(value)
    assert window.slow_after_s == pytest.approx(0.95 * 0.256, abs=0.002)
    for _ in range(300):
        window.add(0.0001)
    assert window.slow_after_s == 0.001


def test_the_average_follows_the_calls_and_is_forgotten_without_them() -> None:
    average = LatencyAverage()
    assert average.at(7.0) == 0
    for step in range(200):
        average.add(0.010, step / 100)
    assert average.at(2.0) == pytest.approx(0.010, rel=0.05)
    average.add(0.100, 2.0)
    assert 0.015 < average.at(2.0) < 0.025
    assert average.at(7.0) == pytest.approx(average.at(2.0) / 2.718, rel=0.01)
