"""Records and batches of a source → columns for the validator, and its verdicts → dead letters.

Texts in languages that the encoder is not made for, from a sample of a work unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from scannery.embed.text.language import UNKNOWN, languages_of
from scannery.embed.text.transcripts import spoken_text
from scannery.indexer.datapoints.column_rules import Values
from scannery.indexer.datapoints.columns.plain import python_values
from scannery.indexer.datapoints.passages import PASSAGE_ATTRIBUTES
from scannery.indexer.datapoints.schema import DYNAMIC_COLUMN, vector_value
from scannery.indexer.datapoints.validation import Field, RejectedRow, ValidatedBatch, validate
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import Batch, Record
from scannery.pipelines.sources.batches import as_matrix
from scannery.pipelines.sources.documents.html_pages import mapping_of

__all__ = ["dead_letter", "foreign_texts", "validate_batch", "validate_records", "vector_size"]


def validate_records(
    records: Sequence[Record],
    spec: IndexSpec,
    dimensions: Mapping[str, int],
    field_counts: Counter[str] | None = None,
) -> ValidatedBatch:
    """Return the good records as rows, and why the others are not good.

    `field_counts` gets how many records have a value, by field that the spec names; `dimensions` as of `validate`.
    """
    mapping = mapping_of(spec)
    fields = {
        column: Field(mapped.name, [mapped.value(record.fields) for record in records])
        for column, mapped in mapping.fields.items()
    }
    if mapping.dynamic:
        fields[DYNAMIC_COLUMN] = Field("", [mapping.undeclared(record.fields) for record in records])
    return _validated(len(records), fields, spec, dimensions, field_counts)


def validate_batch(
    batch: Batch,
    spec: IndexSpec,
    dimensions: Mapping[str, int],
    field_counts: Counter[str] | None = None,
) -> ValidatedBatch:
    """Return the good rows of a batch, and why the others are not good; other arguments as of `validate_records`.

    Raises:
        ValueError, OverflowError, pa.ArrowException: the batch has a value that Python or Arrow cannot read, such as
            text that is not UTF-8; its records have to be validated instead.

    """
    names = batch.columns.schema.names
    if len({*names}) < len(names):
        raise ValueError("two columns have one name")
    batch.columns.validate(full=True)
    fields: dict[str, Field] = {}
    mapping = mapping_of(spec)
    if mapping.dynamic:
        fields[DYNAMIC_COLUMN] = Field("", mapping.others_of(batch.columns))
    for column, mapped in mapping.fields.items():
        values = mapped.values(batch.columns)
        if column == "embedding" and isinstance(values, pa.Array):
            vectors_ND = as_matrix(values)
            values = python_values(values) if vectors_ND is None else vectors_ND
        fields[column] = Field(mapped.name, values)
    return _validated(len(batch), fields, spec, dimensions, field_counts)


def dead_letter(record: Record, rejected: RejectedRow) -> DeadLetter:
    """Return the dead letter of a record that was rejected, with all that is wrong with it."""
    errors = (rejected.error, *rejected.more_errors)
    message = "; ".join(_message(record.fields, error) for error in errors)
    return record.reject(rejected.error.reason, message, field=rejected.error.field, id=rejected.id)


def vector_size(record: Record, spec: IndexSpec) -> int | None:
    """Return the number of dimensions of the record's vector, or None where it has no valid one."""
    mapped = mapping_of(spec).fields.get("embedding")
    value = None if mapped is None else mapped.value(record.fields)
    if mapped is None or value is None or isinstance(value, InvalidRecordError):
        return None
    try:
        return int(vector_value(value, None, field=mapped.name, distance=spec.distance).size)
    except InvalidRecordError:
        return None


def _validated(
    rows: int,
    fields: Mapping[str, Field],
    spec: IndexSpec,
    dimensions: Mapping[str, int],
    field_counts: Counter[str] | None,
) -> ValidatedBatch:
    embeds = spec.embeds
    # Texts that are embedded are cut first.
    spoken = None if embeds else spoken_text
    valid = validate(rows, fields, spec, dimensions, embeds=embeds, spoken=spoken)
    if field_counts is not None:
        passages = {
            name for name, kind in PASSAGE_ATTRIBUTES.items() if embeds and spec.attributes.get(name) == kind
        }  # their values come from the cut texts, so no record needs them
        field_counts.update({
            field.name: _count(field.values)
            for column, field in fields.items() if column not in passages and column != DYNAMIC_COLUMN
        })  # fmt: skip
    return valid


def _count(values: Values) -> int:
    """Return the number of rows that have a value."""
    if isinstance(values, pa.Array):
        return len(values) - int(values.null_count)
    return len(values) if isinstance(values, np.ndarray) else sum(value is not None for value in values)


def _message(fields: Mapping[str, Any], error: InvalidRecordError) -> str:
    if not error.reason.startswith("missing_") or error.field is None:
        return error.message
    return f"{error.field}: {_absence(fields, error.field)}{_records_inside(fields)}"


def _records_inside(fields: Mapping[str, Any]) -> str:
    """Return a hint where a record is an object around the records."""
    for name, value in fields.items():
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            what = f"Its `{name}` is a list of {len(value)} objects"
            return f". {what}: if these are the records, set `source.records: {name}`"
    return ""


def _absence(fields: Mapping[str, Any], name: str) -> str:
    if name in fields:
        return "is null" if fields[name] is None else "is blank"
    present = ", ".join(sorted(_present(fields, name))[:12]) or "no fields"
    return f"is missing; the record has {present}"


def _present(fields: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the names in a record; those in its objects, too, where a path into one was looked for."""
    for field, value in fields.items():
        if isinstance(value, Mapping) and "." in name:
            yield from (f"{field}.{inner}" for inner in value)
        else:
            yield str(field)


class ForeignTexts(TypedDict):
    """Counts of a sample; fields of `Counts`."""

    sampled_texts: int
    foreign_texts: dict[str, int]


def foreign_texts(texts: Sequence[str | None], languages: frozenset[str] | None) -> ForeignTexts:
    """Return how many of some texts were looked at, and how many are in other languages than a model is made for.

    Args:
        texts: some of the input.
        languages: of the model, as `languages_of_model` returns them.

    """
    nonempty = [text for text in texts if text and text.strip()]
    if languages is None or not nonempty:
        return {"sampled_texts": len(nonempty), "foreign_texts": {}}
    shares = dict(languages_of(nonempty))
    foreign = {
        language: round(share * len(nonempty))
        for language, share in shares.items()
        if language not in languages and language != UNKNOWN
    }
    return {"sampled_texts": len(nonempty), "foreign_texts": foreign}
