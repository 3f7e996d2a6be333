"""The ranking of a request: an expression, or the name of one in the spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from scannery.indexer import IndexSpec
from scannery.indexer.ranking.expression import Condition, Program
from scannery.indexer.ranking.parsing import RankingSyntaxError, program_of
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.request.filter import Node, parse_filter
from scannery.v1 import search_pb2 as pb
from scannery.v1 import types_pb2

__all__ = ["RankingOption", "filter_of", "parse_ranking"]


@dataclass(frozen=True, slots=True)
class RankingOption:
    """What hits are ordered by instead of their score."""

    expression: str
    """Text of the expression."""
    program: Program


def parse_ranking(message: pb.SearchOptions, spec: IndexSpec) -> RankingOption | None:
    """Return the ranking of a request; None: by score.

    Raises:
        InvalidRequestError: the field `ranking` is neither the name of a ranking of the index nor an expression.

    """
    if not message.ranking:
        return None
    text = spec.search.ranking.get(message.ranking, message.ranking)
    try:
        option = _option(text, tuple(spec.attributes.items()))
    except RankingSyntaxError as error:
        names = ", ".join(spec.search.ranking)
        hint = f"; the index has the rankings {names}" if names and message.ranking.isidentifier() else ""
        raise InvalidRequestError.at("ranking", f"{error}{hint}") from None
    for condition in option.program.conditions:
        filter_of(condition, spec)  # which refuses values of another type
    return option


@lru_cache(maxsize=256)
def _option(text: str, attributes: tuple[tuple[str, str], ...]) -> RankingOption:
    return RankingOption(text, program_of(text, dict(attributes)))


def filter_of(condition: Condition, spec: IndexSpec) -> Node:
    """Return a condition as a filter; InvalidRequestError if its value does not fit the attribute."""
    operator = types_pb2.Operator.Value(f"OPERATOR_{condition.operator.upper()}")
    values: Sequence[types_pb2.Value] = [types_pb2.Value(string_value=value) for value in condition.values]
    if condition.operator == "exists":
        values = [types_pb2.Value(bool_value=True)]
    message = types_pb2.Filter(
        condition=types_pb2.Condition(field=condition.attribute, operator=operator, values=values)
    )
    node = parse_filter(message, spec, path="ranking")
    assert node is not None  # only an empty filter allows every row
    return node
