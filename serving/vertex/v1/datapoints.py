"""Datapoints of the service as those of this server, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToJson, SerializeToJsonError
from google.protobuf.struct_pb2 import Struct

from scannery.indexer import IndexSpec
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.vertex.v1.namespaces import CROWDING, attributes_of, restricts_of
from scannery.v1 import types_pb2 as own
from scannery.vertex.v1.index_pb2 import IndexDatapoint

__all__ = [
    "attribute_values",
    "crowding_tag",
    "foreign_datapoint",
    "has_sparse",
    "own_datapoint",
    "payload_of",
    "sparse_vector",
]

_MOST_DIMENSION = (1 << 32) - 1


def own_datapoint(point: IndexDatapoint, spec: IndexSpec, path: str) -> own.Datapoint:
    """Return a datapoint to write. A vector that it lacks is one that the row will not have.

    Args:
        point: the datapoint.
        spec: of the index.
        path: where it is in the request, for errors.

    Raises:
        InvalidRequestError: a field is wrong; others are checked by the write itself.

    """
    found = own.Datapoint(id=point.datapoint_id, attributes=attribute_values(point, spec, path))
    if tag := point.crowding_tag.crowding_attribute:
        declared = spec.attributes.get(CROWDING)
        found.attributes[CROWDING].CopyFrom(_value([tag] if declared == "string_list" else tag, declared))
    if point.feature_vector:
        found.vector.values.extend(point.feature_vector)
    if has_sparse(point):
        found.sparse_vector.CopyFrom(sparse_vector(point.sparse_embedding, f"{path}.sparse_embedding"))
    if point.HasField("embedding_metadata"):
        found.payload_json = payload_of(point, path)
    if not found.HasField("vector") and not found.HasField("sparse_vector"):
        raise InvalidRequestError.at(f"{path}.feature_vector", "is required without a sparse_embedding")
    return found


def attribute_values(point: IndexDatapoint, spec: IndexSpec, path: str) -> dict[str, own.Value]:
    """Return the attributes for the restricts of a datapoint."""
    return {
        name: _value(value, spec.attributes.get(name)) for name, value in attributes_of(point, path).items()
    }


def has_sparse(point: IndexDatapoint) -> bool:
    """Return whether a datapoint has a sparse vector; clients send an empty one for none."""
    return bool(point.sparse_embedding.values or point.sparse_embedding.dimensions)


def sparse_vector(sparse: IndexDatapoint.SparseEmbedding, path: str) -> own.SparseVector:
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
    return own.SparseVector(indices=dimensions[some].tolist(), values=values[some].tolist())


def payload_of(point: IndexDatapoint, path: str) -> str:
    """Return the metadata of a datapoint as JSON."""
    try:
        return MessageToJson(point.embedding_metadata, indent=None)
    except (SerializeToJsonError, RecursionError, ValueError) as error:
        raise InvalidRequestError.at(f"{path}.embedding_metadata", f"cannot be JSON: {error}") from error


def foreign_datapoint(point: own.Datapoint) -> IndexDatapoint:
    """Return a datapoint of this server as one of the service, with all fields that it has."""
    found = IndexDatapoint(datapoint_id=point.id)
    if point.HasField("vector"):
        found.feature_vector.extend(np.frombuffer(point.vector.packed, "<f4").tolist())
    if point.HasField("sparse_vector"):
        found.sparse_embedding.values.extend(point.sparse_vector.values)
        found.sparse_embedding.dimensions.extend(point.sparse_vector.indices)
    attributes = {name: _plain(value) for name, value in point.attributes.items()}
    if point.dynamic_json:
        attributes |= json.loads(point.dynamic_json)
    restricts, numbers = restricts_of(attributes)
    found.restricts.extend(restricts)
    found.numeric_restricts.extend(numbers)
    if tag := crowding_tag(point):
        found.crowding_tag.crowding_attribute = tag
    if point.payload_json:
        payload = json.loads(point.payload_json)
        if isinstance(payload, dict):
            found.embedding_metadata.CopyFrom(_struct(payload))
    return found


def crowding_tag(point: own.Datapoint) -> str:
    """Return the crowding tag of a datapoint; empty: it has none."""
    if CROWDING not in point.attributes:
        return ""
    value = _plain(point.attributes[CROWDING])
    return str(value[0] if isinstance(value, list) else value) if value else ""


def _value(value: Any, declared: str | None) -> own.Value:
    if isinstance(value, str):
        return own.Value(string_value=value)
    if isinstance(value, int):
        return own.Value(int_value=value)
    if isinstance(value, float):
        return own.Value(float_value=value)
    if declared == "string" and len(value) == 1:
        return own.Value(string_value=value[0])
    if all(isinstance(item, str) for item in value):
        return own.Value(string_list_value=own.StringList(values=value))
    return own.Value(list_value=own.ValueList(values=[_value(item, None) for item in value]))


def _plain(value: own.Value) -> Any:
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
