"""Make few files of the many of a day that is over: a server with four workers writes 5,760 a day.

Rows are copied into a new file, and then the files that had them are removed; in between they are there twice, and
count once. A row that is forgotten meanwhile does not come back: if a file has changed or gone since it was read, the
new one is removed; and whoever forgets looks again until nothing is left.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Sequence
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.errors import NotFoundError
from scannery.indexer.store.object_store import Store
from scannery.indexer.traffic.day_files import DAY_PREFIX, KINDS
from scannery.indexer.traffic.rows import Kind

__all__ = ["merge_days"]

MIN_FILES = 16
"""Fewer files of a day stay as they are."""
FULL_BYTES = 16 << 20
"""Files from this size on stay as they are, and those that are merged have about this size together."""


def merge_days(store: Store, index: str, before: date) -> int:
    """Merge the files of the days before a date, and return the number of files that are gone.

    Raises:
        StoreError: a file cannot be read or written; what was merged stays.
        pa.ArrowException: a file is damaged.

    """
    return sum(_merge(store, kind, keys) for kind in KINDS for keys in _groups(store, index, kind, before))


def _groups(store: Store, index: str, kind: Kind, before: date) -> Iterator[list[str]]:
    """Yield keys of files to be merged, each with others of its day."""
    days: dict[str, list[tuple[str, int]]] = {}
    for item in store.list(f"{index}/{kind.FOLDER}"):
        folder = item.key.split("/")[-2]
        is_over = folder.startswith(DAY_PREFIX) and folder < f"{DAY_PREFIX}{before}"
        if is_over and item.key.endswith(".parquet") and item.size_bytes < FULL_BYTES:
            days.setdefault(folder, []).append((item.key, item.size_bytes))
    for files in days.values():
        group, size_bytes = list[str](), 0
        for key, file_bytes in files:
            group.append(key)
            size_bytes += file_bytes
            if size_bytes >= FULL_BYTES:
                yield group
                group, size_bytes = [], 0
        if len(group) >= MIN_FILES:
            yield group


def _merge(store: Store, kind: Kind, keys: Sequence[str]) -> int:
    try:
        stamps = [store.stamp(key) for key in keys]
        tables = [pq.read_table(pa.BufferReader(store.read(key)), schema=kind.SCHEMA) for key in keys]
    except NotFoundError:  # another process merges them, or their day was removed
        return 0
    sink = io.BytesIO()
    pq.write_table(pa.concat_tables(tables), sink, compression="zstd")
    # A name of its own: of two processes that merge the same files, the later one removes its file, and no other.
    merged = f"{keys[0].rpartition('/')[0]}/merged-{secrets.token_hex(8)}.parquet"
    store.write(merged, sink.getvalue())
    try:
        is_unchanged = [store.stamp(key) for key in keys] == stamps
    except NotFoundError:  # another process was quicker, or forgot all rows of a file
        is_unchanged = False
    if not is_unchanged:
        store.delete(merged)
        return 0
    for key in keys:
        store.delete(key)
    return len(keys) - 1
