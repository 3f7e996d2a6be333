"""The embedding cache: a catalogue of the vectors of documents that earlier builds embedded.

A catalogue is one array with 16 bytes per document: the first 8 bytes of its content hash, sorted, and the unit, shard
and row where its passages begin. Beside it is the first hash of each block of 256 entries. A worker finds the blocks of
its documents by binary search, reads these alone, and then the rows of the shards that have the vectors; the full hash
is compared there. The launcher makes it of the units' lists of documents (`document_list`), and reads no vectors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.datapoints.schema import SPOKEN_COLUMN, vectors_of
from scannery.indexer.errors import NotFoundError, StoreError
from scannery.indexer.spec.sharding import shards_of_ids
from scannery.indexer.store.object_store import Store
from scannery.indexer.store.ranged_files import ranged_file
from scannery.pipelines.errors import StageDamagedError
from scannery.pipelines.state.job import stage_key
from scannery.pipelines.state.stage_outputs import open_embeddings, read_beside

__all__ = [
    "CUT_TOKENS_COLUMN",
    "PIECE_COLUMNS",
    "Catalogue",
    "Known",
    "document_list",
    "remove_catalogue",
    "write_catalogue",
]

PIECE_COLUMNS = ("text", "text_start", "text_end", "time_start_s", "time_end_s", "_spoken", "_speakers")
"""Columns of an embeddings file that hold a passage, in the order of its fields."""

CUT_TOKENS_COLUMN = "_cut_tokens"
"""Column of an embeddings file: how many tokens the encoder cut off a passage; null: not known."""

_PARTS = ("entries", "fences", "json")
_BLOCK = 256
"""Entries of a block, 4 KB: of 100 million documents the blocks' first hashes are 3 MB."""
_ENTRY_BYTES = 16
_MOST_GAP = 4
"""Blocks between two wanted ones that are read with them rather than by another request."""
_READERS = 16

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


def document_list(table: pa.Table, shards: int, dimensions: int) -> bytes:
    """Return which documents a unit has: their hash prefixes, and their first rows in the embeddings file.

    Args:
        table: rows of the unit in input order.
        shards: number of shards; the file has one after the other.
        dimensions: of the vectors.

    """
    order_N = np.argsort(shards_of_ids(table.column("document_id"), shards), kind="stable")
    rows = table.select(["_content_hash", "_record"]).take(pa.array(order_N))
    entries_2N = _documents_of(rows)
    return np.uint64(dimensions).tobytes() + entries_2N.tobytes()


def write_catalogue(store: Store, index: str, build_id: str, *, dimensions: int) -> bool:
    """Write the catalogue of all embeddings files of the index with these dimensions; False if it would be empty."""
    keys = [item.key for item in store.list(f"{index}/embeddings")]
    files: list[str] = []
    entries: list[np.ndarray] = []
    with ThreadPoolExecutor(_READERS) as pool:
        for key, found_2N in zip(
            keys, pool.map(lambda key: _documents_in(store, index, key, dimensions), keys), strict=True
        ):
            if found_2N is not None and found_2N.size:
                places_N = np.uint64(len(files)) << _FILE_SHIFT | found_2N[1]
                entries.append(np.stack([found_2N[0], places_N], axis=1))
                files.append(key)
    if not entries:
        return False
    table_N2 = np.concatenate(entries)
    table_N2 = np.ascontiguousarray(table_N2[np.argsort(table_N2[:, 0], kind="stable")])
    store.write(_part(index, build_id, "entries"), table_N2.tobytes())
    store.write(_part(index, build_id, "fences"), np.ascontiguousarray(table_N2[::_BLOCK, 0]).tobytes())
    content = {"files": files, "documents": len(table_N2)}
    store.write(_part(index, build_id, "json"), json.dumps(content).encode())
    return True


def remove_catalogue(store: Store, index: str, build_id: str) -> None:
    """Remove the catalogue of a build that has ended."""
    for name in _PARTS:
        store.delete(_part(index, build_id, name))


def _part(index: str, build_id: str, name: str) -> str:
    return stage_key(index, "reuse", f"{build_id}.{name}")


class _Entries:
    """The sorted entries of a catalogue, of which blocks are read; all of them, once that is less.

    Args:
        store: where they are.
        key: of the entries.
        fences: first hash prefix of each block, uint64.
        documents: number of entries.

    """

    def __init__(self, store: Store, key: str, fences: np.ndarray, documents: int) -> None:
        self._store, self._key, self._fences, self._documents = store, key, fences, documents
        self._whole: Path | None = None
        self._open = contextlib.ExitStack()
        self._spent = 0

    def close(self) -> None:
        """Remove what was copied."""
        self._open.close()

    def with_prefixes(self, prefixes: np.ndarray) -> np.ndarray:
        """Return the blocks that can have these prefixes: uint64 (N, 2), sorted by prefix."""
        spans = self._spans(np.unique(prefixes))
        self._spent += sum(end - start for start, end in spans) * _ENTRY_BYTES
        if self._whole is None and self._spent > self._documents * _ENTRY_BYTES / 2:
            self._whole = self._open.enter_context(self._store.open_file(self._key))
        if self._whole is not None or len(spans) < 2:
            read = [self._read(span) for span in spans]
        else:
            with ThreadPoolExecutor(_READERS) as pool:
                read = [*pool.map(self._read, spans)]
        return np.concatenate([np.empty((0, 2), np.uint64), *read])

    def _spans(self, prefixes: np.ndarray) -> list[tuple[int, int]]:
        """Return the first and last entry (exclusive) of runs of neighbouring blocks."""
        # A prefix that begins a block may also be at the end of the one before.
        firsts = np.maximum(np.searchsorted(self._fences, prefixes, "left") - 1, 0).tolist()
        lasts = np.searchsorted(self._fences, prefixes, "right").tolist()
        spans: list[tuple[int, int]] = []
        for first, last in zip(firsts, lasts, strict=True):
            if spans and first <= spans[-1][1] + _MOST_GAP:
                spans[-1] = spans[-1][0], max(last, spans[-1][1])
            elif last > first:
                spans.append((first, last))
        return [(first * _BLOCK, min(last * _BLOCK, self._documents)) for first, last in spans]

    def _read(self, span: tuple[int, int]) -> np.ndarray:
        start, length = span[0] * _ENTRY_BYTES, (span[1] - span[0]) * _ENTRY_BYTES
        if self._whole is None:
            data = self._store.read_range(self._key, start, length)
        else:
            with self._whole.open("rb") as file:
                file.seek(start)
                data = file.read(length)
        return np.frombuffer(data, np.uint64).reshape(-1, 2)


class Catalogue:
    """An open catalogue.

    Args:
        store: where the embeddings files are.
        index: name of the index.
        files: store keys, by the numbers in the entries.
        entries: hash prefixes in ascending order, and file and row of each.

    """

    def __init__(self, store: Store, index: str, files: Sequence[str], entries: _Entries) -> None:
        self._store = store
        self._index = index
        self._files = files
        self._entries = entries

    @classmethod
    @contextlib.contextmanager
    def open(cls, store: Store, index: str, build_id: str) -> Iterator[Catalogue]:
        """Yield the catalogue that `write_catalogue` wrote."""
        content = json.loads(store.read(_part(index, build_id, "json")))
        fences = np.frombuffer(store.read(_part(index, build_id, "fences")), np.uint64)
        entries = _Entries(store, _part(index, build_id, "entries"), fences, content["documents"])
        with contextlib.closing(entries):
            yield cls(store, index, content["files"], entries)

    def find(self, hashes: Sequence[bytes]) -> dict[bytes, Known]:
        """Return the stored passages by content hash; unknown documents are left out."""
        wanted: dict[int, dict[int, bytes]] = defaultdict(dict)
        for value, file, row in self._places(sorted(set(hashes))):
            wanted[file][row] = value
        found: dict[bytes, Known] = {}
        for file, rows in sorted(wanted.items()):
            missing = {row: value for row, value in rows.items() if value not in found}
            if missing:
                found.update(self._read(self._files[file], missing))
        return found

    def _places(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, int, int]]:
        """Yield each hash with the file and the row of every entry with its prefix."""
        prefixes = np.frombuffer(b"".join(value[:8] for value in hashes), np.uint64)
        entries_N2 = self._entries.with_prefixes(prefixes)
        known_N, places_N = entries_N2[:, 0].copy(), entries_N2[:, 1]
        firsts, lasts = (np.searchsorted(known_N, prefixes, side).tolist() for side in ("left", "right"))
        for value, first, last in zip(hashes, firsts, lasts, strict=True):
            for place in places_N[first:last]:
                yield value, int(place >> _FILE_SHIFT), int(place & _ROW_MASK)

    def _read(self, key: str, rows: dict[int, bytes]) -> Iterator[tuple[bytes, Known]]:
        """Yield the documents that begin at these rows, from the row groups that have them."""
        try:
            with _opened(self._store, self._index, key) as file:
                firsts_G, groups = _groups_with(file.metadata, [*rows])
                table = _pieces_in(file, groups)
        except (StageDamagedError, NotFoundError, StoreError, pa.ArrowException, OSError):
            return  # the documents are embedded again
        hashes, starts, ends = _runs(table)
        end_of = dict(zip(starts.tolist(), ends.tolist(), strict=True))
        vectors_ND = vectors_of(table)
        cut_N = table.column(CUT_TOKENS_COLUMN).fill_null(0).to_numpy()
        for row_in_file, value in rows.items():
            row = row_in_file - firsts_G[row_in_file]
            end = end_of.get(row)
            if end is not None and hashes[row].as_py() == value:
                # A copy: a view would keep the vectors of the whole file.
                pieces = table.select(PIECE_COLUMNS).slice(row, end - row).to_pylist()
                rows_of_passages = [_piece(piece) for piece in pieces]
                yield value, Known(rows_of_passages, vectors_ND[row:end].copy(), cut_N[row:end].copy())


@contextlib.contextmanager
def _opened(store: Store, index: str, key: str) -> Iterator[pq.ParquetFile]:
    """Give an embeddings file: a local one after a check of its hash, of a bucket only the pages that are read."""
    if store.local_root is None:
        with pq.ParquetFile(
            ranged_file(store, key), pre_buffer=True, page_checksum_verification=True
        ) as file:
            yield file
        return
    with open_embeddings(store, index, _unit_of(key)) as path, pq.ParquetFile(path) as file:
        yield file


def _unit_of(key: str) -> str:
    return PurePosixPath(key).name.partition(".")[0]


def _groups_with(metadata: pq.FileMetaData, rows: Sequence[int]) -> tuple[dict[int, int], list[int]]:
    """Return the row groups that have these rows, and for each row how many rows before it are not in them."""
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    group_of = (np.searchsorted(starts, rows, "right") - 1).tolist()
    groups = sorted({group for group in group_of if group < len(sizes)})
    before = dict(zip(groups, np.cumsum([0, *(sizes[group] for group in groups)]).tolist(), strict=False))
    offsets = {
        row: int(starts[group]) - before.get(group, 0) for row, group in zip(rows, group_of, strict=True)
    }
    return offsets, groups


def _piece(row: dict[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in PIECE_COLUMNS[:-1]), tuple(row["_speakers"] or ()))


def _pieces_in(file: pq.ParquetFile, groups: Sequence[int]) -> pa.Table:
    columns = [*PIECE_COLUMNS, CUT_TOKENS_COLUMN, "embedding", "_content_hash", "_record"]
    stored = file.schema_arrow.names
    table = file.read_row_groups(groups, columns=[name for name in columns if name in stored])
    # Files of earlier releases: their rows are no transcripts, or have an outdated content hash; how much of their
    # texts was cut off is not known.
    for name, kind in ((SPOKEN_COLUMN, pa.string()), (CUT_TOKENS_COLUMN, pa.int64())):
        if name not in stored:
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
    return table


def _documents_in(store: Store, index: str, key: str, dimensions: int) -> np.ndarray | None:
    """Return the hash prefix of each document in a file and its first row, uint64 (2, N); None: of no use."""
    data = read_beside(store, index, _unit_of(key), "documents")
    if data is not None:
        numbers = np.frombuffer(data, np.uint64)
        return numbers[1:].reshape(2, -1) if numbers[0] == dimensions else None
    try:
        with _opened(store, index, key) as file:
            if not _has_vectors(file.schema_arrow, dimensions):
                return None
            return _documents_of(file.read(columns=["_content_hash", "_record"]))
    except (StageDamagedError, NotFoundError, StoreError, pa.ArrowException, OSError):
        return None  # an unreadable file must not prevent the build


def _documents_of(table: pa.Table) -> np.ndarray:
    hashes, starts_N, _ = _runs(table)
    valid = [row for row in starts_N.tolist() if hashes[row].is_valid]
    prefixes = b"".join(hashes[row].as_py()[:8] for row in valid)
    return np.stack([np.frombuffer(prefixes, np.uint64), np.array(valid, np.uint64)])


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
