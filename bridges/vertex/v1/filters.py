"""Restricts of a query as a filter.

A row passes a namespace of tokens if it has one of the allowed tokens (or none is asked for), none of the denied ones,
and does not itself deny one of the allowed ones. It passes a comparison if it has a number for which that holds.
Namespaces are joined by AND.
"""

from __future__ import annotations

from collections.abc import Iterable

from scannery.bridges.vertex.v1.datapoints import attribute_of, deny_attribute_of, number_of
from scannery.indexer import IndexSpec
from scannery.runtime.errors import InvalidRequestError
from scannery.v1 import types_pb2
from scannery.vertex.v1.index_pb2 import IndexDatapoint

__all__ = ["filter_of"]

NumericRestriction = IndexDatapoint.NumericRestriction
_NUMBERS = ("int", "float")
_TOKENS = ("string", "string_list")
_OPERATORS: dict[int, types_pb2.Operator.ValueType] = {
    NumericRestriction.LESS: types_pb2.OPERATOR_LT,
    NumericRestriction.LESS_EQUAL: types_pb2.OPERATOR_LTE,
    NumericRestriction.EQUAL: types_pb2.OPERATOR_EQ,
    NumericRestriction.GREATER_EQUAL: types_pb2.OPERATOR_GTE,
    NumericRestriction.GREATER: types_pb2.OPERATOR_GT,
}


def filter_of(point: IndexDatapoint, spec: IndexSpec, path: str) -> types_pb2.Filter | None:
    """Return the filter that the restricts of a query stand for; None: they allow every row.

    Args:
        point: of the query.
        spec: of the index. A namespace that no attribute can hold is one that no row has.
        path: where the datapoint is in the request, for errors.

    Raises:
        InvalidRequestError: a namespace is missing, or a comparison has no number or no operator.

    """
    parts: list[types_pb2.Filter] = []
    for number, restrict in enumerate(point.restricts):
        if not restrict.namespace:
            raise InvalidRequestError.at(f"{path}.restricts[{number}].namespace", "must not be empty")
        parts += _tokens(restrict, spec)
    for number, numeric in enumerate(point.numeric_restricts):
        field_path = f"{path}.numeric_restricts[{number}]"
        if not numeric.namespace:
            raise InvalidRequestError.at(f"{field_path}.namespace", "must not be empty")
        parts.append(_comparison(numeric, spec, field_path))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else types_pb2.Filter(all_of=types_pb2.FilterList(filters=parts))


def _tokens(restrict: IndexDatapoint.Restriction, spec: IndexSpec) -> list[types_pb2.Filter]:
    has, denies = attribute_of(restrict.namespace), deny_attribute_of(restrict.namespace)
    parts = []
    if restrict.allow_list:
        parts.append(_one_of(has, restrict.allow_list) if _holds(spec, has, _TOKENS) else _nothing())
        if _holds(spec, denies, _TOKENS):
            parts.append(_negated(_one_of(denies, restrict.allow_list)))
    if restrict.deny_list and _holds(spec, has, _TOKENS):
        parts.append(_negated(_one_of(has, restrict.deny_list)))
    return parts


def _comparison(numeric: NumericRestriction, spec: IndexSpec, path: str) -> types_pb2.Filter:
    value = number_of(numeric, path)
    wire = types_pb2.Value(int_value=value) if isinstance(value, int) else types_pb2.Value(float_value=value)
    name = attribute_of(numeric.namespace)
    if numeric.op == NumericRestriction.NOT_EQUAL:
        # Not the negation of EQUAL: a row without a number must not match.
        orders = (types_pb2.OPERATOR_LT, types_pb2.OPERATOR_GT)
        either = [_condition(name, order, [wire]) for order in orders]
        comparison = types_pb2.Filter(any_of=types_pb2.FilterList(filters=either))
    elif numeric.op in _OPERATORS:
        comparison = _condition(name, _OPERATORS[numeric.op], [wire])
    else:
        raise InvalidRequestError.at(f"{path}.op", "must be set in a query")
    return comparison if _holds(spec, name, _NUMBERS) else _nothing()


def _holds(spec: IndexSpec, attribute: str, kinds: tuple[str, ...]) -> bool:
    """Return whether rows may have values of some kinds in an attribute."""
    declared = spec.attributes.get(attribute)
    return spec.dynamic if declared is None else declared in kinds


def _one_of(attribute: str, tokens: Iterable[str]) -> types_pb2.Filter:
    return _condition(
        attribute, types_pb2.OPERATOR_IN, [types_pb2.Value(string_value=token) for token in tokens]
    )


def _condition(
    attribute: str, operator: types_pb2.Operator.ValueType, values: list[types_pb2.Value]
) -> types_pb2.Filter:
    return types_pb2.Filter(condition=types_pb2.Condition(field=attribute, operator=operator, values=values))


def _negated(part: types_pb2.Filter) -> types_pb2.Filter:
    return types_pb2.Filter(negation=part)


def _nothing() -> types_pb2.Filter:
    return _negated(types_pb2.Filter())
