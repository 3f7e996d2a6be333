"""Write requests, checked: from messages to what is to be written. As strict as a build, and all or nothing.

Shapes: U upserts of a request, D dimensions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from scannery.indexer import (
    MAX_ID_BYTES,
    MAX_MAGNITUDE,
    AttributeType,
    IndexSpec,
    InvalidRecordError,
    Manifest,
    attribute_value,
    encodable,
)
from scannery.live.write_request import Condition, Deletion, UpsertItem
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.request.filter import unknown_name
from scannery.serving.request.query import check_count, parse_given_vector, parse_identifier, parse_sparse
from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Datapoint, Value

__all__ = [
    "all_valid",
    "parse_delete",
    "parse_payload",
    "parse_upsert",
    "typed_value",
]

# Room for "#" and the number of a passage, as in a build.
PASSAGE_SUFFIX_BYTES = 9
_PLAIN_PATHS = ("title", "payload_json")


def parse_upsert(request: pb.UpsertRequest, manifest: Manifest) -> list[UpsertItem]:
    """Return the datapoints to write.

    Raises:
        InvalidRequestError: names the first item and field that is wrong.
    """
    _check_request_id(request.request_id)
    check_count("upserts", len(request.upserts), limits.MAX_UPSERTS)
    vectors = _vectors(request.upserts, manifest)
    given = [_given(message, i, vectors[i], manifest) for i, message in enumerate(request.upserts)]
    first: dict[str, str] = {}
    for item in given:
        other = first.setdefault(item.id, item.path)
        if other != item.path:
            raise InvalidRequestError.at(
                f"{item.path}.datapoint.id", f"{item.id!r:.200} is also that of {other}"
            )
    return given


def parse_delete(request: pb.DeleteRequest) -> Deletion:
    """Return what to delete.

    Raises:
        InvalidRequestError: names the field.

    """
    _check_request_id(request.request_id)
    if not request.ids and not request.document_ids:
        raise InvalidRequestError.at("ids", "needs at least one id or document_id")
    for name, values in (("ids", request.ids), ("document_ids", request.document_ids)):
        if len(values) > limits.MAX_DELETES:
            raise InvalidRequestError.at(
                name, f"must have at most {limits.MAX_DELETES} items, got {len(values)}"
            )
    condition = _condition(request.condition, "condition") if request.HasField("condition") else None
    if condition is not None and condition.revision is None:
        raise InvalidRequestError.at("condition.if_absent", "makes no sense for a deletion")
    return Deletion(
        ids=_distinct(request.ids, "ids"),
        document_ids=_distinct(request.document_ids, "document_ids"),
        condition=condition,
    )


def _distinct(texts: Sequence[str], field: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parse_identifier(text, f"{field}[{i}]") for i, text in enumerate(texts)))


def _check_request_id(request_id: str) -> None:
    size = len(request_id.encode())
    if size > limits.MAX_REQUEST_ID_BYTES:
        raise InvalidRequestError.at(
            "request_id", f"must have at most {limits.MAX_REQUEST_ID_BYTES} bytes, got {size}"
        )


def _given(message: pb.Upsert, number: int, vector_D: np.ndarray | None, manifest: Manifest) -> UpsertItem:
    path = f"upserts[{number}]"
    point, spec = message.datapoint, manifest.spec
    identifier = parse_identifier(point.id, f"{path}.datapoint.id")
    mask = _mask(message, path, spec) if message.update_mask.paths else ()
    given = UpsertItem(
        path=path,
        id=identifier,
        document_id=parse_identifier(point.document_id, f"{path}.datapoint.document_id")
        if point.document_id
        else identifier,
        title=_sized(point, "title", limits.MAX_TITLE_BYTES, path),
        text=_sized(point, "text", limits.MAX_TEXT_BYTES, path),
        payload=_payload(point, path),
        attributes=_attributes(point, path, spec),
        span=_span(point),
        vector=vector_D,
        sparse=_sparse(point, path, spec),
        mask=mask,
        condition=_condition(message.condition, f"{path}.condition")
        if message.HasField("condition")
        else None,
    )
    if mask:
        _check_partial(point, given)
    else:
        _check_whole(point, given, manifest)
    return given


def _check_whole(point: Datapoint, given: UpsertItem, manifest: Manifest) -> None:
    here = f"{given.path}.datapoint"
    spec = manifest.spec
    if given.vector is not None:
        return
    if given.text is None or not given.text.strip():
        if spec.encoder is None:
            raise InvalidRequestError.at(f"{here}.vector", "is required: the index has no encoder")
        what = "is blank" if given.text is not None else "is required, or a vector"
        raise InvalidRequestError.at(f"{here}.text", what)
    if spec.encoder is None:
        raise InvalidRequestError.at(f"{here}.vector", "is required besides text: the index has no encoder")
    if spec.source.chunk is None:
        return
    if given.document_id != given.id or given.span is not None:
        field = "document_id" if given.document_id != given.id else "text_start"
        raise InvalidRequestError.at(
            f"{here}.{field}",
            "is not for a text that is cut into passages: write the whole document, or give the passage a vector",
        )
    limit = MAX_ID_BYTES - PASSAGE_SUFFIX_BYTES
    if len(given.id.encode()) > limit:
        raise InvalidRequestError.at(f"{here}.id", f"must be at most {limit} bytes long where texts are cut")


def _check_partial(point: Datapoint, given: UpsertItem) -> None:
    for field, wrong in (
        ("vector", given.vector is not None),
        ("sparse_vector", given.sparse is not None),
        ("text", point.HasField("text")),
        ("document_id", bool(point.document_id)),
        ("text_start", given.span is not None),
    ):
        if wrong:
            raise InvalidRequestError.at(
                f"{given.path}.datapoint.{field}", "cannot be changed with an update_mask; write it whole"
            )
    for name in ("title", "payload_json"):
        if point.HasField(name) and name not in given.mask:
            raise InvalidRequestError.at(f"{given.path}.datapoint.{name}", "is not in the update_mask")
    for name in point.attributes:
        if f"attributes.{name}" not in given.mask:
            raise InvalidRequestError.at(
                f"{given.path}.datapoint.attributes.{name}", "is not in the update_mask"
            )
    if given.condition is not None and given.condition.revision is None:
        raise InvalidRequestError.at(
            f"{given.path}.condition.if_absent", "makes no sense with an update_mask"
        )


def _mask(message: pb.Upsert, path: str, spec: IndexSpec) -> tuple[str, ...]:
    known = dict.fromkeys((*_PLAIN_PATHS, *(f"attributes.{name}" for name in spec.attributes)))
    for name in message.update_mask.paths:
        if name not in known:
            raise InvalidRequestError.at(
                f"{path}.update_mask", f"{name!r:.80}: {unknown_name(name, known, 'field')}"
            )
    return tuple(dict.fromkeys(message.update_mask.paths))


def _condition(message: pb.WriteCondition, path: str) -> Condition:
    kind = message.WhichOneof("kind")
    if kind == "if_revision":
        return Condition(message.if_revision)
    if kind is None or not message.if_absent:
        raise InvalidRequestError.at(f"{path}.if_absent", "must be true, or if_revision must be set")
    return Condition(None)


def _sized(point: Datapoint, name: str, most: int, path: str) -> str | None:
    if not point.HasField(name):  # type: ignore[arg-type]  # names of optional fields
        return None
    text: str = getattr(point, name)
    size = len(text.encode())
    if size > most:
        raise InvalidRequestError.at(
            f"{path}.datapoint.{name}", f"must have at most {most} bytes, got {size}"
        )
    return text if name != "title" else text.strip() or None


def _payload(point: Datapoint, path: str) -> str | None:
    text = _sized(point, "payload_json", limits.MAX_PAYLOAD_BYTES, path)
    return None if text is None else parse_payload(text, f"{path}.datapoint.payload_json")


def parse_payload(text: str, path: str) -> str:
    """Return a payload as a build writes it; InvalidRequestError if it is not JSON."""
    try:
        payload = json.dumps(json.loads(text), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.at(path, f"is not JSON: {error}") from error
    try:
        return encodable(payload, field=path)
    except InvalidRecordError as error:
        raise InvalidRequestError(error.message, field=path) from error


def _sparse(point: Datapoint, path: str, spec: IndexSpec) -> tuple[np.ndarray, np.ndarray] | None:
    if not point.HasField("sparse_vector"):
        return None
    here = f"{path}.datapoint.sparse_vector"
    if spec.source.sparse_vector is None:
        raise InvalidRequestError.at(
            here, "the index stores none; build it with `source.sparse_vector` in its spec"
        )
    return parse_sparse(point.sparse_vector, here)


def _span(point: Datapoint) -> tuple[int | None, int | None, float | None, float | None] | None:
    names = ("text_start", "text_end", "time_start_s", "time_end_s")
    if not any(map(point.HasField, names)):  # type: ignore[arg-type]  # names of optional fields
        return None
    start, end, *times = (getattr(point, name) if point.HasField(name) else None for name in names)  # type: ignore[arg-type]
    return start, end, times[0], times[1]


def _attributes(point: Datapoint, path: str, spec: IndexSpec) -> dict[str, Any]:
    attributes: dict[str, Any] = dict.fromkeys(spec.attributes)
    for name, value in point.attributes.items():
        here = f"{path}.datapoint.attributes.{name:.80}"
        kind = spec.attributes.get(name)
        if kind is None:
            raise InvalidRequestError.at(here, unknown_name(name, spec.attributes, "attribute"))
        attributes[name] = typed_value(value, kind, here)
    return attributes


def typed_value(message: Value, kind: AttributeType, path: str) -> Any:
    """Return the value of an attribute as what Arrow takes; None for null. InvalidRequestError if it does not fit."""
    field = message.WhichOneof("kind")
    if field is None:
        return None
    value = getattr(message, field)
    if field == "string_list_value":
        _check_strings(value.values, path)
        value = list(value.values)
    elif field == "float_value" and not math.isfinite(value):
        raise InvalidRequestError.at(path, f"must be finite, got {value}")
    elif field == "timestamp_value":
        try:
            value = value.ToDatetime()
        except (ValueError, OverflowError) as error:
            raise InvalidRequestError.at(path, "must lie in the years 1 to 9999") from error
    try:
        typed = attribute_value(value, kind, field=path)
    except InvalidRecordError as error:
        raise InvalidRequestError(error.message, field=path) from error
    if isinstance(typed, (str, list)):
        _check_strings([typed] if isinstance(typed, str) else typed, path)
    return typed


def _check_strings(texts: Sequence[str], path: str) -> None:
    if len(texts) > limits.MAX_STRINGS:
        raise InvalidRequestError.at(path, f"must have at most {limits.MAX_STRINGS} items, got {len(texts)}")
    size = sum(map(len, texts))
    if size > limits.MAX_ATTRIBUTE_BYTES // 4:
        size = sum(len(text.encode()) for text in texts)
    if size > limits.MAX_ATTRIBUTE_BYTES:
        raise InvalidRequestError.at(
            path, f"must have at most {limits.MAX_ATTRIBUTE_BYTES} bytes, got {size}"
        )


def _vectors(upserts: Sequence[pb.Upsert], manifest: Manifest) -> list[np.ndarray | None]:
    """Return the vectors of the datapoints that have one; checked at once, and one by one to find the wrong one."""
    vectors: list[np.ndarray | None] = [None] * len(upserts)
    numbers = [i for i, message in enumerate(upserts) if message.datapoint.HasField("vector")]
    packed = [upserts[i].datapoint.vector.packed for i in numbers]
    size = 4 * manifest.dimensions
    if all(len(data) == size for data in packed) and not any(
        upserts[i].datapoint.vector.values for i in numbers
    ):
        vectors_UD = np.frombuffer(b"".join(packed), "<f4").reshape(-1, manifest.dimensions)
        if all_valid(vectors_UD, manifest):
            for i, vector_D in zip(numbers, vectors_UD, strict=True):
                vectors[i] = vector_D
            return vectors
    for i in numbers:
        vectors[i] = parse_given_vector(
            upserts[i].datapoint.vector, manifest, f"upserts[{i}].datapoint.vector"
        )
    return vectors


def all_valid(vectors_UD: np.ndarray, manifest: Manifest) -> bool:
    """Return whether each vector is one of the index."""
    largest_U = np.abs(vectors_UD).max(axis=1, initial=0)
    # NaN compares as false.
    return bool(
        (largest_U <= MAX_MAGNITUDE).all() and (manifest.spec.distance != "cosine" or largest_U.all())
    )
