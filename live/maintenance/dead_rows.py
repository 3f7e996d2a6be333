"""Which rows of a version mutations remove: found by the ids of its segments alone, some segments at a time.

Shapes: N rows of a segment, R rows that die.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer import Manifest, SegmentEntry, Store, read_live_mask, read_row_ids
from scannery.live.unsealed import UnsealedChange

__all__ = ["DeadRows", "dead_rows"]

AT_ONCE = 4
"""Segments whose ids are read at once, since a bucket takes tens of milliseconds for each answer."""


@dataclass(frozen=True, slots=True, eq=False)
class DeadRows:
    """Rows of one segment that mutations replace or delete."""

    rows_R: np.ndarray
    """Their numbers, int64, ascending, without those that are deleted in the version."""
    documents: int
    """Number of distinct documents of the rows that are left."""


def dead_rows(store: Store, manifest: Manifest, change: UnsealedChange) -> dict[str, DeadRows]:
    """Return the rows that a change removes from a version, by key of the segment; only segments that lose some.

    A row dies in whichever shard it is: an upsert may give an id to a document of another shard.

    Args:
        store: the store.
        manifest: of the version.
        change: what the log changes in it.

    Raises:
        NotFoundError, CorruptError, FormatError, StoreError: the ids of a segment cannot be read.

    """
    gone, documents = _strings(change.ids), _strings(change.documents)
    find = partial(_of_segment, store, manifest.index, gone, documents)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = zip(manifest.segments, pool.map(find, manifest.segments), strict=True)
        return {entry.key: dead for entry, dead in found if dead is not None}


def _strings(texts: Sequence[str]) -> pa.Array:
    return pa.array(texts, pa.string())


def _of_segment(
    store: Store, index: str, gone: pa.Array, documents: pa.Array, entry: SegmentEntry
) -> DeadRows | None:
    rows = read_row_ids(store, index, entry)
    dead_N = _is_in(rows.ids, gone)
    if len(documents):
        dead_N |= _is_in(rows.documents, documents)
    alive_N = read_live_mask(store, index, entry) if dead_N.any() else None
    if alive_N is not None:
        dead_N &= alive_N
    if not dead_N.any():
        return None
    left_N = ~dead_N if alive_N is None else alive_N & ~dead_N
    left = pc.count_distinct(rows.documents.filter(pa.array(left_N))).as_py()
    return DeadRows(np.flatnonzero(dead_N), left)


def _is_in(column: pa.ChunkedArray, values: pa.Array) -> np.ndarray:
    found = pc.is_in(column, value_set=values.cast(column.type))
    mask_N: np.ndarray = found.to_numpy().copy()
    return mask_N
