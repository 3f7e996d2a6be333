"""Records with the names that a spec gives their fields → values of a datapoint's columns.

This is the one place that applies `source` and the `from`, `value`, `split`, `unit`, `format` and `decimal` of
attributes, for builds and for live writes. Whether a value fits its column is decided later, by `validate`.

Fields of a record as a spec names them: a name, a path into nested values, or a template of several.

    title                    the field of this name
    meta.author.name         a field of an object in an object
    authors.name             of a list of objects: the list of their fields
    authors.0.name           of an element of a list; `authors[0].name` is the same
    {show}: {meta.title}     a text with fields in it; `{{` and `}}` are braces

A field whose name is the whole text wins over what the text means otherwise, at every level. Text that is JSON, such as
a database's column in a CSV cell, is looked into like the value that it describes.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.columns.converted import kind_of
from scannery.indexer.datapoints.columns.plain import python_rows, python_values
from scannery.indexer.datapoints.conversions import is_nan, plain_text
from scannery.indexer.datapoints.dynamic import DYNAMIC_COLUMN, NOT_DYNAMIC, parsed_dynamic
from scannery.indexer.datapoints.named_vectors import vector_column
from scannery.indexer.datapoints.schema import SPOKEN_COLUMN, attribute_value, identifier, text_value
from scannery.indexer.datapoints.text_values import (
    decimal_number,
    formatted_time,
    is_zero_date,
    number_of_time,
    split_text,
    without_currency,
)
from scannery.indexer.datapoints.validation import SPAN, SPARSE
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import AttributeSpec, AttributeType, IndexSpec, SourceSpec
from scannery.indexer.strict_json import exact_json
from scannery.indexer.vectors.vector_texts import CutVectorError, vector_in_text

__all__ = [
    "TEXT_SEPARATORS",
    "FieldExpression",
    "FieldMapping",
    "MappedField",
    "join_texts",
    "may_be_dynamic",
]


TEXT_SEPARATORS = {"title": ", ", "text": "\n\n"}
"""What joins the items of a list that is a title or a text."""

MAX_DOTTED_PARTS = 64
"""Most parts of a path that are looked up as one name with dots in it. Without a limit, a path of n parts would stand
for names of n² characters in all."""

_PART = re.compile(r"[^.\[\]]+")
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")


class FieldExpression:
    """What a spec says about a field, ready to be looked up in records.

    Args:
        text: as in the spec.

    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.inner = [FieldExpression(name) for name in _BRACES.findall(text) if name]
        """The fields of a template; none if it is not one."""
        parts = [] if self.inner else [part for part in _PART.findall(text) if part != "*"]
        self.parts = parts if len(parts) > 1 or parts != [text] else []
        """The parts of a path; none if it is a name."""

    @property
    def is_name(self) -> bool:
        """Whether the text can only be a name."""
        return not self.inner and not self.parts

    @property
    def names(self) -> set[str]:
        """The fields that a record may have it in."""
        depth = min(len(self.parts), MAX_DOTTED_PARTS)
        paths = {".".join(self.parts[:size]) for size in range(1, depth + 1)}
        return {self.text} | paths | {name for expression in self.inner for name in expression.names}

    def value(self, record: Mapping[str, Any]) -> Any:
        """Return the value in a record; None if there is none, or NaN. Templates give text, without missing fields.

        Raises:
            InvalidRecordError: a field of a template holds what has no text, such as an object.

        """
        if self.is_name or self.text in record:
            value = record.get(self.text)
        else:
            value = self._filled(record) if self.inner else _at(record, self.parts)
        return None if is_nan(value) else value

    def part(self, record: Mapping[str, Any], separator: str) -> str | None:
        """Return the value in a record as a part of a text, items of a list joined; raises as `value`."""
        value = join_texts(self.value(record), separator)
        try:
            return None if value is None else plain_text(value)
        except (TypeError, ValueError) as error:
            what = f"must be a text, number or time as a part of a text, got {type(value).__name__}"
            raise InvalidRecordError(f"{self.text}: {what}", reason="text", field=self.text) from error

    def is_complete(self, record: Mapping[str, Any]) -> bool:
        """Return whether all fields of a template have values, as an id needs it."""
        return self.text in record or all(expression.value(record) is not None for expression in self.inner)

    def _filled(self, record: Mapping[str, Any]) -> str | None:
        texts = [expression.part(record, ", ") for expression in self.inner]
        if all(text is None for text in texts):
            return None
        parts = iter(texts)

        def replaced(match: re.Match[str]) -> str:
            if match[1] is None:
                return match[0][0]
            return next(parts) or ""

        return _BRACES.sub(replaced, self.text).strip() or None


def join_texts(value: Any, separator: str) -> Any:
    """Return a list of texts as one text, None without any; values that are no lists as they are."""
    if not isinstance(value, (list, tuple)):
        return value
    if not all(item is None or isinstance(item, (str, int, float)) for item in value):
        return value
    return (
        separator.join(plain_text(item) for item in value if not (item is None or item == "" or is_nan(item)))
        or None
    )


def _at(value: Any, parts: Sequence[str]) -> Any:
    if not parts:
        return value
    if isinstance(value, str):
        value = _described(value)
    if isinstance(value, Mapping):
        depth = min(len(parts), MAX_DOTTED_PARTS)
        sizes = (size for size in range(depth, 0, -1) if ".".join(parts[:size]) in value)
        size = next(sizes, 0)
        return _at(value[".".join(parts[:size])], parts[size:]) if size else None
    if not isinstance(value, list):
        return None
    if parts[0].isdecimal():
        return _at(value[int(parts[0])], parts[1:]) if int(parts[0]) < len(value) else None
    items: list[Any] = []
    for item in value:
        inner = _at(item, parts)
        if inner is not None:
            items += inner if isinstance(inner, list) else [inner]
    return items or None


def _described(text: str) -> object:
    """Return what JSON text describes; other text as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return exact_json(text)
    except (ValueError, RecursionError):
        return text


_Conversion = Callable[[Any], Any]
_Takes = Callable[[pa.DataType], bool]

_DATAPOINT_KEYS = {"embedding": "vector", SPARSE: "sparse_vector"}
_FIXED = ("id", "document_id", "title", "text", "embedding", SPARSE, "payload")


@dataclass(frozen=True, kw_only=True)
class MappedField:
    """Where the values of one column of a datapoint come from."""

    name: str
    """What messages call it: as in the spec."""

    expressions: tuple[FieldExpression, ...]
    """The field; several for a text of several fields; none for a constant."""

    constant: Any = None
    separator: str | None = None
    """What joins several texts, and the items of a list; None: lists stay lists."""

    must_be_complete: bool = False
    """Whether a template with a missing field counts as missing."""

    convert: _Conversion | None = None
    """Makes a value of what the input has; raises InvalidRecordError where it cannot."""

    takes: _Takes = field(default=lambda _: True)
    """Whether `convert` has something to do for a column of this type."""

    def value(self, record: Mapping[str, Any]) -> Any:
        """Return the value in a record, None without one; the error, as `validate` takes it, if it cannot be read."""
        try:
            value = self._raw_value(record)
            if self.separator is not None:
                value = join_texts(value, self.separator)
            return value if value is None or self.convert is None else self.convert(value)
        except InvalidRecordError as error:
            return error

    def values(self, batch: pa.RecordBatch) -> pa.Array | list[Any]:
        """Return the values of a batch: as a column where Arrow can find it, else one by one."""
        rows, column = batch.num_rows, self._column(batch)
        if column is not None and not self._works_on(column.type):
            return column
        if column is not None and len(self.expressions) == 1:
            field_text = self.expressions[0].text
            return [self.value({field_text: value}) for value in python_values(column)]
        names = {name for expression in self.expressions for name in expression.names}
        needed = batch.select([name for name in batch.schema.names if name in names])
        records = python_rows(needed) if needed.num_columns else [{}] * rows
        return [self.value(record) for record in records]

    def _raw_value(self, record: Mapping[str, Any]) -> Any:
        if not self.expressions:
            return self.constant
        if len(self.expressions) > 1:
            texts = [expression.part(record, self.separator or "") for expression in self.expressions]
            return texts if any(text is not None for text in texts) else None
        (expression,) = self.expressions
        return (
            None if self.must_be_complete and not expression.is_complete(record) else expression.value(record)
        )

    def _works_on(self, kind: pa.DataType) -> bool:
        lists = self.separator is not None and kind_of(kind) == "list"
        return lists or (self.convert is not None and self.takes(kind))

    def _column(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return the column of a batch that the field is; None if it has to be made of the values of each row."""
        names = batch.schema.names
        if len(self.expressions) != 1:
            return None
        (expression,) = self.expressions
        if expression.text in names:
            return batch.column(expression.text)
        if expression.is_name:
            return pa.nulls(batch.num_rows)
        if not expression.parts or expression.parts[0] not in names:
            return None
        column, parts = batch.column(expression.parts[0]), expression.parts[1:]
        while parts and pa.types.is_struct(column.type) and column.type.get_field_index(parts[0]) >= 0:
            column, parts = pc.struct_field(column, [parts[0]]), parts[1:]
        return None if parts else column


class FieldMapping:
    """How records become datapoints under a spec.

    Args:
        fields: by the column of a datapoint that each is for.
        types: of the attributes.
        dynamic: whether other fields of a record are attributes, too.
        named: names of vectors.

    """

    def __init__(
        self,
        fields: Mapping[str, MappedField],
        types: Mapping[str, AttributeType],
        *,
        dynamic: bool = False,
        named: Collection[str] = (),
    ) -> None:
        self._types = types
        self._named = named
        self.dynamic = dynamic
        self.fields = fields
        """Fields by column: `id`, `document_id`, `title`, `text`, `embedding`, `sparse`, `payload`, the attributes, and
        named vectors that the source has.
        """

    @classmethod
    def of(cls, spec: IndexSpec) -> FieldMapping:
        """Return the mapping of a spec."""
        fields = _source_fields(spec.source)
        if spec.source.format == "datapoints":
            fields |= {name: _field(name) for name in (SPOKEN_COLUMN, *SPAN)}
        for name, kind in spec.attributes.items():
            fields[name] = _attribute(name, kind, spec.attribute_specs.get(name))
        fields |= _vector_fields(spec)
        return cls(fields, spec.attributes, dynamic=spec.dynamic, named=spec.named_vectors)

    def converting(self, conversions: Mapping[str, Callable[[Any], Any]]) -> FieldMapping:
        """Return this mapping with further conversions of the values of some columns.

        They may raise InvalidRecordError. Columns that the spec does not name are left out.
        """
        changed = {
            column: replace(self.fields[column], convert=convert, takes=_is_text)
            for column, convert in conversions.items()
            if column in self.fields
        }
        return FieldMapping({**self.fields, **changed}, self._types, dynamic=self.dynamic, named=self._named)

    @cached_property
    def names(self) -> frozenset[str]:
        """All fields of a record that may be read, at its top."""
        expressions = (expression for mapped in self.fields.values() for expression in mapped.expressions)
        return frozenset(name for expression in expressions for name in expression.names)

    def name(self, column: str) -> str:
        """Return what messages call the field of a column."""
        return self.fields[column].name if column in self.fields else column

    def is_other(self, name: str) -> bool:
        """Return whether a field of a record is a dynamic attribute."""
        return self.dynamic and name not in self.names and name not in self._types and may_be_dynamic(name)

    def undeclared(self, record: Mapping[str, Any]) -> dict[str, Any] | InvalidRecordError:
        """Return the fields of a record that are dynamic attributes; the error, as `validate` takes it, for none.

        Exported rows have them in one field, as a JSON object.
        """
        undeclared = {name: value for name, value in record.items() if self.is_other(str(name))}
        try:
            exported = parsed_dynamic(undeclared.pop(DYNAMIC_COLUMN, None))
        except InvalidRecordError as error:
            return error
        return {**undeclared, **exported}

    def others_of(self, batch: pa.RecordBatch) -> list[dict[str, Any] | InvalidRecordError]:
        """Return `others` of each row of a batch; null stands for no value there."""
        names = [name for name in batch.schema.names if self.is_other(name)]
        if not names:
            return [{} for _ in range(batch.num_rows)]
        return [
            self.undeclared({name: value for name, value in row.items() if value is not None})
            for row in python_rows(batch.select(names))
        ]

    def apply(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a record by column, without those that it does not have.

        Raises:
            InvalidRecordError: a value does not have the form that the spec states; all of them are named.

        """
        values = {column: mapped.value(record) for column, mapped in self.fields.items()}
        _raise_all([value for value in values.values() if isinstance(value, InvalidRecordError)])
        return {column: value for column, value in values.items() if value is not None}

    def datapoint(self, record: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any]:
        """Return a record as the SDK's `upsert` takes it: `id`, `text`, `vector` and so on, and `attributes`.

        The id is text, and attributes have their types. The fields `without` are no dynamic attributes.

        Raises:
            InvalidRecordError: a value does not fit; all of them are named. What is missing is not told.

        """
        values, errors = self.apply(record), []
        for column, value in values.items():
            try:
                if column in ("id", "document_id"):
                    values[column] = identifier(value, field=self.name(column))
                elif column in self._types:
                    values[column] = attribute_value(value, self._types[column], field=self.name(column))
                elif column in ("title", "text"):
                    values[column] = text_value(value, field=self.name(column))
            except InvalidRecordError as error:
                errors.append(error)
        _raise_all(errors)
        undeclared = self.undeclared({name: value for name, value in record.items() if name not in without})
        if isinstance(undeclared, InvalidRecordError):
            raise undeclared
        point = {_DATAPOINT_KEYS.get(name, name): values.pop(name) for name in _FIXED if name in values}
        columns = {name: vector_column(name) for name in self._named}
        vectors = {name: values.pop(column) for name, column in columns.items() if column in values}
        spans = {name: values.pop(name) for name in (SPOKEN_COLUMN, *SPAN) if name in values}
        spans.pop(SPOKEN_COLUMN, None)
        attributes = undeclared | values
        return (
            point
            | spans
            | ({"vectors": vectors} if vectors else {})
            | ({"attributes": attributes} if attributes else {})
        )


def may_be_dynamic(name: str) -> bool:
    """Return whether a field that the spec does not name may be a dynamic attribute, by its name."""
    return name not in NOT_DYNAMIC and not name.startswith("__index_level_")  # of pandas


def _raise_all(errors: Sequence[InvalidRecordError]) -> None:
    """Raise one error that names all of some; nothing without any."""
    if errors:
        raise InvalidRecordError.merged(errors)


def _field(text: str, **options: Any) -> MappedField:
    return MappedField(name=text, expressions=(FieldExpression(text),), **options)


def _source_fields(source: SourceSpec) -> dict[str, MappedField]:
    """Return the fields that `source` names."""
    fields = {"id": _field(source.id, must_be_complete=True)}
    if source.document_id is not None:
        fields["document_id"] = _field(source.document_id, must_be_complete=True)
    if source.title is not None:
        fields["title"] = _field(source.title, separator=TEXT_SEPARATORS["title"])
    if source.text is not None:
        texts = [source.text] if isinstance(source.text, str) else source.text
        expressions = tuple(map(FieldExpression, texts))
        separator = TEXT_SEPARATORS["text"]
        fields["text"] = MappedField(name=", ".join(texts), expressions=expressions, separator=separator)
    if source.vector is not None:
        # The managed service takes lists only.
        is_strict = source.format == "managed"
        convert = None if is_strict else partial(_vector, name=source.vector, kind=source.vector_bytes)
        fields["embedding"] = _field(source.vector, convert=convert, takes=_is_text_or_bytes)
    if source.sparse_vector is not None:
        fields[SPARSE] = _field(source.sparse_vector, convert=partial(_sparse, name=source.sparse_vector))
    if source.payload is not None:
        fields["payload"] = _field(source.payload)
    return fields


def _vector_fields(spec: IndexSpec) -> dict[str, MappedField]:
    """Return the fields with named vectors: those that the spec names; in exports, the names below `vectors`."""
    is_export = spec.source.format == "datapoints"
    paths = {
        name: f"vectors.{name}" if is_export else vector_spec.vector
        for name, vector_spec in spec.named_vectors.items()
    }
    return {
        vector_column(name): _field(
            path,
            convert=partial(_vector, name=path, kind=spec.source.vector_bytes),
            takes=_is_text_or_bytes,
        )
        for name, path in paths.items()
        if path is not None
    }


def _attribute(name: str, kind: AttributeType, attribute: AttributeSpec | None) -> MappedField:
    if attribute is None:
        return _field(name)
    if attribute.value is not None:
        return MappedField(name=name, expressions=(), constant=attribute.value)
    path = attribute.path or name
    expression = FieldExpression(path)
    separator = ", " if kind == "string" and not expression.is_name else None
    convert, takes = _attribute_conversion(path, attribute)
    return MappedField(
        name=path,
        expressions=(expression,),
        separator=separator,
        must_be_complete=kind == "geo",  # half a place is none
        convert=convert,
        takes=takes,
    )


def _attribute_conversion(path: str, attribute: AttributeSpec) -> tuple[_Conversion | None, _Takes]:
    if attribute.split is not None:
        return partial(split_text, separator=attribute.split), _is_text
    if attribute.decimal is not None:
        return partial(_decimal, name=path, mark=attribute.decimal), _is_text
    if attribute.format is not None:
        return partial(_formatted, name=path, format=attribute.format), _is_text_or_number
    if attribute.unit is not None:
        return partial(number_of_time, unit=attribute.unit), _is_text_or_number
    return None, lambda _: True


def _decimal(value: object, *, name: str, mark: str) -> object:
    if not isinstance(value, str):
        return value
    number: Decimal | None = decimal_number(without_currency(value), mark)
    if number is None:
        raise _invalid(name, f"must be a number with `{mark}` as decimal mark, got {value[:80]!r}")
    return number


def _formatted(value: object, *, name: str, format: str) -> object:
    time: dt.datetime | None
    if isinstance(value, (dt.date, bool)):
        return value
    time = formatted_time(str(value), format)
    if time is None and is_zero_date(str(value)):
        return value  # which becomes no value, and is counted
    if time is None:
        raise _invalid(name, f"must be written as {format}, got {str(value)[:80]!r}")
    return time


def _vector(value: object, *, name: str, kind: str | None) -> object:
    """Return the numbers in raw bytes or in a text (vector_texts.py), other values as they are."""
    if isinstance(value, str):
        try:
            return vector_in_text(value, kind)
        except CutVectorError as error:
            what = f"numbers are left out where `...` stands: {value[:60]!r}; write vectors as JSON lists"
            raise InvalidRecordError(f"{name}: {what}", reason="vector", field=name) from error
    if not isinstance(value, bytes):
        return value
    if kind is None:  # four bytes are one float32 or two float16: both would look like vectors
        what = "holds bytes; say of which type with source.vector_bytes"
        raise InvalidRecordError(f"{name}: {what}", reason="vector", field=name)
    number = np.dtype(kind).newbyteorder("<")
    if len(value) % number.itemsize:
        what = f"has {len(value)} bytes, which is not a multiple of {number.itemsize} ({kind})"
        raise InvalidRecordError(f"{name}: {what}", reason="vector", field=name)
    return np.frombuffer(value, number)


def _sparse(value: object, *, name: str) -> object:
    """Return the mapping in JSON text (a CSV cell, a Parquet string column), other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(f"{name}: not JSON: {error}", reason="sparse_vector", field=name) from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return _is_text(kind) or bool(binary)


def _is_text_or_number(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _invalid(name: str, what: str) -> InvalidRecordError:
    return InvalidRecordError(f"{name}: {what}", reason="attribute", field=name)
