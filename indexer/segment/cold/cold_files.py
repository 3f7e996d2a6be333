"""The folder of a cold segment in the local cache: all columns but the vectors, and where the pages of these are.

It is made by reading ranges of the segment file: its checked end, and the chunks of the columns, whose pages have
checksums.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.datapoints.row_records import write_records
from scannery.indexer.errors import CorruptError
from scannery.indexer.hashes import sorted_hashes
from scannery.indexer.lexical.bm25 import WORD_COLUMNS
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.planning.leaves import unpack_leaves
from scannery.indexer.scann.assets import LEAF_COLUMN, NATIVE_COLUMNS
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.pages import find_pages, read_tail
from scannery.indexer.segment.segment_writer import SEGMENT_KEY
from scannery.indexer.store.object_store import ReadOnlyFile, Store
from scannery.indexer.vectors.exact_search import write_ties
from scannery.indexer.vectors.vector_files import no_vectors

if TYPE_CHECKING:
    pass

__all__ = ["PAGES", "has_cold_data", "unpack_cold"]

PAGES = "pages.npy"
_PARALLEL_GROUPS = 8
"""Row groups whose columns are read side by side."""
_GAP_BYTES = 1 << 16
"""Chunks of columns that are no further apart are one request."""


def has_cold_data(entry: SegmentEntry) -> bool:
    """Return whether a file says enough of its vectors to be opened without them."""
    return entry.tail is not None


def unpack_cold(store: Store, key: str, entry: SegmentEntry, folder: Path) -> None:
    """Write the parts of a segment file but its vectors and words into a folder.

    Args:
        store: with the file.
        key: of the file.
        entry: of the segment in a manifest, which `has_cold_data`.
        folder: an empty folder.

    Raises:
        NotFoundError, StoreError: it cannot be read.
        FormatError: the file has a later format.
        CorruptError: a part of it is damaged.

    """
    tail = read_tail(store, key, entry)
    assert entry.tail is not None
    metadata = pq.read_metadata(pa.BufferReader(tail))  # which is read from its end
    schema = metadata.schema.to_arrow_schema()
    files.check_format(schema, key)
    info = json.loads(schema.metadata[SEGMENT_KEY])
    if metadata.num_rows != entry.rows:
        raise CorruptError(f"{key} has {metadata.num_rows} rows, {entry.rows} in the manifest")
    dimensions = 0
    if info.get("vectors", True):
        dimensions = schema.field("embedding").type.list_size
        find_pages(tail, entry.tail.start, key, entry.rows).save(folder / PAGES)
    left_out = {"embedding", *NATIVE_COLUMNS, *WORD_COLUMNS} - {LEAF_COLUMN}
    names = [name for name in schema.names if name not in left_out]
    table = _columns(store, key, metadata, names)
    if info["scann"]:
        leaf_N = table.column(LEAF_COLUMN).to_numpy()
        unpack_leaves(info["leaves"], leaf_N, dimensions).save(folder / files.LEAVES)
        table = table.drop_columns([LEAF_COLUMN])
    _write_columns(table, folder)
    about = {
        "distance": info["distance"],
        "leaves": info["scann"]["config"]["leaves"] if info["scann"] else 0,
        "dimensions": dimensions,
        "unit": info["unit"],
        "attributes": files.write_attributes(table, folder),
    }
    (folder / files.INFO).write_text(json.dumps(about))


def _write_columns(table: pa.Table, folder: Path) -> None:
    ids, documents = table.column("id"), table.column("document_id")
    write_ties(no_vectors(table.num_rows), ids, folder / files.TIES, proposed=False)
    write_records(table, folder / files.COLUMNS)
    np.save(folder / files.HASHES, sorted_hashes(ids))
    if not ids.equals(documents):
        np.save(folder / files.DOCUMENTS, sorted_hashes(documents))


def _columns(store: Store, key: str, metadata: Any, names: Sequence[str]) -> pa.Table:
    """Return columns of the file, row group by row group; `metadata` is pyarrow's, which has no types."""

    def read(group: int) -> pa.Table:
        file = _Ranges()
        for start, end in _joined_ranges(_chunks(metadata.row_group(group), names)):
            file.add(start, store.map_range(key, start, end - start))
        opened = pq.ParquetFile(
            pa.PythonFile(file, mode="r"), metadata=metadata, page_checksum_verification=True
        )
        return opened.read_row_group(group, columns=list(names), use_threads=False)

    with ThreadPoolExecutor(_PARALLEL_GROUPS, "scannery-columns") as pool:
        return pa.concat_tables(pool.map(read, range(metadata.num_row_groups)))


def _chunks(group: Any, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the range of bytes of each chunk of some columns in a row group, in the order of the file."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema.partition(".")[0] in names:
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            yield start, start + chunk.total_compressed_size


def _joined_ranges(ranges: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges with those joined that are next to each other."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start - joined[-1][1] <= _GAP_BYTES:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


class _Ranges(ReadOnlyFile):
    """A file of which some ranges are known, and no others are read."""

    def __init__(self) -> None:
        super().__init__(0)
        self._ranges: list[tuple[int, memoryview]] = []

    def add(self, start: int, data: memoryview) -> None:
        """Make the bytes from a place on known."""
        self._ranges.append((start, data))
        self._size = max(self._size, start + len(data))

    def range_of(self, start: int, length: int) -> memoryview:
        """Return known bytes; CorruptError if they are not."""
        for first, data in self._ranges:
            at = start - first
            if at >= 0 and at + length <= len(data):
                return data[at : at + length]
        raise CorruptError(f"bytes {start} to {start + length} of a segment are not those of its columns")
