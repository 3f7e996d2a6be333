"""Records and batches of a source → columns for the validator, and its verdicts → dead letters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.embed.text.transcripts import spoken_text
from scannery.indexer.datapoints.column_rules import Values
from scannery.indexer.datapoints.schema import SPOKEN_COLUMN, vector_value
from scannery.indexer.datapoints.validation import SPAN, SPARSE, Field, Rejected, Validated, validate
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import Batch, Record

__all__ = ["dead_letter", "validate_batch", "validate_records", "vector_size"]


def validate_records(
    records: Sequence[Record], spec: IndexSpec, dimensions: int, given: Counter[str] | None = None
) -> Validated:
    """Return the good records as rows, and why the others are not good.

    `given` gets how many records have a value, by field that the spec names.
    """
    readers = _readers(spec)
    fields = {
        column: Field(name, [_read(record.fields.get(name), name, readers.get(column)) for record in records])
        for column, name in _sources(spec).items()
    }
    return _validated(len(records), fields, spec, dimensions, given)


def validate_batch(
    batch: Batch, spec: IndexSpec, dimensions: int, given: Counter[str] | None = None
) -> Validated:
    """Return the good rows of a batch, and why the others are not good; `given` as for `validate_records`.

    Raises:
        ValueError, OverflowError, pa.ArrowException: the batch has a value that Python or Arrow cannot read, such as
            text that is not UTF-8; its records have to be validated instead.

    """
    names = batch.columns.schema.names
    if len({*names}) < len(names):
        raise ValueError("two columns have one name")
    batch.columns.validate(full=True)
    readers = _readers(spec)
    fields: dict[str, Field] = {}
    for column, name in _sources(spec).items():
        values = batch.columns.column(name) if name in names else pa.nulls(len(batch))
        if column == "embedding" and batch.vectors is not None:
            values = batch.vectors
        elif column in readers:
            values = [_read(value, name, readers[column]) for value in values.to_pylist()]
        fields[column] = Field(name, values)
    return _validated(len(batch), fields, spec, dimensions, given)


def dead_letter(record: Record, rejected: Rejected) -> DeadLetter:
    """Return the dead letter of a record that was rejected."""
    error = rejected.error
    message = error.message
    if error.reason.startswith("missing_") and error.field is not None:
        message = f"{error.field}: {_absence(record.fields, error.field)}"
    return record.reject(error.reason, message, field=error.field, id=rejected.id)


def vector_size(record: Record, spec: IndexSpec) -> int | None:
    """Return the number of dimensions of the record's vector, or None where it has no valid one."""
    name = spec.source.vector
    if name is None or record.fields.get(name) is None:
        return None
    try:
        value = _vector(record.fields[name], name, spec)
        return int(vector_value(value, None, field=name, distance=spec.distance).size)
    except InvalidRecordError:
        return None


def _validated(
    rows: int, fields: Mapping[str, Field], spec: IndexSpec, dimensions: int, given: Counter[str] | None
) -> Validated:
    # Texts without a vector are cut first.
    spoken = None if spec.source.vector is None else spoken_text
    embeds = spec.source.vector is None
    valid = validate(rows, fields, spec, dimensions, embeds=embeds, spoken=spoken)
    if given is not None:
        given.update({field.name: _count(field.values) for field in fields.values()})
    return valid


def _count(values: Values) -> int:
    """Return the number of rows that have a value."""
    if isinstance(values, pa.Array):
        return len(values) - int(values.null_count)
    return len(values) if isinstance(values, np.ndarray) else sum(value is not None for value in values)


def _sources(spec: IndexSpec) -> dict[str, str]:
    """Return the field of a record for each column that the spec has."""
    source = spec.source
    named = {
        "id": source.id,
        "document_id": source.document_id,
        "title": source.title,
        "text": source.text,
        "embedding": source.vector,
        SPARSE: source.sparse_vector,
        "payload": source.payload,
    }
    columns = {column: name for column, name in named.items() if name is not None}
    if source.format == "datapoints":
        columns |= {name: name for name in (SPOKEN_COLUMN, *SPAN)}
    return columns | {name: name for name in spec.attributes}


_Reader = Callable[[Any, str], Any]


def _readers(spec: IndexSpec) -> dict[str, _Reader]:
    """Return what reads the values of columns that sources write in ways of their own."""
    return {"embedding": lambda value, name: _vector(value, name, spec), SPARSE: _sparse}


def _read(value: Any, name: str, reader: _Reader | None) -> Any:
    """Return what a reader makes of a value; the error where it cannot be read, as the validator takes it."""
    if reader is None or value is None:
        return value
    try:
        return reader(value, name)
    except InvalidRecordError as error:
        return error


def _vector(value: object, name: str, spec: IndexSpec) -> object:
    """Return the numbers in raw bytes, other values as they are."""
    if not isinstance(value, bytes):
        return value
    kind = spec.source.vector_bytes
    if kind is None:  # four bytes are one float32 or two float16: both would look like vectors
        what = "holds bytes; say of which type with source.vector_bytes"
        raise InvalidRecordError(f"{name}: {what}", reason="vector", field=name)
    number = np.dtype(kind).newbyteorder("<")
    if len(value) % number.itemsize:
        what = f"has {len(value)} bytes, which is not a multiple of {number.itemsize} ({kind})"
        raise InvalidRecordError(f"{name}: {what}", reason="vector", field=name)
    return np.frombuffer(value, number)


def _sparse(value: object, name: str) -> object:
    """Return the mapping in JSON text (a CSV cell, a Parquet string column), other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(f"{name}: not JSON: {error}", reason="sparse_vector", field=name) from error


def _absence(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        present = ", ".join(sorted(str(field) for field in fields)[:12]) or "no fields"
        return f"is missing; the record has {present}"
    return "is null" if fields[name] is None else "is blank"
