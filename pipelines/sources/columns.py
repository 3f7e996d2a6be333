"""Parquet and Avro."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.datapoints.columns.converted import has_json_form
from scannery.indexer.datapoints.columns.plain import unreadable
from scannery.indexer.datapoints.field_mapping import may_be_dynamic
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources.batches import Batch, content_tag, row_ranges
from scannery.pipelines.sources.locations import InputFile, open_bytes
from scannery.pipelines.sources.parts import DamagedError, Fields, Part, Record

__all__ = [
    "BATCH_ROWS",
    "chosen_columns",
    "read_avro",
    "read_parquet",
    "sliced",
    "split_avro",
    "split_parquet",
    "unreadable_rows",
]

BATCH_ROWS = 4096
_READING: Mapping[str, Any] = {
    "page_checksum_verification": True,
    "pre_buffer": False,
    "buffer_size": 8 << 20,
}
"""How files are read: Arrow would read a row group's columns as a whole, and a file may have one row group."""
MAX_RANGES_OF_A_GROUP = 32


def split_parquet(file: InputFile, limit: int) -> Iterator[Part]:
    """Yield ranges of rows of about `limit` uncompressed bytes each, each within one row group."""
    with open_bytes(file.base, file.path) as raw:
        metadata = _parquet(raw).metadata
    digest, begin = content_tag(file), 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        # A worker that does not take them in order decodes the row group from its start for each: n/2 times.
        range_bytes = max(limit, group.total_byte_size // MAX_RANGES_OF_A_GROUP)
        yield from row_ranges(
            file, "parquet", group.num_rows, group.total_byte_size, range_bytes, digest, begin
        )
        begin += group.num_rows


def split_avro(file: InputFile, limit: int) -> Iterator[Part]:
    """Yield ranges of rows of about `limit` bytes each; only block headers are decoded."""
    with open_bytes(file.base, file.path) as raw:
        try:
            rows = sum(block.num_records for block in fastavro.block_reader(raw))
        except Exception as error:  # fastavro raises many errors on damaged bytes
            raise DamagedError(f"not a readable Avro file: {error}") from error
    yield from row_ranges(file, "avro", rows, file.size_bytes, limit, content_tag(file))


def read_parquet(part: Part, fields: Fields) -> Iterator[Batch | DeadLetter]:
    """Yield the rows of a part in order, with the columns that `fields` names.

    A row is a dead letter if the spec names a column of a type that cannot be read.
    """
    row = part.first
    try:
        with _reader(part, fields) as reader:
            if letters := unreadable_rows(part, reader.schema, fields):
                yield from letters
                return
            for columns in reader.rows(part.start, part.end or 0):
                yield Batch(columns, fields.vector, part.source, row, reader.unread)
                row += columns.num_rows
    except (pa.ArrowException, DamagedError, OSError) as error:
        # Arrow reports damaged pages as OSError.
        yield DeadLetter(reason="damaged_file", source=part.source, row=row,
                         message=f"{error}; rows {row} to {part.end} were not read")  # fmt: skip


def read_avro(part: Part) -> Iterator[Record | DeadLetter]:
    """Yield the rows of a part in order."""
    row = 0
    try:
        with open_bytes(part.base, part.path) as raw:
            for block in fastavro.block_reader(raw):
                if row + block.num_records > part.start:
                    for record in block:
                        if part.start <= row and (part.end is None or row < part.end):
                            yield _avro_record(record, part, row + 1)
                        row += 1
                else:
                    row += block.num_records
                if part.end is not None and row >= part.end:
                    return
    except Exception as error:  # noqa: BLE001 -- fastavro raises many errors on damaged bytes
        yield DeadLetter(reason="damaged_file", source=part.source, row=row + 1,
                         message=f"{error}; nothing from row {row + 1} on was read")  # fmt: skip


def _parquet(raw: BinaryIO) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(raw, **_READING)
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"not a readable Parquet file: {error}") from error


class _Reader:
    """Rows of a file, in order: a row group can only be decoded from its start.

    Args:
        part: the first to be read.
        fields: of the spec.

    """

    def __init__(self, part: Part, fields: Fields) -> None:
        self._file = _file_of(part), fields
        with contextlib.ExitStack() as opened:
            files = opened.enter_context(_opened(part))
            self.schema = files[0].schema_arrow
            names, self.unread = chosen_columns(self.schema, fields)
            metadata = files[0].metadata
            groups = [int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
            self._starts = [0, *itertools.accumulate(groups)]
            group = self._group(part.start)
            self._at = self._starts[group]
            self._batches = itertools.chain.from_iterable(
                _of_group(files, number, names) for number in range(group, len(groups))
            )
            self._unread_rows: pa.RecordBatch | None = None
            self._open = opened.pop_all()

    def close(self) -> None:
        self._open.close()

    @property
    def is_at_end(self) -> bool:
        """Whether all rows were read."""
        return self._at >= self._starts[-1]

    def continues_to(self, part: Part, fields: Fields) -> bool:
        """Return whether reading on gets to a part no later than a reader of its own would."""
        return (
            self._file == (_file_of(part), fields)
            and self._starts[self._group(part.start)] <= self._at <= part.start
        )

    def rows(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows `start` to `end`, none of which were read before."""
        while self._at < end:
            batch = self._unread_rows or next(self._batches, None)
            if batch is None:
                return
            count = min(len(batch), end - self._at)
            skipped = min(max(start - self._at, 0), count)
            self._at += count
            self._unread_rows = batch.slice(count) if count < len(batch) else None
            if skipped < count:
                yield batch.slice(skipped, count - skipped)

    def _group(self, row: int) -> int:
        """Return the number of the row group that has a row; the last one for rows after the end."""
        return max(0, min(bisect_right(self._starts, row), len(self._starts) - 1) - 1)


def _file_of(part: Part) -> tuple[str, ...]:
    return part.source, part.digest, part.stamp


_KEPT = deque[_Reader](maxlen=1)
"""The reader of the last part: a worker takes parts in order, and reads on. One in a process, as it has open files."""


@contextlib.contextmanager
def _reader(part: Part, fields: Fields) -> Iterator[_Reader]:
    """Give a reader at the part or before it."""
    reader = None
    with contextlib.suppress(IndexError):  # another thread may have it
        reader = _KEPT.pop()
    if reader is not None and not reader.continues_to(part, fields):
        reader.close()
        reader = None
    reader = reader or _Reader(part, fields)
    try:
        yield reader
    except BaseException:
        reader.close()
        raise
    if reader.is_at_end or _KEPT:
        reader.close()
    else:
        _KEPT.append(reader)


@contextlib.contextmanager
def _opened(part: Part) -> Iterator[list[pq.ParquetFile]]:
    """Yield the file, and where it has lists of a fixed size, once more with these as plain lists.

    Arrow reads no nulls among lists of a fixed size. That a list is one is told by the Arrow schema that writers leave
    beside Parquet's own; without it, durations and zones were lost, so the other columns are read with it.
    """
    with contextlib.ExitStack() as opened:
        raw = opened.enter_context(open_bytes(part.base, part.path))
        files = [_parquet(raw)]
        if any(map(_has_fixed_lists, files[0].schema_arrow.types)):
            again = opened.enter_context(open_bytes(part.base, part.path))
            files.append(pq.ParquetFile(again, metadata=_own_metadata(again), **_READING))
        yield files


def _own_metadata(raw: BinaryIO) -> pq.FileMetaData:
    """Return the metadata of a file without the Arrow schema."""
    raw.seek(-8, io.SEEK_END)
    end = raw.read(8)
    raw.seek(-8 - int.from_bytes(end[:4], "little"), io.SEEK_END)
    footer = raw.read()[:-8].replace(b"ARROW:schema", b"other:schema")
    return pq.read_metadata(io.BytesIO(b"PAR1" + footer + end))


def _has_fixed_lists(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_fixed_lists(kind.storage_type)
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return bool(pa.types.is_fixed_size_list(kind)) or any(map(_has_fixed_lists, inner))


def unreadable_rows(part: Part, schema: pa.Schema, fields: Fields) -> list[DeadLetter]:
    """Return a dead letter for each row if a column is of a type that cannot be what it is to be; none otherwise.

    That is one that the spec names and that cannot be read, or one without a form in JSON that would be a dynamic
    attribute.
    """
    problems = {field.name: problem for field in schema if (problem := _problem(field, fields))}
    name = next(iter(problems), None)
    if name is None:
        return []
    rows = range(part.first, part.first + (part.end or 0) - part.start)
    return [
        DeadLetter(reason="malformed", source=part.source, row=row, field=name,
                   message=f"{name}: {problems[name]}")
        for row in rows
    ]  # fmt: skip


def _problem(field: pa.Field, fields: Fields) -> str | None:
    """Return why a column cannot be what it is to be; None if it can, or is not used."""
    if field.name in fields.names:
        return unreadable(field)
    is_dynamic = fields.dynamic and field.name not in fields.attributes and may_be_dynamic(field.name)
    if not is_dynamic or (unreadable(field) is None and has_json_form(field.type)):
        return None
    return (
        f"a column of {field.type} has no form in JSON, so it is no dynamic attribute; declare an attribute for it (a "
        "string, if it is UTF-8), or leave it out of the input"
    )


def _of_group(files: Sequence[pq.ParquetFile], group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a row group in batches, each column from the last of the files that can read it."""
    schema = files[0].schema_arrow
    fixed = {field.name for field in schema if _has_fixed_lists(field.type)}
    parts = [[name for name in names if name not in fixed], [name for name in names if name in fixed]]
    file_parts = [(file, part) for file, part in zip(files, parts, strict=False) if part or file is files[0]]
    batches = [file.iter_batches(BATCH_ROWS, row_groups=[group], columns=part) for file, part in file_parts]
    for pieces in zip(*batches, strict=True):
        if len({piece.num_rows for piece in pieces}) > 1:
            raise DamagedError("its columns have different numbers of rows")
        columns = [column for piece in pieces for column in piece.columns]
        yield pa.record_batch(columns, names=[name for piece in pieces for name in piece.schema.names])


def chosen_columns(schema: pa.Schema, fields: Fields) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the columns that are read, and of those that the spec does not name."""
    single_fields = dataclasses.replace(fields, whole=False)
    can_be_read = {field.name: unreadable(field) is None for field in schema}
    is_named = {
        field.name: field.name in fields.names
        or (single_fields.reads(field.name) and can_be_read[field.name])
        for field in schema
    }
    unread = tuple(name for name in schema.names if not is_named[name])
    selected = can_be_read if fields.whole else is_named
    return [name for name in schema.names if selected[name]], unread


def sliced(batches: Iterable[pa.RecordBatch], first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows `first` to `last` of batches."""
    for batch in batches:
        part = batch.slice(max(first, 0), max(min(last, len(batch)) - max(first, 0), 0))
        if len(part):
            yield part
        first, last = first - len(batch), last - len(batch)
        if last <= 0:
            return


def _avro_record(record: object, part: Part, row: int) -> Record | DeadLetter:
    if not isinstance(record, dict):
        return DeadLetter(reason="malformed", source=part.source, row=row, message="must be an Avro record")
    return Record(record, part.source, row=row)
