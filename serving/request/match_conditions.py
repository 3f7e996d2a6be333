"""Conditions on lists and on strings: `$contains`, `$all`, `$prefix`, `$substring` and these without regard to case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from scannery.runtime.errors import InvalidRequestError
from scannery.serving.request.field_names import FieldKind
from scannery.v1 import types_pb2 as pb

__all__ = ["HAS_ALL", "MATCHES", "HasAll", "MatchOperator", "StringMatch", "parse_has_all", "parse_match"]

MatchOperator: TypeAlias = Literal["prefix", "substring", "ieq", "iprefix", "isubstring"]
"""Begins with a string, or has it; equals one, begins with one, or has it, after Unicode case folding of both."""
CASE_MATTERS: tuple[MatchOperator, ...] = ("prefix", "substring")


@dataclass(frozen=True, slots=True)
class HasAll:
    """The field is a list that has all of the values."""

    field: str
    values: tuple[Any, ...]
    """Distinct."""


@dataclass(frozen=True, slots=True)
class StringMatch:
    """The field, or an element of a list, matches a string."""

    field: str
    operator: MatchOperator
    value: str


HAS_ALL = (pb.OPERATOR_CONTAINS, pb.OPERATOR_ALL)
MATCHES: dict[int, MatchOperator] = {
    pb.OPERATOR_PREFIX: "prefix",
    pb.OPERATOR_IEQ: "ieq",
    pb.OPERATOR_IPREFIX: "iprefix",
    pb.OPERATOR_SUBSTRING: "substring",
    pb.OPERATOR_ISUBSTRING: "isubstring",
}


def parse_has_all(
    message: pb.Condition, name: str, kind: FieldKind, path: str, *, typed: Callable[[pb.Value, str], Any]
) -> HasAll:
    """Return a condition of an operator of HAS_ALL.

    Args:
        message: the condition.
        name: of the field in the tree.
        kind: type of the attribute.
        path: where the condition is in the request, for errors.
        typed: returns a value in the type of the list's elements.

    Raises:
        InvalidRequestError: the attribute is no list, or a value does not fit.

    """
    if kind not in ("string_list", "dynamic"):
        hint = "use $eq for the whole value, $substring for a part of it" if kind == "string" else "use $eq"
        raise InvalidRequestError.at(
            path, f"is for lists, and {message.field!r:.80} is of type {kind}; {hint}"
        )
    if not message.values:
        raise InvalidRequestError.at(path, "must not be empty")
    if message.operator == pb.OPERATOR_CONTAINS:
        if len(message.values) != 1:
            what = f"needs exactly one value, got {len(message.values)}; use $all for several"
            raise InvalidRequestError.at(path, what)
        return HasAll(name, (typed(message.values[0], path),))
    values = {typed(value, f"{path}[{i}]"): None for i, value in enumerate(message.values)}
    return HasAll(name, tuple(values))


def parse_match(message: pb.Condition, name: str, kind: FieldKind, path: str) -> StringMatch:
    """Return a condition of an operator of MATCHES; raises as `parse_has_all`."""
    if kind not in ("string", "string_list", "dynamic"):
        raise InvalidRequestError.at(path, f"is for strings, and {message.field!r:.80} is of type {kind}")
    if len(message.values) != 1:
        raise InvalidRequestError.at(path, f"needs exactly one value, got {len(message.values)}")
    value = message.values[0]
    if value.WhichOneof("kind") != "string_value":
        given = str(value).strip() or "null"
        raise InvalidRequestError.at(path, f"must be a string, got {given:.80}")
    operator = MATCHES[message.operator]
    text = value.string_value
    # Folded here, so that filters that differ by case are one entry of the cache.
    return StringMatch(name, operator, text if operator in CASE_MATTERS else text.casefold())
