"""How an index and its shadow differ, and when what people click is enough to decide."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from datetime import datetime, timezone

import pytest

from scannery.evaluation.traffic.shadow import Preference, preference_of, shadow_report
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery, ShadowAnswer
from tests.indexer.traffic.test_day_files import event, query

NOON = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


def logged(number: int, hits: str, **attributes: object) -> LoggedQuery:
    return query(
        number, NOON, query_response_hit_ids=[*hits], scores=[0.5] * len(hits), latency_us=1000,
        query_attributes=json.dumps(attributes), client_id=f"client {number}",
    )  # fmt: skip


def shadowed(number: int, hits: str, **attributes: object) -> ShadowAnswer:
    return ShadowAnswer(**asdict(logged(number, hits, shadow="new", **attributes)))


def clicks(number: int, *places: int) -> list[LoggedEvent]:
    return [event(number, NOON, ordinal=place, object_id=str(place), action_name="click") for place in places]


def test_differences_are_of_queries_that_both_have_answered() -> None:
    report = shadow_report(
        "new",
        [logged(0, "abcd"), logged(1, "ab"), logged(2, ""), logged(3, "ab"), logged(4, "ab")],
        [
            shadowed(0, "abdc"),
            shadowed(1, "bx"),
            shadowed(2, ""),
            shadowed(3, "", error="UNAVAILABLE"),
            ShadowAnswer(**asdict(logged(4, "xy", shadow="another"))),
            shadowed(9, "ab"),
        ],
        [],
    )
    assert (report.answers, report.errors) == (3, {"UNAVAILABLE": 1})
    assert report.overlap is not None and report.overlap.mean == pytest.approx((1 + 0.5 + 1) / 3)
    assert report.same_first == pytest.approx(2 / 3)  # two answers without hits are the same
    assert report.moves == pytest.approx((0 + 0 + 1 + 1 + 1) / 5)
    assert (report.empty_share, report.shadow_empty_share) == pytest.approx((1 / 3, 1 / 3))
    assert report.latency_ms == [1.0, 1.0]


def test_a_click_counts_for_the_side_that_drew_the_hit() -> None:
    rows = [logged(number, "abcd", shadow="new", teams="abba") for number in range(5)]
    events = [*clicks(0, 2), *clicks(1, 2, 3), *clicks(2, 1, 2), *clicks(3, 4), *clicks(9, 2), *clicks(4, 7)]
    preference = shadow_report("new", [*rows, logged(8, "ab")], [], events).preference
    assert (preference.answers, preference.clicked) == (5, 4)
    assert (preference.index_wins, preference.shadow_wins) == (1, 2)
    assert shadow_report("another", rows, [], events).preference.answers == 0


def test_one_who_asks_the_same_again_and_again_counts_once() -> None:
    rows = [
        replace(logged(number, "ab", shadow="new", teams="ab"), asker="one" if number < 50 else None)
        for number in range(53)
    ]
    preference = preference_of(rows, [each for number in range(53) for each in clicks(number, 2)])
    assert (preference.clicked, preference.shadow_wins) == (53, 4)


def test_without_texts_one_who_sees_the_same_again_counts_once() -> None:
    rows = [replace(logged(number, "ab", shadow="new", teams="ab"), client_id="one") for number in range(9)]
    rows[8] = replace(rows[8], query_response_hit_ids=["a", "c"])
    preference = preference_of(rows, [each for number in range(9) for each in clicks(number, 2)])
    assert (preference.clicked, preference.shadow_wins) == (9, 2)


def preferred(index_wins: int, shadow_wins: int) -> Preference:
    rows = [logged(number, "ab", shadow="new", teams="ab") for number in range(index_wins + shadow_wins)]
    events = [each for number in range(len(rows)) for each in clicks(number, 1 if number < index_wins else 2)]
    return preference_of(rows, events)


def test_a_verdict_waits_until_it_is_enough() -> None:
    assert preferred(0, 0).verdict == "undecided"
    assert preferred(0, 7).verdict == "undecided"
    assert preferred(0, 10).verdict == "shadow"
    assert preferred(10, 0).verdict == "index"
    assert preferred(60, 40).verdict == "undecided"
    assert preferred(600, 400).verdict == "index"
    assert preferred(5000, 5000).verdict == "equal"


@pytest.mark.parametrize(("clicked", "verdict"), [(99, "undecided"), (100, "equal")])
def test_answers_that_do_not_differ_are_enough_to_say_so(clicked: int, verdict: str) -> None:
    rows = [logged(number, "ab", shadow="new", teams="--") for number in range(clicked)]
    preference = preference_of(rows, [each for number in range(clicked) for each in clicks(number, 1)])
    assert (preference.clicked, preference.shadow_wins, preference.verdict) == (clicked, 0, verdict)


@pytest.mark.parametrize("preference", [0.5])
def test_looking_after_each_answer_cries_wolf_in_at_most_a_twentieth(preference: float) -> None:
    chosen, false_alarms, runs = random.Random(3), 0, 200
    for _ in range(runs):
        wins = [0, 0]
        for _ in range(600):
            wins[chosen.random() < preference] += 1
            if sum(wins) % 10 == 0 and _interval_excludes_half(wins):
                false_alarms += 1
                break
    assert false_alarms <= 0.05 * runs


def _interval_excludes_half(wins: list[int]) -> bool:
    from scannery.evaluation.traffic.shadow import _interval

    low, high = _interval(*wins)
    return low > 0.5 or high < 0.5
