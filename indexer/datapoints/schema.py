"""Datapoints as Arrow tables: the one schema that embeddings files, segments and exports share."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.conversions import ConvertedValue, convert, plain_text
from scannery.indexer.datapoints.named_vectors import NAMED_TYPE, vector_column
from scannery.indexer.datapoints.places import GEO_TYPE, place_problem
from scannery.indexer.datapoints.sparse import SPARSE_COLUMNS
from scannery.indexer.datapoints.text_values import decimal_number, without_currency
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import AttributeType, IndexSpec

__all__ = [
    "ARROW_TYPES",
    "DYNAMIC_COLUMN",
    "FIXED_COLUMNS",
    "MAX_ID_BYTES",
    "MAX_MAGNITUDE",
    "REVISION_COLUMN",
    "SPOKEN_COLUMN",
    "attribute_columns",
    "attribute_value",
    "attribute_values",
    "converted_value",
    "datapoint_schema",
    "encodable",
    "identifier",
    "text_value",
    "vector_value",
    "vectors_of",
    "written_schema",
]

T = TypeVar("T")
MAX_ID_BYTES = 512
REVISION_COLUMN = "_revision"
"""Sequence of the mutation that wrote a row; null, or not there, where rows came from a build."""
DYNAMIC_COLUMN = "_dynamic"
"""The attributes of a row that the spec does not declare, as a canonical JSON object (dynamic.py); null: none. Only
there if the spec is `dynamic`."""
SPOKEN_COLUMN = "_spoken"
"""What is embedded and searched of the text of a row: what is spoken, without times and tags. Null, or not there, where
that is the text as it stands."""

ARROW_TYPES: dict[AttributeType, pa.DataType] = {
    "string": pa.string(),
    "string_list": pa.list_(pa.string()),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    # Microseconds since the epoch, UTC: what Parquet, DuckDB and Python's datetime agree on.
    "timestamp": pa.timestamp("us", tz="UTC"),
    "geo": GEO_TYPE,
}


def datapoint_schema(spec: IndexSpec, dimensions: int) -> pa.Schema:
    """Return the Arrow schema of the datapoints of an index: fixed columns, one per attribute, and `_dynamic`.

    With `vectors: optional`, `embedding` is null where a row has no vector; with 0 dimensions it is always null.
    Last are the columns of named vectors (named_vectors.py), which segments have in files of their own.
    """
    has_sparse, optional = spec.source.sparse_vector is not None, spec.vectors == "optional"
    named = tuple(spec.named_vectors)
    return _schema(tuple(spec.attributes.items()), has_sparse, spec.dynamic, dimensions, optional, named)


def written_schema(spec: IndexSpec, dimensions: int) -> pa.Schema:
    """Return the Arrow schema of datapoints on their way into a segment: `datapoint_schema`, and what is spoken."""
    return datapoint_schema(spec, dimensions).append(pa.field(SPOKEN_COLUMN, pa.string()))


def attribute_columns(spec: IndexSpec) -> dict[str, pa.DataType]:
    """Return the Arrow types of the columns of attributes, by name."""
    return {name: ARROW_TYPES[kind] for name, kind in spec.attributes.items()}


@lru_cache(maxsize=256)  # every small write needs it, and it takes as long as the validation of a datapoint
def _schema(
    attributes: tuple[tuple[str, AttributeType], ...],
    has_sparse: bool,
    dynamic: bool,
    dimensions: int,
    optional: bool,
    named: tuple[str, ...],
) -> pa.Schema:
    # Arrow writes no lists of size 0.
    vector = pa.list_(pa.field("item", pa.float32(), nullable=False), max(1, dimensions))
    fixed = [
        pa.field("id", pa.string(), nullable=False),
        pa.field("document_id", pa.string(), nullable=False),
        pa.field("embedding", vector, nullable=optional),
        pa.field("title", pa.string()),
        pa.field("text", pa.string()),
        pa.field("text_start", pa.int64()),
        pa.field("text_end", pa.int64()),
        pa.field("time_start_s", pa.float64()),
        pa.field("time_end_s", pa.float64()),
        pa.field("payload", pa.string()),
    ]  # fmt: skip
    if has_sparse:
        fixed += [pa.field(name, kind) for name, kind in SPARSE_COLUMNS.items()]
    fields = [pa.field(name, ARROW_TYPES[kind]) for name, kind in attributes]
    undeclared = [pa.field(DYNAMIC_COLUMN, pa.string())] if dynamic else []
    return pa.schema(
        [*fixed, *fields, *undeclared, *(pa.field(vector_column(name), NAMED_TYPE) for name in named)]
    )


FIXED_COLUMNS = frozenset(_schema((), False, False, 1, False, ()).names)
"""Names of the columns that every segment may have, which no attribute has."""


def vectors_of(table: pa.Table) -> np.ndarray:
    """Return the `embedding` column as float32 `(rows, dimensions)`; a view where the column is one chunk.

    No row may be without a vector.
    """
    column = table.column("embedding")
    dimensions = column.type.list_size
    # flatten(), not .values: it respects the offset of a sliced array.
    chunks = [chunk.flatten().to_numpy(zero_copy_only=True) for chunk in column.chunks]
    flat = chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.float32), *chunks])
    return flat.reshape(-1, dimensions)


def identifier(value: object, *, field: str) -> str:
    """Return `value` as an id: a string of 1 to 512 bytes without control characters.

    Integers are accepted, whole floats as integers (pandas writes 7.0 for 7), and UUIDs.
    """
    if isinstance(value, (float, np.floating)) and abs(float(value)) >= 2**53:
        what = (
            f"must be an exact number, which a float of 2**53 or more is not, got {_shown(value)}; write text"
        )
        raise _invalid("id", field, what)
    if isinstance(value, (float, Decimal, np.floating)) and math.isfinite(value) and value == int(value):
        value = int(value)
    elif isinstance(value, (np.integer, uuid.UUID)):
        value = str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise _invalid("id", field, f"must be a string or an integer, got {_shown(value)}")
    text = str(value)
    size = len(text.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MAX_ID_BYTES:
        raise _invalid("id", field, f"must be 1 to {MAX_ID_BYTES} bytes long, got {size}")
    # All but a few ids can be printed, which is known at once; some that cannot are good ids, too.
    if not text.isprintable() and any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise _invalid("id", field, f"must not contain control characters, got {_shown(value)}")
    return text


def text_value(value: object, *, field: str) -> str:
    """Return `value` as a text: numbers as JSON writes them, times in ISO 8601, bytes if they are UTF-8."""
    try:
        return plain_text(value)
    except (TypeError, ValueError) as error:
        raise _invalid("text", field, f"must be a string, got {type(value).__name__}") from error


def vector_value(value: object, dimensions: int | None, *, field: str, distance: str = "dot") -> np.ndarray:
    """Return `value` as a finite float32 vector `(dimensions,)`; None accepts any size from 1.

    With `distance="cosine"` a zero vector is refused: it has no direction.
    """
    try:
        vector = _float32(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _invalid("vector", field, f"must be a list of numbers, got {_shown(value)}") from error
    if vector.ndim != 1 or (vector.size == 0 and not dimensions):
        raise _invalid("vector", field, f"must be a flat list of numbers, got shape {vector.shape}")
    if dimensions is not None and vector.size != dimensions:
        raise _invalid("vector_size", field, f"must have {dimensions} dimensions, got {vector.size}")
    # ScaNN ends the process on NaN, infinity or values around 1e30, so the bound is ours to keep.
    largest = np.abs(vector).max()
    if not largest <= MAX_MAGNITUDE:  # of NaN, too
        raise _invalid("vector_value", field, f"must be finite and within ±{MAX_MAGNITUDE:g}")
    if distance == "cosine" and largest == 0:
        raise _invalid("vector_value", field, "must not be all zeros: cosine needs a direction")
    return vector


def _float32(value: object) -> np.ndarray:
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return value
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
        return np.asarray(value, dtype=np.float32)


MAX_MAGNITUDE = 1e15
"""Largest absolute component of a vector: its square still fits float32 with room for the sum."""


def attribute_values(record: Mapping[str, Any], spec: IndexSpec) -> dict[str, Any]:
    """Return the attributes that `spec` names, typed; absent and None become None."""
    return {
        name: attribute_value(record.get(name), kind, field=name) for name, kind in spec.attributes.items()
    }


def attribute_value(value: object, kind: AttributeType, *, field: str) -> Any:
    """Return `value` as the attribute type `kind`, or None for None.

    Text is accepted for every type, since CSV has nothing else; a float is accepted as an int only if it is
    whole, 1 and 0 as a bool. Timestamps are datetimes, dates, texts (ISO 8601 and what databases write; without an
    offset: UTC), or numbers since the epoch: seconds up to the year 9999, larger ones milliseconds and smaller units.

    Raises:
        InvalidRecordError: the value does not fit, reason `attribute`; or it is not valid Unicode, reason `encoding`.

    """
    return converted_value(value, kind, field=field).value


def converted_value(value: object, kind: AttributeType, *, field: str) -> ConvertedValue:
    """Return what `attribute_value` returns, with a note on a conversion that could be wrong."""
    if value is None:
        return ConvertedValue(None)
    try:
        typed = convert(value, kind)
        encodable(typed.value, field=field)
        return typed
    except InvalidRecordError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError, OSError, ArithmeticError) as error:
        what = f"must be {_ARTICLES[kind]}, got {_shown(value)}{_hint(value, kind)}"
        raise _invalid("attribute", field, what) from error


def _hint(value: object, kind: AttributeType) -> str:
    """Return which key of the spec would make something of a text that does not fit, or what is wrong with a place."""
    if kind == "geo":
        return f"; {place_problem(value)}"
    if not isinstance(value, str):
        return ""
    if kind in ("int", "float"):
        digits = without_currency(value)
        numbers = {mark: decimal_number(digits, mark) for mark in ",."}
        fit = [
            mark
            for mark, number in numbers.items()
            if number is not None and (kind == "float" or number % 1 == 0)
        ]
        marks = " or ".join(f"'{mark}'" for mark in fit)
        either = " or ".join(f"{numbers[mark]:f}" for mark in fit)
        what = f"it can be {either}; " if len(fit) > 1 else ""
        if not fit and kind == "int" and any(number is not None for number in numbers.values()):
            return "; for numbers that are not whole, use type float"
        return f"; {what}say what the decimal mark is: {{type: {kind}, decimal: {marks}}}" if fit else ""
    if kind == "timestamp" and _DAY_OR_MONTH.match(value.strip()):
        return "; say which is the day: {type: timestamp, format: '%d/%m/%Y'} or '%m/%d/%Y'"
    return ""


def encodable(value: T, *, field: str) -> T:
    """Return `value`; raise where it is or lists a string with a lone surrogate, which JSON can write and UTF-8 cannot.

    Raises:
        InvalidRecordError: reason `encoding`.

    """
    for text in value if isinstance(value, list) else (value,):
        if not isinstance(text, str) or text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            what = f"is not valid Unicode: lone surrogate at character {error.start}"
            raise _invalid("encoding", field, what) from error
    return value


_ARTICLES: dict[AttributeType, str] = {
    "string": "a string",
    "string_list": "a list of strings",
    "int": "a 64-bit integer",
    "float": "a number",
    "bool": "true or false, yes or no, 1 or 0",
    "timestamp": "a timestamp (ISO 8601, or a number since 1970)",
    "geo": "a place such as {'lat': 52.5, 'lon': 13.4} or '52.5,13.4'",
}
_DAY_OR_MONTH = re.compile(r"\d{1,2}[/-]\d{1,2}[/-]\d{2,4}\b")


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except RecursionError:  # of JSON that is nested deeply
        shown = f"a {type(value).__name__} that is nested too deeply"
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _invalid(reason: str, field: str, what: str) -> InvalidRecordError:
    return InvalidRecordError(f"{field}: {what}", reason=reason, field=field)
