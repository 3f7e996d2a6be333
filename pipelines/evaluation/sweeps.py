"""Configurations of a search, from options and lists of values to try.

    mode=dense,hybrid                   values
    alpha=0.1..0.9:0.2                  a range with both ends and a step: 0.1, 0.3, 0.5, 0.7, 0.9

Every combination is a configuration, without those that differ only in options that their mode ignores: dense search
has no alpha.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = ["SWEPT", "Configuration", "combine", "parse_sweep"]

SWEPT: dict[str, Callable[[str], Any]] = {
    "index": str,
    "mode": str,
    "fusion": str,
    "alpha": float,
    "rerank": int,
    "k": int,
    "target_recall": float,
}
"""Options that can be swept, and the types of their values. The order is that of the configurations."""

MOST_VALUES = 200
"""Values of one sweep, and configurations in all: a wrong step would search for days."""

_HYBRID_ONLY = ("fusion", "alpha")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Options of a search."""

    name: str
    """The mode, and the options that are swept: `hybrid alpha=0.3`."""
    options: Mapping[str, Any]
    """By the names of SWEPT, without those that are not set."""

    def without(self, option: str) -> str:
        """Return the name without one option: configurations with equal ones make a line of a plot."""
        given = f"{option}={_text(self.options.get(option))}"
        return " ".join(part for part in self.name.split(" ") if part != given)


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Return the option and the values of a sweep such as `alpha=0.1..0.9:0.2`, in order, each once.

    Raises:
        ValueError: it has another form, or the option cannot be swept.

    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in SWEPT or not equals:
        raise ValueError(f"must be NAME=VALUES, with a name of {', '.join(SWEPT)}, got {text!r:.80}")
    parts = [part.strip() for part in values.split(",") if part.strip()]
    found = [value for part in parts for value in _values(name, part)]
    distinct = list(dict.fromkeys(found))
    if not distinct or len(distinct) > MOST_VALUES:
        raise ValueError(f"{name} must have 1 to {MOST_VALUES} values, got {len(distinct)}")
    return name, distinct


def combine(fixed: Mapping[str, Any], sweeps: Mapping[str, Sequence[Any]]) -> list[Configuration]:
    """Return the configurations of all combinations, in the order of SWEPT and of the values.

    Args:
        fixed: options of all configurations, by the names of SWEPT; None: not set.
        sweeps: values by option; `mode` is one of them.

    Raises:
        ValueError: there are more than MOST_VALUES.

    """
    names = [name for name in SWEPT if name in sweeps]
    found: dict[str, Configuration] = {}
    for values in itertools.product(*(sweeps[name] for name in names)):
        swept = _relevant(dict(zip(names, values, strict=True)))
        name = " ".join(_label(option, value) for option, value in swept.items())
        options = _relevant({**fixed, **swept})
        set_options = {key: value for key, value in options.items() if value is not None}
        found.setdefault(name, Configuration(name=name, options=set_options))
    if len(found) > MOST_VALUES:
        raise ValueError(f"at most {MOST_VALUES} configurations, these sweeps make {len(found)}")
    return list(found.values())


def _relevant(options: Mapping[str, Any]) -> dict[str, Any]:
    hybrid = options.get("mode") == "hybrid"
    return {name: value for name, value in options.items() if hybrid or name not in _HYBRID_ONLY}


def _label(option: str, value: Any) -> str:
    return str(value) if option in ("index", "mode", "fusion") else f"{option}={_text(value)}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _values(name: str, text: str) -> Iterable[Any]:
    kind = SWEPT[name]
    if kind is str or ".." not in text:
        return [_converted(name, kind, text)]
    bounds, _, step = text.partition(":")
    low, high = (_decimal(name, part) for part in bounds.split("..", 1))
    by = _decimal(name, step) if step else Decimal(1) if kind is int else None
    if by is None or by <= 0 or high < low:
        raise ValueError(f"{name}: a range is LOW..HIGH:STEP, such as 0.1..0.9:0.2, got {text!r:.80}")
    count = int((high - low) / by) + 1
    if count > MOST_VALUES:
        raise ValueError(f"{name} must have 1 to {MOST_VALUES} values, got {count}")
    return [_converted(name, kind, str(low + number * by)) for number in range(count)]


def _decimal(name: str, text: str) -> Decimal:
    try:
        number = Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError(f"{name}: must be a number, got {text!r:.80}") from error
    if not number.is_finite():
        raise ValueError(f"{name}: must be finite, got {text!r:.80}")
    return number


def _converted(name: str, kind: Callable[[str], Any], text: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"{name}: must be {what}, got {text!r:.80}") from error
