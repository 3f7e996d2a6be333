"""Datapoints of the service as those of this server, and back.

Namespaces of restricts as attributes, which our own filters see under the same names.

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

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToJson, SerializeToJsonError
from google.protobuf.struct_pb2 import Struct

from scannery.indexer import IndexSpec
from scannery.runtime.errors import InvalidRequestError
from scannery.v1 import types_pb2
from scannery.vertex.v1.index_pb2 import IndexDatapoint

__all__ = [
    "CROWDING",
    "attribute_of",
    "attribute_values",
    "crowding_tag",
    "deny_attribute_of",
    "foreign_datapoint",
    "has_sparse",
    "number_of",
    "own_datapoint",
    "payload_of",
    "sparse_vector",
]


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
    attributes: dict[str, Any] = {}
    for field_path, restrict in _checked(point.restricts, f"{path}.restricts"):
        for tokens, attribute in (
            (restrict.allow_list, attribute_of(restrict.namespace)),
            (restrict.deny_list, deny_attribute_of(restrict.namespace)),
        ):
            if "" in tokens:
                raise InvalidRequestError.at(field_path, "tokens must not be empty")
            if tokens:
                attributes[attribute] = list(tokens)
    floats = []
    for field_path, numeric in _checked(point.numeric_restricts, f"{path}.numeric_restricts"):
        if numeric.op:
            raise InvalidRequestError.at(f"{field_path}.op", "is for queries only")
        value = number_of(numeric, field_path)
        attribute = attribute_of(numeric.namespace)
        attributes[attribute] = [*attributes[attribute], value] if attribute in attributes else value
        if numeric.WhichOneof("value") == "value_float":
            floats.append(numeric.namespace)
    if floats:
        attributes[_FLOATS] = floats
    return attributes


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
        field_path, name = f"{path}[{number}]", restrict.namespace
        if not name:
            raise InvalidRequestError.at(f"{field_path}.namespace", "must not be empty")
        if len(name.encode()) > MAX_NAMESPACE_BYTES:
            raise InvalidRequestError.at(
                f"{field_path}.namespace", f"must have at most {MAX_NAMESPACE_BYTES} bytes"
            )
        if name in seen:
            raise InvalidRequestError.at(f"{field_path}.namespace", f"{name!r:.80} occurs twice")
        seen.add(name)
        yield field_path, restrict


_MOST_DIMENSION = (1 << 32) - 1


def own_datapoint(point: IndexDatapoint, spec: IndexSpec, path: str) -> types_pb2.Datapoint:
    """Return a datapoint to write. A vector that it lacks is one that the row will not have.

    Args:
        point: the datapoint.
        spec: of the index.
        path: where it is in the request, for errors.

    Raises:
        InvalidRequestError: a field is wrong; others are checked by the write itself.

    """
    datapoint = types_pb2.Datapoint(id=point.datapoint_id, attributes=attribute_values(point, spec, path))
    if tag := point.crowding_tag.crowding_attribute:
        declared = spec.attributes.get(CROWDING)
        datapoint.attributes[CROWDING].CopyFrom(_value([tag] if declared == "string_list" else tag, declared))
    if point.feature_vector:
        datapoint.vector.values.extend(point.feature_vector)
    if has_sparse(point):
        datapoint.sparse_vector.CopyFrom(sparse_vector(point.sparse_embedding, f"{path}.sparse_embedding"))
    if point.HasField("embedding_metadata"):
        datapoint.payload_json = payload_of(point, path)
    if not datapoint.HasField("vector") and not datapoint.HasField("sparse_vector"):
        raise InvalidRequestError.at(f"{path}.feature_vector", "is required without a sparse_embedding")
    return datapoint


def attribute_values(point: IndexDatapoint, spec: IndexSpec, path: str) -> dict[str, types_pb2.Value]:
    """Return the attributes for the restricts of a datapoint."""
    return {
        name: _value(value, spec.attributes.get(name)) for name, value in attributes_of(point, path).items()
    }


def has_sparse(point: IndexDatapoint) -> bool:
    """Return whether a datapoint has a sparse vector; clients send an empty one for none."""
    return bool(point.sparse_embedding.values or point.sparse_embedding.dimensions)


def sparse_vector(sparse: IndexDatapoint.SparseEmbedding, path: str) -> types_pb2.SparseVector:
    """Return a sparse vector with ascending dimensions; raises InvalidRequestError."""
    if len(sparse.values) != len(sparse.dimensions) or not sparse.values:
        raise InvalidRequestError.at(
            f"{path}.dimensions",
            f"must be as many as values, at least one; got {len(sparse.dimensions)} and {len(sparse.values)}",
        )
    dimensions, values = np.array(sparse.dimensions, np.int64), np.array(sparse.values, np.float32)
    if dimensions.min() < 0 or dimensions.max() > _MOST_DIMENSION:
        raise InvalidRequestError.at(f"{path}.dimensions", f"must be 0 to {_MOST_DIMENSION}")
    order = np.argsort(dimensions, kind="stable")
    dimensions, values = dimensions[order], values[order]
    if (np.diff(dimensions) == 0).any():
        raise InvalidRequestError.at(f"{path}.dimensions", "must be distinct")
    # A weight of 0 is none; this server keeps only others.
    some = values != 0
    if not some.any():
        raise InvalidRequestError.at(f"{path}.values", "must not all be 0")
    return types_pb2.SparseVector(indices=dimensions[some].tolist(), values=values[some].tolist())


def payload_of(point: IndexDatapoint, path: str) -> str:
    """Return the metadata of a datapoint as JSON."""
    try:
        return MessageToJson(point.embedding_metadata, indent=None)
    except (SerializeToJsonError, RecursionError, ValueError) as error:
        raise InvalidRequestError.at(f"{path}.embedding_metadata", f"cannot be JSON: {error}") from error


def foreign_datapoint(point: types_pb2.Datapoint) -> IndexDatapoint:
    """Return a datapoint of this server as one of the service, with all fields that it has."""
    datapoint = IndexDatapoint(datapoint_id=point.id)
    if point.HasField("vector"):
        datapoint.feature_vector.extend(np.frombuffer(point.vector.packed, "<f4").tolist())
    if point.HasField("sparse_vector"):
        datapoint.sparse_embedding.values.extend(point.sparse_vector.values)
        datapoint.sparse_embedding.dimensions.extend(point.sparse_vector.indices)
    attributes = {name: _plain(value) for name, value in point.attributes.items()}
    if point.dynamic_json:
        attributes |= json.loads(point.dynamic_json)
    restricts, numbers = restricts_of(attributes)
    datapoint.restricts.extend(restricts)
    datapoint.numeric_restricts.extend(numbers)
    if tag := crowding_tag(point):
        datapoint.crowding_tag.crowding_attribute = tag
    if point.payload_json:
        payload = json.loads(point.payload_json)
        if isinstance(payload, dict):
            datapoint.embedding_metadata.CopyFrom(_struct(payload))
    return datapoint


def crowding_tag(point: types_pb2.Datapoint) -> str:
    """Return the crowding tag of a datapoint; empty: it has none."""
    if CROWDING not in point.attributes:
        return ""
    value = _plain(point.attributes[CROWDING])
    return str(value[0] if isinstance(value, list) else value) if value else ""


def _value(value: Any, declared: str | None) -> types_pb2.Value:
    if isinstance(value, str):
        return types_pb2.Value(string_value=value)
    if isinstance(value, int):
        return types_pb2.Value(int_value=value)
    if isinstance(value, float):
        return types_pb2.Value(float_value=value)
    if declared == "string" and len(value) == 1:
        return types_pb2.Value(string_value=value[0])
    if all(isinstance(item, str) for item in value):
        return types_pb2.Value(string_list_value=types_pb2.StringList(values=value))
    return types_pb2.Value(list_value=types_pb2.ValueList(values=[_value(item, None) for item in value]))


def _plain(value: types_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_list_value":
        return list(value.string_list_value.values)
    if kind in ("string_value", "int_value", "float_value", "bool_value"):
        return getattr(value, kind)
    return None  # a time or a place


def _struct(payload: Mapping[str, Any]) -> Struct:
    struct = Struct()
    struct.update(payload)
    return struct
