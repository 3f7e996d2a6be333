"""The rows of an export, in parts of bounded size: those of a segment, and those of live updates."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scannery.indexer import CorruptError, SegmentEntry, Store, conformed, read_live_mask, segment_key
from scannery.indexer.datapoints.named_vectors import ROW_COLUMN, as_lists, named_column, vector_column
from scannery.indexer.local.scratch_folders import scratch_folder

__all__ = ["ExportRows", "LiveChange", "LiveRows", "SegmentRows"]

# Bytes of vectors in a batch; decoded, converted and encoded copies take about ten times that memory.
BATCH_BYTES = 1 << 24
MAX_BATCH_ROWS = 1 << 14
READ_BUFFER_BYTES = 1 << 20


class LiveChange(Protocol):
    """What live updates change in a version: rows of it die, then new rows are added."""

    @property
    def ids(self) -> Sequence[str]:
        """Rows of the version with these ids die."""

    @property
    def documents(self) -> Sequence[str]:
        """Rows of the version of these documents die."""

    @property
    def rows(self) -> pa.Table:
        """New rows, with at least the columns of `written_schema`."""

    @property
    def mutations(self) -> int:
        """Batches of live updates."""


class ExportRows(Protocol):
    """Rows of an export that go to one file together."""

    def tables(self) -> Iterator[pa.Table]:
        """Yield them in parts, with the columns of the schema."""


@dataclasses.dataclass(frozen=True)
class LiveRows:
    """The new rows of live updates."""

    change: LiveChange
    schema: pa.Schema
    components: int
    """Of all vectors of a row."""

    def tables(self) -> Iterator[pa.Table]:
        """Yield the new rows in parts."""
        size = _batch_rows(self.components)
        for start in range(0, self.change.rows.num_rows, size):
            yield conformed(self.change.rows.slice(start, size), self.schema)


@dataclasses.dataclass(frozen=True)
class SegmentRows:
    """The live rows of a segment."""

    store: Store
    index: str
    entry: SegmentEntry
    schema: pa.Schema
    change: LiveChange | None
    components: int
    """Of all vectors of a row."""

    def tables(self) -> Iterator[pa.Table]:
        """Yield the live rows in parts; CorruptError, before the first, if the segment does not match the manifest."""
        entry, rows, key = self.entry, 0, segment_key(self.index, self.entry.key)
        mask_N = read_live_mask(self.store, self.index, entry)
        with _verified(self.store, key, entry) as file, scratch_folder("export") as folder:
            present, named = _present(file, self.schema, key), self._named(folder)
            for batch in file.iter_batches(_batch_rows(self.components), columns=present):
                first, rows = rows, rows + batch.num_rows
                table = pa.Table.from_batches([batch])
                for name, vectors in named.items():
                    table = table.append_column(vector_column(name), vectors.column(first, rows))
                table = conformed(table, self.schema)
                if mask_N is not None:
                    table = table.filter(pa.array(mask_N[first:rows]))
                yield self._without_dead(table)
        if rows != entry.rows:
            raise CorruptError(f"{key} has {rows} rows, the manifest says {entry.rows}")

    def _named(self, folder: Path) -> dict[str, _VectorsByRow]:
        """Return the named vectors that are exported."""
        wanted = {
            name: own for name, own in self.entry.named.items() if vector_column(name) in self.schema.names
        }
        return {name: self._by_row(own, folder / name) for name, own in wanted.items()}

    def _by_row(self, own: SegmentEntry, path: Path) -> _VectorsByRow:
        with _verified(self.store, segment_key(self.index, own.key), own) as file:
            size = file.schema_arrow.field("embedding").type.list_size
            vectors = _VectorsByRow.new(path, self.entry.rows, size)
            for batch in file.iter_batches(_batch_rows(size), columns=["embedding", ROW_COLUMN]):
                vectors.add(batch)
        return vectors

    def _without_dead(self, table: pa.Table) -> pa.Table:
        """Return the rows that live updates neither replace nor delete."""
        if self.change is None:
            return table
        for column, values in (("id", self.change.ids), ("document_id", self.change.documents)):
            if values:
                dead = pc.is_in(table.column(column), value_set=pa.array(values, pa.string()))
                table = table.filter(pc.invert(dead))
        return table


@dataclasses.dataclass(frozen=True)
class _VectorsByRow:
    """The vectors of a name in the order of their datapoints, which is not that of their file.

    They are in a file of their own: in memory they could take as much as all other rows of the segment.

    Shapes: N datapoints, D dimensions.
    """

    vectors_ND: np.ndarray
    present_N: np.ndarray

    @classmethod
    def new(cls, path: Path, rows: int, dimensions: int) -> _VectorsByRow:
        return cls(np.memmap(path, np.float32, "w+", shape=(rows, dimensions)), np.zeros(rows, bool))

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some rows of the file."""
        rows_V = batch.column(ROW_COLUMN).to_numpy()
        self.vectors_ND[rows_V] = batch.column("embedding").flatten().to_numpy().reshape(len(rows_V), -1)
        self.present_N[rows_V] = True

    def column(self, first: int, last: int) -> pa.Array:
        """Return the vectors of the rows from `first` to `last` (exclusive), null where a row has none."""
        rows_V = np.flatnonzero(self.present_N[first:last])
        vectors = {"embedding": as_lists(self.vectors_ND[first:last][rows_V]), ROW_COLUMN: rows_V}
        return named_column(pa.table(vectors), last - first)


@contextlib.contextmanager
def _verified(store: Store, key: str, entry: SegmentEntry) -> Iterator[pq.ParquetFile]:
    with (
        store.open_checked(key, sha256=entry.sha256, size_bytes=entry.size_bytes) as path,
        # With read-ahead, a whole column would be in memory before its first row is decoded.
        pq.ParquetFile(
            path, pre_buffer=False, buffer_size=READ_BUFFER_BYTES, page_checksum_verification=True
        ) as file,
    ):
        yield file


def _present(file: pq.ParquetFile, schema: pa.Schema, key: str) -> list[str]:
    """Return the columns of the schema that the file has; old segments lack attributes added to the spec later."""
    present = [name for name in schema.names if name in file.schema_arrow.names]
    missing = [field.name for field in schema if not field.nullable and field.name not in present]
    if missing:
        raise CorruptError(f"{key} has no column {missing[0]}")
    return present


def _batch_rows(components: int) -> int:
    return max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // (4 * max(1, components))))
