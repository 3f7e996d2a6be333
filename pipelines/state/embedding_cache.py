"""The embedding cache: a catalogue of the vectors of documents that earlier builds embedded.

A catalogue is one array with 16 bytes per document: the first 8 bytes of its content hash, sorted, and the file and row
where its passages begin. Workers map it into memory, which they share, and find a unit's documents by binary search;
the full hash is then compared in the embeddings file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.datapoints.schema import SPOKEN_COLUMN, vectors_of
from scannery.indexer.store.object_store import Store
from scannery.indexer.vectors.arrays import mapped
from scannery.pipelines.errors import StageDamagedError
from scannery.pipelines.state.job import stage_key
from scannery.pipelines.state.row_groups import embeddings_of

__all__ = ["CUT_TOKENS_COLUMN", "PIECE_COLUMNS", "Catalogue", "Known", "write_catalogue"]

PIECE_COLUMNS = ("text", "text_start", "text_end", "time_start_s", "time_end_s", "_spoken", "_speakers")
"""Columns of an embeddings file that hold a passage, in the order of its fields."""

CUT_TOKENS_COLUMN = "_cut_tokens"
"""Column of an embeddings file: how many tokens the encoder cut off a passage; null: not known."""

_FILE_SHIFT = np.uint64(40)
_ROW_MASK = np.uint64(2**40 - 1)


@dataclasses.dataclass(frozen=True)
class Known:
    """Passages of a document from an earlier unit's embeddings file."""

    rows: list[tuple[Any, ...]]
    """One per passage, in the order of PIECE_COLUMNS."""

    vectors: np.ndarray
    """float32 (passages, dimensions)."""

    cut_tokens: np.ndarray
    """Tokens that the encoder cut off each passage, int64 (passages,)."""


def write_catalogue(store: Store, index: str, build_id: str, *, dimensions: int) -> bool:
    """Write the catalogue of all embeddings files of the index with these dimensions; False if it would be empty."""
    files: list[str] = []
    entries: list[np.ndarray] = []
    # A name begins with the unit's key. Of several files of a unit its record names one.
    units = {PurePosixPath(item.key).name.partition(".")[0] for item in store.list(f"{index}/embeddings")}
    for unit in sorted(units):
        found = _documents_in(store, index, unit, dimensions)
        if found is not None:
            prefixes_N, rows_N = found
            entries.append(np.stack([prefixes_N, np.uint64(len(files)) << _FILE_SHIFT | rows_N]))
            files.append(unit)
    if not entries:
        return False
    table_2N = np.concatenate(entries, axis=1)
    table_2N = np.ascontiguousarray(table_2N[:, np.argsort(table_2N[0], kind="stable")])
    buffer = io.BytesIO()
    np.save(buffer, table_2N, allow_pickle=False)
    store.write(stage_key(index, "reuse", f"{build_id}.npy"), buffer.getvalue())
    store.write(stage_key(index, "reuse", f"{build_id}.json"), json.dumps(files).encode())
    return True


class Catalogue:
    """An open catalogue.

    Args:
        store: where the embeddings files are.
        index: name of the index.
        files: keys of units, by the numbers in the table.
        table_2N: uint64 (2, N): hash prefixes in ascending order, and file and row of each.

    """

    def __init__(self, store: Store, index: str, files: Sequence[str], table_2N: np.ndarray) -> None:
        self._store = store
        self._index = index
        self._files = files
        self._table_2N = table_2N

    @classmethod
    @contextlib.contextmanager
    def open(cls, store: Store, index: str, build_id: str) -> Iterator[Catalogue]:
        """Yield the catalogue that `write_catalogue` wrote, mapped into memory."""
        files = json.loads(store.read(stage_key(index, "reuse", f"{build_id}.json")))
        with store.open_file(stage_key(index, "reuse", f"{build_id}.npy")) as path:
            yield cls(store, index, files, mapped(path))

    def find(self, hashes: Sequence[bytes]) -> dict[bytes, Known]:
        """Return the stored passages by content hash; unknown documents are left out."""
        wanted: dict[int, dict[int, bytes]] = defaultdict(dict)
        for value in set(hashes):
            for file, row in self._places(value):
                wanted[file][row] = value
        found: dict[bytes, Known] = {}
        for file, rows in sorted(wanted.items()):
            missing = {row: value for row, value in rows.items() if value not in found}
            if missing:
                found.update(self._read(self._files[file], missing))
        return found

    def _places(self, value: bytes) -> Iterator[tuple[int, int]]:
        prefix = np.frombuffer(value[:8], np.uint64)[0]
        first = int(np.searchsorted(self._table_2N[0], prefix, "left"))
        while first < self._table_2N.shape[1] and self._table_2N[0, first] == prefix:
            place = self._table_2N[1, first]
            yield int(place >> _FILE_SHIFT), int(place & _ROW_MASK)
            first += 1

    def _read(self, key: str, rows: dict[int, bytes]) -> Iterator[tuple[bytes, Known]]:
        try:
            table = _passages(embeddings_of(self._store, self._index, key))
        except (StageDamagedError, pa.ArrowException, OSError):
            return  # the documents are embedded again
        hashes, starts, ends = _runs(table)
        end_of = dict(zip(starts.tolist(), ends.tolist(), strict=True))
        vectors_ND = vectors_of(table)
        cut_N = table.column(CUT_TOKENS_COLUMN).fill_null(0).to_numpy()
        for row, value in rows.items():
            end = end_of.get(row)
            if end is not None and hashes[row].as_py() == value:
                # A copy: a view would keep the vectors of the whole file.
                pieces = table.select(PIECE_COLUMNS).slice(row, end - row).to_pylist()
                rows_of_passages = [_piece(piece) for piece in pieces]
                yield value, Known(rows_of_passages, vectors_ND[row:end].copy(), cut_N[row:end].copy())


def _piece(row: dict[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in PIECE_COLUMNS[:-1]), tuple(row["_speakers"] or ()))


def _passages(files: Iterable[pq.ParquetFile]) -> pa.Table:
    columns = [*PIECE_COLUMNS, CUT_TOKENS_COLUMN, "embedding", "_content_hash", "_record"]
    tables = [
        file.read(columns=[name for name in columns if name in file.schema_arrow.names]) for file in files
    ]
    table = pa.concat_tables(tables)
    stored = table.column_names
    # Files of earlier releases: their rows are no transcripts, or have an outdated content hash; how much of their
    # texts was cut off is not known.
    for name, kind in ((SPOKEN_COLUMN, pa.string()), (CUT_TOKENS_COLUMN, pa.int64())):
        if name not in stored:
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
    return table


def _documents_in(
    store: Store, index: str, unit: str, dimensions: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the hash prefix of each document of a unit, and its first row."""
    tables = []
    try:
        for file in embeddings_of(store, index, unit):
            if not _has_vectors(file.schema_arrow, dimensions):
                return None
            tables.append(file.read(columns=["_content_hash", "_record"]))
    except (StageDamagedError, pa.ArrowException, OSError):
        return None  # an unreadable file must not prevent the build
    if not tables:
        return None
    hashes, starts_N, _ = _runs(pa.concat_tables(tables))
    starts_N = starts_N[[hashes[row].is_valid for row in starts_N.tolist()]] if len(starts_N) else starts_N
    if not len(starts_N):
        return None
    prefixes = [hashes[row].as_py()[:8] for row in starts_N.tolist()]
    return np.frombuffer(b"".join(prefixes), np.uint64), starts_N.astype(np.uint64)


def _has_vectors(schema: pa.Schema, dimensions: int) -> bool:
    kind = schema.field("embedding").type
    return bool(pa.types.is_fixed_size_list(kind)) and kind.list_size == dimensions


def _runs(table: pa.Table) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Return the content hashes, and the first and the last row (exclusive) of each record."""
    records_N = table.column("_record").to_numpy()
    changes = np.flatnonzero(np.diff(records_N)) + 1
    starts = np.concatenate([[0], changes]).astype(np.int64)[: len(records_N)]
    hashes = table.column("_content_hash").combine_chunks()
    return hashes, starts, np.append(starts[1:], len(records_N))
