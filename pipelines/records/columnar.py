"""Records that bring their vectors, by columns: a batch of them becomes rows without an object for each.

Only what is good beyond doubt goes this way. Every other row goes by documents.py, as do records of sources that have
no columns: it alone says what is wrong with a record, and converts what needs more than a look at its type. Both ways
give the same rows.

Shapes: N rows of a batch, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.schema import MAX_ID_BYTES, MAX_MAGNITUDE, SPOKEN_COLUMN, attribute_value
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.spec.spec import AttributeType, IndexSpec
from scannery.pipelines.records.documents import payload_of, spoken_of, text_of, title_of
from scannery.pipelines.records.embeddings_files import embeddings_schema
from scannery.pipelines.sources import Batch
from scannery.pipelines.sources.parts import SPAN

__all__ = ["good_rows"]

Convert = Callable[[Any], Any]


def good_rows(batch: Batch, spec: IndexSpec, dimensions: int) -> tuple[pa.Table, np.ndarray]:
    """Return the good rows of a batch as a table of `embeddings_schema`, and the numbers of all others, int64.

    The rows have no numbers of records yet (`_record` is 0).
    """
    schema = embeddings_schema(spec, dimensions)
    try:
        columns = None if spec.source.sparse_vector else _columns(batch, spec, schema)
    except (ValueError, OverflowError, pa.ArrowException):  # such as text that is not UTF-8
        columns = None
    if columns is None:
        return schema.empty_table(), np.arange(len(batch))
    values, good_N = columns
    arrays = [values.get(field.name, pa.nulls(len(batch), field.type)) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    return (table if good_N.all() else table.filter(pa.array(good_N))), np.flatnonzero(~good_N)


def _columns(
    batch: Batch, spec: IndexSpec, schema: pa.Schema
) -> tuple[dict[str, pa.Array], np.ndarray] | None:
    """Return the columns that are not null throughout, and which rows are good in all; None if no row can be."""
    names, vectors_ND = batch.columns.schema.names, batch.vectors
    if vectors_ND is None or vectors_ND.shape[1] != schema.field("embedding").type.list_size:
        return None
    if len({*names}) < len(names) or spec.source.id not in names:
        return None
    batch.columns.validate(full=True)
    checks = _Checks(batch.columns)
    vectors_ND = checks.vectors(vectors_ND, zeros=spec.distance != "cosine")
    kind = schema.field("embedding").type
    values = {
        "id": checks.ids(spec.source.id),
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), type=kind),
        "_record": pa.array(np.zeros(len(batch), np.int64)),
        "_source": pa.repeat(pa.scalar(batch.source, pa.string()), len(batch)),
        "_row": pa.array(np.arange(batch.row, batch.row + len(batch))),
    }
    document = spec.source.document_id
    values["document_id"] = values["id"] if document is None else checks.ids(document)
    for name, source, convert in _converted(spec):
        values[name] = checks.values(source, convert, schema.field(name).type)
    for name, attribute in spec.attributes.items():
        values[name] = checks.attribute(name, attribute, schema.field(name).type)
    if spec.source.format != "datapoints":
        length = pc.utf8_length(values["text"]).cast(pa.int64()) if "text" in values else None
        if length is not None:
            values |= {"text_start": pc.multiply(length, 0), "text_end": length}
    return values, checks.good_N


def _converted(spec: IndexSpec) -> list[tuple[str, str, Convert]]:
    """Return name, source and conversion of the columns that are looked at value by value."""
    source = spec.source
    fields = (
        ("title", source.title, title_of),
        ("text", source.text, text_of),
        ("payload", source.payload, payload_of),
    )
    found = [
        (name, field, _field_of(field, convert, spec)) for name, field, convert in fields if field is not None
    ]
    if source.format == "datapoints":
        found += [(name, name, _attribute_of(name, kind)) for name, kind in SPAN.items()]
        found.append((SPOKEN_COLUMN, SPOKEN_COLUMN, _field_of(SPOKEN_COLUMN, spoken_of, spec)))
    elif source.text is not None:
        found.append((SPOKEN_COLUMN, source.text, _field_of(source.text, spoken_of, spec)))
    return found


def _field_of(field: str, convert: Callable[[Mapping[str, Any], IndexSpec], Any], spec: IndexSpec) -> Convert:
    return lambda value: convert({field: value}, spec)


def _attribute_of(name: str, kind: AttributeType) -> Convert:
    return lambda value: attribute_value(value, kind, field=name)


class _Checks:
    """Columns of a batch, converted one after the other; `good_N` says which rows have been good in all so far."""

    def __init__(self, columns: pa.RecordBatch) -> None:
        self.good_N = np.ones(columns.num_rows, bool)
        self._columns = columns

    def vectors(self, vectors_ND: np.ndarray, *, zeros: bool) -> np.ndarray:
        """Return the vectors as float32."""
        with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
            vectors_ND = np.ascontiguousarray(vectors_ND, np.float32)
        largest_N = np.maximum(vectors_ND.max(axis=1), -vectors_ND.min(axis=1))
        self.good_N &= largest_N <= MAX_MAGNITUDE  # false of NaN, too
        if not zeros:
            self.good_N &= largest_N > 0
        return vectors_ND

    def ids(self, name: str) -> pa.Array:
        """Return a column of ids as strings."""
        column = self._column(name)
        kind = column.type
        if not (pa.types.is_integer(kind) or _is_text(kind)):
            self.good_N[:] = False
            return pa.nulls(len(column), pa.string())
        ids = column.cast(pa.string())
        self._keep(pc.is_valid(ids))
        if _is_text(kind):
            sizes = pc.binary_length(ids)
            self._keep(pc.and_(pc.greater(sizes, 0), pc.less_equal(sizes, MAX_ID_BYTES)))
            self._keep(pc.invert(pc.match_substring_regex(ids, r"[\x00-\x1f]")))
        return ids

    def attribute(self, name: str, kind: AttributeType, wanted: pa.DataType) -> pa.Array:
        """Return an attribute."""
        column = self._column(name)
        is_same = {
            "string": _is_text,
            "int": pa.types.is_integer,  # what is too large for int64 raises, and the batch goes record by record
            "float": pa.types.is_floating,
            "bool": pa.types.is_boolean,
        }.get(kind)
        if is_same is None or not is_same(column.type):
            return self.values(name, _attribute_of(name, kind), wanted)
        if kind == "float":
            self._keep(pc.invert(pc.is_nan(column)))
        return column.cast(wanted)

    def values(self, name: str, convert: Convert, wanted: pa.DataType) -> pa.Array:
        """Return a column of which each value is converted."""
        column = self._column(name)
        if column.null_count == len(column):
            return pa.nulls(len(column), wanted)
        values = column.to_pylist()
        for row, value in enumerate(values):
            try:
                values[row] = convert(value)
            except InvalidRecordError:
                values[row] = None
                self.good_N[row] = False
        return pa.array(values, wanted)

    def _column(self, name: str) -> pa.Array:
        if name not in self._columns.schema.names:
            return pa.nulls(self._columns.num_rows)
        return self._columns.column(name)

    def _keep(self, good: pa.Array) -> None:
        """Let only rows stay that are true, or null."""
        self.good_N &= pc.fill_null(good, True).to_numpy(zero_copy_only=False)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
