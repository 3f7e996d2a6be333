"""Records as columns, as Parquet and files of vectors have them, without a Python object per record.

Shapes: N rows, D dimensions.

Cut files by row number, for Parquet, Avro and files of vectors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.columns.plain import plain_batch, python_rows
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.parts import Part, Record
from scannery.pipelines.sources.streams import read_blocks

__all__ = ["Batch", "as_matrix", "content_tag", "file_digest", "one_by_one", "row_ranges"]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Neighbouring rows of a file, few enough for two copies in memory."""

    columns: pa.RecordBatch
    """Columns under the names of the file, before any validation; they become plain ones (`plain_batch`)."""

    vector: str | None
    """Name of the spec's vector column."""

    source: str
    """Path or URI of the file."""

    row: int
    """Number of the first row, counted from 1."""

    unread: tuple[str, ...] = ()
    """Names of columns of the file that the spec does not name; they were not read."""

    def __post_init__(self) -> None:
        """Make the columns plain; pa.ArrowInvalid if one is of a type that has no plain form."""
        object.__setattr__(self, "columns", plain_batch(self.columns))

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def with_columns(self, columns: pa.RecordBatch) -> Batch:
        """Return the rows with other columns."""
        return dataclasses.replace(self, columns=columns)

    @cached_property
    def vectors(self) -> np.ndarray | None:
        """The vector column as one array (N, D), or None if its rows are not lists of numbers of one length.

        Python objects for 384 floats per row take about thirty times as long as the rest of a record.
        """
        if self.vector is None or self.vector not in self.columns.schema.names or not len(self):
            return None
        return as_matrix(self.columns.column(self.vector))

    def records(self, rows: Sequence[int] | None = None) -> Iterator[Record | DeadLetter]:
        """Yield all or some rows one by one; their vectors are rows of `vectors` unless that is None."""
        numbers = range(len(self)) if rows is None else rows
        part = self.columns if rows is None else self.columns.take(pa.array(rows, pa.int64()))
        vectors_ND = self.vectors
        if vectors_ND is not None:
            part = part.drop_columns([self.vector])
        for number, fields in zip(numbers, _dicts(part, len(numbers)), strict=True):
            row = self.row + number
            if isinstance(fields, Exception):
                reason = "encoding" if isinstance(fields, UnicodeDecodeError) else "malformed"
                message = f"the row cannot be read: {fields}"
                yield DeadLetter(reason=reason, source=self.source, row=row, message=message)
                continue
            if vectors_ND is not None and self.vector is not None:
                fields = {**fields, self.vector: vectors_ND[number]}  # noqa: PLW2901
            yield Record(fields, self.source, row=row)


def one_by_one(items: Iterable[Batch | Record | DeadLetter]) -> Iterator[Record | DeadLetter]:
    """Yield the records of batches, and all other items unchanged."""
    for item in items:
        if isinstance(item, Batch):
            yield from item.records()
        else:
            yield item


def as_matrix(column: pa.Array) -> np.ndarray | None:
    """Return a column of vectors as one array (N, D), or None if they are not lists of numbers of one length."""
    size = _common_size(column) if len(column) else None
    if size is None:
        return None
    vectors_ND: np.ndarray = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, size)
    return vectors_ND


def _common_size(column: pa.Array) -> int | None:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or column.null_count or not _is_number(kind.value_type):
        return None
    flat = column.flatten()
    size = len(flat) // len(column)
    if flat.null_count or size == 0 or len(flat) != size * len(column):
        return None
    if not pa.types.is_fixed_size_list(kind) and not pc.all(pc.equal(column.value_lengths(), size)).as_py():
        return None
    return size


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _dicts(columns: pa.RecordBatch, rows: int) -> Iterator[Mapping[str, Any] | Exception]:
    """Yield each row as a dictionary, or the error of converting it to Python: not UTF-8, the year 10,000."""
    if not columns.num_columns:  # the file has none of the spec's fields: every row is an empty record
        yield from ({} for _ in range(rows))
        return
    try:
        yield from python_rows(columns)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        if rows == 1:
            yield error
            return
        for row in range(rows):
            yield from _dicts(columns.slice(row, 1), 1)


def row_ranges(
    file: InputFile, format: str, rows: int, size: int, limit: int, digest: str, begin: int = 0
) -> Iterator[Part]:
    """Yield parts with equal numbers of rows, from row `begin` on.

    Args:
        file: to cut.
        format: of the parts.
        rows: number of rows.
        size: of all rows, in bytes.
        limit: about the size of a part, in bytes.
        digest: of the content, for every part.
        begin: first row, counted from 0.

    """
    # Not ranges of `limit` and a short last one: that would be a unit with full overhead and little work.
    count = max(1, min(rows, math.ceil(size / limit)))
    for i in range(count if rows else 0):
        start, end = begin + rows * i // count, begin + rows * (i + 1) // count
        yield Part(base=file.base, path=file.path, format=format, start=start, end=end, first=start + 1,
                   records=end - start, size_bytes=size // count, digest=digest)  # fmt: skip


def content_tag(file: InputFile) -> str:
    """Return an identifier of a file's content: the object store's tag, or a hash of all bytes."""
    return file.tag or file_digest(file.base, file.path)


def file_digest(base: str, path: str) -> str:
    """Return a hash of all bytes of a file."""
    digest = blake2b(digest_size=16)
    for block in read_blocks(base, path, ""):
        digest.update(block)
    return digest.hexdigest()
