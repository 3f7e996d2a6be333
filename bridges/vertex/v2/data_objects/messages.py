"""Data objects, as messages of the managed service and as datapoints of ours.

| data object | datapoint |
| --- | --- |
| `data` | dynamic attributes, and its strings in `text`, which word searches see |
| dense vectors | the unnamed vector and named ones (vector_schema.py) |
| sparse vector | `sparse_vector`; older ones are in the payload, too |
| `etag` | `revision` |
| times, and which vectors the server made | payload |

Data objects of requests: parsed, and checked as far as that needs no other data object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from scannery.bridges.vertex.v2.collections import Collection
from scannery.bridges.vertex.v2.resource_names import CollectionName, checked_id, parsed_object
from scannery.bridges.vertex.v2.values import data_of, fill, json_of, searched_text, struct_of
from scannery.bridges.vertex.v2.vector_schema import VectorSchema
from scannery.runtime.errors import InvalidRequestError
from scannery.v1 import types_pb2
from scannery.vertex.v2 import data_objects_pb2 as pb
from scannery.vertex.v2 import search_pb2

__all__ = [
    "Change",
    "GivenObject",
    "Output",
    "SparseVector",
    "StoredObject",
    "check_data",
    "etag_of_revision",
    "given_change",
    "given_object",
    "message_of",
    "parsed_sparse",
    "parsed_vectors",
    "stored_object",
]


_METADATA = ("etag", "create_time", "update_time", "data_object_id")
_ALL = "*"


@dataclass(frozen=True, slots=True)
class SparseVector:
    """A sparse vector."""

    indices: tuple[int, ...]
    """Ascending."""
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """A data object as it is kept. Immutable."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    dense: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Dense vectors by field, float32 (D,)."""
    sparse: SparseVector | None = None
    made: frozenset[str] = frozenset()
    """Dense fields whose vectors the server has made."""
    create_time_us: int = 0
    """Microseconds since 1970; 0: another API wrote the datapoint."""
    update_time_us: int = 0
    revision: int = 0

    @property
    def etag(self) -> str:
        """Changes with each write."""
        return etag_of_revision(self.revision)

    def datapoint(self, schema: VectorSchema) -> types_pb2.Datapoint:
        """Return the datapoint to write."""
        point = types_pb2.Datapoint(id=self.id, dynamic_json=json_of(self.data), payload_json=self._payload())
        if text := searched_text(self.data):
            point.text = text
        for name, vector_D in self.dense.items():
            space = schema.dense[name].space
            vector = point.vectors[space] if space else point.vector
            vector.packed = vector_D.astype("<f4").tobytes()
        if self.sparse is not None and self.sparse.indices:
            point.sparse_vector.indices.extend(self.sparse.indices)
            point.sparse_vector.values.extend(self.sparse.values)
        return point

    def _payload(self) -> str:
        kept: dict[str, Any] = {"created_us": self.create_time_us, "updated_us": self.update_time_us}
        if made := self.made & self.dense.keys():
            kept["made"] = sorted(made)
        return json.dumps({"vertex": kept})


def etag_of_revision(revision: int) -> str:
    """Return the etag of a data object whose datapoint has a revision."""
    return f"{revision:x}"


def stored_object(point: types_pb2.Datapoint, schema: VectorSchema) -> StoredObject:
    """Return the data object of a datapoint, with the vectors that the datapoint has."""
    kept = _kept(point.payload_json)
    dense = {}
    for name, space in schema.spaces.items():
        if space in point.vectors if space else point.HasField("vector"):
            vector = point.vectors[space] if space else point.vector
            dense[name] = (
                np.frombuffer(vector.packed, "<f4") if vector.packed else np.array(vector.values, "<f4")
            )
    return StoredObject(
        id=point.id,
        data=data_of(json.loads(point.dynamic_json or "{}")),
        dense=dense,
        sparse=_sparse(point, kept),
        made=frozenset(kept.get("made", ())),
        create_time_us=kept.get("created_us", 0),
        update_time_us=kept.get("updated_us", 0),
        revision=point.revision,
    )


def _sparse(point: types_pb2.Datapoint, kept: Mapping[str, Any]) -> SparseVector | None:
    if point.HasField("sparse_vector"):
        return SparseVector(tuple(point.sparse_vector.indices), tuple(point.sparse_vector.values))
    return SparseVector(*map(tuple, kept["sparse"])) if "sparse" in kept else None


def parsed_vectors(
    vectors: Mapping[str, pb.Vector], schema: VectorSchema, path: str
) -> tuple[dict[str, np.ndarray], dict[str, SparseVector]]:
    """Return the dense and the sparse vectors of a request, by field; the engine checks their components.

    Raises:
        InvalidRequestError: names the field: it is not in the schema, has the other kind, or the wrong size.

    """
    dense: dict[str, np.ndarray] = {}
    sparse: dict[str, SparseVector] = {}
    for name, vector in sorted(vectors.items()):
        field_path = f"{path}.{name:.80}"
        kind = vector.WhichOneof("vector_type")
        if name == schema.sparse and name:
            if kind != "sparse":
                raise InvalidRequestError.at(field_path, "must be a sparse vector")
            sparse[name] = parsed_sparse(vector.sparse, field_path)
            continue
        expected = schema.dense_field(name, field_path)
        if kind == "sparse":
            raise InvalidRequestError.at(field_path, "must be a dense vector")
        values = vector.dense.values if kind == "dense" else vector.values
        if len(values) != expected.dimensions:
            raise InvalidRequestError.at(
                field_path, f"must have {expected.dimensions} components, got {len(values)}"
            )
        dense[name] = np.array(values, np.float32)
    return dense, sparse


def parsed_sparse(vector: pb.SparseVector, path: str) -> SparseVector:
    """Return a sparse vector of a request; InvalidRequestError names what is wrong."""
    if len(vector.indices) != len(vector.values):
        raise InvalidRequestError.at(
            path, f"must have one value for each index, got {len(vector.values)} and {len(vector.indices)}"
        )
    pairs = sorted(zip(vector.indices, vector.values, strict=True))
    if pairs and pairs[0][0] < 0:
        raise InvalidRequestError.at(f"{path}.indices", f"must be at least 0, got {pairs[0][0]}")
    # A weight of 0 says nothing; the engine refuses it.
    kept = [(index, value) for index, value in pairs if value]
    if len({index for index, _ in pairs}) < len(pairs):
        raise InvalidRequestError.at(f"{path}.indices", "must have each index once")
    return SparseVector(tuple(index for index, _ in kept), tuple(value for _, value in kept))


@dataclass(frozen=True, slots=True)
class Output:
    """What an answer has of data objects, besides their names. Immutable."""

    data: frozenset[str]
    vectors: frozenset[str]
    metadata: frozenset[str]

    @classmethod
    def of(cls, fields: search_pb2.OutputFields, path: str, *, schema: VectorSchema) -> Output:
        """Return what a request asks for.

        Raises:
            InvalidRequestError: a vector is not in the schema, or there is no such metadata.

        """
        vectors = {*schema.dense, schema.sparse} - {""}
        for kind, requested, allowed in (
            ("vector_fields", fields.vector_fields, vectors),
            ("metadata_fields", fields.metadata_fields, {*_METADATA}),
        ):
            for number, name in enumerate(requested):
                if name != _ALL and name not in allowed:
                    raise InvalidRequestError.at(
                        f"{path}.{kind}[{number}]",
                        f"must be * or one of {', '.join(sorted(allowed)) or 'none'}, got {name!r:.80}",
                    )
        return cls(*map(frozenset, (fields.data_fields, fields.vector_fields, fields.metadata_fields)))

    def __or__(self, other: Output) -> Output:
        return Output(self.data | other.data, self.vectors | other.vectors, self.metadata | other.metadata)

    @property
    def needs_vectors(self) -> bool:
        """Whether the datapoint's dense vectors must be read."""
        return bool(self.vectors)

    def message(
        self, stored: StoredObject, collection: CollectionName, schema: VectorSchema
    ) -> pb.DataObject:
        """Return a data object with what was asked for."""
        kept = replace(
            stored,
            data={name: value for name, value in stored.data.items() if _has(self.data, name)},
            dense={name: vector for name, vector in stored.dense.items() if _has(self.vectors, name)},
            sparse=stored.sparse if _has(self.vectors, schema.sparse) else None,
        )
        message = message_of(kept, collection, schema)
        for name in _METADATA:
            if not _has(self.metadata, name):
                message.ClearField(name)  # type: ignore[arg-type]  # the names are those of fields
        return message


def message_of(stored: StoredObject, collection: CollectionName, schema: VectorSchema) -> pb.DataObject:
    """Return a data object with all that it has."""
    message = pb.DataObject(
        name=collection.data_object(stored.id), data_object_id=stored.id, etag=stored.etag
    )
    if stored.create_time_us:
        message.create_time.FromMicroseconds(stored.create_time_us)
        message.update_time.FromMicroseconds(stored.update_time_us)
    if stored.data:
        fill(message.data, stored.data)
    for name, vector_D in stored.dense.items():
        message.vectors[name].dense.values.extend(vector_D.tolist())
    if stored.sparse is not None and schema.sparse:
        sparse = message.vectors[schema.sparse].sparse
        sparse.indices.extend(stored.sparse.indices)
        sparse.values.extend(stored.sparse.values)
    return message


def _has(names: frozenset[str], name: str) -> bool:
    return name in names or _ALL in names


def _kept(payload: str) -> dict[str, Any]:
    """Return what the payload keeps; nothing if another API wrote the datapoint."""
    kept = json.loads(payload) if payload else None
    metadata = kept.get("vertex") if isinstance(kept, dict) else None
    return metadata if isinstance(metadata, dict) else {}


@dataclass(frozen=True, slots=True)
class GivenObject:
    """A data object of a request that was parsed."""

    id: str
    data: Mapping[str, Any]
    dense: Mapping[str, np.ndarray]
    """Dense vectors by field, float32 (D,)."""
    sparse: SparseVector | None
    path: str
    """Front of its fields in errors."""


class Change(NamedTuple):
    """An update of a request that was parsed."""

    object: GivenObject
    mask: tuple[str, ...]
    etag: str


def given_object(
    message: pb.DataObject,
    collection: Collection,
    identifier: str,
    path: str,
    *,
    whole: bool = True,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> GivenObject:
    """Return a data object of a request, checked.

    Args:
        message: the data object.
        collection: that it is for.
        identifier: of the data object.
        path: front of its fields in errors.
        whole: whether its data must satisfy the schema.
        values: of fields of the data, where it has none of its own.

    """
    checked_id(identifier, f"{path}data_object_id", strict=False)
    data = {**values, **struct_of(message.data, f"{path}data_object.data")}
    if whole:
        check_data(collection, data, f"{path}data_object.data")
    dense, sparse = parsed_vectors(message.vectors, collection.schema, f"{path}data_object.vectors")
    return GivenObject(identifier, data, dense, sparse.get(collection.schema.sparse), path)


def given_change(request: pb.UpdateDataObjectRequest, collection: Collection, path: str) -> Change:
    """Return an update, with the checks that do not need the data object."""
    message = request.data_object
    _, identifier = parsed_object(message.name, f"{path}data_object.name")
    parsed = given_object(message, collection, identifier, path, whole=False)
    mask = list(request.update_mask.paths)
    if mask == ["*"]:
        mask = ["data", "vectors"]
    if not mask:
        mask = [
            name
            for name, has in (("data", message.HasField("data")), ("vectors", bool(message.vectors)))
            if has
        ]
    vector_names = {*collection.schema.dense, collection.schema.sparse} - {""}
    for each in mask:
        first, _, name = each.partition(".")
        if first not in ("data", "vectors") or each.endswith("."):
            raise InvalidRequestError.at(
                f"{path}update_mask",
                f"must have data, vectors, data.FIELD, vectors.FIELD or *, got {each!r:.80}",
            )
        if first == "vectors" and name and name not in vector_names:
            raise InvalidRequestError.at(f"{path}update_mask", f"there is no vector field {name!r:.80}")
    return Change(parsed, tuple(mask), message.etag)


def check_data(collection: Collection, data: Mapping[str, Any], path: str) -> None:
    """Raise InvalidRequestError, which names the field, if data does not satisfy the schema of its collection."""
    if collection.data_schema is not None:
        collection.data_schema.check(data, path)
