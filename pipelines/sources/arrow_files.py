"""Files of Arrow's IPC format: `.arrow`, `.feather` (version 2), `.ipc`, and streams, as data sets are cached in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa

from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources.batches import Batch, content_tag, row_ranges
from scannery.pipelines.sources.columns import BATCH_ROWS, chosen_columns, sliced, unreadable_rows
from scannery.pipelines.sources.locations import InputFile, open_bytes
from scannery.pipelines.sources.parts import DamagedError, Fields, Part

__all__ = ["read", "split"]

MAX_PARTS = 64
"""A file is read from its beginning, so n parts cost n/2 times its reading."""
_OLD = "Feather of version 1, which is obsolete: write the file again with `pyarrow.feather.write_feather`"
_ERRORS = (pa.ArrowException, OSError, EOFError, ValueError, KeyError, OverflowError, MemoryError)
"""What Arrow raises for damaged bytes; where they tell a huge size, it is MemoryError, before any memory is taken."""


def split(file: InputFile, limit: int) -> Iterator[Part]:
    """Yield ranges of rows of about `limit` bytes each; what is behind damage is a part with a `problem`."""
    rows, problem = 0, ""
    try:
        with open_bytes(file.base, file.path) as raw:
            for batch in _batches(raw, None):
                rows += batch.num_rows
    except DamagedError as error:
        problem = str(error)
    limit = max(limit, file.size_bytes // MAX_PARTS)
    yield from row_ranges(file, "arrow", rows, file.size_bytes, limit, content_tag(file))
    if problem:
        message = f"{problem}; nothing from row {rows + 1} on was read" if rows else problem
        yield Part(base=file.base, path=file.path, format="arrow", problem="damaged_file", message=message, records=0,
                   first=rows + 1)  # fmt: skip


def read(part: Part, fields: Fields) -> Iterator[Batch | DeadLetter]:
    """Yield the rows of a part in order, with the columns that `fields` names."""
    row = part.first
    try:
        with open_bytes(part.base, part.path) as raw:
            schema = _schema(raw)
            if letters := unreadable_rows(part, schema, fields):
                yield from letters
                return
            names, unread = chosen_columns(schema, fields)
            for batch in sliced(_batches(raw, names), part.start, part.end or 0):
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    rows = batch.slice(start, BATCH_ROWS)
                    yield Batch(rows, fields.vector, part.source, row, unread)
                    row += rows.num_rows
    except DamagedError as error:
        yield DeadLetter(reason="damaged_file", source=part.source, row=row,
                         message=f"{error}; rows {row} to {part.end} were not read")  # fmt: skip


def _schema(raw: BinaryIO) -> pa.Schema:
    try:
        return _opened(raw).schema
    except _ERRORS as error:
        raise DamagedError(f"not a readable Arrow file: {error}") from error


def _opened(raw: BinaryIO, options: pa.ipc.IpcReadOptions | None = None) -> pa.RecordBatchReader:
    raw.seek(0)
    head = bytes(raw.read(6))
    raw.seek(0)
    if head.startswith(b"FEA1"):
        raise DamagedError(_OLD)
    open_it = pa.ipc.open_file if head == b"ARROW1" else pa.ipc.open_stream
    return open_it(raw, options=options)


def _batches(raw: BinaryIO, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file; with the columns of some names, or None: without any.

    Raises:
        DamagedError: the bytes are not those of Arrow, or end early.

    """
    try:
        schema = _opened(raw).schema
        chosen = [number for number, name in enumerate(schema.names) if names is None or name in names]
        # Without columns, a batch would have no number of rows.
        options = pa.ipc.IpcReadOptions(included_fields=chosen[: None if names is not None else 1])
        reader = _opened(raw, options)
        count = getattr(reader, "num_record_batches", None)
        batches = iter(reader) if count is None else (reader.get_batch(number) for number in range(count))
        for batch in batches:
            batch.validate(full=True)  # offsets that point elsewhere would end the process
            yield batch
    except _ERRORS as error:
        raise DamagedError(f"not a readable Arrow file: {error}") from error
