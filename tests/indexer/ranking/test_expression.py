"""Values and bounds of ranking expressions, against plain arithmetic of Python."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from scannery.indexer.ranking.expression import Attribute, Decay, values_of
from scannery.indexer.ranking.parsing import MAX_CHARACTERS, RankingSyntaxError, parsed, program_of

ATTRIBUTES = {
    "plays": "int", "price": "float", "live": "bool", "published": "timestamp", "show": "string", "tags": "string_list",
    "where": "geo", "class": "int",
}  # fmt: skip
BLOCK = 7


def value(text: str, score: float, **attributes: float) -> float:
    """Return the value of an expression of numeric attributes for one row."""
    program = program_of(text, ATTRIBUTES)

    def read(leaf: object) -> np.ndarray:
        assert isinstance(leaf, Attribute)
        return np.array([attributes.get(leaf.name, leaf.missing)])

    columns = [np.broadcast_to(values_of(signal, read), (1,)) for signal in program.signals]
    signals_C1 = np.array(columns).reshape(len(columns), 1)
    return float(program.values(np.array([score]), signals_C1)[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score", 0.5),
        ("score + 0.1 * log(1 + plays)", 0.5 + 0.1 * math.log(101)),
        ("score * (1 + price) - 2", 0.5 * 1.25 - 2),
        ("-score", -0.5),
        ("+score / 4", 0.125),
        ("score / 0", 0.0),
        ("score / (plays - 100)", 0.0),
        ("log(0)", math.log(1e-9)),
        ("log(-5)", math.log(1e-9)),
        ("sqrt(-1)", 0.0),
        ("sqrt(plays)", 10.0),
        ("exp(1e9) > 0", 1.0),
        ("exp(500) * exp(500) * exp(500) * exp(500) > 1e29", 1.0),
        ("plays * exp(500) - score * exp(500)", 5e29),
        ("(score == 0.5) + (score != price)", 2.0),
        ("abs(-score)", 0.5),
        ("min(score, plays, 3)", 0.5),
        ("max(score, plays, 3)", 100.0),
        ("1 if plays > 99 else 2", 1.0),
        ("1 if plays > 99 and price > 1 else 2", 2.0),
        ("1 if plays > 99 or price > 1 else 2", 1.0),
        ("1 if not plays > 99 else 2", 2.0),
        ("1 if 1 < plays < 200 else 2", 1.0),
        ("(plays == 100) + (plays != 100) * 10", 1.0),
        ("plays in [1, 100]", 1.0),
        ("plays not in (1, 100)", 0.0),
        ("missing_is_zero", None),
        ("default(class_, 1)", None),
        ("default(price, 7) + default(attribute('class'), 7)", 7.25),
        ("live", 0.0),
        ("True + False", 1.0),
    ],
)
def test_values(text: str, expected: float | None) -> None:
    if expected is None:
        with pytest.raises(RankingSyntaxError):
            parsed(text, ATTRIBUTES)
    else:
        assert value(text, 0.5, plays=100, price=0.25) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "invalid syntax"),
        ("score +", "invalid syntax"),
        ("score; 1", "invalid syntax"),
        ("pays", "did you mean 'plays'"),
        ("show", "is a string"),
        ("score ** 2", r"\+ - \* /"),
        ("__import__('os')", "no function"),
        ("score.real", "not part of the language"),
        ("score[0]", "not part of the language"),
        ("lambda: 1", "not part of the language"),
        ("[1]", "not part of the language"),
        ("'text'", "is no number"),
        ("1e999", "too large"),
        ("-1e31", r"too large, the limit is 1e\+30"),
        ("9" * 400, "too large"),
        ("log(1, 2)", "takes 1 arguments"),
        ("log(x=1)", "without keywords"),
        ("max()", "takes 2 arguments"),
        ("decay(plays, '90d')", "of a timestamp"),
        ("decay(plays, 10)", "give the origin"),
        ("decay(published, '90 d')", "no length of time"),
        ("decay(published, 0)", "above 0"),
        ("decay(published, score)", "above 0"),
        ("decay(show, 1, 1)", "is a string"),
        ("has(nothing)", "is no declared attribute"),
        ("default(plays, score)", "must be a number"),
        ("plays > 'a'", "is a int"),
        ("'a' in show", "is a string"),
        ("show in 'a'", "needs a list"),
        ("show in []", "needs a list"),
        ("show is 'a'", "compare by =="),
        ("score + " * 300 + "1", "characters|parts"),
        ("(" * 300 + "1" + ")" * 300, "parenthes|nested"),
        ("-" * (MAX_CHARACTERS - 1) + "1", "nested|parts"),
        ("1" + "+1" * (MAX_CHARACTERS // 2 - 1), "parts"),
        ("not " * 900 + "1", "nested|parts|parenthes"),
        ("score\0", "null"),
        ("x" * (MAX_CHARACTERS + 1), "characters"),
        ("score if", "invalid syntax|expected"),
        ("await score", "not part of the language|invalid|outside"),
        ("(score := 1)", "not part of the language"),
        ("f'{score}'", "not part of the language"),
        ("~score", "not part of the language"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(RankingSyntaxError, match=message):
        parsed(text, ATTRIBUTES)


def test_signals_of_a_sum_are_one() -> None:
    assert len(program_of("score + 0.1 * plays + 0.2 * price + (show == 'a')", ATTRIBUTES).signals) == 1
    assert len(program_of("score * (1 + plays) * (1 + price) + live", ATTRIBUTES).signals) == 2
    assert len(program_of("score * 3 + 4", ATTRIBUTES).signals) == 0


def test_signals_are_limited() -> None:
    def terms(count: int) -> str:
        return " + ".join(f"min(score, plays * {number})" for number in range(count))

    assert len(program_of(terms(16), ATTRIBUTES).signals) == 16
    with pytest.raises(RankingSyntaxError, match="17 parts of attributes, at most 16"):
        program_of(terms(17), ATTRIBUTES)


def test_only_what_depends_on_the_time_of_the_search_is_computed_again() -> None:
    assert program_of("score + plays", ATTRIBUTES).step_s == math.inf
    assert program_of("score + decay(plays, 10, 3)", ATTRIBUTES).step_s == math.inf
    assert program_of("score + decay(published, '1000s') + decay(published, '90d')", ATTRIBUTES).step_s == 1
    assert program_of("score + (now - published)", ATTRIBUTES).step_s == 60


def some_expression(rng: random.Random, depth: int) -> str:
    """Return a random expression of the score and two attributes."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(["score", "score", "plays", "price", f"{rng.uniform(-3, 3):.2f}", "0"])

    def part() -> str:
        return some_expression(rng, depth - 1)

    kinds: list[Callable[[], str]] = [
        lambda: f"({part()} {rng.choice('+-*/')} {part()})",
        lambda: f"({part()} {rng.choice('+-*/')} {part()})",
        lambda: f"{rng.choice(['log', 'exp', 'sqrt', 'abs'])}({part()})",
        lambda: f"{rng.choice(['min', 'max'])}({part()}, {part()})",
        lambda: f"({part()} if {part()} {rng.choice(['<', '<=', '>', '==', '!='])} {part()} else {part()})",
        lambda: f"(not {part()})",
        lambda: f"(-{part()})",
    ]
    return rng.choice(kinds)()


@pytest.mark.parametrize("seed", range(300))
def test_no_value_is_above_the_bound_of_its_block(seed: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    program = program_of(some_expression(rng, rng.randrange(1, 5)), ATTRIBUTES)
    scores_H = numbers.uniform(-2, 2, BLOCK).round(1)

    def read(leaf: object) -> np.ndarray:
        assert isinstance(leaf, Attribute)
        return columns[leaf.name]

    columns = {name: numbers.normal(0, 3, BLOCK).round(1) for name in ("plays", "price")}
    signals_CH = np.array(
        [np.broadcast_to(values_of(signal, read), BLOCK) for signal in program.signals]
    ).reshape(-1, BLOCK)
    values_H = program.values(scores_H, signals_CH)
    assert np.isfinite(values_H).all()
    assert values_H.dtype == np.float32
    lowest_C1, highest_C1 = signals_CH.min(axis=1)[:, None], signals_CH.max(axis=1)[:, None]
    scores = (float(scores_H.min()), float(scores_H.max()))
    if len(program.signals):
        [bound] = program.upper_bounds(scores, lowest_C1, highest_C1)
        assert values_H.max() <= bound
    bounds_H = program.upper_bounds(scores, signals_CH, signals_CH)
    assert (values_H <= bounds_H).all()


@pytest.mark.parametrize(
    ("text", "missing"),
    [("default(plays, -2)", -2.0), ("default(price, +0.5)", 0.5), ("default(price, --3)", 3.0)],
)
def test_numbers_may_have_signs(text: str, missing: float) -> None:
    assert value(text, 0.0) == missing
    decay = parsed("decay(price, 10, -5)", ATTRIBUTES)
    assert isinstance(decay, Decay)
    assert decay.origin == -5


def test_equality_in_equality_costs_no_more_than_its_length() -> None:
    # Each side once: where a level doubles the tree, 40 levels of it never end.
    assert value("(" * 40 + "score == 0.5" + ") == 1" * 40, 0.5) == 1.0
    assert value("(" * 40 + "plays != 1" + ") != 0" * 40, 0.5, plays=1) == 0.0
