"""The gate: what it refuses, and how often it errs, by resampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scannery.indexer.models.manifest import Difference
from scannery.training.gate.decision import MOST_EARLIER, difference_of, query_set_of, reasons_against

GOOD: dict[str, Any] = {"queries": 200, "current": 0.7, "candidate": 0.75, "low": 0.03, "high": 0.07}


def difference(**changes: Any) -> Difference:
    return Difference(**{**GOOD, **changes})


def test_a_better_candidate_that_harms_nothing_may_be_promoted() -> None:
    guard = difference(candidate=0.696, low=-0.02, high=0.01)
    assert reasons_against(difference(), {"news": guard}, earlier=0) == []


@pytest.mark.parametrize(
    ("target", "guards", "asked", "reason"),
    [
        (difference(low=0.0), {}, 0, "not better with certainty"),
        (difference(low=-0.01), {}, 0, "not better with certainty"),
        (difference(queries=49), {}, 0, "49 judged queries are too few"),
        (difference(), {}, MOST_EARLIER, "20 candidates were compared"),
        (difference(), {"news": difference(candidate=0.685, low=-0.02, high=-0.011)}, 0, "worse for news"),
        (difference(), {"news": difference(candidate=0.66, low=-0.1, high=0.02)}, 0, "worse for news"),
        (
            difference(),
            {name: difference(candidate=0.692, low=-0.02, high=0.01) for name in ("a", "b")},
            0,
            "worse for the guards together",
        ),
    ],
)
def test_others_are_refused_with_the_reason(
    target: Difference, guards: dict[str, Difference], asked: int, reason: str
) -> None:
    reasons = reasons_against(target, guards, earlier=asked)
    assert any(reason in each for each in reasons)


def values(random: np.random.Generator, queries: int, gain: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nDCG@10 by two orders of which the second is better by a mean gain; most queries do not change."""
    current_Q = random.choice([0, 0.4, 0.63, 1], queries)
    change_Q = np.where(random.random(queries) < 0.3, random.normal(gain / 0.3, 0.35, queries), 0.0)
    return current_Q, current_Q + change_Q


def test_equal_candidates_pass_by_chance_in_one_of_twenty_at_most() -> None:
    random = np.random.default_rng(0)
    passed = sum(
        not reasons_against(difference_of(*values(random, 200, 0.0)), {}, earlier=0) for _ in range(300)
    )
    assert passed <= 15 + 6  # a twentieth is the least that an interval of 95 % promises; two deviations more


def test_a_loss_of_three_hundredths_of_a_guard_is_nearly_always_refused() -> None:
    random = np.random.default_rng(1)
    refused = sum(
        bool(reasons_against(difference(), {"guard": difference_of(*values(random, 200, -0.03))}, earlier=0))
        for _ in range(200)
    )
    assert refused >= 180


def test_the_set_of_queries_is_that_of_its_texts_and_judgements() -> None:
    one = query_set_of({"a": "bread", "b": "chess"}, {"a": {"d1": 1}, "b": {"d2": 1}})
    assert one == query_set_of({"y": "chess", "x": "bread"}, {"x": {"d1": 1}, "y": {"d2": 1}})
    assert one != query_set_of({"a": "bread", "b": "chess"}, {"a": {"d1": 1}, "b": {"d3": 1}})
