"""Records → datapoints: the records that builds read and exports write are taken by live writes, too.

A record has one of three forms, told apart record by record:

    datapoint       id, text, vector, title, document_id, attributes {…}, payload, … (`NewDatapoint`)
    exported        what `scannery index export` writes: embedding, document_id, and the attributes side by side
    source          the fields that the spec of the index names: what `scannery build` reads. Other fields that are
                    called like a datapoint's are taken as such, unless the spec names a field for the same

Data frames and Arrow tables → records, one mapping for each row.

A table is what offers the Arrow C stream interface: Arrow's tables, record batches and readers, and the frames of
pandas and polars. These libraries are not imported, and `pyarrow`, which reads the interface, only for a table.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.client.packages import needed_for
from scannery.client.request.named_vectors import with_vectors
from scannery.client.request.values import plain_value
from scannery.client.request.writes import DATAPOINT_KEYS, RefusedRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from scannery.indexer.datapoints.field_mapping import FieldMapping

__all__ = [
    "AsyncReaderOf",
    "Extra",
    "ReaderOf",
    "RecordReader",
    "Table",
    "column_names",
    "is_foreign",
    "is_table",
    "row_count",
    "table_rows",
]


Extra = Literal["refuse", "ignore"]
"""What becomes of a record, by the spec or exported, with a field that the index has no place for.

One in the form of a datapoint is refused: there, such a field is a mistake.
"""

Form = Literal["datapoint", "exported", "source"]

_MADE_AGAIN = "_spoken"
"""A column of exports that the server makes of the text."""
_DYNAMIC = "_dynamic"
"""A column of exports with the attributes that the spec does not declare."""


def is_foreign(point: object) -> bool:
    """Return whether a point has keys that a datapoint does not have: the spec may name them."""
    return isinstance(point, Mapping) and not point.keys() <= DATAPOINT_KEYS


class RecordReader:
    """Reads the records of one index.

    Args:
        spec: of the index, as its description gives it.
        extra: what becomes of a record with fields that the index has no place for; None: they are ignored, except for
            those that a datapoint calls otherwise (`_OF_PEERS`).

    """

    def __init__(self, spec: Mapping[str, Any], *, extra: Extra | None = "refuse") -> None:
        self._source, self._exported, self._contents = _mappings(spec)
        self._attributes = set(spec.get("attributes") or {})
        fields = {_KEYS.get(column, column) for column in self._source.fields}
        without = {"attributes"} if spec.get("named_vectors") else {"attributes", "vectors"}
        self._more = DATAPOINT_KEYS - without - fields - self._source.names
        """Keys of a datapoint for which the spec names no field."""
        self._extra = extra
        self.ignored: set[str] = set()
        """Fields of records that the index has no place for, so far."""

    def form_of(self, record: Mapping[str, Any]) -> Form:
        """Return the form of a record."""
        keys = record.keys()
        if isinstance(record.get("attributes"), Mapping) and "attributes" not in self._source.names:
            return "datapoint"
        if self._is_source(record):
            return "source"
        if keys <= DATAPOINT_KEYS:
            return "datapoint"
        is_row = "document_id" in keys and keys <= {*self._exported.names, _MADE_AGAIN, _DYNAMIC}
        return "exported" if is_row or "embedding" in keys or _DYNAMIC in keys else "source"

    def datapoint(self, record: Any) -> Any:
        """Return the datapoint of a record; `RefusedRecord` where a field of it is wrong, or has no place."""
        if not isinstance(record, Mapping):
            return record
        form = self.form_of(record)
        mapping = self._exported if form == "exported" else self._source
        keys = DATAPOINT_KEYS if form == "datapoint" else mapping.names | {_MADE_AGAIN}
        more = self._more if form == "source" else frozenset()
        takes = mapping.is_other if form != "datapoint" else lambda _: False
        if form == "source" and self._extra != "ignore":
            unknown = record.keys() - keys - more
            lost = {name for name in unknown if not takes(str(name))} if self._extra is None else set()
            peers = unknown if unknown <= _OF_PEERS.keys() else lost & _OF_PEERS.keys()
            if hint := _peer_hint(record, peers):
                last = "" if self._extra else "; upsert_many with extra='ignore' takes the table as it is"
                return RefusedRecord(_identifier(record, mapping), hint + last)
        if extra := {name for name in record.keys() - keys - more if not takes(str(name))}:
            if self._extra == "refuse" or form == "datapoint":
                return _refused(record, str(min(extra, key=str)), keys | more, form)
            self.ignored.update(map(str, extra))
        return record if form == "datapoint" else self._made(record, mapping, more)

    def _is_source(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record has the id and the text or a vector that the spec names."""
        fields = self._source.fields
        has = (column in fields and fields[column].value(record) is not None for column in self._contents)
        return fields["id"].value(record) is not None and any(has)

    def _made(self, record: Mapping[str, Any], mapping: FieldMapping, more: frozenset[str]) -> Any:
        from scannery.indexer.errors import InvalidRecordError

        try:
            point = mapping.datapoint(record, without={*more, _MADE_AGAIN})
        except InvalidRecordError as error:
            return RefusedRecord(_identifier(record, mapping), error.message, error.field)
        if isinstance(point.get("payload"), str):
            # Files hold payloads as JSON in text, too.
            point["payload"] = _parsed(point["payload"])
        extras = {name: record[name] for name in more if record.get(name) is not None}
        if "vectors" in extras and isinstance(extras["vectors"], Mapping):
            extras["vectors"] = {**point.get("vectors", {}), **extras["vectors"]}
        return point | extras


_OF_PEERS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "metadata": ("attributes", Mapping),
    "properties": ("attributes", Mapping),
    "values": ("vector", (list, tuple, np.ndarray)),
    "embeddings": ("vector", (list, tuple, np.ndarray)),
    "sparse_values": ("sparse_vector", Mapping),
    "document": ("text", str),
    "page_content": ("text", str),
}
"""Keys of records in other systems: what a datapoint calls them, and what they hold there."""


def _peer_hint(record: Mapping[str, Any], keys: Collection[Any]) -> str | None:
    """Return what is wrong with a record that differs from a datapoint only by such keys; None: nothing."""
    for key in sorted(keys):
        name, kinds = _OF_PEERS[key]
        if isinstance(record[key], kinds) and record.get(name) is None:
            return (
                f"{key!r}: a datapoint calls this {name!r}; an attribute of this name goes into 'attributes'"
            )
    return None


AsyncReaderOf: TypeAlias = Callable[[], Awaitable[RecordReader]]
ReaderOf: TypeAlias = Callable[[], RecordReader]
"""Asks the index for its spec."""

_KEYS = {"embedding": "vector", "sparse": "sparse_vector"}
"""Columns of an index that a datapoint calls otherwise."""


def _mappings(spec: Mapping[str, Any]) -> tuple[FieldMapping, FieldMapping, list[str]]:
    """Return how records by the spec's names, and exported rows, become datapoints; and columns of text and vectors."""
    # Imported late: datapoints need none of it.
    with needed_for("a record by the names of a spec", "scannery-client[tables]"):
        from scannery.indexer.datapoints.field_mapping import FieldMapping
        from scannery.indexer.datapoints.named_vectors import vector_column
        from scannery.indexer.spec.spec_files import parse_spec

    parsed = parse_spec(spec)
    sparse = {"sparse_vector": "sparse"} if parsed.source.sparse_vector else {}
    exported: dict[str, Any] = {"index": parsed.index, "source": {"format": "datapoints", **sparse}}
    attributes = {"attributes": dict(parsed.attributes), "dynamic": parsed.dynamic}
    # Of exported vectors, only the names are needed.
    named = {name: {"dimensions": 1} for name in parsed.named_vectors}
    exported |= {**attributes, "named_vectors": named}
    contents = ["text", "embedding", *map(vector_column, parsed.named_vectors)]
    return FieldMapping.of(parsed), FieldMapping.of(parse_spec(exported)), contents


def _refused(record: Mapping[str, Any], key: str, allowed: frozenset[str], form: Form) -> RefusedRecord:
    names = sorted(name for name in allowed if not name.startswith("_"))
    near = difflib.get_close_matches(key, names, 1, 0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"it can have {', '.join(names)}"
    what = {"datapoint": "a datapoint", "source": "a record by the spec", "exported": "an exported row"}[form]
    return RefusedRecord(str(record.get("id") or ""), f"unknown key {key!r:.80} in {what}; {hint}")


def _identifier(record: Mapping[str, Any], mapping: FieldMapping) -> str:
    value = mapping.fields["id"].value(record)
    return str(value) if isinstance(value, (str, int)) else ""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


READ_ROWS = 1024
"""Rows that are made into Python's objects at once."""


@runtime_checkable
class ArrowStream(Protocol):
    """An Arrow table or reader, or a frame of pandas or polars (the Arrow PyCapsule interface)."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream as a capsule."""


@runtime_checkable
class ArrowArray(Protocol):
    """An Arrow record batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return schema and array as capsules."""


Table: TypeAlias = ArrowStream | ArrowArray
"""What `upsert` takes as a table."""


def is_table(points: object) -> bool:
    """Return whether this is a table, and not an iterable of datapoints."""
    return isinstance(points, (ArrowStream, ArrowArray)) or _is_frame(points)


def row_count(points: Any) -> int | None:
    """Return the number of rows of a table, None where it is not known beforehand."""
    try:
        return len(points)
    except TypeError:
        return None


def column_names(points: Any) -> list[str] | None:
    """Return the names of a table's columns, None where only reading it tells them."""
    names = getattr(points, "column_names", None) or getattr(points, "columns", None)
    if names is None:
        names = getattr(getattr(points, "schema", None), "names", None)
    return None if names is None else [str(name) for name in names if not _is_index(str(name))]


def table_rows(points: Any) -> Iterator[dict[str, Any]]:
    """Yield each row as a mapping of the columns that have a value: null, NaN and NaT are left out.

    Lists of floats, such as vectors, are arrays, timestamps datetimes, periods the time when they begin, UUIDs texts,
    decimals integers where they are whole, else floats. A named index is a column.

    Raises:
        InvalidArgumentError: it is no table of named columns.

    """
    points = _with_index(points) if _is_frame(points) else points
    reader = None if _has_mappings(points) else _reader(points)
    if reader is None:
        yield from (_identified(_plain_row(row)) for row in _frame_rows(points))
        return
    for batch in reader:
        for start in range(0, batch.num_rows, READ_ROWS):
            yield from map(_identified, _batch_rows(batch.slice(start, READ_ROWS)))


def _is_frame(points: object) -> bool:
    # Frames of pandas before 2.2 have no Arrow interface.
    return not isinstance(points, Mapping) and hasattr(points, "to_dict") and hasattr(points, "iloc")


def _with_index(frame: Any) -> Any:
    """Return a frame whose index, if it has a name, is a column: Arrow drops ranges, and `to_dict` any index."""
    columns = [str(name) for name in frame.columns]
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise InvalidArgumentError(f"points: two columns are called {twice!r}", field="points")
    names = getattr(getattr(frame, "index", None), "names", ())
    levels = [level for level, name in enumerate(names) if name is not None and str(name) not in columns]
    return frame.reset_index(level=levels) if levels else frame


def _has_mappings(points: Any) -> bool:
    """Return whether a frame has mappings, such as payloads: Arrow gives each of them the keys of all."""
    if not _is_frame(points):
        return False
    columns = (points[name] for name, kind in points.dtypes.items() if str(kind) == "object")
    return any(isinstance(value, Mapping) for column in columns for value in column)


def _identified(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with whole ids as integers: pandas makes floats of them beside missing ones.

    Columns `vectors.NAME` become one value `vectors`.
    """
    for name in ("id", "document_id"):
        value = row.get(name)
        if isinstance(value, float) and value.is_integer():
            row[name] = int(value)
    return with_vectors(row)


def _reader(points: Any) -> Iterable[pa.RecordBatch] | None:
    """Return the batches of a table; None for a frame whose columns Arrow cannot represent."""
    with needed_for("a table", "scannery-client[tables]"):
        import pyarrow as pa

    try:
        if isinstance(points, ArrowStream):
            batches: Iterable[pa.RecordBatch] = _named(pa.RecordBatchReader.from_stream(points))
            return batches
        if not _is_frame(points):
            batch: pa.RecordBatch = _named(pa.record_batch(points))
            return [batch]
    except (pa.ArrowException, TypeError, ValueError) as error:
        if not _is_frame(points):
            raise InvalidArgumentError(
                f"points: cannot be read as an Arrow table: {error}", field="points"
            ) from error
    # A column of objects of several types, say: such frames are read row by row.
    return None


def _named(table: Any) -> Any:
    names = table.schema.names
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"points: two columns are called {twice!r}", field="points")
    return table


def _frame_rows(frame: Any) -> Iterator[dict[str, Any]]:
    for start in range(0, len(frame), READ_ROWS):
        yield from frame.iloc[start : start + READ_ROWS].to_dict("records")


def _plain_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    plain = ((str(name), plain_value(value)) for name, value in row.items())
    return {name: value for name, value in plain if value is not None}


def _batch_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    with needed_for("a table", "scannery-client[tables]"):
        from scannery.indexer.datapoints.columns.plain import plain

    columns = {
        name: _column(plain(batch.column(number)))
        for number, name in enumerate(batch.schema.names)
        if not _is_index(name)
    }
    for row in range(batch.num_rows):
        values = ((name, values[row]) for name, values in columns.items())
        yield {name: value for name, value in values if value is not None}


def _column(array: pa.Array) -> list[Any]:
    """Return the values of a plain column, None where there is none."""
    import pyarrow as pa

    from scannery.indexer.datapoints.columns.plain import python_values

    if _is_vector(array.type):
        return _float_lists(array)
    if pa.types.is_struct(array.type) and any(_is_vector(field.type) for field in array.type):
        return _structs(array)
    return [plain_value(value) for value in python_values(array)]


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_vector(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return _is_list(kind) and bool(pa.types.is_floating(kind.value_type))


def _structs(array: pa.Array) -> list[Any]:
    """Return structs as mappings without their nulls, None for null: of vectors, each of which stays an array."""
    names = [field.name for field in array.type]
    fields = [_column(field) for field in array.flatten()]
    return [
        {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if valid
        else None
        for valid, values in zip(array.is_valid().to_pylist(), zip(*fields, strict=True), strict=True)
    ]


def _float_lists(array: pa.Array) -> list[Any]:
    """Return lists of floats as arrays of their type, without an object for each number; those with nulls as lists."""
    flat = array.flatten()
    if flat.null_count:
        return [value if value is None or None in value else np.array(value) for value in array.to_pylist()]
    if array.null_count:
        return [value.values.to_numpy() if value.is_valid else None for value in array]
    sizes = array.value_lengths().to_numpy(zero_copy_only=False)
    return list(np.split(flat.to_numpy(), np.cumsum(sizes)[:-1])) if len(sizes) else []


def _is_index(name: str) -> bool:
    # pandas' own index without a name.
    return name.startswith("__index_level_")
