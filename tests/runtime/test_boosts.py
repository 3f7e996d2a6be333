"""Boosts and the expressions that they stand for."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from scannery.runtime.boosts import expression_of


@pytest.mark.parametrize(
    ("boosts", "expression"),
    [
        (
            [{"attribute": "published", "decay": {"half_life": "90d"}, "weight": 0.2}],
            "score + 0.2 * decay(attribute('published'), '90d')",
        ),
        (
            [{"attribute": "published", "decay": dt.timedelta(days=1), "weight": 1}],
            "score + 1.0 * decay(attribute('published'), 86400.0)",
        ),
        (
            [
                {
                    "attribute": "price",
                    "decay": {"half_life": 10, "origin": 100},
                    "weight": 1,
                    "multiply": True,
                }
            ],
            "score * (1 + 1.0 * decay(attribute('price'), 10.0, 100.0))",
        ),
        (
            [{"attribute": "plays", "log": True, "weight": 0.1}],
            "score + 0.1 * log(1 + max(attribute('plays'), 0))",
        ),
        (
            [{"attribute": "plays", "saturation": 50, "missing": 3, "weight": -0.1}],
            "score + -0.1 * (1 - 50.0 / (max(default(attribute('plays'), 3.0), 0) + 50.0))",
        ),
        ([{"attribute": "rating", "weight": 2, "log": False}], "score + 2.0 * attribute('rating')"),
        (
            [{"where": {"show": "news", "year": {"$gte": 2020, "$lt": 2024}}, "add": 0.1}],
            "score + 0.1 * (attribute('show') == 'news'"
            " and attribute('year') >= 2020.0 and attribute('year') < 2024.0)",
        ),
        (
            [{"where": {"$or": [{"show": ["a", "b"]}, {"$not": {"live": True}}]}, "add": 1}],
            "score + 1.0 * (((attribute('show') in ['a', 'b']) or (not (attribute('live') == True))))",
        ),
        (
            [
                {
                    "where": {"day": {"$gt": dt.date(2024, 5, 1)}, "x": {"$exists": False, "$nin": [1]}},
                    "add": 1,
                }
            ],
            "score + 1.0 * (attribute('day') > '2024-05-01'"
            " and not has(attribute('x')) and not (attribute('x') in [1.0]))",
        ),
    ],
)
def test_expressions(boosts: Any, expression: str) -> None:
    assert expression_of(boosts) == expression


@pytest.mark.parametrize(
    ("boosts", "message"),
    [
        ([], "must be a list"),
        ("boost", "must be a list"),
        ({"attribute": "a", "weight": 1}, "must be a list"),
        ([{}], r"\[0\]: needs a `weight`"),
        ([{"weight": 1, "add": 1, "attribute": "a"}], "needs a `weight`"),
        ([{"weight": 1}], "either an `attribute` or a `where`"),
        ([{"weight": "1", "attribute": "a"}], "weight: must be a number"),
        ([{"weight": float("nan"), "attribute": "a"}], "must be finite"),
        ([{"weight": 1, "attribute": "a"}, {"wait": 1}], r"\[1\]: 'wait' is no key"),
        ([{"weight": 1, "attribute": "a", "log": True, "decay": "1d"}], "decay and log"),
        ([{"weight": 1, "attribute": "a", "saturation": -1}], "above 0"),
        ([{"weight": 1, "attribute": "a", "decay": {"halflife": 1}}], "half_life"),
        ([{"weight": 1, "attribute": "a", "multiply": "yes"}], "multiply"),
        ([{"weight": 1, "where": {"a": {"$near": 1}}}], "no operator of boosts"),
        ([{"weight": 1, "where": {}}], "must be a filter"),
        ([{"weight": 1, "where": {"a": []}}], "needs a list of values"),
        ([{"weight": 1, "where": {"a": None}}], "must be a number"),
        ([{"weight": 1, "attribute": "a"}] * 65, "more than 64"),
    ],
)
def test_what_is_no_boost_is_refused(boosts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expression_of(boosts)
