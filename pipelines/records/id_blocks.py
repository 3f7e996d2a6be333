"""Blocks of ids: which ids some rows have and where the rows are, as bytes that are shuffled by ranges of id hashes.

A block has the ids themselves, not only their hashes: the range that gets them then compares ids without reading any
file. For a million ids such as `episode-00001234#7` that is 12 bytes a row after compression; 8-byte hashes in their
place would make it 14, as they do not compress (docs/benchmarks/scale.md).

Shapes: N rows.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scannery.indexer.hashes import id_hashes

__all__ = ["OLD", "IdBlock"]

OLD = -1
"""`ordinal` of blocks with rows of the parent version."""

_HEADER = struct.Struct("<qqq")
_CODEC = "zstd"


class IdBlock(NamedTuple):
    """Ids of rows of one unit, or of one segment of the parent version."""

    ordinal: int
    """Position of the unit in the input, or `OLD`."""

    ids: pa.Array
    """Strings (N,)."""

    shards_N: np.ndarray
    """Shard of each row, int32, ascending."""

    records_N: np.ndarray
    """Number of each row's record in the unit, int32; of old rows: 1 if a live update wrote it during the build."""

    rows_N: np.ndarray
    """Number of each row among the unit's rows of its shard, int32."""

    @classmethod
    def of_unit(cls, table: pa.Table, shard_N: np.ndarray) -> IdBlock:
        """Return the block of a unit's rows, which are in input order (`embeddings_schema`), with the shard of each."""
        order_N = np.argsort(shard_N, kind="stable")
        sorted_N = shard_N[order_N]
        firsts_N = np.searchsorted(sorted_N, sorted_N)
        return cls(
            0,
            _combined(table.column("id")).take(pa.array(order_N)),
            sorted_N.astype(np.int32),
            table.column("_record").to_numpy()[order_N].astype(np.int32),
            (np.arange(len(order_N)) - firsts_N).astype(np.int32),
        )

    @classmethod
    def of_rows(cls, ordinal: int, shard: int, ids: pa.ChunkedArray, records_N: np.ndarray) -> IdBlock:
        """Return the block of all rows of one shard in a unit, or of one segment."""
        rows_N = np.arange(len(ids), dtype=np.int32)
        shards_N = np.full(len(ids), shard, np.int32)
        return cls(ordinal, _combined(ids), shards_N, records_N.astype(np.int32), rows_N)

    def by_range(self, ranges: int) -> Iterator[tuple[int, IdBlock]]:
        """Yield the rows of each range of id hashes that has some: ranges 0 to `ranges - 1`, each an equal share."""
        if ranges == 1 or not len(self.ids):
            if len(self.ids):
                yield 0, self
            return
        # The upper bits: shards are chosen by the lower bits of the same hash.
        range_N = (id_hashes(self.ids.to_pylist()) >> np.uint64(32)) * np.uint64(ranges) >> np.uint64(32)
        order_N = np.argsort(range_N, kind="stable")
        starts = np.searchsorted(range_N[order_N], np.arange(ranges + 1, dtype=np.uint64)).tolist()
        whole = self.taken(order_N)
        for number, (start, end) in enumerate(itertools.pairwise(starts)):
            if end > start:
                yield number, whole.sliced(start, end)

    def taken(self, rows_N: np.ndarray) -> IdBlock:
        """Return some of the rows, in the given order."""
        columns = (values[rows_N] for values in self[2:])
        return IdBlock(self.ordinal, self.ids.take(pa.array(rows_N)), *columns)

    def sliced(self, start: int, end: int) -> IdBlock:
        """Return the rows from `start` to before `end`."""
        columns = (values[start:end] for values in self[2:])
        return IdBlock(self.ordinal, self.ids.slice(start, end - start), *columns)

    def to_bytes(self) -> bytes:
        """Return the block as bytes."""
        lengths_N, text = _texts(self.ids)
        # Differences of ascending numbers are small, so they compress to a byte or less.
        numbers = [np.diff(values, prepend=np.int32(0)) for values in self[2:]]
        raw = b"".join([*(part.tobytes() for part in (*numbers, lengths_N)), text])
        packed: bytes = pa.compress(raw, codec=_CODEC, asbytes=True)
        return _HEADER.pack(self.ordinal, len(self.ids), len(raw)) + packed

    @classmethod
    def from_bytes(cls, data: bytes) -> IdBlock:
        """Return the block that `to_bytes` wrote."""
        ordinal, rows, size = _HEADER.unpack_from(data)
        raw = pa.decompress(memoryview(data)[_HEADER.size :], size, codec=_CODEC)
        numbers_4N = np.frombuffer(raw, np.int32, 4 * rows).reshape(4, rows)
        shards_N, records_N, rows_N = np.cumsum(numbers_4N[:3], axis=1, dtype=np.int32)
        ends_N = np.concatenate([[0], np.cumsum(numbers_4N[3])]).astype(np.int32)
        buffers = [None, pa.py_buffer(ends_N), pa.py_buffer(raw)[16 * rows :]]
        ids = pa.Array.from_buffers(pa.string(), rows, buffers)
        return cls(ordinal, ids, shards_N, records_N, rows_N)


def _texts(ids: pa.Array) -> tuple[np.ndarray, bytes]:
    """Return the size of each text in bytes, int32 (N,), and all texts one after the other."""
    if not len(ids):
        return np.zeros(0, np.int32), b""
    _, offsets, data = ids.buffers()
    ends_N = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    text = b"" if data is None else memoryview(data)[int(ends_N[0]) : int(ends_N[-1])]
    return np.diff(ends_N), bytes(text)


def _combined(ids: pa.ChunkedArray | pa.Array) -> pa.Array:
    combined = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    return combined.cast(pa.string())
