"""Filters of the managed service's API v2, as filters of ours.

    {"genre": {"$eq": "Drama"}, "$or": [{"year": {"$gte": 1990}}, {"tags": {"$all": ["a", "b"]}}]}

Fields side by side must all match, and so must operators of one field. A value in place of operators means `$eq`.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.struct_pb2 import ListValue, Struct, Value

from scannery.bridges.vertex.v2.values import attribute_name, plain
from scannery.runtime.errors import InvalidRequestError
from scannery.v1 import types_pb2 as pb

__all__ = ["parsed_filter"]

_COMPARISONS = {
    "$eq": pb.OPERATOR_EQ,
    "$ne": pb.OPERATOR_NE,
    "$gt": pb.OPERATOR_GT,
    "$gte": pb.OPERATOR_GTE,
    "$lt": pb.OPERATOR_LT,
    "$lte": pb.OPERATOR_LTE,
}
_OF_LISTS = {"$in": pb.OPERATOR_IN, "$nin": pb.OPERATOR_NIN, "$all": pb.OPERATOR_ALL}
_OPERATORS = (*_COMPARISONS, *_OF_LISTS)
_JOINS = ("$and", "$or")


def parsed_filter(struct: Struct, path: str) -> pb.Filter | None:
    """Return a filter; None for an empty one, which allows all.

    Args:
        struct: the filter.
        path: of it, in errors.

    Raises:
        InvalidRequestError: names the field and what it may be.

    """
    parts = list(_parts(struct, path))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else pb.Filter(all_of=pb.FilterList(filters=parts))


def _parts(struct: Struct, path: str) -> Iterator[pb.Filter]:
    for name, value in sorted(struct.fields.items()):
        field_path = f"{path}.{name:.80}"
        if name in _JOINS:
            yield _joined(name, value, field_path)
        elif name.startswith("$"):
            raise InvalidRequestError.at(
                field_path, f"must be a field of the data, or one of {', '.join(_JOINS)}"
            )
        else:
            yield from _conditions(name, value, field_path)


def _joined(name: str, value: Value, path: str) -> pb.Filter:
    if value.WhichOneof("kind") != "list_value" or not value.list_value.values:
        raise InvalidRequestError.at(path, "must be a list of at least one filter")
    filters = []
    for number, each in enumerate(value.list_value.values):
        item_path = f"{path}[{number}]"
        if each.WhichOneof("kind") != "struct_value":
            raise InvalidRequestError.at(item_path, "must be an object: a filter")
        filters.append(parsed_filter(each.struct_value, item_path) or pb.Filter())
    joined = pb.FilterList(filters=filters)
    return pb.Filter(all_of=joined) if name == "$and" else pb.Filter(any_of=joined)


def _conditions(name: str, value: Value, path: str) -> Iterator[pb.Filter]:
    if value.WhichOneof("kind") != "struct_value":
        yield _condition(name, pb.OPERATOR_EQ, [_scalar(value, path)])
        return
    operators = value.struct_value.fields
    if not operators:
        raise InvalidRequestError.at(path, f"must have an operator: {', '.join(_OPERATORS)}")
    for operator, operand in sorted(operators.items()):
        operator_path = f"{path}.{operator:.80}"
        if operator in _COMPARISONS:
            yield _condition(name, _COMPARISONS[operator], [_scalar(operand, operator_path)])
        elif operator in _OF_LISTS:
            yield _of_list(name, operator, operand, operator_path)
        else:
            raise InvalidRequestError.at(operator_path, f"is no operator; there are {', '.join(_OPERATORS)}")


def _of_list(name: str, operator: str, operand: Value, path: str) -> pb.Filter:
    if operand.WhichOneof("kind") != "list_value":
        raise InvalidRequestError.at(path, "must be a list of values")
    values = _scalars(operand.list_value, path)
    if values:
        return _condition(name, _OF_LISTS[operator], values)
    # No value is in an empty list; every value is outside of it, and has all of it.
    anything = pb.Filter()
    return pb.Filter(negation=anything) if operator == "$in" else anything


def _scalars(values: ListValue, path: str) -> list[pb.Value]:
    return [_scalar(each, f"{path}[{number}]") for number, each in enumerate(values.values)]


def _scalar(value: Value, path: str) -> pb.Value:
    if value.WhichOneof("kind") in ("struct_value", "list_value"):
        raise InvalidRequestError.at(path, "must be a string, a number, a boolean or null")
    scalar = plain(value, path)
    if isinstance(scalar, bool):
        return pb.Value(bool_value=scalar)
    if isinstance(scalar, int):
        return pb.Value(int_value=scalar)
    if isinstance(scalar, float):
        return pb.Value(float_value=scalar)
    return pb.Value() if scalar is None else pb.Value(string_value=scalar)


def _condition(name: str, operator: pb.Operator.ValueType, values: list[pb.Value]) -> pb.Filter:
    return pb.Filter(condition=pb.Condition(field=attribute_name(name), operator=operator, values=values))
