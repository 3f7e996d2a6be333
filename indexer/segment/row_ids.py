"""The ids of a stored segment's rows, read without its vectors and texts.

They are a hundredth of a segment. So what only has to find rows reads little of a bucket, and fills no local cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.errors import CorruptError, IndexerError
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.segment.segment_files import check_format
from scannery.indexer.store.backend import check_size
from scannery.indexer.store.object_store import Store
from scannery.indexer.store.range_file import RangeFile
from scannery.indexer.versions.versions import segment_key

__all__ = ["RowIds", "read_row_ids"]


@dataclass(frozen=True, slots=True)
class RowIds:
    """Of all rows of a segment, deleted ones included, in row order."""

    ids: pa.ChunkedArray
    """The ids of the datapoints."""
    documents: pa.ChunkedArray
    """The ids of their documents."""


def read_row_ids(store: Store, index: str, entry: SegmentEntry) -> RowIds:
    """Return the ids of a segment's rows.

    Its SHA-256 is not compared, which would read all of it: each page that is read has a checksum.

    Args:
        store: the store.
        index: name of the index.
        entry: of the segment in a manifest.

    Raises:
        NotFoundError: the file is not in the store.
        CorruptError: it is damaged, or has another size or number of rows than in the manifest.
        FormatError: it has a later format.
        StoreError: it cannot be read.

    """
    key = segment_key(index, entry.key)
    check_size(key, store.size(key), entry.size_bytes)
    with _opened(store, key, entry) as file:
        check_format(file.schema_arrow, key)
        table = file.read(["id", "document_id"])
    if table.num_rows != entry.rows:
        raise CorruptError(f"{key} has {table.num_rows} rows, {entry.rows} in the manifest")
    return RowIds(table.column("id"), table.column("document_id"))


@contextlib.contextmanager
def _opened(store: Store, key: str, entry: SegmentEntry) -> Iterator[pq.ParquetFile]:
    source = RangeFile(store, key, entry.size_bytes)
    try:
        with pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True) as file:
            yield file
    except (pa.ArrowException, OSError, LookupError) as error:
        if isinstance(error, IndexerError):
            raise
        raise CorruptError(f"{key} is damaged: {error}") from error
