"""Records of contents, in the JSON form of the layout, as datapoints of the service."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from scannery.vertex.v1.index_pb2 import IndexDatapoint, NearestNeighborSearchOperationMetadata

__all__ = ["RecordError", "RefusedRecordError", "to_datapoint"]

RecordError = NearestNeighborSearchOperationMetadata.RecordError
_NUMBERS = ("value_int", "value_float", "value_double")


class RefusedRecordError(Exception):
    """The record cannot be a datapoint.

    Attributes:
        category: the service's name for the error.

    """

    def __init__(self, message: str, category: str) -> None:
        super().__init__(message)
        self.category = category


def to_datapoint(fields: Mapping[str, Any]) -> IndexDatapoint:
    """Return the datapoint of a record; raises RefusedRecordError. Keys that the layout does not have are ignored."""
    id = fields.get("id")
    if not isinstance(id, (str, int)) or isinstance(id, bool) or id == "":
        raise RefusedRecordError(
            f"id: must be a string that is not empty, or an integer, got {id!r:.80}", "INVALID_EMBEDDING_ID"
        )
    point = IndexDatapoint(datapoint_id=str(id))
    point.feature_vector.extend(_numbers(fields.get("embedding"), "embedding", "INVALID_EMBEDDING"))
    _add_sparse(point, fields.get("sparse_embedding"))
    for entry in _entries(fields.get("restricts"), "restricts", ("allow", "deny")):
        point.restricts.add(
            namespace=entry["namespace"],
            allow_list=_tokens(entry, "allow"),
            deny_list=_tokens(entry, "deny"),
        )
    for entry in _entries(fields.get("numeric_restricts"), "numeric_restricts", (*_NUMBERS, "op")):
        _add_number(point, entry)
    if (tag := fields.get("crowding_tag")) is not None:
        if not isinstance(tag, str):
            raise RefusedRecordError("crowding_tag: must be a string", "PARSING_ERROR")
        point.crowding_tag.crowding_attribute = tag
    if (metadata := fields.get("embedding_metadata")) is not None:
        _add_metadata(point, metadata)
    return point


def _add_sparse(point: IndexDatapoint, sparse: object) -> None:
    if not sparse:
        return
    if not isinstance(sparse, Mapping):
        raise RefusedRecordError("sparse_embedding: must be an object", "INVALID_SPARSE_EMBEDDING")
    if not any(sparse.values()):  # of all keys, since a misspelt key may hold the values
        return
    values = _numbers(sparse.get("values"), "sparse_embedding.values", "INVALID_SPARSE_EMBEDDING")
    dimensions = sparse.get("dimensions")
    if not isinstance(dimensions, list) or not all(
        isinstance(at, int) and not isinstance(at, bool) and 0 <= at < 1 << 63 for at in dimensions
    ):
        raise RefusedRecordError(
            "sparse_embedding.dimensions: must be integers from 0", "INVALID_SPARSE_DIMENSIONS"
        )
    if len(dimensions) != len(values):
        raise RefusedRecordError(
            f"sparse_embedding: has {len(values)} values and {len(dimensions)} dimensions",
            "INVALID_SPARSE_DIMENSIONS",
        )
    point.sparse_embedding.values.extend(values)
    point.sparse_embedding.dimensions.extend(dimensions)


def _add_number(point: IndexDatapoint, entry: Mapping[str, Any]) -> None:
    name = entry["namespace"]
    if entry.get("op") is not None:
        raise RefusedRecordError(
            f"numeric_restricts: {name!r} has an operator, which only queries have", "OP_IN_DATAPOINT"
        )
    given = {key: entry[key] for key in _NUMBERS if entry.get(key) is not None}
    if len(given) > 1:
        raise RefusedRecordError(
            f"numeric_restricts: {name!r} must have one of {', '.join(_NUMBERS)}", "MULTIPLE_VALUES"
        )
    if not given or not all(_is_number(value, key) for key, value in given.items()):
        raise RefusedRecordError(
            f"numeric_restricts: {name!r} must have a finite number as one of {', '.join(_NUMBERS)}",
            "INVALID_NUMERIC_VALUE",
        )
    point.numeric_restricts.add(namespace=name, **given)


def _add_metadata(point: IndexDatapoint, metadata: object) -> None:
    if not isinstance(metadata, dict):
        raise RefusedRecordError("embedding_metadata: must be an object", "PARSING_ERROR")
    try:
        point.embedding_metadata.update(metadata)
    except (TypeError, ValueError) as error:
        raise RefusedRecordError(f"embedding_metadata: {error}", "PARSING_ERROR") from error


def _entries(value: object, field: str, keys: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise RefusedRecordError(f"{field}: must be a list of objects", "PARSING_ERROR")
    seen = set()
    for entry in value:
        name = entry.get("namespace")
        if not isinstance(name, str) or not name:
            raise RefusedRecordError(f"{field}: each must have a namespace, a string", "NAMESPACE_MISSING")
        if name in seen:
            raise RefusedRecordError(f"{field}: the namespace {name!r} occurs twice", "DUPLICATE_NAMESPACE")
        unknown = [key for key in entry if key not in ("namespace", *keys)]
        if unknown:  # for example `allow_list`: to ignore it would lose its tokens without an error
            raise RefusedRecordError(
                f"{field}: {name!r} has an unknown key {unknown[0]!r}; known are namespace, {', '.join(keys)}",
                "PARSING_ERROR",
            )
        seen.add(name)
        yield entry


def _tokens(entry: Mapping[str, Any], key: str) -> list[str]:
    tokens = entry.get(key) or []
    if not isinstance(tokens, list) or not all(isinstance(token, str) and token for token in tokens):
        raise RefusedRecordError(
            f"restricts: {entry['namespace']!r}: {key} must be a list of strings that are not empty",
            "INVALID_TOKEN_VALUE",
        )
    return tokens


def _numbers(value: object, field: str, category: str) -> list[float]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(_is_number(item) for item in value):
        raise RefusedRecordError(f"{field}: must be a list of finite numbers", category)
    return value


def _is_number(value: object, key: str = "") -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if key == "value_int":
        return isinstance(value, int) and -(1 << 63) <= value < 1 << 63
    return -3.4e38 < value < 3.4e38 and math.isfinite(value)
