"""Namespaces of restricts as attributes, which our own filters see under the same names.

| in the datapoint | attribute |
| --- | --- |
| allowed tokens of a namespace | the namespace: a list of strings |
| a number of a namespace | the namespace: a number; beside tokens, an element of the list |
| denied tokens of a namespace | the namespace and `_deny`: a list of strings |
| namespaces whose name means something else here | `ns:` or `ns-deny:` and the namespace |
| namespaces of numbers of 32 bits | named in the list `ns-float32`, so that they come back as they were |

The reader of files in the managed layout uses the same names (pipelines/sources/managed/managed_records.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from scannery.runtime.errors import InvalidRequestError
from scannery.vertex.v1.index_pb2 import IndexDatapoint

__all__ = ["CROWDING", "attribute_of", "attributes_of", "deny_attribute_of", "number_of", "restricts_of"]

CROWDING = "crowding_tag"
_FLOATS = "ns-float32"
_DENY = "_deny"
_ALLOWED, _DENIED = "ns:", "ns-deny:"
_TAKEN = ("id", "document_id", CROWDING)
MAX_NAMESPACE_BYTES = 240

Restriction = IndexDatapoint.Restriction
NumericRestriction = IndexDatapoint.NumericRestriction


def attribute_of(namespace: str) -> str:
    """Return the attribute with the allowed tokens and numbers of a namespace."""
    return f"{_ALLOWED}{namespace}" if _is_reserved(namespace) else namespace


def deny_attribute_of(namespace: str) -> str:
    """Return the attribute with the denied tokens of a namespace."""
    return f"{_DENIED}{namespace}" if _is_reserved(namespace) else f"{namespace}{_DENY}"


def attributes_of(point: IndexDatapoint, path: str) -> dict[str, Any]:
    """Return the attributes for the restricts of a datapoint: lists of strings and numbers, and numbers.

    Args:
        point: the datapoint.
        path: where it is in the request, for errors.

    Raises:
        InvalidRequestError: a namespace is missing, too long or given twice; a number is missing or has an operator.

    """
    found: dict[str, Any] = {}
    for place, restrict in _checked(point.restricts, f"{path}.restricts"):
        for tokens, attribute in (
            (restrict.allow_list, attribute_of(restrict.namespace)),
            (restrict.deny_list, deny_attribute_of(restrict.namespace)),
        ):
            if "" in tokens:
                raise InvalidRequestError.at(place, "tokens must not be empty")
            if tokens:
                found[attribute] = list(tokens)
    floats = []
    for place, numeric in _checked(point.numeric_restricts, f"{path}.numeric_restricts"):
        if numeric.op:
            raise InvalidRequestError.at(f"{place}.op", "is for queries only")
        value = number_of(numeric, place)
        attribute = attribute_of(numeric.namespace)
        found[attribute] = [*found[attribute], value] if attribute in found else value
        if numeric.WhichOneof("value") == "value_float":
            floats.append(numeric.namespace)
    if floats:
        found[_FLOATS] = floats
    return found


def number_of(numeric: NumericRestriction, path: str) -> int | float:
    """Return the number of a numeric restriction; raises InvalidRequestError if there is none, or it is not finite."""
    kind = numeric.WhichOneof("value")
    if kind is None:
        raise InvalidRequestError.at(path, "must have one of value_int, value_float, value_double")
    value: int | float = getattr(numeric, kind)
    if not math.isfinite(value):
        raise InvalidRequestError.at(f"{path}.{kind}", f"must be finite, got {value}")
    return value


def restricts_of(attributes: Mapping[str, Any]) -> tuple[list[Restriction], list[NumericRestriction]]:
    """Return the restricts that attributes of a datapoint stand for, sorted by namespace.

    Values that are neither strings nor numbers, nor lists of them, have no place in restricts.
    """
    floats = set(attributes.get(_FLOATS) or ())
    tokens: dict[str, Restriction] = {}
    numbers = []
    for attribute in sorted(name for name in attributes if name not in (CROWDING, _FLOATS)):
        value = attributes[attribute]
        values = value if isinstance(value, (list, tuple)) else [value]
        namespace, is_deny = _namespace_of(attribute)
        if strings := [item for item in values if isinstance(item, str)]:
            restrict = tokens.setdefault(namespace, Restriction(namespace=namespace))
            (restrict.deny_list if is_deny else restrict.allow_list).extend(strings)
        for item in values:
            if isinstance(item, (int, float)) and not isinstance(item, bool):
                numbers.append(_numeric(namespace, item, is_float=namespace in floats))
    return [tokens[name] for name in sorted(tokens)], numbers


def _numeric(namespace: str, value: float, *, is_float: bool) -> NumericRestriction:
    if isinstance(value, int) and not is_float:
        return NumericRestriction(namespace=namespace, value_int=value)
    if is_float:
        return NumericRestriction(namespace=namespace, value_float=value)
    return NumericRestriction(namespace=namespace, value_double=value)


def _namespace_of(attribute: str) -> tuple[str, bool]:
    """Return the namespace of an attribute, and whether it holds denied tokens."""
    for front, is_deny in ((_ALLOWED, False), (_DENIED, True)):
        if attribute.startswith(front):
            return attribute.removeprefix(front), is_deny
    if attribute.endswith(_DENY) and attribute != _DENY:
        return attribute.removesuffix(_DENY), True
    return attribute, False


def _is_reserved(namespace: str) -> bool:
    return namespace in _TAKEN or namespace.startswith(("$", "ns:", "ns-")) or namespace.endswith(_DENY)


def _checked(restricts: Iterable[Any], path: str) -> Iterable[tuple[str, Any]]:
    """Yield restricts with their places, each namespace once."""
    seen = set()
    for number, restrict in enumerate(restricts):
        place, name = f"{path}[{number}]", restrict.namespace
        if not name:
            raise InvalidRequestError.at(f"{place}.namespace", "must not be empty")
        if len(name.encode()) > MAX_NAMESPACE_BYTES:
            raise InvalidRequestError.at(
                f"{place}.namespace", f"must have at most {MAX_NAMESPACE_BYTES} bytes"
            )
        if name in seen:
            raise InvalidRequestError.at(f"{place}.namespace", f"{name!r:.80} occurs twice")
        seen.add(name)
        yield place, restrict
