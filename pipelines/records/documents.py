"""Records → documents: validated, typed, or a dead letter that says why not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from scannery.embed.text.transcripts import spoken_text
from scannery.indexer.datapoints.schema import (
    MAX_ID_BYTES,
    SPOKEN_COLUMN,
    attribute_value,
    attribute_values,
    encodable,
    identifier,
    vector_value,
)
from scannery.indexer.datapoints.sparse import sparse_value
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import Record
from scannery.pipelines.sources.parts import SPAN

__all__ = ["Document", "payload_of", "spoken_of", "text_of", "title_of", "to_document", "vector_size"]

# Room for "#" and the number of a passage: at most 64 Mi passages of a 64 MiB document.
PASSAGE_SUFFIX_BYTES = 9


Span = tuple[int | None, int | None, float | None, float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """A record that may enter the index."""

    id: str
    document_id: str
    title: str | None
    text: str | None
    spoken: str | None
    """The searched text of a record with a vector, if its text is a transcript; see `Passage.spoken`."""

    vector: np.ndarray | None
    """float32, `(dimensions,)`."""

    sparse: tuple[np.ndarray, np.ndarray] | None
    """Indices and values of a sparse vector."""

    attributes: Mapping[str, Any]
    payload: str | None
    """JSON text."""

    span: Span | None
    """Where an exported passage stands in its document: text_start, text_end, time_start_s, time_end_s."""

    record: Record
    """Where it came from."""


def to_document(record: Record, spec: IndexSpec, dimensions: int) -> Document | DeadLetter:
    """Return the document in `record`, or the dead letter with the first thing that is wrong with it."""
    known: str | None = None
    try:
        known = _id(record.fields, spec)
        return Document(
            id=known,
            document_id=_document_id(record.fields, spec) or known,
            title=title_of(record.fields, spec),
            text=text_of(record.fields, spec),
            spoken=spoken_of(record.fields, spec),
            vector=_vector(record.fields, spec, dimensions),
            sparse=_sparse(record.fields, spec),
            attributes=attribute_values(record.fields, spec),
            payload=payload_of(record.fields, spec),
            span=_span(record.fields, spec),
            record=record,
        )
    except InvalidRecordError as error:
        return record.reject(error.reason, error.message, field=error.field, id=known)


def vector_size(record: Record, spec: IndexSpec) -> int | None:
    """Return the number of dimensions of the record's vector, or None where it has no valid one."""
    try:
        vector = _vector(record.fields, spec, None)
    except InvalidRecordError:
        return None
    return None if vector is None else int(vector.size)


def _id(fields: Mapping[str, Any], spec: IndexSpec) -> str:
    name = spec.source.id
    if fields.get(name) is None:
        raise _missing("missing_id", name, fields)
    value = identifier(fields[name], field=name)
    limit = MAX_ID_BYTES - PASSAGE_SUFFIX_BYTES
    if spec.source.chunk is not None and len(value.encode()) > limit:
        message = f"{name}: must be at most {limit} bytes long where texts are cut into passages"
        raise InvalidRecordError(message, reason="id", field=name)
    return value


def _document_id(fields: Mapping[str, Any], spec: IndexSpec) -> str | None:
    name = spec.source.document_id
    if name is None:
        return None
    if fields.get(name) is None:
        raise _missing("missing_id", name, fields)
    return identifier(fields[name], field=name)


def text_of(fields: Mapping[str, Any], spec: IndexSpec) -> str | None:
    """Return the text of a record; InvalidRecordError if it is no string, or has to be there and is not."""
    name = spec.source.text
    if name is None:
        return None
    value = fields.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        if spec.source.vector is not None:  # the vector is what is searched; the text only comes along
            return None
        raise _missing("missing_text", name, fields)
    return _string(value, name)


def spoken_of(fields: Mapping[str, Any], spec: IndexSpec) -> str | None:
    """Return what is spoken in the text of a record with a vector; None where that is the text.

    Exported datapoints say so themselves: their texts are parts of transcripts. Texts without a vector are cut first.
    """
    if spec.source.vector is None:
        return None
    if spec.source.format == "datapoints":
        value = fields.get(SPOKEN_COLUMN)
        return None if value is None else _string(value, SPOKEN_COLUMN)
    text = text_of(fields, spec)
    return None if text is None else spoken_text(text)


def title_of(fields: Mapping[str, Any], spec: IndexSpec) -> str | None:
    """Return the title of a record, None if there is none; InvalidRecordError if it is no string."""
    name = spec.source.title
    if name is None or fields.get(name) is None:
        return None
    return _string(fields[name], name).strip() or None


def _string(value: object, name: str) -> str:
    if not isinstance(value, str):
        message = f"{name}: must be a string, got {type(value).__name__}"
        raise InvalidRecordError(message, reason="text", field=name)
    return encodable(value, field=name)


def _vector(fields: Mapping[str, Any], spec: IndexSpec, dimensions: int | None) -> np.ndarray | None:
    name = spec.source.vector
    if name is None:
        return None
    if fields.get(name) is None:
        raise _missing("missing_vector", name, fields)
    return vector_value(_numbers(fields[name], spec), dimensions, field=name, distance=spec.distance)


def _sparse(fields: Mapping[str, Any], spec: IndexSpec) -> tuple[np.ndarray, np.ndarray] | None:
    name = spec.source.sparse_vector
    value = None if name is None else fields.get(name)
    if name is None or value is None:
        return None
    if isinstance(value, str):  # a CSV cell, a Parquet string column
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRecordError(
                f"{name}: not JSON: {error}", reason="sparse_vector", field=name
            ) from error
    return sparse_value(value, field=name)


def _numbers(value: object, spec: IndexSpec) -> object:
    """Return the numbers in raw bytes, other values as they are."""
    if not isinstance(value, bytes):
        return value
    name, kind = spec.source.vector, spec.source.vector_bytes
    if kind is None:  # four bytes are one float32 or two float16: both would look like vectors
        what = "holds bytes; say of which type with source.vector_bytes"
        raise InvalidRecordError(f"{name}: {what}", reason="vector", field=name)
    number = np.dtype(kind).newbyteorder("<")
    if len(value) % number.itemsize:
        what = f"has {len(value)} bytes, which is not a multiple of {number.itemsize} ({kind})"
        raise InvalidRecordError(f"{name}: {what}", reason="vector", field=name)
    return np.frombuffer(value, number)


def _span(fields: Mapping[str, Any], spec: IndexSpec) -> Span | None:
    if spec.source.format != "datapoints":
        return None
    start, end, *times = (attribute_value(fields.get(name), kind, field=name) for name, kind in SPAN.items())
    return start, end, times[0], times[1]


def payload_of(fields: Mapping[str, Any], spec: IndexSpec) -> str | None:
    """Return the payload of a record as JSON; InvalidRecordError if it cannot be that."""
    name = spec.source.payload
    value = None if name is None else fields.get(name)
    if name is None or value is None:
        return None
    try:
        # Text that is JSON already (a CSV cell, a Parquet string column) stays what it says.
        parsed = json.loads(value) if isinstance(value, str) else value
        payload = json.dumps(parsed, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecordError(f"{name}: not JSON: {error}", reason="payload", field=name) from error
    return encodable(payload, field=name)


def _missing(reason: str, name: str, fields: Mapping[str, Any]) -> InvalidRecordError:
    present = ", ".join(sorted(str(field) for field in fields)[:12]) or "no fields"
    is_blank = isinstance(fields.get(name), str)
    what = (
        "is blank" if is_blank else "is null" if name in fields else f"is missing; the record has {present}"
    )
    return InvalidRecordError(f"{name}: {what}", reason=reason, field=name)
