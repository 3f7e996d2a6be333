"""Datapoints to write, from Python values to messages."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from google.protobuf.field_mask_pb2 import FieldMask

from scannery.client.errors import InvalidArgumentError
from scannery.client.packages import needed_for
from scannery.client.request.filters import build_value
from scannery.client.request.named_vectors import build_vectors, packed_vector
from scannery.client.request.queries import build_sparse
from scannery.client.request.values import Identifier, as_identifier, not_unicode, plain_value
from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Datapoint, StringList, Value, ValueList

__all__ = [
    "DATAPOINT_KEYS",
    "NewDatapoint",
    "RefusedRecord",
    "Update",
    "as_list",
    "build_attributes",
    "build_updates",
    "build_upserts",
    "checked_revision",
]


class NewDatapoint(TypedDict, total=False):
    """A datapoint, or a whole document, to insert or replace."""

    id: Identifier
    """Required. Where texts are cut into passages, the id of the document. An integer becomes its digits."""
    text: str
    """What the index's encoder encodes. Text or vector is required, unless vectors are `optional`."""
    vector: Any
    """Array-like, or the bytes of float32; then text is only stored (and its words indexed)."""
    vectors: Mapping[str, Any]
    """The named vectors by name, each as `vector`. Names that have an encoder and are left out are encoded."""
    sparse_vector: Mapping[int, float]
    """Weights by dimension, where the spec names `source.sparse_vector`."""
    title: str | None
    document_id: Identifier
    """The document it is a passage of; default: the id."""
    attributes: Mapping[str, Any]
    """Filtered and returned: values of the declared attributes. An index with `dynamic: true` takes any other names,
    too, and keeps their values exactly: what JSON can hold, None included; dates and datetimes become ISO 8601 text."""
    payload: Any
    """Anything that JSON can hold. Only returned: what filters ask for belongs into `attributes`."""
    text_start: int
    """Where the text begins in its document, in characters; not of a text that is cut into passages."""
    text_end: int
    time_start_s: float
    """Where the text begins in a recording. Of a text that is cut, for passages before its first time mark or without
    marks."""
    time_end_s: float
    if_absent: bool
    """Write only if there is no such datapoint."""
    if_revision: int
    """Write only if its revision is this one."""


class Update(TypedDict, total=False):
    """Fields to change of an existing datapoint; what is not named stays.

    None clears a field, and removes a dynamic attribute.
    """

    id: Identifier
    """Required."""
    title: str | None
    attributes: Mapping[str, Any]
    payload: Any
    vectors: Mapping[str, Any] | None
    """Named vectors to change; those that are not named stay. None as a vector removes it. None as all removes all;
    those with an encoder are then made again from the stored texts."""
    if_revision: int
    """Change only if its revision is this one."""


DATAPOINT_KEYS: frozenset[str] = frozenset(NewDatapoint.__annotations__)
_NEW_KEYS = NewDatapoint.__annotations__
_UPDATE_KEYS = Update.__annotations__
_IDS = frozenset({"id", "document_id"})
_TEXTS = ("title", "text")
_PLAIN = frozenset({*_TEXTS, "text_start", "text_end", "time_start_s", "time_end_s"})


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """Stands for a record that cannot be a datapoint, so that it fails in its place like any other."""

    id: str
    """Empty if it has none."""
    message: str
    field: str | None = None


def build_upserts(points: Iterable[Mapping[str, Any]]) -> list[pb.Upsert]:
    """Return the messages for datapoints to insert or replace.

    Raises:
        InvalidArgumentError: names the first one and its key that are wrong.

    """
    return [
        pb.Upsert(datapoint=_datapoint(point, path), condition=_condition(point, path))
        for path, point in _checked(points, _NEW_KEYS)
    ]


def build_updates(points: Iterable[Mapping[str, Any]]) -> list[pb.Upsert]:
    """Return the messages for fields to change; raises as `build_upserts`."""
    return [
        pb.Upsert(
            datapoint=_datapoint(point, path),
            update_mask=_mask(point, path),
            condition=_condition(point, path),
        )
        for path, point in _checked(points, _UPDATE_KEYS)
    ]


def build_attributes(attributes: object) -> dict[str, Value]:
    """Return the messages for new values of attributes; None stands for null.

    Raises:
        InvalidArgumentError: names the attribute.

    """
    if not isinstance(attributes, Mapping):
        raise _invalid("attributes", f"must be a mapping, got {attributes!r:.80}")
    return {str(name): _value(value, f"attributes.{name}") for name, value in attributes.items()}


def as_list(points: Any) -> list[Any]:
    """Return the datapoints of a request; InvalidArgumentError if this is not many."""
    if isinstance(points, (str, bytes, Mapping)) or not isinstance(points, Iterable):
        raise InvalidArgumentError(
            f"upserts: must be a list of datapoints, got {points!r:.80}", field="upserts"
        )
    return points if isinstance(points, list) else list(points)


def _checked(
    points: Iterable[Mapping[str, Any]], keys: Mapping[str, Any]
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for i, point in enumerate(as_list(points)):
        path = f"upserts[{i}]"
        if isinstance(point, RefusedRecord):
            raise InvalidArgumentError(
                f"{path}: {point.message}", field=f"{path}.{point.field}" if point.field else path
            )
        if not isinstance(point, Mapping):
            raise _invalid(path, f"must be a mapping, got {point!r:.80}")
        if not point.keys() <= keys.keys():
            key = next(key for key in point if key not in keys)
            raise _invalid(path, f"unknown key {key!r:.80}; it can have {', '.join(keys)}")
        yield path, point


def _datapoint(point: Mapping[str, Any], path: str) -> Datapoint:
    message = Datapoint()
    if point.get("id") is None:
        raise _invalid(f"{path}.datapoint.id", "is required, a string or an integer")
    for name in _IDS & point.keys():
        if point[name] is not None:
            _set(message, name, as_identifier(point[name], f"{path}.datapoint.{name}"), path)
    for name in _PLAIN & point.keys():
        value = point[name] if isinstance(point[name], str) else plain_value(point[name])
        value = _text(value, name) if name in _TEXTS else _seconds(value)
        if value is not None:
            _set(message, name, value, path)
    _add_vectors(message, point, f"{path}.datapoint")
    attributes = point.get("attributes") or {}
    if not isinstance(attributes, Mapping):
        raise _invalid(f"{path}.datapoint.attributes", f"must be a mapping, got {attributes!r:.80}")
    for name, value in attributes.items():
        filled = _value(value, f"{path}.datapoint.attributes.{name}")
        try:
            message.attributes[str(name)].CopyFrom(filled)
        except UnicodeEncodeError as error:
            raise not_unicode(f"{path}.datapoint.attributes", error) from error
    if point.get("payload") is not None:
        try:
            message.payload_json = _json(plain_value(point["payload"]), f"{path}.datapoint.payload_json")
        except UnicodeEncodeError as error:
            raise not_unicode(f"{path}.datapoint.payload_json", error) from error
    return message


def _add_vectors(message: Datapoint, point: Mapping[str, Any], path: str) -> None:
    if point.get("vector") is not None:
        message.vector.packed = packed_vector(point["vector"], f"{path}.vector")
    if point.get("vectors") is not None:
        for name, vector in build_vectors(point["vectors"], f"{path}.vectors").items():
            message.vectors[name].CopyFrom(vector)
    if point.get("sparse_vector") is not None:
        message.sparse_vector.CopyFrom(build_sparse(point["sparse_vector"], path=f"{path}.sparse_vector"))


def _text(value: Any, name: str) -> Any:
    """Return the text of a number, a time or a list of texts, as builds make it; other values as they are."""
    if value is None or isinstance(value, str):
        return value
    # Imported late: texts need none of it.
    with needed_for(f"a {name} that is not a string", "scannery-client[tables]"):
        from scannery.indexer.datapoints.conversions import plain_text
        from scannery.indexer.datapoints.field_mapping import TEXT_SEPARATORS, join_texts

    value = join_texts(value.tolist() if isinstance(value, np.ndarray) else value, TEXT_SEPARATORS[name])
    try:
        return value if value is None else plain_text(value)
    except (TypeError, ValueError):
        return value  # which is refused as it is


def _seconds(value: Any) -> Any:
    """Return the seconds of a duration, other values as they are."""
    return value.total_seconds() if isinstance(value, dt.timedelta) else value


def _set(message: Datapoint, name: str, value: Any, path: str) -> None:
    field = f"{path}.datapoint.{name}"
    try:
        setattr(message, name, value)
    except UnicodeEncodeError as error:
        raise not_unicode(field, error) from error
    except (TypeError, ValueError) as error:
        kind = "a string" if name in _TEXTS else "a number"
        raise _invalid(field, f"must be {kind}, got {value!r:.80}") from error


def _value(value: Any, path: str) -> Value:
    value = plain_value(value)
    if isinstance(value, np.ndarray):
        value = plain_value(value.tolist())
    if isinstance(value, dt.timedelta):  # as JSON: a number that is no time, truth value or text
        return Value(json_value=json.dumps(value.total_seconds()))
    if isinstance(value, float) and math.isinf(value):  # a float of an index, unlike a bound of a filter
        return Value(float_value=value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _list_value(value, path)
    if isinstance(value, Mapping):
        return _nested_value(value, path)
    return build_value(value, path=path)


def _list_value(items: Collection[Any], path: str) -> Value:
    if any(isinstance(item, _NESTED) for item in items):
        return _nested_value(list(items), path)
    if not all(isinstance(item, str) for item in items):
        values = [_value(item, f"{path}[{i}]") for i, item in enumerate(items)]
        return Value(list_value=ValueList(values=values))
    try:
        return Value(string_list_value=StringList(values=items))
    except UnicodeEncodeError as error:
        raise not_unicode(path, error) from error


def _nested_value(value: Any, path: str) -> Value:
    try:
        return Value(json_value=_json(value, path, default=_attribute_part))
    except UnicodeEncodeError as error:
        raise not_unicode(path, error) from error


_NESTED = (Mapping, list, tuple, set, frozenset, np.ndarray)


def _json(value: Any, path: str, default: Callable[[Any], Any] | None = None) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, default=default or _jsonable)
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(path, f"is not JSON: {error}") from error


def _attribute_part(value: Any) -> Any:
    """Return a part of a nested attribute; dates and datetimes as those that are not nested: ISO 8601 in UTC."""
    if isinstance(value, dt.date):
        if not isinstance(value, dt.datetime):
            value = dt.datetime(value.year, value.month, value.day)
        aware = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
        return dt.datetime.isoformat(aware.astimezone(dt.timezone.utc))
    return _jsonable(value)


def _jsonable(value: Any) -> Any:
    # What tables and frames hold beside JSON's own types.
    if isinstance(value, np.ndarray):
        return plain_value(value.tolist())
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _condition(point: Mapping[str, Any], path: str) -> pb.WriteCondition | None:
    absent, revision = point.get("if_absent"), point.get("if_revision")
    if absent and revision is not None:
        raise _invalid(f"{path}.condition", "if_absent and if_revision exclude each other")
    if absent:
        return pb.WriteCondition(if_absent=True)
    return None if revision is None else pb.WriteCondition(if_revision=checked_revision(revision, path))


def checked_revision(revision: object, path: str) -> int:
    """Return the revision if it is one."""
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 0:
        raise _invalid(f"{path}.if_revision", f"must be an integer from 0, got {revision!r:.80}")
    return revision


def _mask(point: Mapping[str, Any], path: str) -> FieldMask:
    names: Sequence[str] = [
        *(["title"] if "title" in point else []),
        *(["payload_json"] if "payload" in point else []),
        *(f"attributes.{name}" for name in point.get("attributes") or {}),
        *(["vectors"] if "vectors" in point and point["vectors"] is None else []),
        *(f"vectors.{name}" for name in point.get("vectors") or {}),
    ]
    if not names:
        raise _invalid(path, "names no field to change")
    return FieldMask(paths=names)


def _invalid(path: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{path}: {what}", field=path)
