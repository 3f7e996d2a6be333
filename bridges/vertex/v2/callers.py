"""What a caller who sees a part of a collection may read of it, and what all of its data objects have."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from scannery.bridges.vertex.v2.collections import Collection
from scannery.bridges.vertex.v2.values import attribute_name, field_name
from scannery.serving.bridging import current_access
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["VECTORS", "common_values", "may_read", "readable_description"]

VECTORS = "vector"
"""Field that credentials name for all vectors."""


def may_read(collection: Collection, field: str) -> bool:
    """Return whether the caller of the current request may read a field of our datapoints, or an attribute."""
    access = current_access(collection.index)
    return access is None or access.fields is None or field in access.fields


def readable_description(collection: Collection) -> pb.Collection:
    """Return the description of a collection, without fields of the data that the caller may not read."""
    access = current_access(collection.index)
    if access is None or access.fields is None:
        return collection.message
    message = pb.Collection()
    message.CopyFrom(collection.message)
    # Any keyword may name fields: of the schema, the types and descriptions of those that may be read stay.
    properties = message.data_schema.fields["properties"].struct_value.fields
    kept = {name: schema for name, schema in properties.items() if attribute_name(name) in access.fields}
    message.ClearField("data_schema")
    for name, schema in kept.items():
        message.data_schema.fields["properties"].struct_value.fields[name].CopyFrom(schema)
    for name, field in collection.schema.dense.items():
        names = () if field.template is None else field.template.fields
        if not all(attribute_name(each) in access.fields for each in names):
            message.vector_schema[name].dense_vector.vertex_embedding_config.ClearField("text_template")
    return message


def common_values(collection: Collection, declared: Container[str]) -> dict[str, Any]:
    """Return the values that all data objects have which the caller sees, by field of the data.

    Args:
        collection: of the data objects.
        declared: attributes of our index that its spec declares: the engine writes them.

    """
    access = current_access(collection.index)
    values = {} if access is None else access.undeclared_values(declared)
    return {field_name(name): value for name, value in values.items()}
