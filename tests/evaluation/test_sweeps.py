"""Sweeps: what values they stand for, and which configurations they make."""

from __future__ import annotations

from typing import Any

import pytest

from scannery.evaluation.evaluate import combine, parse_sweep


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alpha=0.1..0.9:0.2", ("alpha", [0.1, 0.3, 0.5, 0.7, 0.9])),
        ("alpha=0..1:0.25", ("alpha", [0, 0.25, 0.5, 0.75, 1])),
        ("alpha=0.2,0.5, 0.2", ("alpha", [0.2, 0.5])),
        ("k=10..13", ("k", [10, 11, 12, 13])),
        ("rerank=0,10..30:10", ("rerank", [0, 10, 20, 30])),
        ("target-recall=0.9,0.95", ("target_recall", [0.9, 0.95])),
        ("mode=dense,hybrid", ("mode", ["dense", "hybrid"])),
        ("typos=true,false", ("typos", [True, False])),
        ("vectors=title, title=2 + body", ("vectors", ["title", "title=2+body"])),
    ],
)
def test_values_of_a_sweep(text: str, expected: tuple[str, list[object]]) -> None:
    assert parse_sweep(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beta=1", "a name of index, mode, vectors, fusion, alpha"),
        ("alpha", "must be NAME=VALUES"),
        ("alpha=", "1 to 200 values, got 0"),
        ("alpha=a", "alpha: must be a number, got 'a'"),
        ("k=1.5", "k: must be an integer, got '1.5'"),
        ("alpha=0..1", "a range is LOW..HIGH:STEP"),
        ("alpha=1..0:0.1", "a range is LOW..HIGH:STEP"),
        ("alpha=0..1:0", "a range is LOW..HIGH:STEP"),
        ("alpha=0..1:-1", "a range is LOW..HIGH:STEP"),
        ("alpha=0..nan:1", "alpha: must be finite"),
        ("alpha=0..1:1e-9", "1 to 200 values"),
        ("k=1..10:0.5", "k: must be an integer"),
        ("prefix=yes", "prefix: must be true or false, got 'yes'"),
    ],
)
def test_wrong_sweeps_are_clear_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_sweep(text)


def test_combinations_leave_out_what_a_mode_ignores() -> None:
    sweeps: dict[str, list[Any]] = {
        "alpha": [0.3, 0.7],
        "mode": ["dense", "hybrid"],
        "fusion": ["weighted_score"],
        "rerank": [0, 20],
    }
    found = combine({"k": 10, "target_recall": None}, sweeps)
    assert [one.name for one in found] == [
        "dense rerank=0",
        "dense rerank=20",
        "hybrid weighted_score alpha=0.3 rerank=0",
        "hybrid weighted_score alpha=0.3 rerank=20",
        "hybrid weighted_score alpha=0.7 rerank=0",
        "hybrid weighted_score alpha=0.7 rerank=20",
    ]
    assert found[1].options == {"k": 10, "mode": "dense", "rerank": 20}
    assert found[3].without("alpha") == "hybrid weighted_score rerank=20"


def test_options_of_words_and_of_vectors_are_of_the_modes_that_have_them() -> None:
    sweeps: dict[str, list[Any]] = {
        "mode": ["dense", "lexical", "hybrid"],
        "vectors": ["title", "title=2+body"],
        "typos": [True, False],
    }
    names = [one.name for one in combine({"k": 10, "prefix": True}, sweeps)]
    assert names == [
        "dense vectors=title",
        "dense vectors=title=2+body",
        "lexical typos=true",
        "lexical typos=false",
        "hybrid vectors=title typos=true",
        "hybrid vectors=title typos=false",
        "hybrid vectors=title=2+body typos=true",
        "hybrid vectors=title=2+body typos=false",
    ]
    dense, lexical = combine({"prefix": True, "vectors": "title"}, {"mode": ["dense", "lexical"]})
    assert (dict(dense.options), dict(lexical.options)) == (
        {"mode": "dense", "vectors": "title"},
        {"mode": "lexical", "prefix": True},
    )


def test_fixed_options_are_not_in_the_name() -> None:
    found = combine({"k": 10, "alpha": 0.3}, {"mode": ["lexical", "hybrid"]})
    assert [(one.name, dict(one.options)) for one in found] == [
        ("lexical", {"k": 10, "mode": "lexical"}),
        ("hybrid", {"k": 10, "alpha": 0.3, "mode": "hybrid"}),
    ]


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 200 configurations, these sweeps make 400"):
        combine({}, {"mode": ["hybrid"], "alpha": [n / 20 for n in range(20)], "k": list(range(1, 21))})
