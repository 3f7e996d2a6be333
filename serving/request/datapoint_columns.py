"""Datapoints in messages → columns for the validator.

Shapes: U datapoints of a request, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

import numpy as np

from scannery.indexer import (
    DYNAMIC_COLUMN,
    MAX_SPARSE_ENTRIES,
    SPAN,
    SPARSE,
    AttributeType,
    Field,
    IndexSpec,
    InvalidRecordError,
    vector_column,
)
from scannery.indexer.datapoints.dynamic import check_json_size, dynamic_json, parsed_dynamic
from scannery.indexer.strict_json import exact_json, strict_json
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.request.query import vector_components
from scannery.v1.types_pb2 import Datapoint, SparseVector, Value, Vector

_GivenT = TypeVar("_GivenT")

__all__ = ["DatapointColumns", "datapoint_columns"]

_TEXTS = {"title": "title", "text": "text", "payload": "payload_json"}
_VALUES: dict[AttributeType, str] = {
    "string": "string_value",
    "int": "int_value",
    "float": "float_value",
    "bool": "bool_value",
}
"""Where values are that can be taken as they are."""


class DatapointColumns(NamedTuple):
    """The fields that any datapoint of a request has."""

    fields: dict[str, Field]
    unknown: dict[int, str]
    """An attribute that the spec does not name, by the number of the datapoint that has it."""
    unknown_vectors: dict[int, str]
    """The name of a vector that the index does not have, by the number of the datapoint that has it."""


def datapoint_columns(
    points: Sequence[Datapoint],
    spec: IndexSpec,
    dimensions: Mapping[str, int],
    *,
    check: Callable[[], None],
) -> DatapointColumns:
    """Return datapoints as columns.

    Args:
        points: of the request.
        spec: of the index.
        dimensions: of the vectors of each name; "" is the unnamed vector.
        check: called before each datapoint whose JSON is read; what it raises ends the call.

    """
    ids = [point.id for point in points]
    documents = [point.document_id for point in points]
    fields = {"id": Field("id", ids), "embedding": Field("vector", _vectors(points, dimensions[""]))}
    if any(documents):
        wholes = [document or own_id for document, own_id in zip(documents, ids, strict=True)]
        fields["document_id"] = Field("document_id", wholes)
    for column, name in _TEXTS.items():
        if (column_values := _field_values(points, name)) is not None:
            fields[column] = Field(name, column_values)
    if (column_values := _field_values(points, "sparse_vector")) is not None:
        values = [None if message is None else _sparse(message, spec) for message in column_values]
        fields[SPARSE] = Field("sparse_vector", values)
    maps = [point.attributes for point in points]
    names: Set[str] = set().union(*maps)
    for name in (name for name in spec.attributes if name in names):
        # Never maps[i][name]: that would put it there.
        column_values = [attributes.get(name) for attributes in maps]
        values = _attribute(name, column_values, spec.attributes[name], check)
        fields[name] = Field(f"attributes.{name}", values)
    undeclared: Set[str] = names - spec.attributes.keys()
    if (column_values := _dynamic(points, spec, bool(undeclared), check)) is not None:
        fields[DYNAMIC_COLUMN] = Field("attributes", column_values)
    unknown = {} if spec.dynamic else _first_of(undeclared, maps)
    vectors, unknown_vectors = _named_vectors(points, [name for name in dimensions if name])
    return DatapointColumns(fields | vectors | _spans(points), unknown, unknown_vectors)


def _field_values(points: Sequence[Datapoint], name: str) -> list[Any] | None:
    """Return a field of each, None where it is not set; None if none has it."""
    has = [point.HasField(name) for point in points]  # type: ignore[arg-type]  # names of optional fields
    if not any(has):
        return None
    return [getattr(point, name) if is_set else None for point, is_set in zip(points, has, strict=True)]


def _vectors(points: Sequence[Datapoint], dimensions: int) -> np.ndarray | list[object]:
    """Return the vectors as one array (U, D), or one by one if they are not all packed and of D components."""
    vectors = [point.vector for point in points]
    packed = [vector.packed for vector in vectors]
    size = 4 * dimensions
    if size and all(len(data) == size for data in packed) and not any(vector.values for vector in vectors):
        return np.frombuffer(b"".join(packed), "<f4").reshape(-1, dimensions)
    return [_vector(point.vector) if point.HasField("vector") else None for point in points]


def _named_vectors(
    points: Sequence[Datapoint], named: Sequence[str]
) -> tuple[dict[str, Field], dict[int, str]]:
    """Return the columns of named vectors, and names that are unknown by the number of their datapoint."""
    maps = [point.vectors for point in points]
    names: Set[str] = set().union(*maps)
    fields = {
        vector_column(name): Field(
            f"vectors.{name}",
            # Never vectors[name] without a look: that would put it there.
            [_vector(vectors[name], f"vectors.{name}") if name in vectors else None for vectors in maps],
        )
        for name in named
        if name in names
    }
    undeclared: Set[str] = names - {*named}
    return fields, _first_of(undeclared, maps)


def _first_of(undeclared: Set[str], maps: Sequence[Mapping[str, object]]) -> dict[int, str]:
    """Return the first key of each map that is one of these, by the number of its datapoint."""
    # One by one, and no intersection of keys: that would look at the names of the whole request for each datapoint.
    return {
        number: first
        for number, attributes in enumerate(maps if undeclared else ())
        if (first := next((name for name in attributes if name in undeclared), None)) is not None
    }


def _vector(message: Vector, path: str = "vector") -> np.ndarray | InvalidRecordError:
    try:
        return vector_components(message, path)
    except InvalidRequestError as error:
        return InvalidRecordError(error.message, reason="vector", field=error.field)


def _sparse(message: SparseVector, spec: IndexSpec) -> object:
    # Before they are made to numbers of Python's, one by one.
    count = max(len(message.indices), len(message.values))
    if spec.source.sparse_vector is None:
        what = "the index stores none; build it with `source.sparse_vector` in its spec"
    elif count > MAX_SPARSE_ENTRIES:
        what = f"must have 1 to {MAX_SPARSE_ENTRIES} entries, got {count}"
    else:
        return {"indices": list(message.indices), "values": list(message.values)}
    return InvalidRecordError(f"sparse_vector: {what}", reason="sparse_vector", field="sparse_vector")


def _attribute(
    name: str, values: Sequence[Value | None], kind: AttributeType, check: Callable[[], None]
) -> list[object]:
    path, attribute = f"attributes.{name:.80}", _VALUES.get(kind)
    if kind == "geo":
        return _until_error(values, lambda value: None if value is None else _geo(path, value), check)
    read = _number if kind == "float" else _plain
    return [
        None
        if value is None
        else getattr(value, attribute)
        if attribute is not None and value.HasField(attribute)  # type: ignore[arg-type]  # a name of the oneof
        else read(path, value)
        for value in values
    ]


def _plain(path: str, message: Value) -> object:
    """Return a value of an attribute as Python has it, None for null; the error if it cannot be."""
    field = message.WhichOneof("kind")
    if field is None:
        return None
    if field == "string_list_value":
        return list(message.string_list_value.values)
    if field in _ONLY_DYNAMIC:
        what = "lists of other values than strings, durations and nested values are for undeclared attributes"
        return _invalid(path, what + ("; declare a float for durations" if field == "json_value" else ""))
    if field != "timestamp_value":
        return getattr(message, field)
    try:
        return message.timestamp_value.ToDatetime()
    except (ValueError, OverflowError):
        return _invalid(path, "must lie in the years 1 to 9999")


def _geo(path: str, message: Value) -> object:
    """Return a place as Python has it, in any of the ways that a place may be written in."""
    if message.HasField("geo_value"):
        return {"lat": message.geo_value.latitude, "lon": message.geo_value.longitude}
    try:
        return _exact(message, path)
    except InvalidRecordError as error:
        return error


def _number(path: str, message: Value) -> object:
    """Return a value of a float attribute as Python has it; of JSON, a number."""
    if not message.HasField("json_value"):
        return _plain(path, message)
    text = message.json_value
    try:
        value = exact_json(text) if len(text) <= _MAX_NUMBER else None
    except ValueError:
        value = None
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return value
    return _invalid(path, f"must be a number, got {text!r:.80}, which is JSON for undeclared attributes")


_MAX_NUMBER = 400
"""Characters of a number in JSON: a float has at most 309 digits before its point."""
_ONLY_DYNAMIC = ("list_value", "json_value")


def _until_error(
    values: Sequence[_GivenT], read: Callable[[_GivenT], object], check: Callable[[], None]
) -> list[object]:
    """Return what was read of each value; None for those after an error, with which the request is refused."""
    values_read: list[object] = []
    for value in values:
        check()
        values_read.append(read(value))
        if isinstance(values_read[-1], InvalidRecordError):
            break
    return values_read + [None] * (len(values) - len(values_read))


def _dynamic(
    points: Sequence[Datapoint], spec: IndexSpec, has_others: bool, check: Callable[[], None]
) -> list[object] | None:
    """Return the undeclared attributes of each datapoint, None if none has any; the error if they cannot be read."""
    texts_sent = _field_values(points, "dynamic_json")
    if texts_sent is None and not (has_others and spec.dynamic):
        return None
    if not spec.dynamic:
        what = "the index has declared attributes only; set `dynamic: true` in its spec"
        return [None if text is None else _invalid("dynamic_json", what) for text in texts_sent or ()]
    texts = texts_sent or [None] * len(points)
    pairs = list(zip(points, texts, strict=True))
    return _until_error(pairs, lambda pair: _undeclared(*pair, spec), check)


def _undeclared(point: Datapoint, text: str | None, spec: IndexSpec) -> object:
    try:
        # As text at once: the values of all datapoints of a request would take 30 times as much memory.
        return dynamic_json(_undeclared_values(point, text, spec), path="attributes")
    except InvalidRecordError as error:
        # Not the error itself: its traceback keeps the values.
        return InvalidRecordError(error.message, reason=error.reason, field=error.field)


def _undeclared_values(point: Datapoint, text: str | None, spec: IndexSpec) -> dict[str, object]:
    attributes = point.attributes
    undeclared = [name for name in attributes if name not in spec.attributes]
    check_json_size(sum(attributes[name].ByteSize() for name in undeclared), path="attributes")
    values = dict(parsed_dynamic(text, path="dynamic_json"))
    if declared := spec.attributes.keys() & values.keys():
        raise _invalid("dynamic_json", f"{min(declared)!r} is declared; write it in `attributes`")
    for name in undeclared:
        if name in values:
            raise _invalid(f"attributes.{name:.80}", "is in dynamic_json, too")
        values[name] = _exact(attributes[name], f"attributes.{name:.80}")
    return values


def _exact(message: Value, path: str) -> Any:
    """Return a value as it was given; None for null."""
    field = message.WhichOneof("kind")
    if field == "list_value":
        return [_exact(item, f"{path}[{i}]") for i, item in enumerate(message.list_value.values)]
    if field == "json_value":
        check_json_size(len(message.json_value), path=path)
        try:
            return strict_json(message.json_value)
        except (ValueError, RecursionError) as error:
            raise _invalid(path, f"is not JSON: {error}") from error
    if field == "geo_value":
        raise _invalid(path, "is a place, for which the spec must declare an attribute of type geo")
    value = _plain(path, message)
    if isinstance(value, InvalidRecordError):
        raise value
    return value


def _invalid(path: str, what: str) -> InvalidRecordError:
    return InvalidRecordError(f"{path}: {what}", reason="attribute", field=path)


def _spans(points: Sequence[Datapoint]) -> dict[str, Field]:
    """Return where texts stand in their documents; a text of which nothing is said is the whole of its document."""
    spans = {name: _field_values(points, name) for name in SPAN}
    if not any(spans.values()):
        return {}
    columns = {name: values or [None] * len(points) for name, values in spans.items()}
    for row, point in enumerate(points):
        if point.text and all(values[row] is None for values in columns.values()):
            columns["text_start"][row], columns["text_end"][row] = 0, len(point.text)
    return {name: Field(name, values) for name, values in columns.items()}
