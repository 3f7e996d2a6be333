"""The measures of the benchmark of answers, against values by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.answers import Question, alpha_ndcg, has_answer
from scannery import Hit
from scannery.client import Context


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
