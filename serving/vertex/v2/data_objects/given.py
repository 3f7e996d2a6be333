"""Data objects of requests: parsed, and checked as far as that needs no other data object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scannery.runtime.errors import InvalidRequestError
from scannery.serving.vertex.v2.collections import Collection
from scannery.serving.vertex.v2.data_objects.messages import SparseVector, parsed_vectors
from scannery.serving.vertex.v2.resource_names import checked_id, parsed_object
from scannery.serving.vertex.v2.values import struct_of
from scannery.vertex.v2 import data_objects_pb2 as pb

__all__ = ["Change", "GivenObject", "check_data", "given_change", "given_object"]


@dataclass(frozen=True, slots=True)
class GivenObject:
    """A data object of a request that was parsed."""

    id: str
    data: Mapping[str, Any]
    dense: Mapping[str, np.ndarray]
    """By field, float32 (D,)."""
    sparse: SparseVector | None
    path: str
    """Front of its fields in errors."""


class Change(NamedTuple):
    """An update of a request that was parsed."""

    given: GivenObject
    mask: tuple[str, ...]
    etag: str


def given_object(
    message: pb.DataObject, collection: Collection, identifier: str, path: str, *, whole: bool = True
) -> GivenObject:
    """Return a data object of a request, checked; `whole`: its data must satisfy the schema."""
    checked_id(identifier, f"{path}data_object_id", strict=False)
    data = struct_of(message.data, f"{path}data_object.data")
    if whole:
        check_data(collection, data, f"{path}data_object.data")
    dense, sparse = parsed_vectors(message.vectors, collection.schema, f"{path}data_object.vectors")
    return GivenObject(identifier, data, dense, sparse.get(collection.schema.sparse), path)


def given_change(request: pb.UpdateDataObjectRequest, collection: Collection, path: str) -> Change:
    """Return an update, with the checks that do not need the data object."""
    message = request.data_object
    _, identifier = parsed_object(message.name, f"{path}data_object.name")
    given = given_object(message, collection, identifier, path, whole=False)
    mask = list(request.update_mask.paths)
    if mask == ["*"]:
        mask = ["data", "vectors"]
    if not mask:
        mask = [
            name
            for name, has in (("data", message.HasField("data")), ("vectors", bool(message.vectors)))
            if has
        ]
    known = {*collection.schema.dense, collection.schema.sparse} - {""}
    for each in mask:
        first, _, name = each.partition(".")
        if first not in ("data", "vectors") or each.endswith("."):
            raise InvalidRequestError.at(
                f"{path}update_mask",
                f"must have data, vectors, data.FIELD, vectors.FIELD or *, got {each!r:.80}",
            )
        if first == "vectors" and name and name not in known:
            raise InvalidRequestError.at(f"{path}update_mask", f"there is no vector field {name!r:.80}")
    return Change(given, tuple(mask), message.etag)


def check_data(collection: Collection, data: Mapping[str, Any], path: str) -> None:
    """Raise InvalidRequestError, which names the field, if data does not satisfy the schema of its collection."""
    if collection.data_schema is not None:
        collection.data_schema.check(data, path)
