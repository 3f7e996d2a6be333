"""The sample corpus is what it says it is; test_demo.py asks the real encoder what its questions claim."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from typing import Any

import pytest

from scannery.cli.sample import (
    EPISODES_PATH,
    SPEC_PATH,
    Question,
    content_words,
    episodes,
    questions,
    shared_words,
)
from scannery.indexer.datapoints.schema import attribute_values, identifier
from scannery.indexer.spec.spec_files import load_spec

EPISODES = episodes()
BY_ID = {episode["id"]: episode for episode in EPISODES}
FIELDS = {
    "id": str,
    "title": str,
    "description": str,
    "show": str,
    "speakers": list,
    "published": str,
    "topic": str,
    "minutes": int,
    "explicit": bool,
}


def test_about_300_episodes_of_15_to_20_shows_on_many_topics():
    assert 290 <= len(EPISODES) <= 320
    assert 15 <= len({row["show"] for row in EPISODES}) <= 20
    assert len({row["topic"] for row in EPISODES}) >= 20
    assert len({row["published"][:4] for row in EPISODES}) >= 6


def test_ids_and_titles_are_unique():
    assert len(BY_ID) == len(EPISODES)
    assert len({row["title"] for row in EPISODES}) == len(EPISODES)


def test_every_episode_is_well_formed():
    for row in EPISODES:
        _check(row)


def _check(row: dict[str, Any]) -> None:
    assert {name: type(value) for name, value in row.items()} == FIELDS
    assert re.fullmatch(r"[a-z-]+-\d{3}", row["id"])
    assert identifier(row["id"], field="id") == row["id"]
    assert 40 <= len(row["description"].split()) <= 90
    assert row["description"] == row["description"].strip()
    assert row["description"][-1] in ".?!"
    assert 1 <= len(row["speakers"]) <= 3
    assert all(speaker.strip() == speaker and speaker for speaker in row["speakers"])
    assert dt.date(2018, 1, 1) <= dt.date.fromisoformat(row["published"]) <= dt.date(2025, 12, 31)
    assert 10 <= row["minutes"] <= 60


def test_every_attribute_fits_the_spec_and_is_set():
    spec = load_spec(SPEC_PATH)
    for row in EPISODES:
        assert None not in attribute_values(row, spec).values()


def test_episodes_of_a_show_are_numbered_in_order_of_publication():
    for _, group in itertools.groupby(EPISODES, key=lambda row: row["show"]):
        rows = list(group)
        assert [row["published"] for row in rows] == sorted(row["published"] for row in rows)
        assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)


def test_no_two_descriptions_share_a_run_of_words():
    seen: dict[tuple[str, ...], str] = {}
    for row in EPISODES:
        words = re.findall(r"[\w’']+", row["description"].lower())
        for run in set(zip(*(words[i:] for i in range(6)), strict=False)):
            assert seen.setdefault(run, row["id"]) == row["id"], f"{row['id']}: {' '.join(run)}"


def test_the_file_is_plain_utf8_lines():
    text = EPISODES_PATH.read_bytes().decode("utf-8")
    assert text.endswith("}\n")
    assert "\r" not in text
    assert "\n\n" not in text


@pytest.mark.system
def test_questions_name_episodes_that_exist_and_are_asked_once():
    assert len({(question.question, question.ranking) for question in questions()}) == len(questions())
    for question in questions():
        assert question.expect
        assert set(question.expect) <= BY_ID.keys()
        assert len(question.expect) <= question.within <= 5


def test_more_than_thirty_episodes_answer_without_a_shared_word():
    answered = {name for question in questions() if question.no_shared_words for name in question.expect}
    assert len(answered) >= 40


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.question)
def test_the_claim_about_shared_words_holds(question: Question):
    shared = [
        shared_words(question.question, f"{BY_ID[name]['title']} {BY_ID[name]['description']}")
        for name in question.expect
    ]
    # Both ways, so that no question loses its claim unnoticed.
    assert (not any(shared)) == question.no_shared_words, shared


def test_the_demo_asks_several_questions_one_of_them_filtered():
    asked = [question for question in questions() if question.demo]
    assert len(asked) >= 4
    assert any(question.where for question in asked)
    assert any(question.ranking for question in asked)
    # A listener sees the point at once: the first hit is right and no word matches.
    assert all(question.no_shared_words and question.within == 1 for question in asked if not question.where)


@pytest.mark.parametrize(
    ("query", "text", "shared"),
    [
        ("How do volcanoes form?", "A volcano, forming", ["volcanoes", "form"]),
        ("parents", "Parenting is hard", ["parents"]),
        ("the cat's whiskers", "A cat sat.", ["cat"]),
        ("running late", "She runs", ["running"]),
        ("stories", "one story", ["stories"]),
        ("Zürich 1918", "in ZÜRICH since 1918", ["zürich", "1918"]),
        ("how is it that you are", "how is it that you are", []),
        ("electric cars", "battery-powered vehicles", []),
        ("", "anything", []),
    ],
)
def test_shared_words(query: str, text: str, shared: list[str]):
    assert shared_words(query, text) == shared


def test_content_words_keep_their_order_and_come_once():
    assert content_words("The sea, the SEA and a ship’s bell") == ["sea", "ship", "bell"]
