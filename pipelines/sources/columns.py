"""Parquet and Avro."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources.batches import Batch
from scannery.pipelines.sources.locations import InputFile, open_bytes
from scannery.pipelines.sources.parts import DamagedError, Fields, Part, Record
from scannery.pipelines.sources.ranges import content_tag, row_ranges

__all__ = [
    "BATCH_ROWS",
    "chosen_columns",
    "read_avro",
    "read_parquet",
    "sliced",
    "split_avro",
    "split_parquet",
]

BATCH_ROWS = 4096
MAX_RANGES_OF_A_GROUP = 32


def split_parquet(file: InputFile, limit: int) -> Iterator[Part]:
    """Yield ranges of rows of about `limit` uncompressed bytes each, each within one row group."""
    with open_bytes(file.base, file.path) as raw:
        metadata = _parquet(raw).metadata
    digest, begin = content_tag(file), 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        # A row group is decoded from its start, so n ranges of it cost n/2 times its decoding.
        wanted = max(limit, group.total_byte_size // MAX_RANGES_OF_A_GROUP)
        yield from row_ranges(file, "parquet", group.num_rows, group.total_byte_size, wanted, digest, begin)
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
    """Yield the rows of a part in order, with the columns that `fields` names."""
    row = part.first
    try:
        with open_bytes(part.base, part.path) as raw:
            file = _parquet(raw)
            _, others = chosen_columns(file.schema_arrow, fields)
            for columns in _batches(file, part, fields):
                yield Batch(columns, fields.vector, part.source, row, others)
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
        return pq.ParquetFile(raw, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"not a readable Parquet file: {error}") from error


def _batches(file: pq.ParquetFile, part: Part, fields: Fields) -> Iterator[pa.RecordBatch]:
    columns, _ = chosen_columns(file.schema_arrow, fields)
    begin = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        first, last = max(part.start - begin, 0), min((part.end or 0) - begin, rows)
        if first < last:
            yield from sliced(file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns), first, last)
        begin += rows


def chosen_columns(schema: pa.Schema, fields: Fields) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the columns that are read, and of those that the spec does not name."""
    own = dataclasses.replace(fields, whole=False)
    is_named = {
        field.name: field.name in fields.names
        or (own.reads(field.name) and (_has_json_form(field.type) or not fields.dynamic))
        for field in schema
    }
    others = tuple(name for name in schema.names if not is_named[name])
    return [name for name in schema.names if fields.whole or is_named[name]], others


def _has_json_form(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return all(_has_json_form(kind.field(place).type) for place in range(kind.num_fields))
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return not (binary or pa.types.is_duration(kind))


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
