"""The measures of the benchmark of answers, against values by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.answers import alpha_ndcg, has_answer
from benchmarks.questions import LEAST_ANSWER_WORDS, Question, podcasts
from scannery import Hit
from scannery.client import Context
from tests.data import shared_data


def test_a_further_hit_of_a_subtopic_is_worth_half() -> None:
    sizes = {"a": 2, "b": 1}
    second, third = 1 / math.log2(3), 1 / 2
    ideal = 1 + second + 0.5 * third
    assert alpha_ndcg(["a", "b", "a"], sizes) == pytest.approx(1)
    assert alpha_ndcg(["a", "a", "b"], sizes) == pytest.approx((1 + 0.5 * second + third) / ideal)
    assert alpha_ndcg(["x", "x", "b"], sizes) == pytest.approx(third / ideal)


@pytest.mark.parametrize(
    ("document", "context", "answers"),
    [
        ("d", Context(start=5, end=20), True),
        ("other", Context(start=5, end=20), False),
        ("d", Context(start=6, end=20), False),
        ("d", Context(start=5, end=19), False),
        ("d", Context(within="d#0"), False),
        ("d", None, False),
    ],
)
def test_an_answer_is_the_whole_sentence_in_its_document(
    document: str, context: Context | None, *, answers: bool
) -> None:
    hit = Hit(id=f"{document}#1", document_id=document, score=1.0, context=context)
    assert has_answer([hit], Question("why", "d", 5, 20)) is answers


@pytest.mark.system
def test_questions_of_podcasts_stand_before_their_answers_or_are_cut_out() -> None:
    shared_data("podcasts-changelog")
    said, cut = podcasts(has_questions=True), podcasts(has_questions=False)
    assert len(said.questions) == len(cut.questions) >= 200
    assert len({question.document for question in said.questions}) == len(said.questions)
    for one, other in zip(said.questions, cut.questions, strict=True):
        with_it, without = said.documents[one.document], cut.documents[other.document]
        answer = with_it[one.start : one.end]
        assert (one.text, answer) == (other.text, without[other.start : other.end])
        assert len(answer.split()) >= LEAST_ANSWER_WORDS
        before, _, after = with_it[: one.start].rpartition(one.text)
        assert before and "\n\n" in after, "another speaker answers"
        assert "".join(without.split()) == "".join((before + after + with_it[one.start :]).split())
