"""Tombstones: files that name the deleted rows of a segment.

A segment never changes, so versions can share it. The rows that a version deletes from it are in a separate file,
`deletes/<sha256>.parquet`, with one column `row` (uint32, ascending). Equal rows give the same file, so two builds that
delete the same rows write the same file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.errors import CorruptError
from scannery.indexer.manifest import DeletedRows, Manifest, SegmentEntry
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import expected_recall
from scannery.indexer.versions.versions import segment_key

__all__ = ["next_version", "read_deleted", "read_live_mask", "with_deleted"]

_SCHEMA = pa.schema([pa.field("row", pa.uint32(), nullable=False)])


def read_deleted(store: Store, index: str, entry: SegmentEntry) -> np.ndarray:
    """Return the deleted rows of a segment, int64, ascending; empty if it has none.

    Raises:
        NotFoundError: the file is not in the store.
        CorruptError: its content does not match the manifest.

    """
    deleted = entry.deleted
    if deleted is None:
        return np.empty(0, np.int64)
    key = segment_key(index, deleted.key)
    data = store.read(key)
    if len(data) != deleted.size_bytes or hashlib.sha256(data).hexdigest() != deleted.sha256:
        raise CorruptError(f"{key} is damaged: its size or SHA-256 is not the one in the manifest")
    column = pq.read_table(pa.BufferReader(data), columns=["row"]).column("row")
    rows_R: np.ndarray = column.to_numpy().astype(np.int64)
    ascends = bool((np.diff(rows_R) > 0).all())
    if len(rows_R) != deleted.rows or not ascends or (len(rows_R) and rows_R[-1] >= entry.rows):
        raise CorruptError(f"{key} does not name {deleted.rows} of the {entry.rows} rows of {entry.key}")
    return rows_R


def read_live_mask(store: Store, index: str, entry: SegmentEntry) -> np.ndarray | None:
    """Return a mask of the rows of a segment that are not deleted, bool (rows,), read-only; None if none is deleted.

    Raises:
        NotFoundError, CorruptError: as `read_deleted`.

    """
    if entry.deleted is None:
        return None
    mask_N = np.ones(entry.rows, bool)
    mask_N[read_deleted(store, index, entry)] = False
    mask_N.setflags(write=False)
    return mask_N


def with_deleted(
    store: Store,
    index: str,
    entry: SegmentEntry,
    rows: Sequence[int] | np.ndarray,
    *,
    documents: int | None = None,
) -> SegmentEntry:
    """Return the entry of a segment with further deleted rows, after writing their file.

    Args:
        store: the store.
        index: name of the index.
        entry: the segment, with its rows that are deleted already.
        rows: row numbers in any order; deleted ones are allowed.
        documents: number of distinct documents that are left; None: unknown.

    Raises:
        ValueError: the segment does not have a row.

    """
    wanted_R = np.asarray(rows, np.int64)
    if len(wanted_R) and not 0 <= wanted_R.min() <= wanted_R.max() < entry.rows:
        raise ValueError(f"rows of {entry.key} must be 0 to {entry.rows - 1}, got {wanted_R.tolist()[:10]}")
    before_R = read_deleted(store, index, entry)
    rows_R = np.union1d(before_R, wanted_R)
    if len(rows_R) == len(before_R):
        return entry
    data = _encoded(rows_R)
    sha256 = hashlib.sha256(data).hexdigest()
    deleted = DeletedRows(
        key=f"deletes/{sha256}.parquet", rows=len(rows_R), size_bytes=len(data), sha256=sha256
    )
    store.write(segment_key(index, deleted.key), data)
    return entry.model_copy(update={"deleted": deleted, "documents": documents})


def next_version(
    store: Store,
    parent: Manifest,
    *,
    added: Iterable[SegmentEntry] = (),
    dead_rows: Mapping[str, Sequence[int] | np.ndarray],
    log_sequence: int,
    documents: Mapping[str, int] | None = None,
) -> Manifest:
    """Return the manifest of the next version after some mutations, ready to `commit`.

    Segments without live rows are dropped. Only files of deleted rows are written; the segments in `added` must be in
    the store.

    Args:
        store: the store.
        parent: the version that the mutations are applied to.
        added: segments with new rows.
        dead_rows: by key of a segment (of the parent or added), its rows that are deleted or replaced, besides those
            that are deleted in the parent.
        log_sequence: the result includes mutations up to this one.
        documents: by key of a segment with dead rows, the number of distinct documents that are left, if known.

    Raises:
        ValueError: unknown key, unknown row, or a sequence below that of the parent.

    """
    if log_sequence < parent.log_sequence:
        raise ValueError(f"log_sequence must be at least {parent.log_sequence}, got {log_sequence}")
    entries = [*parent.segments, *added]
    unknown = dead_rows.keys() - {entry.key for entry in entries}
    if unknown:
        raise ValueError(f"dead_rows: the version has no segment {', '.join(sorted(unknown))}")
    counts = documents or {}
    entries = [
        with_deleted(
            store, parent.index, entry, dead_rows.get(entry.key, ()), documents=counts.get(entry.key)
        )
        for entry in entries
    ]
    remaining = tuple(entry for entry in entries if entry.live_rows)
    queries_key = parent.recall.given_queries if parent.recall else None
    return parent.model_copy(
        update={
            "parent": parent.version,
            "segments": remaining,
            "log_sequence": log_sequence,
            "recall": expected_recall(remaining, parent.spec.target_recall, given_queries=queries_key),
        }
    )


def _encoded(rows_R: np.ndarray) -> bytes:
    table = pa.table([pa.array(rows_R.astype(np.uint32))], schema=_SCHEMA)
    sink = pa.BufferOutputStream()
    # Differences of ascending numbers are small: about a byte per row.
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=False,
        column_encoding={"row": "DELTA_BINARY_PACKED"}, write_page_checksum=True, store_schema=False,
    )  # fmt: skip
    return bytes(sink.getvalue())
