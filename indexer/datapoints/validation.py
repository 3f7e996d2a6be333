"""Validation of datapoints: the one place that decides whether a datapoint can be written, for builds and live writes.

It works on a batch, by columns. A column that is plainly right is accepted as a whole. Any other is looked at value by
value, which converts what can be converted, and finds the rows that are wrong and what is wrong with them.

Shapes: N rows of a batch, D dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.schema import (
    MAX_ID_BYTES,
    MAX_MAGNITUDE,
    SPOKEN_COLUMN,
    attribute_value,
    encodable,
    identifier,
    vector_value,
    written_schema,
)
from scannery.indexer.datapoints.sparse import SPARSE_COLUMNS, sparse_value
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import AttributeType, IndexSpec

__all__ = ["NO_LIMITS", "SPAN", "SPARSE", "Field", "Rejected", "SizeLimits", "Validated", "validate"]

SPAN: Mapping[str, AttributeType] = {
    "text_start": "int",
    "text_end": "int",
    "time_start_s": "float",
    "time_end_s": "float",
}
"""Columns that say where a text stands in its document."""
SPARSE = "sparse"
"""The column of sparse vectors before validation; in a table they are two, `SPARSE_COLUMNS`."""
PASSAGE_SUFFIX_BYTES = 9
"""Room for "#" and the number of a passage: at most 64 Mi passages of a 64 MiB document."""

_TO_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode

Values: TypeAlias = "pa.Array | np.ndarray | Sequence[object]"


class Field(NamedTuple):
    """A column of a batch before validation."""

    name: str
    """What messages call it: the field of the source, or of the request."""
    values: Values
    """N of them, None where there is none. An `InvalidRecordError` stands for a value that could not be read. Vectors
    are an array (N, D) if all rows have one of the same size."""


@dataclass(frozen=True, kw_only=True)
class SizeLimits:
    """The most bytes of UTF-8 that texts may have; None: any number."""

    title: int | None = None
    text: int | None = None
    payload: int | None = None
    attribute: int | None = None
    """Of all strings of one value."""
    strings: int | None = None
    """Strings in one list."""


NO_LIMITS = SizeLimits()


class Rejected(NamedTuple):
    """A row that cannot become a datapoint."""

    row: int
    id: str | None
    """None if the id is not valid."""
    error: InvalidRecordError
    """The first thing that is wrong, with its field and dead-letter category."""


@dataclass(frozen=True)
class Validated:
    """What became of a batch."""

    table: pa.Table
    """The good rows in order, with the columns of `written_schema`. `embedding` is null where a row has no vector, and
    there is no such column if none has one."""
    rows_N: np.ndarray
    """The number of each good row within the batch, int64."""
    rejected: list[Rejected]
    """All others, in order."""


def validate(
    rows: int,
    fields: Mapping[str, Field],
    spec: IndexSpec,
    dimensions: int,
    *,
    embeds: bool,
    partial: bool = False,
    limits: SizeLimits = NO_LIMITS,
    spoken: Callable[[str], str | None] | None = None,
) -> Validated:
    """Return the good rows of a batch as a table, and why the others are not good.

    Args:
        rows: N.
        fields: by the names of `written_schema`, and `SPARSE`. Those that are left out are null, except: the
            document id is the id, and without `SPAN` a text is the whole of its document.
        spec: of the index.
        dimensions: D.
        embeds: whether a row may have a text in place of a vector.
        partial: rows are changes to datapoints, and need neither text nor vector.
        limits: on sizes.
        spoken: returns what is spoken in a text that is a transcript, None for others; used for texts with a vector.

    """
    checks = _Checks(rows, fields, limits)
    ids = checks.ids("id")
    columns = {"id": ids, "document_id": checks.ids("document_id") if "document_id" in fields else ids}
    columns |= checks.texts("title", lambda text: text.strip() or None, limits.title)
    columns |= checks.texts("text", lambda text: text if text.strip() else None, limits.text)
    columns |= checks.texts(SPOKEN_COLUMN, lambda text: text, None)
    vectors_ND, has_vector_N = checks.vectors(dimensions, zeros=spec.distance != "cosine")
    if not partial and not has_vector_N.all():
        checks.content(~has_vector_N, columns, embeds=embeds, cuts=spec.source.chunk is not None)
    columns |= checks.sparse()
    schema = written_schema(spec, dimensions)
    for name, kind in spec.attributes.items():
        columns |= checks.attribute(name, kind, schema.field(name).type)
    columns |= checks.payloads() | checks.span(columns.get("text"))
    if spoken is not None and "text" in columns and SPOKEN_COLUMN not in fields:
        columns[SPOKEN_COLUMN] = _spoken(columns["text"], has_vector_N, spoken)
    place = schema.get_field_index("embedding")
    if vectors_ND is None:
        schema = schema.remove(place)
    else:
        columns["embedding"], field = _embedding(vectors_ND, has_vector_N, schema.field(place))
        schema = schema if field.nullable is False else schema.set(place, field)
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in schema
    ]
    return checks.result(pa.Table.from_arrays(arrays, schema=schema), ids)


class _Checks:
    """Columns of a batch, checked one after the other; `errors` has the first error of each row that has one."""

    def __init__(self, rows: int, fields: Mapping[str, Field], limits: SizeLimits) -> None:
        self.errors: dict[int, InvalidRecordError] = {}
        self._rows, self._fields, self._limits = rows, fields, limits

    def result(self, table: pa.Table, ids: pa.Array) -> Validated:
        """Return the rows of a table that had no error, and the others."""
        rejected = [Rejected(row, ids[row].as_py(), self.errors[row]) for row in sorted(self.errors)]
        rows_N = np.arange(self._rows)
        if rejected:
            good_N = np.ones(self._rows, bool)
            good_N[[row for row, *_ in rejected]] = False
            table, rows_N = table.filter(pa.array(good_N)), np.flatnonzero(good_N)
        return Validated(table, rows_N, rejected)

    def ids(self, column: str) -> pa.Array:
        """Return a column of ids as strings; null is an error."""
        name, values = self._fields[column]
        if isinstance(values, pa.Array) and pa.types.is_integer(values.type):
            ids = values.cast(pa.string())
        else:
            ids = _strings(values)
        if ids is not None and not ids.null_count and _are_ids(ids):
            return ids
        listed = [
            _invalid("missing_id", name, "is null") if value is None else value for value in _listed(values)
        ]
        return pa.array(self._converted(listed, lambda value: identifier(value, field=name)), pa.string())

    def texts(self, column: str, tidy: Callable[[str], str | None], most: int | None) -> dict[str, pa.Array]:
        """Return a column of strings, each as `tidy` returns it."""
        if column not in self._fields:
            return {}
        name, values = self._fields[column]
        given, listed = _strings(values), _listed(values)
        if given is not None and _fit(given, most):
            tidied = [None if text is None else tidy(text) for text in listed]
            return {column: given if tidied == listed else pa.array(tidied, pa.string())}

        def convert(value: object) -> str | None:
            if not isinstance(value, str):
                raise _invalid("text", name, f"must be a string, got {type(value).__name__}")
            _check_bytes([encodable(value, field=name)], most, name, "text")
            return tidy(value)

        return {column: pa.array(self._converted(listed, convert), pa.string())}

    def payloads(self) -> dict[str, pa.Array]:
        """Return the payloads as JSON; text is JSON already (of CSV, Parquet, a request)."""
        if "payload" not in self._fields:
            return {}
        name, values = self._fields["payload"]

        def convert(value: object) -> str:
            if isinstance(value, str):
                _check_bytes([encodable(value, field=name)], self._limits.payload, name, "payload")
            try:
                parsed = json.loads(value) if isinstance(value, str) else value
                text = _TO_JSON(parsed)
            except (TypeError, ValueError, RecursionError) as error:
                raise _invalid("payload", name, f"not JSON: {error}") from error
            return encodable(text, field=name)

        return {"payload": pa.array(self._converted(_listed(values), convert), pa.string())}

    def vectors(self, dimensions: int, *, zeros: bool) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the vectors as float32 (N, D), None if there is none, and which rows have one, bool (N,)."""
        name, values = self._fields.get("embedding", ("", ()))
        has_vector_N = np.full(self._rows, isinstance(values, np.ndarray))
        if not isinstance(values, np.ndarray):
            has_vector_N[: len(values)] = [value is not None for value in values]
        if not has_vector_N.any():
            return None, has_vector_N
        if isinstance(values, np.ndarray) and values.shape[1] == dimensions:
            vectors_ND, good_N = _float32(values, zeros=zeros)
        else:
            vectors_ND, good_N = np.zeros((self._rows, dimensions), np.float32), ~has_vector_N
        suspects = np.flatnonzero(~good_N).tolist()
        distance = "dot" if zeros else "cosine"
        checked = self._converted(
            [values[row] for row in suspects],
            lambda value: vector_value(value, dimensions, field=name, distance=distance),
            suspects,
        )
        for row, vector_D in zip(suspects, checked, strict=True):
            if vector_D is not None:
                vectors_ND[row] = vector_D
        return vectors_ND, has_vector_N

    def content(
        self, without_N: np.ndarray, columns: Mapping[str, pa.Array], *, embeds: bool, cuts: bool
    ) -> None:
        """Check rows without a vector: there is a text to embed, and the ids of its passages fit."""
        name, given = self._fields.get("text", ("text", [None] * self._rows))
        vector = self._fields["embedding"].name if "embedding" in self._fields else "vector"
        if not embeds:
            error = _invalid("missing_vector", vector, "is required: the index has no encoder")
            self._note(without_N, lambda _: error)
            return
        blank, absent = (
            _invalid("missing_text", name, what) for what in ("is blank", "is required, or a vector")
        )
        if "text" in columns:
            blank_N = without_N & columns["text"].is_null().to_numpy(zero_copy_only=False)
        else:
            blank_N = without_N
        self._note(blank_N, lambda row: absent if _item(given, row) is None else blank)
        if cuts:
            limit = MAX_ID_BYTES - PASSAGE_SUFFIX_BYTES
            what = f"must be at most {limit} bytes long where texts are cut into passages"
            long = _invalid("id", self._fields["id"].name, what)
            self._note(without_N & (_sizes(columns["id"]) > limit), lambda _: long)

    def sparse(self) -> dict[str, pa.Array]:
        """Return the two columns of sparse vectors."""
        if SPARSE not in self._fields:
            return {}
        name, values = self._fields[SPARSE]
        pairs = self._converted(_listed(values), lambda value: sparse_value(value, field=name))
        return {
            column: pa.array([pair and pair[place] for pair in pairs], kind)
            for place, (column, kind) in enumerate(SPARSE_COLUMNS.items())
        }

    def attribute(self, column: str, kind: AttributeType, wanted: pa.DataType) -> dict[str, pa.Array]:
        """Return an attribute as its type."""
        if column not in self._fields:
            return {}
        name, values = self._fields[column]
        limits, typed = self._limits, _typed(values, kind, wanted)
        if typed is not None and _are_small(typed, limits):
            return {column: typed}

        def convert(value: object) -> Any:
            typed = attribute_value(value, kind, field=name)
            if isinstance(typed, (str, list)):
                strings = [typed] if isinstance(typed, str) else typed
                if limits.strings is not None and len(strings) > limits.strings:
                    what = f"must have at most {limits.strings} items, got {len(strings)}"
                    raise _invalid("attribute", name, what)
                _check_bytes(strings, limits.attribute, name, "attribute")
            return typed

        return {column: pa.array(self._converted(_listed(values), convert), wanted)}

    def span(self, texts: pa.Array | None) -> dict[str, pa.Array]:
        """Return the columns of `SPAN`."""
        columns: dict[str, pa.Array] = {}
        for column, kind in SPAN.items():
            columns |= self.attribute(column, kind, pa.int64() if kind == "int" else pa.float64())
        if columns or texts is None:
            return columns
        length = pc.utf8_length(texts).cast(pa.int64())
        return {"text_start": pc.multiply(length, 0), "text_end": length}

    def _note(self, wrong_N: np.ndarray, error_of: Callable[[int], InvalidRecordError]) -> None:
        for row in np.flatnonzero(wrong_N).tolist():
            self.errors.setdefault(row, error_of(row))

    def _converted(
        self, values: Sequence[Any], convert: Callable[[Any], Any], rows: Sequence[int] | None = None
    ) -> list[Any]:
        """Return what values are converted to, None where there is none or it cannot be; and note the errors."""
        converted: list[Any] = [None] * len(values)
        for place, value in enumerate(values):
            if value is None:
                continue
            try:
                if isinstance(value, InvalidRecordError):
                    raise value
                converted[place] = convert(value)
            except InvalidRecordError as error:
                self.errors.setdefault(place if rows is None else rows[place], error)
        return converted


def _spoken(texts: pa.Array, wanted_N: np.ndarray, spoken: Callable[[str], str | None]) -> pa.Array:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.string())
    found = [
        spoken(text) if wanted and text is not None else None
        for text, wanted in zip(texts.to_pylist(), wanted_N.tolist(), strict=True)
    ]
    return pa.array(found, pa.string())


def _float32(values_ND: np.ndarray, *, zeros: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors as float32, and which are good, bool (N,)."""
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
        vectors_ND = np.ascontiguousarray(values_ND, np.float32)
    largest_N = np.maximum(vectors_ND.max(axis=1), -vectors_ND.min(axis=1))
    good_N = largest_N <= MAX_MAGNITUDE  # false of NaN, too
    return vectors_ND, good_N if zeros else good_N & (largest_N > 0)


def _embedding(
    vectors_ND: np.ndarray, has_vector_N: np.ndarray, field: pa.Field
) -> tuple[pa.Array, pa.Field]:
    """Return the column and its field, which may be null where some rows have no vector."""
    flat = pa.array(vectors_ND.reshape(-1))
    if has_vector_N.all():
        return pa.FixedSizeListArray.from_arrays(flat, type=field.type), field
    mask = pa.array(~has_vector_N)
    return pa.FixedSizeListArray.from_arrays(flat, type=field.type, mask=mask), field.with_nullable(True)


def _strings(values: Values) -> pa.Array | None:
    """Return a column that has nothing but strings and nulls, None if it is another or they are no Unicode."""
    if isinstance(values, pa.Array):
        is_text = _is_text(values.type) or pa.types.is_null(values.type)
        return values.cast(pa.string()) if is_text else None
    if not {*map(type, values)} <= {str, type(None)}:
        return None
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:  # a lone surrogate
        return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_text_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and _is_text(kind.value_type))


_OWN_TYPES: Mapping[AttributeType, tuple[type, Callable[[pa.DataType], bool]]] = {
    "string": (str, _is_text),
    "string_list": (list, _is_text_list),
    "int": (int, pa.types.is_integer),
    "float": (float, pa.types.is_floating),
    "bool": (bool, pa.types.is_boolean),
}
"""Types of the values of an attribute that need no conversion, in Python and in Arrow."""


def _typed(values: Values, kind: AttributeType, wanted: pa.DataType) -> pa.Array | None:
    """Return a column of an attribute's own type, None if it has a value of another type or that does not fit."""
    if kind not in _OWN_TYPES:
        return None
    own, is_own = _OWN_TYPES[kind]
    try:
        if isinstance(values, pa.Array):
            is_same = pa.types.is_null(values.type) or is_own(values.type)
        else:
            is_same = {*map(type, values)} <= {own, type(None)}
            if is_same and own is list:
                is_same = {type(item) for value in _listed(values) for item in value or ()} <= {str}
        if not is_same:
            return None
        typed = values.cast(wanted) if isinstance(values, pa.Array) else pa.array(values, wanted)
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):  # an integer too large, a lone surrogate
        return None
    if kind == "float" and pc.any(pc.is_nan(typed)).as_py():
        return None
    return None if own is list and pc.list_flatten(typed).null_count else typed


def _are_ids(ids: pa.Array) -> bool:
    sizes_N = _sizes(ids)
    if not len(sizes_N) or not (sizes_N.min() >= 1 and sizes_N.max() <= MAX_ID_BYTES):
        return not len(sizes_N)
    start, data = ids.offset, ids.buffers()
    starts = np.frombuffer(data[1], np.int32)
    text = np.frombuffer(data[2], np.uint8)[starts[start] : starts[start + len(ids)]]
    return bool(text.min() >= ord(" "))  # in UTF-8, only control characters are below


def _sizes(texts: pa.Array) -> np.ndarray:
    """Return the bytes of each string, int32 (N,)."""
    starts = np.frombuffer(texts.buffers()[1] or b"", np.int32)
    return np.diff(starts[texts.offset : texts.offset + len(texts) + 1])


def _fit(texts: pa.Array, most: int | None) -> bool:
    return most is None or _sizes(texts).max(initial=0) <= most


def _are_small(typed: pa.Array, limits: SizeLimits) -> bool:
    """Return whether the strings of an attribute are surely within the limits."""
    if limits is NO_LIMITS or pa.types.is_string(typed.type):
        return not pa.types.is_string(typed.type) or _fit(typed, limits.attribute)
    if not pa.types.is_list(typed.type):
        return True
    strings = pc.list_flatten(typed)
    is_short = limits.strings is None or len(strings) <= limits.strings
    return is_short and (limits.attribute is None or strings.nbytes <= limits.attribute)


def _check_bytes(texts: Sequence[str], most: int | None, name: str, reason: str) -> None:
    if most is None or 4 * sum(map(len, texts)) <= most:  # a character takes at most four bytes
        return
    size = sum(len(text.encode()) for text in texts)
    if size > most:
        raise _invalid(reason, name, f"must have at most {most} bytes, got {size}")


def _listed(values: Any) -> Sequence[Any]:
    listed: Sequence[Any] = values.to_pylist() if isinstance(values, pa.Array) else values
    return listed


def _item(values: Values, row: int) -> object:
    value = values[row]
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _invalid(reason: str, name: str, what: str) -> InvalidRecordError:
    return InvalidRecordError(f"{name}: {what}", reason=reason, field=name)
