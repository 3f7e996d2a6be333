"""Data objects as lines of files.

{"id": …, "data": {…}, "vectors": {FIELD: {"dense": {"values": […]}}, OTHER: {"sparse": {…}}}, "etag": …}

A vector may also be without `dense` or `sparse`: `[…]`, `{"values": […]}`, `{"values": […], "indices": […]}`.
"""

from __future__ import annotations

from collections.abc import Collection as Names
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from google.protobuf.struct_pb2 import Struct

from scannery.bridges.vertex.v2.collections import Collection
from scannery.bridges.vertex.v2.data_objects.messages import (
    GivenObject,
    StoredObject,
    check_data,
    parsed_vectors,
)
from scannery.bridges.vertex.v2.resource_names import checked_id
from scannery.bridges.vertex.v2.values import fill, json_of, struct_of
from scannery.bridges.vertex.v2.vector_schema import VectorSchema
from scannery.runtime.errors import InvalidRequestError
from scannery.vertex.v2 import data_objects_pb2 as pb

__all__ = ["LINE_FIELDS", "Line", "line_of", "parsed_line"]

LINE_FIELDS = ("id", "data", "vectors", "etag")
_KINDS = {"dense": ("values",), "sparse": ("values", "indices")}


@dataclass(frozen=True, slots=True)
class Line:
    """A data object of a file."""

    source: str
    """File and line."""
    object: GivenObject
    etag: str
    """Empty: the line has none."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in a request."""
        vectors = sum(vector_D.nbytes for vector_D in self.object.dense.values())
        return vectors + len(json_of(self.object.data))


def parsed_line(fields: Mapping[str, Any], collection: Collection, source: str) -> Line:
    """Return the data object of a line.

    Args:
        fields: the JSON object.
        collection: that it is written to.
        source: file and line.

    Raises:
        InvalidRequestError: names the field that is wrong.

    """
    for name in fields:
        if name not in LINE_FIELDS:
            raise InvalidRequestError.at(f"{name:.80}", f"is not one of {', '.join(LINE_FIELDS)}")
    identifier, etag = fields.get("id"), fields.get("etag") or ""
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        identifier = str(identifier)
    if not isinstance(identifier, str):
        raise InvalidRequestError.at("id", f"must be a string or an integer, got {identifier!r:.80}")
    if not isinstance(etag, str):
        raise InvalidRequestError.at("etag", f"must be a string, got {etag!r:.80}")
    checked_id(identifier, "id", strict=False)
    data = _data(fields.get("data"))
    check_data(collection, data, "data")
    vectors = {
        name: _vector(each, f"vectors.{name:.80}") for name, each in _object(fields, "vectors").items()
    }
    dense, sparse = parsed_vectors(vectors, collection.schema, "vectors")
    parsed = GivenObject(identifier, data, dense, sparse.get(collection.schema.sparse), "")
    return Line(source, parsed, etag)


def line_of(stored: StoredObject, schema: VectorSchema, fields: Names[str]) -> dict[str, Any]:
    """Return the line of a data object with some of its LINE_FIELDS."""
    vectors: dict[str, Any] = {
        name: {"dense": {"values": vector_D.tolist()}} for name, vector_D in stored.dense.items()
    }
    if stored.sparse is not None and schema.sparse:
        vectors[schema.sparse] = {
            "sparse": {"values": list(stored.sparse.values), "indices": list(stored.sparse.indices)}
        }
    line = {"id": stored.id, "data": dict(stored.data), "vectors": vectors, "etag": stored.etag}
    return {name: line[name] for name in LINE_FIELDS if name in fields}


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequestError.at(name, f"must be an object, got {value!r:.80}")
    return value


def _data(value: Any) -> dict[str, Any]:
    """Return data as requests have it: numbers are doubles there."""
    struct = Struct()
    try:
        fill(struct, _object({"data": value}, "data"))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError.at("data", f"cannot be kept: {error}") from error
    return struct_of(struct, "data")


def _is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _vector(value: Any, path: str) -> pb.Vector:
    """Return a vector; `parsed_vectors` compares it with the schema."""
    kind, content = next(iter(value.items())) if _is_object(value) and len(value) == 1 else ("", value)
    if kind not in _KINDS:
        kind, content = "sparse" if _is_object(value) and "indices" in value else "dense", value
    if kind == "dense" and isinstance(content, list):
        content = {"values": content}
    if not _is_object(content) or not {"values"} <= {*content} <= {*_KINDS[kind]}:
        raise InvalidRequestError.at(
            path, f'must be {{"dense": {{"values": […]}}}} or {{"sparse": {{"values": […], "indices": […]}}}}, '
            f"or such a value without its kind, or a list of numbers, got {value!r:.80}",
        )  # fmt: skip
    try:
        if kind == "dense":
            return pb.Vector(dense=pb.DenseVector(values=content["values"]))
        sparse = pb.SparseVector(values=content["values"], indices=content.get("indices", ()))
        return pb.Vector(sparse=sparse)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError.at(path, f"must have lists of numbers: {error}") from error
