"""Fields that records get beside those in their file: of the folders, of numbered columns, and made ids.

    lang=en/part-0.parquet       the field `lang`, as Hive and Spark partition tables
    dim_0, dim_1, …              one field `dim_*` with a vector, if the spec names it
    {from: row | content}        the field `_id`

Each is added to records and to batches alike, so that no reader knows of them. Shapes: N rows, D dimensions.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.spec.source_spec import GENERATED_ID
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources.batches import Batch
from scannery.pipelines.sources.documents import FILE_FIELDS
from scannery.pipelines.sources.parts import Fields, NumberedColumns, Part, Record

__all__ = ["with_derived"]

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark call the folder of rows without a value."""

_Item = Batch | Record | DeadLetter


def with_derived(items: Iterable[_Item], part: Part, fields: Fields) -> Iterator[_Item]:
    """Yield items with the fields that the spec can name beside those of the file."""
    partitions = {name: value for name, value in _partitions(part).items() if fields.reads(name)}
    made = _DerivedFields(part, fields, partitions)
    for item in items:
        if isinstance(item, Batch):
            yield made.batch(item)
        else:
            yield made.record(item) if isinstance(item, Record) else item


class _DerivedFields:
    """The fields of one part.

    Args:
        part: that is read.
        fields: of the spec.
        partitions: values of the folders around the file.

    """

    def __init__(self, part: Part, fields: Fields, partitions: Mapping[str, str]) -> None:
        self._path, self._fields, self._partitions = part.path, fields, partitions
        self._number = part.first - 1
        self._is_idle = not (partitions or fields.numbered or fields.generated_id)

    def record(self, record: Record) -> Record:
        self._number += 1
        if self._is_idle:
            return record
        values = {**self._partitions, **record.fields}
        for columns in self._fields.numbered:
            values = _with_vector(values, columns)
        row_number = record.row if record.row is not None else record.line
        values |= self._id(
            values, self._number if row_number is None else row_number, is_file=row_number is None
        )
        return record.with_fields(values)

    def batch(self, batch: Batch) -> Batch:
        if self._is_idle:
            return batch
        columns = batch.columns
        for name, value in self._partitions.items():
            if name not in columns.schema.names:
                values = pa.repeat(pa.scalar(value, pa.string()), len(batch))
                columns = columns.append_column(name, values)
        for numbered in self._fields.numbered:
            columns = _with_vectors(columns, numbered)
        batch = batch.with_columns(columns)
        if self._fields.generated_id is None:
            return batch
        ids = [
            self._id(item.fields, batch.row + number).get(GENERATED_ID) if isinstance(item, Record) else None
            for number, item in enumerate(batch.records())
        ]
        if GENERATED_ID in columns.schema.names:
            columns = columns.drop_columns([GENERATED_ID])
        return batch.with_columns(columns.append_column(GENERATED_ID, pa.array(ids, pa.string())))

    def _id(self, values: Mapping[str, Any], number: int, *, is_file: bool = False) -> dict[str, str]:
        """Return the field with the id of a record, if the spec has one.

        Args:
            values: fields of the record.
            number: of its line or row.
            is_file: whether the record is a whole file, whose name is not its content.

        """
        if self._fields.generated_id == "row":
            return {GENERATED_ID: f"{self._path}:{number}"}
        if self._fields.generated_id == "content":
            without = {GENERATED_ID, *(FILE_FIELDS if is_file else ())}
            with contextlib.suppress(RecursionError):  # then the record has no id, and is refused
                return {GENERATED_ID: _digest({name: values[name] for name in values if name not in without})}
        return {}


def _partitions(part: Part) -> dict[str, str]:
    """Return the values that the folders of a file are named by, without those that stand for none."""
    partitions = {}
    for folder in PurePosixPath(part.source).parts[:-1]:
        name, mark, value = folder.partition("=")
        if mark and name and value != NO_VALUE:
            partitions[unquote(name)] = unquote(value)
    return partitions


def _with_vector(values: Mapping[str, Any], columns: NumberedColumns) -> dict[str, Any]:
    numbers = columns.of(values)
    if not numbers or columns.field in values:
        return dict(values)
    single = {name: value for name, value in values.items() if columns.number(name) is None}
    first, last = min(numbers), max(numbers)
    # A number that is missing is refused: the others would move. One is enough: there may be a million.
    vector = [
        _number(values.get(numbers.get(number, "")))
        for number in range(first, min(last, first + len(numbers)) + 1)
    ]
    return {**single, columns.field: vector}


def _number(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _with_vectors(columns: pa.RecordBatch, numbered: NumberedColumns) -> pa.RecordBatch:
    names = columns.schema.names
    numbers = numbered.of(names)
    if not numbers or numbered.field in names:
        return columns
    vector_columns = [columns.column(numbers[number]) for number in sorted(numbers)]
    single = columns.drop_columns([*numbers.values()])
    try:
        vectors_ND = np.stack([_floats(column) for column in vector_columns], axis=1)
    except (ValueError, pa.ArrowException):
        rows = zip(*(column.to_pylist() for column in vector_columns), strict=True)
        texts = [[None if value is None else str(value) for value in row] for row in rows]
        return single.append_column(numbered.field, pa.array(texts, pa.list_(pa.string())))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), len(vector_columns))
    return single.append_column(numbered.field, vectors)


def _floats(column: pa.Array) -> np.ndarray:
    """Return numbers, also those in text; NaN, which is refused, for those that are missing."""
    floats_N: np.ndarray = pc.cast(column, pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    return floats_N


def _digest(fields: Mapping[str, Any]) -> str:
    """Return a hash of the fields that have a value, whatever their order."""
    values = {str(name): _canonical(value) for name, value in fields.items() if value is not None}
    text = json.dumps(values, sort_keys=True, default=_text)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _canonical(value: Any) -> Any:
    """Return a value of which the hash is the same in a batch and in a record: vectors are arrays in some of them."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float64).tobytes().hex() if value.dtype.kind in "fiu" else value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _canonical(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _canonical_list(value)
    return value


def _canonical_list(values: Sequence[Any]) -> Any:
    if values and all(type(item) in (int, float) for item in values):
        try:
            return np.asarray(values, np.float64).tobytes().hex()
        except OverflowError:
            return [str(item) for item in values]
    return [_canonical(item) for item in values]


def _text(value: object) -> str:
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)
