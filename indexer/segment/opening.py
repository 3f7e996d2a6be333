"""Open a segment of a store through the local cache.

The ids of a stored segment's rows, and the rows that have expired, read without its vectors and texts.

They are a hundredth of a segment. So what only has to find rows reads little of a bucket, and fills no local cache.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scannery.indexer.errors import CorruptError, IndexerError, StoreError
from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.cache import Hold, SegmentCache
from scannery.indexer.segment.cold.cold_files import has_cold_data, unpack_cold
from scannery.indexer.segment.cold.cold_segment import ColdSegment
from scannery.indexer.segment.cold.cold_vectors import ColdReads
from scannery.indexer.segment.compact_segment import CompactSegment, is_compact, make_compact
from scannery.indexer.segment.named_vectors import NamedVectors
from scannery.indexer.segment.segment import Segment
from scannery.indexer.segment.segment_files import check_format
from scannery.indexer.spec.spec import ExpirySpec
from scannery.indexer.store.backend import check_size
from scannery.indexer.store.object_store import RangeFile, Store
from scannery.indexer.versions.versions import segment_key

__all__ = ["RowIds", "cached_folder", "open_segment", "read_expired", "read_row_ids", "unpacked_segment"]


_LOG = logging.getLogger(__name__)
_PARALLEL_FILES = 4
"""Files of a segment that are fetched side by side: its rows and its named vectors."""


def open_segment(
    store: Store, index: str, entry: SegmentEntry, cache: SegmentCache, cold: ColdReads | None = None
) -> Segment:
    """Return an open segment with its named vectors; what the local cache does not have is unpacked into it.

    Args:
        store: the store.
        index: name of the index.
        entry: of the segment in a manifest.
        cache: the local cache.
        cold: by which vectors are read from the store when they are needed; None: they are unpacked, too. Files of
            earlier releases are always unpacked: they do not tell where the pages of vectors are. So are vectors of few
            dimensions in a compact index, since they are not quantized.

    Raises:
        NotFoundError: the file is not in the store.
        CorruptError: its size or hash is not the one in the manifest, or it is not a segment.
        FormatError: it has a later format.
        StoreError: it cannot be read, or not be unpacked into the local cache (disk full, no permission).

    """
    if not entry.named:
        return _open_file(store, index, entry, cache, cold)
    parts = [entry, *entry.named.values()]
    with ThreadPoolExecutor(min(len(parts), _PARALLEL_FILES)) as pool:
        segment, *named = pool.map(lambda each: _open_file(store, index, each, cache, cold), parts)
    return segment.with_named(dict(zip(entry.named, map(NamedVectors, named), strict=True)))


def cached_folder(entry: SegmentEntry, cache: SegmentCache, cold: ColdReads | None = None) -> Path:
    """Return the folder of the local cache for a file of a segment, whether it is there or not."""
    return cache.folder / _cached_name(entry, cold)


@contextlib.contextmanager
def unpacked_segment(
    store: Store, index: str, entry: SegmentEntry, cache: SegmentCache, cold: ColdReads | None = None
) -> Iterator[Path]:
    """Give the folder of the local cache with the unpacked file of a segment; arguments and errors as `open_segment`.

    The files stay until the context ends.
    """
    key = segment_key(index, entry.key)
    with _explained(key):
        unpack = partial(_unpack, store, key, entry, _tier(entry, cold))
        held = cache.opened(_cached_name(entry, cold), unpack, size_bytes=_read_bytes(entry, cold))
        folder = held.__enter__()
    try:
        yield folder
    finally:
        held.__exit__(None, None, None)


_Tier = Literal["full", "compact", "cold"]
"""What the local cache has of the vectors of a file: all, those in 8 bits a number, or none."""


def _tier(entry: SegmentEntry, cold: ColdReads | None) -> _Tier:
    if cold is None or not has_cold_data(entry):
        return "full"
    if not cold.compact:
        return "cold"
    return "compact" if entry.vectors else "full"


def _cached_name(entry: SegmentEntry, cold: ColdReads | None) -> str:
    tier = _tier(entry, cold)
    return entry.sha256 if tier == "full" else f"{entry.sha256}-{tier}"


def _read_bytes(entry: SegmentEntry, cold: ColdReads | None) -> int:
    """Return the bytes of the file that are on the disk while it is unpacked."""
    return 0 if _tier(entry, cold) == "cold" else entry.size_bytes


def _open_file(
    store: Store, index: str, entry: SegmentEntry, cache: SegmentCache, cold: ColdReads | None
) -> Segment:
    key, tier = segment_key(index, entry.key), _tier(entry, cold)
    if cold is not None and not has_cold_data(entry):
        _LOG.warning("%s is of an earlier release: all of it is in the local cache", key)
    unpacked: list[Path] = []

    def unpack(folder: Path) -> None:
        unpacked.append(folder)
        _unpack(store, key, entry, tier, folder)

    with (
        _explained(key),
        cache.opened(_cached_name(entry, cold), unpack, size_bytes=_read_bytes(entry, cold)) as folder,
    ):
        if tier == "cold" or not unpacked:
            check_size(key, store.size(key), entry.size_bytes)
        with COMPILING:
            segment = _opened(store, key, entry, folder, cold)
            segment.hold = Hold(folder)
            _time_plans(segment)
        return segment


def _opened(store: Store, key: str, entry: SegmentEntry, folder: Path, cold: ColdReads | None) -> Segment:
    tier = _tier(entry, cold)
    if cold is not None and tier == "cold":
        return ColdSegment(entry, folder, store, key, cold)
    if cold is not None and tier == "compact" and is_compact(folder):
        return CompactSegment(entry, folder, store, key, cold)
    return Segment(entry, folder)


def _time_plans(segment: Segment) -> None:
    """Time the plans unless their costs on this kind of processor are known, and keep the less disturbed costs."""
    if segment.planner is None:
        return
    plan_times = segment.planner.book.timed
    if plan_times is None or plan_times.disturbed:
        segment.time_plans_again()


def _unpack(store: Store, key: str, entry: SegmentEntry, tier: _Tier, folder: Path) -> None:
    """Check a segment file, and unpack what the local cache has of it into a folder."""
    if tier == "cold":
        unpack_cold(store, key, entry, folder)
        return
    with store.open_checked(key, sha256=entry.sha256, size_bytes=entry.size_bytes, folder=folder) as path:
        files.unpack(path, folder, key)
    if tier == "compact":
        make_compact(store, key, entry, folder)


@contextlib.contextmanager
def _explained(key: str) -> Iterator[None]:
    """Turn errors of the system, and of the libraries that read a segment, into an IndexerError."""
    try:
        yield
    except IndexerError:
        raise
    except OSError as error:
        if error.errno is None:  # raised by Arrow for the content of the file
            raise CorruptError(f"{key} is not a segment: {error}") from error
        raise StoreError(
            f"{key} cannot be opened through the cache of segments (SCANNERY_CACHE_DIR): {error.strerror}"
        ) from error
    except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
        if isinstance(error, MemoryError):
            raise
        raise CorruptError(f"{key} is not a segment: {type(error).__name__}: {error}") from error


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
    with _opened_file(store, key, entry) as file:
        check_format(file.schema_arrow, key)
        table = file.read(["id", "document_id"])
    if table.num_rows != entry.rows:
        raise CorruptError(f"{key} has {table.num_rows} rows, {entry.rows} in the manifest")
    return RowIds(table.column("id"), table.column("document_id"))


def read_expired(
    store: Store, index: str, entry: SegmentEntry, expiry: ExpirySpec, second: int
) -> np.ndarray:
    """Return the rows of a stored segment that have expired at a second since 1970, bool (N,), deleted ones included.

    Of a column of times, the parts are read whose least time has passed. Otherwise as `read_row_ids`.
    """
    key, limit_us = segment_key(index, entry.key), expiry.limit_us(second)
    check_size(key, store.size(key), entry.size_bytes)
    expired_N = np.zeros(entry.rows, bool)
    with _opened_file(store, key, entry) as file:
        check_format(file.schema_arrow, key)
        column = file.schema_arrow.get_field_index(expiry.path)
        leaves = [file.schema.column(number).path for number in range(len(file.schema))]
        if column < 0 or expiry.path not in leaves:  # declared since the segment was written
            return expired_N
        start = 0
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            statistics = group.column(leaves.index(expiry.path)).statistics
            stop = start + group.num_rows
            if statistics is None or not statistics.has_min_max or _microseconds(statistics.min) <= limit_us:
                times = file.read_row_group(number, [expiry.path]).column(0).cast(pa.int64())
                expired_N[start:stop] = pc.fill_null(pc.less_equal(times, limit_us), False).to_numpy()
            start = stop
    return expired_N


def _microseconds(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=moment.tzinfo)) // dt.timedelta(microseconds=1)


@contextlib.contextmanager
def _opened_file(store: Store, key: str, entry: SegmentEntry) -> Iterator[pq.ParquetFile]:
    source = RangeFile(store, key, entry.size_bytes)
    try:
        with pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True) as file:
            yield file
    except (pa.ArrowException, OSError, LookupError) as error:
        if isinstance(error, IndexerError):
            raise
        raise CorruptError(f"{key} is damaged: {error}") from error
