"""Boosts: a list of signals with weights, and the ranking expression that it stands for.

    [{"attribute": "published", "decay": "90d", "weight": 0.2}, {"where": {"show": "news"}, "add": 0.1}]

is `score + 0.2 * decay(published, '90d') + 0.1 * (show == 'news')`.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["Boost", "expression_of"]

Boost: TypeAlias = Mapping[str, Any]
"""A signal with its weight: one of the forms that `expression_of` lists."""

MAX_BOOSTS = 64
_KEYS = ("attribute", "decay", "log", "saturation", "missing", "where", "weight", "add", "multiply")
_COMPARISONS = {"$eq": "==", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def expression_of(boosts: object) -> str:
    """Return the ranking expression of some boosts.

    Each is a mapping with a `weight`, a number, and
    - `attribute`: the number itself; with `log: True` ln(1 + it), with `saturation: s` it / (it + s), with `decay`, a
      half-life or `{"half_life": …, "origin": …}`, 1 at the origin (of timestamps the time of the search) and half as
      much for each half-life from it. Rows without the attribute have 0, or `missing`.
    - or `where`, a filter by attributes, of which rows that match have 1. `add` is another name of its weight.
    Signals times weights are added to the score; where `multiply` is true, the score is multiplied by 1 and these.

    Raises:
        ValueError: says which boost is wrong, and how.

    """
    if not isinstance(boosts, Sequence) or isinstance(boosts, (str, bytes)) or not boosts:
        raise ValueError(f"must be a list of boosts, got {boosts!r:.80}")
    if len(boosts) > MAX_BOOSTS:
        raise ValueError(f"has more than {MAX_BOOSTS} boosts")
    added: list[str] = []
    factors: list[str] = []
    for number, boost in enumerate(boosts):
        try:
            weight, signal = _weighted(boost)
        except ValueError as error:
            raise ValueError(f"[{number}]: {error}") from None
        (factors if boost.get("multiply", False) else added).append(f"{weight!r} * {signal}")
    score = " * ".join(["score", *(f"(1 + {factor})" for factor in factors)])
    return " + ".join([score, *added])


def _weighted(boost: Boost) -> tuple[float, str]:
    if not isinstance(boost, Mapping):
        raise ValueError(f"must be a mapping, got {boost!r:.80}")
    for key in boost:
        if key not in _KEYS:
            raise ValueError(f"{key!r:.80} is no key of a boost; these are {', '.join(_KEYS)}")
    if ("weight" in boost) == ("add" in boost):
        raise ValueError("needs a `weight` (or `add`, which is the same)")
    weight = _number(boost.get("weight", boost.get("add")), "weight")
    if not isinstance(boost.get("multiply", False), bool):
        raise ValueError("multiply: must be true or false")
    if ("where" in boost) == ("attribute" in boost):
        raise ValueError("needs either an `attribute` or a `where`")
    return weight, f"({_condition(boost['where'])})" if "where" in boost else _signal(boost)


def _signal(boost: Boost) -> str:
    forms = [key for key in ("decay", "log", "saturation") if boost.get(key) not in (None, False)]
    if len(forms) > 1:
        raise ValueError(f"has {' and '.join(forms)}; one of them shapes a signal")
    name = _attribute(boost["attribute"])
    value = name
    if "missing" in boost:
        value = f"default({name}, {_number(boost['missing'], 'missing')!r})"
    if not forms:
        return value
    if forms == ["log"]:
        if boost["log"] is not True:
            raise ValueError("log: must be true or false")
        return f"log(1 + max({value}, 0))"
    if forms == ["saturation"]:
        half = _number(boost["saturation"], "saturation")
        if half <= 0:
            raise ValueError("saturation: must be above 0")
        return f"(1 - {half!r} / (max({value}, 0) + {half!r}))"
    if "missing" in boost:
        raise ValueError("missing: rows without the attribute have 0 in a decay")
    return _decay(name, boost["decay"])


def _decay(name: str, decay: Any) -> str:
    settings = decay if isinstance(decay, Mapping) else {"half_life": decay}
    if not {"half_life"} <= set(settings) <= {"half_life", "origin"}:
        raise ValueError("decay: has a `half_life`, and for numbers an `origin`")
    half_life = settings["half_life"]
    if isinstance(half_life, dt.timedelta):
        half_life = half_life.total_seconds()
    length = repr(half_life) if isinstance(half_life, str) else repr(_number(half_life, "decay.half_life"))
    origin = settings.get("origin")
    if isinstance(origin, dt.datetime):
        origin = (origin if origin.tzinfo else origin.replace(tzinfo=dt.UTC)).timestamp()
    arguments = [name, length, *([] if origin is None else [repr(_number(origin, "decay.origin"))])]
    return f"decay({', '.join(arguments)})"


def _condition(where: Any) -> str:
    """Return a filter as an expression: equality, comparisons, `$in`, `$nin`, `$exists`, `$and`, `$or`, `$not`."""
    if not isinstance(where, Mapping) or not where:
        raise ValueError(f"where: must be a filter, got {where!r:.80}")
    parts = []
    for key, value in where.items():
        if key in ("$and", "$or"):
            if not isinstance(value, Sequence) or isinstance(value, str) or not value:
                raise ValueError(f"where: {key} needs a list of filters")
            parts.append("(" + f" {key[1:]} ".join(f"({_condition(each)})" for each in value) + ")")
        elif key == "$not":
            parts.append(f"not ({_condition(value)})")
        elif isinstance(key, str) and key.startswith("$"):
            raise ValueError(f"where: {key:.80} is no operator of boosts")
        else:
            parts.append(_comparisons(_attribute(key), value))
    return " and ".join(parts)


def _comparisons(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        if not value:
            raise ValueError(f"where: {name} has no condition")
        return " and ".join(_comparison(name, operator, each) for operator, each in value.items())
    return _membership(name, value) if isinstance(value, list) else f"{name} == {_literal(value)}"


def _comparison(name: str, operator: Any, value: Any) -> str:
    if operator in _COMPARISONS:
        return f"{name} {_COMPARISONS[operator]} {_literal(value)}"
    if operator in ("$in", "$nin"):
        membership = _membership(name, value)
        return membership if operator == "$in" else f"not ({membership})"
    if operator == "$exists" and isinstance(value, bool):
        return f"has({name})" if value else f"not has({name})"
    raise ValueError(f"where: {operator!r:.80} is no operator of boosts")


def _membership(name: str, values: Any) -> str:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ValueError(f"where: {name} needs a list of values")
    return f"{name} in [{', '.join(map(_literal, values))}]"


def _literal(value: Any) -> str:
    if isinstance(value, (dt.datetime, dt.date)):
        return repr(value.isoformat())
    if isinstance(value, (str, bool)):
        return repr(value)
    return repr(_number(value, "where"))


def _attribute(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"attribute: must be a name, got {name!r:.80}")
    return f"attribute({name!r})"


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key}: must be a number, got {value!r:.80}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{key}: must be finite, got {value!r:.80}")
    return number
