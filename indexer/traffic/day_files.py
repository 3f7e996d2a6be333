"""The files of the log in a store: `INDEX/traffic/day=2026-11-29/<holder>-<n>.parquet`, events below `INDEX/feedback/`.

A file is written once, whole, by one holder: a process with a name of its own. Days are those of UTC, and the folders
of a table as DuckDB, Polars and Spark read them. A reader may meet a row twice, while days are being rewritten: rows
are counted once by their key.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.errors import CorruptError, NotFoundError
from scannery.indexer.store.object_store import Store
from scannery.indexer.traffic.rows import Kind, LoggedEvent, LoggedQuery, LoggedRow, ShadowAnswer, day_of

__all__ = [
    "DAY_PREFIX",
    "KINDS",
    "days_of",
    "file_of_rows",
    "read_file",
    "read_rows",
    "remove_days",
    "write_rows",
]

RowT = TypeVar("RowT", LoggedQuery, ShadowAnswer, LoggedEvent)

KINDS: tuple[Kind, ...] = (LoggedQuery, ShadowAnswer, LoggedEvent)
DAY_PREFIX = "day="


def write_rows(store: Store, index: str, rows: Sequence[LoggedRow], name: str) -> int:
    """Write rows of an index, those of each kind and day as a file of this name; return the number of files.

    Raises:
        StoreError: a file cannot be written; others may have been.

    """
    parts: dict[tuple[str, date], list[LoggedRow]] = defaultdict(list)
    for row in rows:
        parts[row.FOLDER, day_of(row)].append(row)
    for (folder, day), part in parts.items():
        store.write(f"{index}/{folder}/{DAY_PREFIX}{day}/{name}.parquet", file_of_rows(part))
    return len(parts)


def file_of_rows(rows: Sequence[LoggedRow]) -> bytes:
    """Return some rows of one kind as a Parquet file."""
    schema: pa.Schema = rows[0].SCHEMA
    columns = [[getattr(row, name) for row in rows] for name in schema.names]
    table = pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def days_of(store: Store, index: str, kind: Kind) -> dict[date, list[str]]:
    """Return the keys of the files of a kind by day, both ascending."""
    days: dict[date, list[str]] = defaultdict(list)
    for item in store.list(f"{index}/{kind.FOLDER}"):
        if item.key.endswith(".parquet") and (day := _day(item.key)) is not None:
            days[day].append(item.key)
    return dict(sorted(days.items()))


def read_rows(store: Store, index: str, kind: type[RowT], *, since: date | None = None) -> Iterator[RowT]:
    """Yield the rows of a kind, each once, day by day from `since` on.

    Raises:
        CorruptError: a file is damaged; names it.
        StoreError: it cannot be read.

    """
    seen: set[tuple[str, ...]] = set()
    for day, keys in days_of(store, index, kind).items():
        if since is not None and day < since:
            continue
        # Feedback is taken for 24 hours: what is sent again may be on the next day.
        seen_before, seen = seen, set()
        for row in _rows_of_day(store, index, kind, day, keys):
            if row.key not in seen and row.key not in seen_before:
                seen.add(row.key)
                yield row


def _rows_of_day(
    store: Store, index: str, kind: type[RowT], day: date, keys: Sequence[str]
) -> Iterator[RowT]:
    """Yield the rows of a day, also where they are moved into other files meanwhile; some may come twice."""
    tried: set[str] = set()
    while keys:
        has_moved = False
        for key in keys:
            try:
                rows = read_file(store, key, kind)
            except NotFoundError:  # the day was removed, or its rows are in a new file
                has_moved = True
            else:
                yield from rows
        tried.update(keys)
        files = days_of(store, index, kind).get(day, []) if has_moved else []
        keys = [key for key in files if key not in tried]


def read_file(store: Store, key: str, kind: type[RowT]) -> list[RowT]:
    """Return the rows of a file; raises as `read_rows`, and NotFoundError."""
    try:
        table = pq.read_table(pa.BufferReader(store.read(key)), columns=kind.SCHEMA.names)
        return [kind(**record) for record in table.cast(kind.SCHEMA).to_pylist()]
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise CorruptError(f"{key} is no file of the log of queries: {error}") from error


def remove_days(store: Store, index: str, before: date, kinds: Iterable[Kind] = KINDS) -> int:
    """Remove the days before a date, and return the number of files."""
    files = 0
    for kind in kinds:
        for day, keys in days_of(store, index, kind).items():
            if day < before:
                for key in keys:
                    store.delete(key)
                files += len(keys)
                store.remove_empty_folders(f"{index}/{kind.FOLDER}/{DAY_PREFIX}{day}")
    return files


def _day(key: str) -> date | None:
    """Return the day in the key of a file; None: its folder has no such name."""
    folder = key.split("/")[-2]
    try:
        return date.fromisoformat(folder.removeprefix(DAY_PREFIX)) if folder.startswith(DAY_PREFIX) else None
    except ValueError:
        return None
