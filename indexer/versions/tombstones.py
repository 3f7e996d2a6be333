"""Tombstones: which rows of a segment are no longer part of the index.

A segment never changes, so that it can be shared by versions and trained once. What an update removes from it is
named by a file beside it, which belongs to a version: `deletes/<sha256>.parquet`, one column `row` (uint32,
ascending). The same rows make the same file, so that two builds which remove the same write the same.
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
        CorruptError: it is not what the manifest says.

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
    """Return which rows of a segment are part of the index, bool (rows,), read-only; None if all are.

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
    """Return the entry with further rows deleted, whose names are in the store when this returns.

    Args:
        store: where the file is written.
        index: the index.
        entry: the segment; rows that it has deleted already stay so.
        rows: row numbers, in any order, also such that are deleted already.
        documents: distinct documents that are left, if the caller knows.

    Raises:
        ValueError: a row number that the segment does not have.

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
    """Return what follows a version after some mutations, ready to `commit`: more segments, fewer rows of the old ones.

    Segments without any row left are dropped. Nothing but the files that name deleted rows is written; the segments
    in `added` must be in the store.

    Args:
        store: where the index lives.
        parent: the version that the mutations came upon.
        added: segments with the new rows.
        dead_rows: by key of a segment (of the parent or added), the rows that are deleted or replaced, besides those
            that the parent has deleted already.
        log_sequence: mutations up to this one are in the result.
        documents: by key of a segment with dead rows, the distinct documents that are left, where the caller knows.

    Raises:
        ValueError: a key or row that there is not, or a sequence before the parent's.

    """
    if log_sequence < parent.log_sequence:
        raise ValueError(f"log_sequence must be at least {parent.log_sequence}, got {log_sequence}")
    entries = [*parent.segments, *added]
    unknown = dead_rows.keys() - {entry.key for entry in entries}
    if unknown:
        raise ValueError(f"dead_rows: the version has no segment {', '.join(sorted(unknown))}")
    known = documents or {}
    entries = [
        with_deleted(store, parent.index, entry, dead_rows.get(entry.key, ()), documents=known.get(entry.key))
        for entry in entries
    ]
    left = tuple(entry for entry in entries if entry.live_rows)
    given = parent.recall.given_queries if parent.recall else None
    return parent.model_copy(
        update={
            "parent": parent.version,
            "segments": left,
            "log_sequence": log_sequence,
            "recall": expected_recall(left, parent.spec.target_recall, given_queries=given),
        }
    )


def _encoded(rows_R: np.ndarray) -> bytes:
    table = pa.table([pa.array(rows_R.astype(np.uint32))], schema=_SCHEMA)
    sink = pa.BufferOutputStream()
    # Differences of ascending numbers are small: about a byte a row.
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=False,
        column_encoding={"row": "DELTA_BINARY_PACKED"}, write_page_checksum=True, store_schema=False,
    )  # fmt: skip
    return bytes(sink.getvalue())
