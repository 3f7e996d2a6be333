"""Whether users ask for other things: no alarm over the same stream, and one if a fifth of the queries is foreign."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from scannery.evaluation.traffic.drift import PERMUTATIONS, _discrepancies, drift_of, sampled_texts
from tests.indexer.traffic.test_day_files import query

RANDOM = np.random.default_rng(8)
TOPICS_TD = RANDOM.standard_normal((12, 32)).astype(np.float32)
"""The topics of former queries are the first ten."""


def queries(count: int, *, foreign: float = 0.0) -> np.ndarray:
    """Return vectors near some topics, in an order by chance, float32 (N, D)."""
    is_foreign_N = RANDOM.random(count) < foreign
    topics_N = np.where(is_foreign_N, RANDOM.integers(10, 12, count), RANDOM.integers(0, 10, count))
    vectors_ND = TOPICS_TD[topics_N] + 1.2 * RANDOM.standard_normal((count, 32)).astype(np.float32)
    units_ND: np.ndarray = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return units_ND


def test_the_same_stream_gives_no_alarm_and_a_fifth_of_foreign_queries_does() -> None:
    alarms = [drift_of(queries(400), queries(500), seed=seed).has_drifted for seed in range(10)]
    assert not any(alarms)
    alarms = [drift_of(queries(400), queries(500, foreign=0.2), seed=seed).has_drifted for seed in range(10)]
    assert sum(alarms) >= 9


def test_the_farthest_queries_are_the_foreign_ones() -> None:
    new_MD = np.concatenate([queries(200), queries(40, foreign=1.0)])
    farthest = drift_of(queries(400), new_MD).farthest
    assert sum(number >= 200 for number in farthest) >= 18


def test_the_discrepancy_is_that_of_its_definition() -> None:
    kernel = np.exp(queries(30) @ queries(30).T)
    kernel = (kernel + kernel.T).astype(np.float32)
    np.fill_diagonal(kernel, 0)
    is_new_N = np.arange(30) >= 18
    expected = (
        kernel[is_new_N][:, is_new_N].sum() / (12 * 11)
        + kernel[~is_new_N][:, ~is_new_N].sum() / (18 * 17)
        - 2 * kernel[is_new_N][:, ~is_new_N].mean()
    )
    [actual] = _discrepancies(kernel, is_new_N[:, None].astype(np.float32))
    assert actual == pytest.approx(expected, rel=1e-4)


def test_chances_are_never_zero() -> None:
    drift = drift_of(queries(200), queries(200, foreign=1.0))
    assert min(drift.chances) >= 1 / (PERMUTATIONS + 1)


def test_texts_are_divided_by_day_and_further_pages_do_not_count() -> None:
    today = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)

    def rows() -> Iterator[object]:
        for number in range(3000):
            moment = today - timedelta(days=number % 3)
            offset = {"offset": 10} if number % 10 == 9 else {}
            yield query(
                number, moment, user_query=f"{number % 3} {number}", query_attributes=json.dumps(offset)
            )

    former, new = sampled_texts(rows(), today.date())  # type: ignore[arg-type]
    assert {text[0] for text in new} == {"0"}
    assert {text[0] for text in former} == {"1", "2"}
    assert (len(new), len(former)) == (900, 1000)
    assert not any(text.endswith("9") for text in (*former, *new))
