"""Judgements from clicks: what counts, how often, and from how many users on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from scannery.evaluation.judgements import read_judgements, read_queries
from scannery.evaluation.traffic.collection import write_collection
from scannery.evaluation.traffic.pairs import JudgedText, judged_texts
from scannery.evaluation.traffic.statistics import statistics
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery
from tests.indexer.traffic.test_day_files import event, query

NOON = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


class Log:
    """A log that is written search by search."""

    def __init__(self) -> None:
        self.queries: list[LoggedQuery] = []
        self.events: list[LoggedEvent] = []
        self.at = NOON

    def search(
        self,
        client: str,
        text: str,
        *,
        hits: Sequence[str] = ("a", "b", "c", "d"),
        clicked: Sequence[str] = (),
        rejected: Sequence[str] = (),
        after_s: float = 600,
    ) -> None:
        self.at += timedelta(seconds=after_s)
        number = len(self.queries)
        asker = f"{client} {text.lower()}"
        row = query(
            number, self.at, client_id=client, asker=asker, user_query=text, query_response_hit_ids=[*hits],
            scores=[0.5] * len(hits), query_attributes='{"mode": "dense"}',
        )  # fmt: skip
        self.queries.append(row)
        for action, ids in (("click", clicked), ("reject", rejected)):
            for each in ids:
                ordinal = hits.index(each) + 1 if each in hits else 9
                self.events.append(
                    event(number, self.at, action_name=action, object_id=each, ordinal=ordinal)
                )

    def judged(self, min_askers: int = 1) -> list[JudgedText]:
        return judged_texts(self.queries, self.events, min_askers=min_askers)


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_click_makes_a_pair_and_hits_above_it_were_passed_over(log: Log) -> None:
    log.search("ann", "volcanoes", clicked=["c"])
    [judged] = log.judged()
    assert (judged.text, judged.askers) == ("volcanoes", 1)
    assert judged.right == {"c": 1}
    assert judged.wrong == {"a": 1, "b": 1}


def test_hits_below_a_click_are_not_judged_where_hits_above_it_were_forgotten(log: Log) -> None:
    log.search("ann", "volcanoes", clicked=["c"])
    log.queries = [replace(log.queries[0], query_response_hit_ids=["c", "d"], scores=[0.5, 0.5])]
    [judged] = log.judged()
    assert (judged.right, judged.wrong) == ({"c": 1}, {})


def test_hits_below_the_last_click_are_not_judged(log: Log) -> None:
    log.search("ann", "volcanoes", clicked=["a", "b"])
    [judged] = log.judged()
    assert (judged.right, judged.wrong) == ({"a": 1, "b": 1}, {})


def test_a_rejection_outweighs_the_click_of_the_same_answer(log: Log) -> None:
    log.search("ann", "volcanoes", clicked=["a"], rejected=["a", "d"])
    [judged] = log.judged()
    assert (judged.right, judged.wrong, judged.rejected) == ({}, {"a": 1, "d": 1}, frozenset({"a", "d"}))


def test_ten_thousand_clicks_of_one_user_are_one_pair(log: Log) -> None:
    for _ in range(10_000):
        log.search("ann", "volcanoes", clicked=["a"])
    assert [judged.right for judged in log.judged()] == [{"a": 1}]
    assert not log.judged(min_askers=5)


def test_four_users_make_no_pair_and_five_do(log: Log) -> None:
    for client in ("ann", "bob", "cid", "dot"):
        log.search(client, "Volcanoes ", clicked=["a"])
    assert not log.judged(min_askers=5)
    log.search("eve", "volcanoes")
    [judged] = log.judged(min_askers=5)
    assert (judged.text, judged.askers, judged.right) == ("Volcanoes ", 5, {"a": 4})


def test_one_user_on_five_days_is_one_asker(log: Log) -> None:
    for day in range(5):
        log.search("ann", "volcanoes", clicked=["a"], after_s=86_400)
        log.queries[-1] = query(
            day, log.at, client_id=f"ann on day {day}", asker="ann volcanoes", user_query="volcanoes"
        )
    assert not log.judged(min_askers=2)


def test_most_users_decide_and_equal_numbers_do_not(log: Log) -> None:
    for client in ("ann", "bob"):
        log.search(client, "volcanoes", clicked=["a"])
    log.search("cid", "volcanoes", rejected=["a"])
    assert [judged.right for judged in log.judged()] == [{"a": 2}]
    log.search("dot", "volcanoes", rejected=["a"])
    assert not log.judged()


def test_one_who_comes_back_and_clicks_has_not_passed_it_over(log: Log) -> None:
    log.search("ann", "volcanoes", clicked=["b"])
    log.search("ann", "volcanoes", clicked=["a"])
    assert [(judged.right, judged.wrong) for judged in log.judged()] == [({"a": 1, "b": 1}, {})]


def test_a_click_after_a_search_without_one_counts_for_both_texts(log: Log) -> None:
    log.search("ann", "hot mountains")
    log.search("ann", "volcanoes", clicked=["a"], after_s=60)
    assert {judged.text: (judged.right, judged.reformulated) for judged in log.judged()} == {
        "hot mountains": ({"a": 1}, frozenset({"a"})),
        "volcanoes": ({"a": 1}, frozenset()),
    }
    log.search("bob", "hot mountains", clicked=["a"])
    assert [judged.reformulated for judged in log.judged()] == [set(), set()], (
        "bob has clicked it for the text"
    )


def test_several_searches_without_a_click_are_all_reformulated(log: Log) -> None:
    for text in ("hot mountains", "mountains of fire"):
        log.search("ann", text, rejected=["b"], after_s=30)
    log.search("ann", "volcanoes", clicked=["a", "b"], after_s=30)
    judged = {each.text: each for each in log.judged()}
    assert [*judged] == ["hot mountains", "mountains of fire", "volcanoes"]
    assert judged["hot mountains"].right == judged["mountains of fire"].right == {"a": 1}
    assert judged["hot mountains"].wrong == {"b": 1}, "what was rejected for a text stays wrong for it"
    assert judged["hot mountains"].rejected == {"b"}
    assert judged["volcanoes"].right == {"a": 1, "b": 1}


@pytest.mark.parametrize("between", ["later", "of another user", "clicked before"])
def test_other_searches_are_no_reformulation(log: Log, between: str) -> None:
    log.search("ann", "hot mountains", clicked=["d"] if between == "clicked before" else [])
    client = "bob" if between == "of another user" else "ann"
    log.search(client, "volcanoes", clicked=["a"], after_s=121 if between == "later" else 60)
    right = {judged.text: judged.right for judged in log.judged()}
    assert right["volcanoes"] == {"a": 1}
    assert right.get("hot mountains", {}) == ({"d": 1} if between == "clicked before" else {})


def test_queries_without_texts_make_no_pairs() -> None:
    assert not judged_texts([query(1)], [event(1)], min_askers=1)


def test_feedback_on_queries_that_are_not_in_the_log_makes_no_pairs() -> None:
    assert not judged_texts([query(1, user_query="a", asker="x")], [event(2)], min_askers=1)


# Collections


@dataclass
class Point:
    id: str
    document_id: str
    title: str | None
    text: str | None


def test_a_collection_is_read_by_evaluate(tmp_path: Path) -> None:
    points = {
        "e1#0": Point("e1#0", "e1", "First", "Lava."),
        "e1#1": Point("e1#1", "e1", "First", "Ash."),
        "e2#0": Point("e2#0", "e2", None, "Bread."),
    }
    judged = [
        JudgedText(
            query_id="q1",
            text="hot",
            askers=7,
            right={"e1#0": 3},
            reformulated=frozenset({"e1#0"}),
            wrong={"e1#1": 2, "e2#0": 1, "gone": 1},
            rejected=frozenset({"e1#1", "e2#0"}),
        ),
        JudgedText(
            query_id="q2",
            text="old",
            askers=7,
            right={"gone": 3},
            reformulated=frozenset(),
            wrong={},
            rejected=frozenset(),
        ),
    ]
    report = write_collection(judged, tmp_path / "out", lambda ids: [points.get(each) for each in ids])
    assert (report.queries, report.documents, report.gone) == (1, 2, 1)
    assert (report.right, report.reformulated, report.wrong, report.rejected) == (1, 1, 1, 1)
    assert read_judgements(tmp_path / "out/qrels.tsv") == {"q1": {"e1": 1, "e2": 0}}
    assert {key: each.text for key, each in read_queries(tmp_path / "out/queries.jsonl").items()} == {
        "q1": "hot"
    }
    lines = (tmp_path / "out/corpus.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"_id": "e1", "title": "First", "text": "Lava.\n\nAsh."},
        {"_id": "e2", "title": "", "text": "Bread."},
    ]
    write_collection(judged, tmp_path / "out", lambda ids: [points.get(each) for each in ids], passages=True)
    assert read_judgements(tmp_path / "out/qrels.tsv") == {"q1": {"e1#0": 1, "e1#1": 0, "e2#0": 0}}


# Figures


def test_figures_are_those_of_a_day(log: Log) -> None:
    log.at = NOON - timedelta(days=1)
    log.search("ann", "a", clicked=["a"])
    log.search("bob", "b", hits=[])
    log.search("bob", "c", rejected=["a"])
    log.search("bob", "d")
    log.search("ann", "e", after_s=86_400)
    first, second = statistics(log.queries, [*log.events, event(77)])
    assert (first.queries, first.askers, first.empty_share, first.click_share, first.reject_share) == (
        4, 2, 0.25, 0.25, 0.25,
    )  # fmt: skip
    assert first.scores == {"dense": [0.5, 0.5, 0.5]}
    assert first.latency_ms == pytest.approx([0.321] * 3)
    assert (second.day - first.day).days == 1
    assert second.queries == 1


def test_further_pages_say_nothing_of_empty_answers() -> None:
    page = query(1, query_response_hit_ids=[], scores=[], query_attributes='{"offset": 10}')
    [day] = statistics([page], [])
    assert (day.queries, day.empty_share) == (1, 0.0)
