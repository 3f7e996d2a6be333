"""Validation of datapoints: the one place that decides whether a datapoint can be written, for builds and live writes.

It works on a batch, by columns. A column that is plainly right is accepted as a whole. Any other is looked at value by
value, which converts what can be converted, and finds the rows that are wrong and what is wrong with them.

Shapes: N rows of a batch, D dimensions.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.column_rules import (
    NO_LIMITS,
    Notes,
    Rule,
    SizeLimits,
    Values,
    attribute_rule,
    dynamic_rule,
    id_rule,
    invalid,
    listed,
    payload_rule,
    sizes_of,
    text_rule,
)
from scannery.indexer.datapoints.named_vectors import named_array, vector_column, vectors_array
from scannery.indexer.datapoints.schema import (
    DYNAMIC_COLUMN,
    MAX_ID_BYTES,
    MAX_MAGNITUDE,
    SPOKEN_COLUMN,
    vector_value,
    written_schema,
)
from scannery.indexer.datapoints.sparse import SPARSE_COLUMNS, sparse_value
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import AttributeType, IndexSpec

__all__ = ["SPAN", "SPARSE", "Field", "RejectedRow", "ValidatedBatch", "validate"]

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


class Field(NamedTuple):
    """A column of a batch before validation."""

    name: str
    """What messages call it: the field of the source, or of the request."""
    values: Values
    """N of them, None where there is none. An `InvalidRecordError` stands for a value that could not be read. Vectors
    are an array (N, D) if all rows have one of the same size."""


class RejectedRow(NamedTuple):
    """A row that cannot become a datapoint."""

    row: int
    id: str | None
    """None if the id is not valid."""
    error: InvalidRecordError
    """The first thing that is wrong, with its field and dead-letter category."""
    more_errors: tuple[InvalidRecordError, ...] = ()
    """What else is wrong: one error for each further field."""


@dataclass(frozen=True)
class ValidatedBatch:
    """What became of a batch."""

    table: pa.Table
    """The good rows in order, with the columns of `written_schema`. `embedding` is null where a row has no vector, and
    there is no such column if none has one."""
    rows_N: np.ndarray
    """The number of each good row within the batch, int64."""
    rejected: list[RejectedRow]
    """All others, in order."""
    converted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many values were converted in a way that could be wrong, by column and what was done (conversions.py)."""


def validate(
    rows: int,
    fields: Mapping[str, Field],
    spec: IndexSpec,
    dimensions: Mapping[str, int],
    *,
    embeds: bool,
    partial: bool = False,
    limits: SizeLimits = NO_LIMITS,
    spoken: Callable[[str], str | None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> ValidatedBatch:
    """Return the good rows of a batch as a table, and why the others are not good.

    Args:
        rows: N.
        fields: by the names of `written_schema`, and `SPARSE`; named vectors by their columns. Those that are left
            out are null, except: the document id is the id, and without `SPAN` a text is the whole of its document.
        spec: of the index.
        dimensions: components of the vectors of each name; any number for those that are left out. "" is the unnamed
            vector, with D.
        embeds: whether a row may have a text in place of a vector.
        partial: rows are changes to datapoints, and need neither text nor vector.
        limits: on sizes.
        spoken: returns what is spoken in a text that is a transcript, None for others; used for texts that are not
            embedded.
        check: called before each value that is looked at by itself; what it raises ends the validation.

    """
    batch = _Batch(rows, fields, check)
    columns = batch.column("id", id_rule)
    columns |= batch.column("document_id", id_rule) or {"document_id": columns["id"]}
    columns |= batch.column(
        "title", functools.partial(text_rule, lambda text: text.strip() or None, limits.title)
    )
    columns |= batch.column("text", functools.partial(text_rule, lambda text: text or None, limits.text))
    columns |= batch.column(SPOKEN_COLUMN, functools.partial(text_rule, lambda text: text, None))
    vectors_ND, has_vector_N = batch.vectors(dimensions, zeros=spec.distance != "cosine")
    if embeds and "text" in columns and not has_vector_N.all():
        columns["text"] = _without_blanks(columns["text"], ~has_vector_N)
    if not partial and not has_vector_N.all():
        if spec.vectors == "required":
            batch.check_texts(~has_vector_N, columns, embeds=embeds)
        if spec.source.chunk is not None:
            batch.check_cut_ids(~has_vector_N, columns)
    columns |= batch.sparse() | batch.named(spec, dimensions)
    for name in (name for name in spec.attributes if name in fields):
        columns |= batch.column(name, functools.partial(attribute_rule, spec.attributes[name], limits))
    columns |= batch.column(DYNAMIC_COLUMN, dynamic_rule)
    columns |= batch.column("payload", lambda _: payload_rule(limits.payload)) | batch.span(
        columns.get("text")
    )
    if spoken is not None and "text" in columns and SPOKEN_COLUMN not in fields:
        # Texts without a vector are cut first, if they are to be embedded.
        columns[SPOKEN_COLUMN] = _spoken(columns["text"], has_vector_N | (not embeds), spoken, check)
    schema = written_schema(spec, dimensions[""])
    column_number = schema.get_field_index("embedding")
    if vectors_ND is None:
        schema = schema.remove(column_number)
    else:
        mask = None if has_vector_N.all() else pa.array(~has_vector_N)
        flat, field = pa.array(vectors_ND.reshape(-1)), schema.field(column_number)
        columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat, type=field.type, mask=mask)
        schema = schema if mask is None else schema.set(column_number, field.with_nullable(True))
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in schema
    ]
    return batch.result(pa.Table.from_arrays(arrays, schema=schema), columns["id"])


class _Batch:
    """Columns of a batch, converted one after the other; `errors` has what is wrong with each row that is."""

    def __init__(self, rows: int, fields: Mapping[str, Field], check: Callable[[], None]) -> None:
        self.errors: dict[int, list[InvalidRecordError]] = {}
        self.converted: Counter[tuple[str, str]] = Counter()
        self._rows, self._fields, self._check = rows, fields, check

    def column(self, column: str, rule_of: Callable[[Notes], Rule]) -> dict[str, pa.Array]:
        """Return a column by its rule; nothing if the batch has none."""
        if column not in self._fields:
            return {}
        name, values = self._fields[column]
        notes: Notes = Counter()
        rule = rule_of(notes)
        converted = self._column(name, values, rule)
        for note, count in notes.items():
            self.converted[column, note] += count
        return {column: converted}

    def _column(self, name: str, values: Values, rule: Rule) -> pa.Array:
        whole = rule.whole(values)
        if whole is not None:
            return whole
        items = listed(values)
        if rule.missing is not None:
            items = [invalid(rule.missing, name, "is null") if value is None else value for value in items]
        converted = self._converted(enumerate(items), lambda value: rule.convert(value, name))
        return pa.array([converted.get(row) for row in range(self._rows)], rule.type)

    def vectors(self, sizes: Mapping[str, int], *, zeros: bool) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the vectors as float32 (N, D), None if there is none, and which rows have one, bool (N,)."""
        dimensions, names = sizes[""], [name for name in sizes if name]
        name, values = self._fields.get("embedding", ("", [None] * self._rows))
        if dimensions == 0:
            what = "is not possible: the index has no vectors"
            if names:
                what = (
                    f"is not possible: the index has named vectors only ({', '.join(names)}); write `vectors`"
                )
            error = invalid("vector", name, what)
            self._note(np.array([value is not None for value in listed(values)], bool), error)
            return None, np.zeros(self._rows, bool)
        if isinstance(values, np.ndarray) and values.shape[1] == dimensions:
            with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
                vectors_ND = np.ascontiguousarray(values, np.float32)
            largest_N = np.maximum(vectors_ND.max(axis=1), -vectors_ND.min(axis=1))
            # False of NaN, too.
            good_N = (largest_N <= MAX_MAGNITUDE) & (zeros | (largest_N > 0))
            has_vector_N = np.ones(self._rows, bool)
        else:
            has_vector_N = np.array([value is not None for value in listed(values)], bool)
            if not has_vector_N.any():
                return None, has_vector_N
            vectors_ND, good_N = np.zeros((self._rows, dimensions), np.float32), ~has_vector_N
        distance = "dot" if zeros else "cosine"
        checked = self._converted(
            ((row, values[row]) for row in np.flatnonzero(~good_N).tolist()),
            lambda value: vector_value(value, dimensions, field=name, distance=distance),
        )
        for row, vector_D in checked.items():
            vectors_ND[row] = vector_D
        return (vectors_ND if self._rows else None), has_vector_N

    def named(self, spec: IndexSpec, dimensions: Mapping[str, int]) -> dict[str, pa.Array]:
        """Return the columns of named vectors."""
        columns: dict[str, pa.Array] = {}
        for vectors, vector_spec in spec.named_vectors.items():
            column = vector_column(vectors)
            if column in self._fields:
                name, values = self._fields[column]
                columns[column] = self._named(name, values, dimensions.get(vectors), vector_spec.distance)
        return columns

    def _named(self, name: str, values: Values, dimensions: int | None, distance: str) -> pa.Array:
        if dimensions is not None and (whole := _whole_named(values, dimensions, distance)) is not None:
            return whole
        vectors = self._converted(
            enumerate(listed(values)),
            lambda value: vector_value(value, dimensions, field=name, distance=distance),
        )
        return vectors_array([vectors.get(row) for row in range(self._rows)])

    def check_texts(self, without_N: np.ndarray, columns: Mapping[str, pa.Array], *, embeds: bool) -> None:
        """Check rows without a vector: there is a text to embed."""
        vector = self._fields["embedding"].name if "embedding" in self._fields else "vector"
        if not embeds:
            self._note(without_N, invalid("missing_vector", vector, "is required: the index has no encoder"))
            return
        name, texts = self._fields.get("text", ("text", ()))
        if "text" in columns:
            without_text_N = without_N & columns["text"].is_null().to_numpy(zero_copy_only=False)
            is_given_N = np.array([value is not None for value in listed(texts)], bool)
            self._note(without_text_N & is_given_N, invalid("missing_text", name, "is blank"))
        else:
            without_text_N = without_N
        self._note(without_text_N, invalid("missing_text", name, f"is required, or a {vector}"))

    def check_cut_ids(self, without_N: np.ndarray, columns: Mapping[str, pa.Array]) -> None:
        """Check that the ids of rows without a vector leave room for the numbers of passages."""
        limit = MAX_ID_BYTES - PASSAGE_SUFFIX_BYTES
        what = f"must be at most {limit} bytes long where texts are cut into passages"
        too_long_N = without_N & (sizes_of(columns["id"]) > limit)
        self._note(too_long_N, invalid("id", self._fields["id"].name, what))

    def sparse(self) -> dict[str, pa.Array]:
        """Return the two columns of sparse vectors."""
        if SPARSE not in self._fields:
            return {}
        name, values = self._fields[SPARSE]
        pairs = self._converted(enumerate(listed(values)), lambda value: sparse_value(value, field=name))
        return {
            column: pa.array([pairs[row][part] if row in pairs else None for row in range(self._rows)], kind)
            for part, (column, kind) in enumerate(SPARSE_COLUMNS.items())
        }

    def span(self, texts: pa.Array | None) -> dict[str, pa.Array]:
        """Return the columns of `SPAN`."""
        columns: dict[str, pa.Array] = {}
        for column in (column for column in SPAN if column in self._fields):
            columns |= self.column(column, functools.partial(attribute_rule, SPAN[column], NO_LIMITS))
        if columns or texts is None:
            return columns
        length = pc.utf8_length(texts).cast(pa.int64())
        return {"text_start": pc.multiply(length, 0), "text_end": length}

    def result(self, table: pa.Table, ids: pa.Array) -> ValidatedBatch:
        """Return the rows of a table that had no error, and the others."""
        rejected = [
            RejectedRow(row, ids[row].as_py(), errors[0], tuple(errors[1:]))
            for row, errors in sorted(self.errors.items())
        ]
        if not rejected:
            return ValidatedBatch(table, np.arange(self._rows), [], self.converted)
        good_N = np.ones(self._rows, bool)
        good_N[[rejection.row for rejection in rejected]] = False
        return ValidatedBatch(
            table.filter(pa.array(good_N)), np.flatnonzero(good_N), rejected, self.converted
        )

    def _note(self, wrong_N: np.ndarray, error: InvalidRecordError) -> None:
        for row in np.flatnonzero(wrong_N).tolist():
            self._add(row, error)

    def _add(self, row: int, error: InvalidRecordError) -> None:
        errors = self.errors.setdefault(row, [])
        if error.field not in [
            earlier.field for earlier in errors
        ]:  # a text that does not fit is also missing, say
            errors.append(error)

    def _converted(self, values: Iterable[tuple[int, Any]], convert: Callable[[Any], Any]) -> dict[int, Any]:
        """Return what the values of some rows are converted to, and note the errors; None is passed over."""
        converted: dict[int, Any] = {}
        for row, value in values:
            self._check()
            try:
                if isinstance(value, InvalidRecordError):
                    raise value
                if value is not None:
                    converted[row] = convert(value)
            except InvalidRecordError as error:
                self._add(row, error)
        return converted


def _whole_named(values: Values, dimensions: int, distance: str) -> pa.Array | None:
    """Return a column of lists as named vectors if all of them are good, else None."""
    if not isinstance(values, pa.Array) or not _is_list_of_numbers(values.type):
        return None
    present_N = values.is_valid().to_numpy(zero_copy_only=False)
    present = values.drop_null()
    sizes = pc.list_value_length(present)
    flat = present.flatten()
    if flat.null_count or (
        len(sizes) and pc.min_max(sizes).as_py() != {"min": dimensions, "max": dimensions}
    ):
        return None
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
        vectors_VD = (
            flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False).reshape(-1, dimensions)
        )
    largest_V = np.maximum(vectors_VD.max(axis=1), -vectors_VD.min(axis=1))
    if not ((largest_V <= MAX_MAGNITUDE) & ((largest_V > 0) | (distance != "cosine"))).all():
        return None
    return named_array(vectors_VD.reshape(-1), present_N, present_N * dimensions)


def _is_list_of_numbers(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and bool(pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))


def _without_blanks(texts: pa.Array, embedded_N: np.ndarray) -> pa.Array:
    """Return texts, null where one that is to be embedded has nothing but blanks."""
    rows = np.flatnonzero(embedded_N)
    blank_N = np.zeros(len(texts), bool)
    blank_N[rows] = [text is not None and not text.strip() for text in texts.take(pa.array(rows)).to_pylist()]
    return pc.if_else(pa.array(blank_N), pa.scalar(None, texts.type), texts) if blank_N.any() else texts


def _spoken(
    texts: pa.Array, wanted_N: np.ndarray, spoken: Callable[[str], str | None], check: Callable[[], None]
) -> pa.Array:
    spoken_texts: list[str | None] = [None] * len(texts)
    for row in np.flatnonzero(wanted_N & texts.is_valid().to_numpy(zero_copy_only=False)).tolist():
        check()
        spoken_texts[row] = spoken(texts[row].as_py())
    return pa.array(spoken_texts, pa.string())
