"""Ranking expressions: a number for each row, of its score and its attributes; also bounds of it for many rows at once.

Every expression has a finite value for every row: what arithmetic leaves undefined is defined here. Bounds are those of
interval arithmetic (Moore, "Interval Analysis", 1966): they may be wider than the values are, never narrower.

Parts that do not depend on the score are the **signals** of an expression. They are computed once for each row.

Shapes: C signals, H rows, B blocks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

import numpy as np

__all__ = [
    "FUNCTIONS",
    "LIMIT",
    "Attribute",
    "Call",
    "Condition",
    "Constant",
    "Decay",
    "Expression",
    "Leaf",
    "Now",
    "Program",
    "Score",
    "compiled",
    "limited",
    "values_of",
]

LIMIT = 1e30
"""Largest absolute value of scores, attributes, products and quotients: sums of a few hundred are finite in float32."""
NOW_STEP_S = 60.0
_LEAST_LOG, _MOST_EXP = 1e-9, math.log(LIMIT)


@dataclass(frozen=True, slots=True)
class Constant:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a row for the query, between -LIMIT and LIMIT."""


@dataclass(frozen=True, slots=True)
class Now:
    """The time of the search, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """The value of an attribute: a number, 0 or 1 of a boolean, seconds since 1970 of a timestamp."""

    name: str
    missing: float = 0.0
    """Value of rows without the attribute."""


@dataclass(frozen=True, slots=True)
class Decay:
    """1 at an origin, and half as much for each half-life of distance to it; 0 for rows without the attribute."""

    attribute: str
    half_life: float
    """Half-life in the unit of the attribute; seconds for a timestamp."""
    origin: float | None
    """None: the time of the search, and later times have 1."""


@dataclass(frozen=True, slots=True)
class Condition:
    """1 for rows whose attribute meets a condition of a filter, 0 for others."""

    attribute: str
    operator: str
    """An operator of filters, as `eq`."""
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function of other expressions."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class _Signal:
    """The value of a signal, by its number."""

    number: int


Leaf: TypeAlias = Constant | Score | Now | Attribute | Decay | Condition | _Signal
Expression: TypeAlias = Leaf | Call
_Bounds: TypeAlias = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of numbers, for arrays."""

    compute: Callable[..., np.ndarray]
    slopes: tuple[int, ...] = ()
    """Slopes by argument: 1 where the function does not fall with it, -1 where it does not rise; empty: unknown."""
    bounds: Callable[..., _Bounds] | None = None
    """Bounds by those of the arguments, where slopes do not tell them."""
    arguments: int = 0
    """Number of arguments where there are no slopes."""

    @property
    def arity(self) -> int:
        """Number of arguments."""
        return len(self.slopes) or self.arguments


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """An expression in two parts: signals, which depend on the row, and what makes one number of them and a score."""

    signals: tuple[Expression, ...]
    root: Expression
    step_s: float
    """Seconds for which times of searches are the same: a thousandth of the shortest half-life, a minute for `now`."""

    @property
    def conditions(self) -> list[Condition]:
        """Conditions of its signals."""
        leaves = [leaf for signal in self.signals for leaf in _leaves(signal)]
        return [leaf for leaf in leaves if isinstance(leaf, Condition)]

    def values(self, scores_H: np.ndarray, signals_CH: np.ndarray) -> np.ndarray:
        """Return the value of each row by its score and its signals, float32 (H,), as scores of hits are."""

        def leaf(node: Leaf) -> np.ndarray:
            return limited(scores_H) if isinstance(node, Score) else signals_CH[node.number]  # type: ignore[union-attr]  # the rest are signals

        return _of_shape(values_of(self.root, leaf), scores_H.shape)

    def upper_bounds(
        self, scores: tuple[float, float], lowest_CB: np.ndarray, highest_CB: np.ndarray
    ) -> np.ndarray:
        """Return for each block of rows a number that no value of its rows is above, float32 (B,).

        Args:
            scores: the lowest and the highest score of the rows.
            lowest_CB: the lowest of each signal.
            highest_CB: the highest of each signal.

        """

        def leaf(node: Leaf) -> _Bounds:
            if isinstance(node, Score):
                return np.float64(scores[0]), np.float64(scores[1])  # type: ignore[return-value]  # as arrays of no dimension
            return lowest_CB[node.number], highest_CB[node.number]  # type: ignore[union-attr]  # the rest are signals

        _, highest = _bounds_of(self.root, leaf)
        return _of_shape(highest, lowest_CB.shape[1:])


def _of_shape(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return values, one for all or one for each, as float32 of a shape: rounding makes no bound less than a value."""
    return np.broadcast_to(np.asarray(values, np.float32), shape)


def values_of(node: Expression, leaf: Callable[[Leaf], np.ndarray]) -> np.ndarray:
    """Return the values of an expression, float64, given a function that returns those of its leaves but constants."""
    if isinstance(node, Constant):
        return np.float64(node.value)  # type: ignore[return-value]  # as an array of no dimension
    if isinstance(node, Call):
        return FUNCTIONS[node.function].compute(*(values_of(each, leaf) for each in node.arguments))
    return leaf(node)


def _bounds_of(node: Expression, leaf: Callable[[Leaf], _Bounds]) -> _Bounds:
    if isinstance(node, Constant):
        return np.float64(node.value), np.float64(node.value)  # type: ignore[return-value]  # likewise
    if not isinstance(node, Call):
        return leaf(node)
    function = FUNCTIONS[node.function]
    bounds = [_bounds_of(each, leaf) for each in node.arguments]
    if function.bounds is not None:
        return function.bounds(*bounds)
    pairs = list(zip(bounds, function.slopes, strict=True))
    lowest = function.compute(*(low if slope > 0 else high for (low, high), slope in pairs))
    highest = function.compute(*(high if slope > 0 else low for (low, high), slope in pairs))
    return lowest, highest


def compiled(expression: Expression) -> Program:
    """Return the program of an expression: its largest parts without the score become signals, equal ones one."""
    signals: dict[Expression, int] = {}

    def without_signals(node: Expression) -> Expression:
        if not _has_score(node):
            if not any(not isinstance(leaf, Constant) for leaf in _leaves(node)):
                return Constant(float(values_of(node, _no_leaf)))
            return _Signal(signals.setdefault(node, len(signals)))
        if isinstance(node, Call):
            return replace(node, arguments=tuple(map(without_signals, node.arguments)))
        return node

    expression = _grouped(expression)
    root = without_signals(expression)
    leaves = _leaves(expression)
    spans = [leaf.half_life for leaf in leaves if isinstance(leaf, Decay) and leaf.origin is None]
    if any(isinstance(leaf, Now) for leaf in leaves):
        spans.append(1000 * NOW_STEP_S)
    return Program(tuple(signals), root, min(spans, default=np.inf) / 1000)


def _grouped(node: Expression) -> Expression:
    """Return an equal expression in which the signals of a sum, or of a product, are one part: fewer signals."""
    if not isinstance(node, Call):
        return node
    node = replace(node, arguments=tuple(map(_grouped, node.arguments)))
    if node.function not in ("add", "multiply"):
        return node
    with_score: list[Expression] = []
    signals: list[Expression] = []
    for term in _terms(node, node.function):
        (with_score if _has_score(term) else signals).append(term)
    return _joined(node.function, [_joined(node.function, part) for part in (with_score, signals) if part])


def _joined(function: str, terms: Sequence[Expression]) -> Expression:
    return reduce(lambda a, b: Call(function, (a, b)), terms)


def _terms(node: Expression, function: str) -> list[Expression]:
    if not isinstance(node, Call) or node.function != function:
        return [node]
    return [term for each in node.arguments for term in _terms(each, function)]


def _has_score(node: Expression) -> bool:
    return any(isinstance(leaf, Score) for leaf in _leaves(node))


def _leaves(node: Expression) -> list[Leaf]:
    if isinstance(node, Call):
        return [leaf for each in node.arguments for leaf in _leaves(each)]
    return [node]


def _no_leaf(_: Leaf) -> np.ndarray:
    raise AssertionError("a constant expression has no leaves but constants")


def limited(values: np.ndarray) -> np.ndarray:
    """Return numbers between -LIMIT and LIMIT."""
    # Faster than `np.clip`, for a few numbers by half.
    within: np.ndarray = np.minimum(np.maximum(values, -LIMIT), LIMIT)
    return within


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return limited(a * b)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    is_zero = np.equal(b, 0)
    with np.errstate(over="ignore"):
        return np.where(is_zero, 0.0, limited(a / np.where(is_zero, 1.0, b)))


def _corners(compute: Callable[..., np.ndarray], a: _Bounds, b: _Bounds) -> _Bounds:
    corners = [compute(x, y) for x in a for y in b]
    lowest = np.minimum(np.minimum(corners[0], corners[1]), np.minimum(corners[2], corners[3]))
    highest = np.maximum(np.maximum(corners[0], corners[1]), np.maximum(corners[2], corners[3]))
    return lowest, highest


def _product_bounds(a: _Bounds, b: _Bounds) -> _Bounds:
    return _corners(_product, a, b)


def _quotient_bounds(a: _Bounds, b: _Bounds) -> _Bounds:
    lowest, highest = _corners(_quotient, a, b)
    unbounded = (b[0] <= 0) & (b[1] >= 0) & (b[0] < b[1])
    return np.where(unbounded, -LIMIT, lowest), np.where(unbounded, LIMIT, highest)


def _distance_bounds(a: _Bounds) -> _Bounds:
    low, high = np.abs(a[0]), np.abs(a[1])
    return np.where((a[0] <= 0) & (a[1] >= 0), 0.0, np.minimum(low, high)), np.maximum(low, high)


def _equal_bounds(a: _Bounds, b: _Bounds) -> _Bounds:
    always = (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0])
    sometimes = (a[0] <= b[1]) & (b[0] <= a[1])
    return always.astype(np.float64), sometimes.astype(np.float64)


def _choice(condition: np.ndarray, then: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    return np.where(condition > 0, then, otherwise)


def _choice_bounds(condition: _Bounds, then: _Bounds, otherwise: _Bounds) -> _Bounds:
    always, never = condition[0] > 0, condition[1] <= 0
    lowest = np.where(always, then[0], np.where(never, otherwise[0], np.minimum(then[0], otherwise[0])))
    highest = np.where(always, then[1], np.where(never, otherwise[1], np.maximum(then[1], otherwise[1])))
    return lowest, highest


def _number(compare: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *arguments: compare(*arguments).astype(np.float64)


FUNCTIONS = {
    "add": Function(np.add, (1, 1)),
    "subtract": Function(np.subtract, (1, -1)),
    "multiply": Function(_product, bounds=_product_bounds, arguments=2),
    "divide": Function(_quotient, bounds=_quotient_bounds, arguments=2),
    "negative": Function(np.negative, (-1,)),
    "min": Function(np.minimum, (1, 1)),
    "max": Function(np.maximum, (1, 1)),
    "log": Function(lambda x: np.log(np.maximum(x, _LEAST_LOG)), (1,)),
    "exp": Function(lambda x: np.exp(np.minimum(x, _MOST_EXP)), (1,)),
    "sqrt": Function(lambda x: np.sqrt(np.maximum(x, 0.0)), (1,)),
    "abs": Function(np.abs, bounds=_distance_bounds, arguments=1),
    "if": Function(_choice, bounds=_choice_bounds, arguments=3),
    "less": Function(_number(np.less), (-1, 1)),
    "less_equal": Function(_number(np.less_equal), (-1, 1)),
    "equal": Function(_number(np.equal), bounds=_equal_bounds, arguments=2),
    "not": Function(_number(lambda x: np.less_equal(x, 0)), (-1,)),
}
"""Functions by name. What is above 0 is true; `and` is `min`, and `or` is `max`."""
