"""Limits of a caller: how much it may ask for in a second, how large one request may be, and what is refused to it.

And how many rows it may have in an index.

They are part of a key or token, so that the operator sets them where it grants access. scheduling/quotas.py counts the
rates, policy.py checks the requests.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from scannery.runtime.errors import ConfigError

__all__ = [
    "BYTES",
    "MAX_ROWS",
    "QUERIES",
    "RATES",
    "REFUSABLE",
    "REQUESTS",
    "ROWS",
    "STRICT",
    "TOKENS",
    "Limits",
    "limits_text",
    "parse_items",
    "parse_limits",
]

RATES = ("requests_per_s", "queries_per_s", "tokens_per_s", "rows_per_s", "bytes_per_s")
"""Names of the rates; the place of one is its number where rates are counted."""
REQUESTS, QUERIES, TOKENS, ROWS, BYTES = range(len(RATES))

REFUSABLE = (
    "exact", "knobs", "explain", "rerank", "scan", "sort", "substring", "aggregate", "filtered_write",
)  # fmt: skip
"""Kinds of requests that can be refused."""

MAX_ROWS = "max_rows"
"""Name of the limit of what is stored."""

_NANOS = 1e9
_MIN_RATE, _MAX_RATE = 1e-3, 1e15
_MIN_BURST_S, _MAX_BURST_S = 0.01, 3600.0
_MAX_COUNT = 1 << 31
_MAX_TENANT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a caller; None: there is none of this kind. Raises ConfigError, which names the field."""

    requests_per_s: float | None = None
    """Calls, and requests of streams."""
    queries_per_s: float | None = None
    """Queries of searches; a batch has several."""
    tokens_per_s: float | None = None
    """Tokens of texts to be embedded: a fourth of their bytes in UTF-8, rounded up."""
    rows_per_s: float | None = None
    """Datapoints written and deleted."""
    bytes_per_s: float | None = None
    """Bytes of requests that write."""
    burst_s: float = 1.0
    """Seconds of each rate that a caller who was silent for so long has at once."""
    tenant: str = ""
    """Name of the buckets that the rates are drawn from, for keys that share them; empty: the caller has its own."""

    max_k: int | None = None
    """Hits of a query."""
    max_offset: int | None = None
    max_queries: int | None = None
    """Queries of a batch, and of a group."""
    max_ids: int | None = None
    """Ids of a Get, and of a Delete."""
    max_conditions: int | None = None
    """Conditions of a filter."""
    max_page_size: int | None = None
    """Datapoints of a page."""
    max_rerank: int | None = None
    """Candidates of a cross-encoder."""
    max_target_recall: float | None = None

    max_rows: int | None = None
    """Rows of an index that the caller sees, after any of its writes that adds some."""

    refuse: tuple[str, ...] = ()
    """Kinds of requests, of REFUSABLE, that are refused."""

    rates: tuple[tuple[int, float], ...] = field(init=False, repr=False, compare=False)
    """Number of each limited rate, and nanoseconds until one more is allowed."""
    query_costs_ns: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Cost of one query by vector, of each rate, in nanoseconds."""
    burst_ns: int = field(init=False, repr=False, compare=False)
    has_policy: bool = field(init=False, repr=False, compare=False)
    """Whether requests must be looked at."""

    def __post_init__(self) -> None:
        for name in RATES:
            _check_range(name, getattr(self, name), _MIN_RATE, _MAX_RATE)
        _check_range("burst_s", self.burst_s, _MIN_BURST_S, _MAX_BURST_S)
        for name in (*_COUNTS, MAX_ROWS):
            value = getattr(self, name)
            _check_range(name, value, 0 if name == "max_offset" else 1, _MAX_COUNT)
            if isinstance(value, float):
                if value != int(value):
                    raise ConfigError(f"{name}: must be a whole number, got {value:g}", field=name)
                object.__setattr__(self, name, int(value))
        _check_range("max_target_recall", self.max_target_recall, 0.5, 1)
        tenant, kinds = cast("tuple[object, object]", (self.tenant, self.refuse))  # of decoded JSON
        if not isinstance(tenant, str) or len(tenant) > _MAX_TENANT or not tenant.isprintable():
            raise ConfigError(
                f"tenant: must be a text of at most {_MAX_TENANT} printable characters", field="tenant"
            )
        if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
            raise ConfigError("refuse: must be a list of names", field="refuse")
        for kind in self.refuse:
            if kind not in REFUSABLE:
                raise ConfigError(
                    f"refuse: {kind!r:.40} is not among {', '.join(REFUSABLE)}{_near(kind, REFUSABLE)}",
                    field="refuse",
                )
        object.__setattr__(self, "refuse", tuple(kind for kind in REFUSABLE if kind in self.refuse))
        rates = ((number, getattr(self, name)) for number, name in enumerate(RATES))
        object.__setattr__(
            self, "rates", tuple((number, _NANOS / rate) for number, rate in rates if rate is not None)
        )
        queries = (int(_NANOS / (getattr(self, name) or math.inf)) for name in RATES[: QUERIES + 1])
        object.__setattr__(self, "query_costs_ns", (*queries, 0, 0, 0))
        object.__setattr__(self, "burst_ns", round(self.burst_s * _NANOS))
        object.__setattr__(
            self,
            "has_policy",
            bool(self.refuse) or any(getattr(self, name) is not None for name in _CEILINGS),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as JSON, as `parse_limits` takes it; without those that are not set."""
        values = {name: getattr(self, name) for name in _NAMES}
        values["refuse"] = list(self.refuse)
        return {name: value for name, value in values.items() if value != _DEFAULTS[name]}

    def __str__(self) -> str:
        """Return the limits as `parse_items` takes them, with spaces between."""
        return limits_text(self.to_dict())


_COUNTS = (
    "max_k", "max_offset", "max_queries", "max_ids", "max_conditions", "max_page_size", "max_rerank",
)  # fmt: skip
_CEILINGS = (*_COUNTS, "max_target_recall")
_NAMES = tuple(each.name for each in fields(Limits) if each.init)
_DEFAULTS: Mapping[str, Any] = {
    each.name: [] if each.name == "refuse" else each.default for each in fields(Limits) if each.init
}


def parse_limits(data: object) -> Limits:
    """Return the limits of decoded JSON: an object with some of the fields of `Limits`.

    `"strict": true` sets all fields of STRICT that the object does not have.

    Raises:
        ConfigError: it is not such an object; names the field.

    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"limits: must be an object, got {type(data).__name__}", field="limits")
    values = dict(data)
    strict = values.pop("strict", False)
    if not isinstance(strict, bool):
        raise ConfigError("limits: strict: must be true or false", field="strict")
    for name in values:
        if name not in _NAMES:
            raise ConfigError(
                f"limits: there is no limit {name!r:.40}; there are strict, {', '.join(_NAMES)}"
                f"{_near(str(name), _NAMES)}",
                field="limits",
            )
    try:
        return replace(STRICT if strict else Limits(), **values)
    except ConfigError as error:
        raise ConfigError(f"limits: {error.message}", field=error.field) from error


def limits_text(data: Mapping[str, Any]) -> str:
    """Return limits of decoded JSON as `parse_items` takes them, with spaces between; also those of later releases."""
    return " ".join(f"{name}={_spelled(value)}" for name, value in data.items()) or "none"


def parse_items(items: Sequence[str]) -> Limits:
    """Return the limits of texts such as `requests_per_s=50`, `refuse=exact,scan`, `strict` and `none`.

    Raises:
        ConfigError: there is no such limit, or its value is invalid.

    """
    values: dict[str, Any] = {}
    for item in items:
        name, equals, text = (part.strip() for part in item.partition("="))
        if item.strip() == "strict":
            values["strict"] = True
        elif item.strip() == "none":
            continue  # with it alone, a caller has no limits, not even those of the server
        elif not equals:
            raise ConfigError(
                f"limits: must be NAME=VALUE, strict or none, got {item!r:.60}{_near(name, _NAMES)}",
                field="limits",
            )
        elif name in values:
            raise ConfigError(f"limits: {name} is there twice", field="limits")
        elif name == "refuse":
            values[name] = [kind.strip() for kind in text.split(",") if kind.strip()]
        else:
            values[name] = text if name == "tenant" else _number(name, text)
    return parse_limits(values)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"limits: {name}: must be a number, got {text!r:.40}", field="limits") from error


def _check_range(name: str, value: object, minimum: float, maximum: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value <= maximum:
        raise ConfigError(
            f"{name}: must be a number from {minimum:g} to {maximum:g}, got {value!r:.40}", field=name
        )


def _near(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _spelled(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)


STRICT = Limits(
    max_k=100,
    max_offset=1_000,
    max_queries=100,
    max_ids=100,
    max_conditions=32,
    max_page_size=1_000,
    max_rerank=100,
    max_target_recall=0.99,
    refuse=("exact", "knobs", "explain", "scan", "sort", "substring", "aggregate", "filtered_write"),
)
"""What `strict` stands for: no request costs many times what a search does. It has no rates."""
