"""The embedding cache: a catalogue of the vectors of documents that earlier builds embedded.

A catalogue is one array with 16 bytes per document: the first 8 bytes of its content hash, sorted, and the unit, shard
and row where its passages begin. Beside it is the first hash of each block of 256 entries. A worker finds the blocks of
its documents by binary search, reads these alone, and then the rows of the shards that have the vectors; the full hash
is compared there. The launcher makes it of the units' lists of documents (`document_list`), and reads no vectors.

The cache of named vectors: a catalogue of the texts that earlier builds embedded, by name of the vectors.

It is made like the one of documents (embedding_cache.py), of the units' lists of texts (`named_list`). An entry is the
hash of a name, its encoder, its field and a text. The text itself is compared where the vector is read.

Shapes: N rows of a unit, D dimensions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.named_vectors import vector_column
from scannery.indexer.datapoints.passages import SEARCHED_COLUMNS, texts_of_field
from scannery.indexer.datapoints.schema import SPOKEN_COLUMN, vectors_of
from scannery.indexer.errors import NotFoundError
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import StageDamagedError
from scannery.pipelines.state.job import read_beside, stage_key
from scannery.pipelines.state.row_groups import rows_of_shards

__all__ = [
    "CUT_TOKENS_COLUMN",
    "CachedPassages",
    "Catalogue",
    "EncodedTexts",
    "NamedCatalogue",
    "document_list",
    "named_list",
    "remove_catalogue",
    "remove_named_catalogue",
    "write_catalogue",
    "write_named_catalogue",
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

# A place is the number of the unit, the shard, and the row among the unit's rows of the shard.
_UNIT_SHIFT = np.uint64(40)
_SHARD_SHIFT, _SHARD_MASK, _ROW_MASK = 24, 2**16 - 1, 2**24 - 1


@dataclasses.dataclass(frozen=True)
class CachedPassages:
    """Passages of a document from an earlier unit's embeddings file."""

    rows: list[tuple[Any, ...]]
    """One per passage, in the order of PIECE_COLUMNS."""

    vectors: np.ndarray
    """float32 (passages, dimensions)."""

    cut_tokens: np.ndarray
    """Tokens that the encoder cut off each passage, int64 (passages,)."""


def document_list(table: pa.Table, shard_N: np.ndarray, dimensions: int) -> bytes:
    """Return which documents a unit has: their hash prefixes, shards and first rows there.

    Args:
        table: rows of the unit in input order.
        shard_N: shard of each row, int64.
        dimensions: of the vectors.

    """
    rows = table.select(["_content_hash", "_record"])
    blocks = [
        _documents_of(rows.take(pa.array(np.flatnonzero(shard_N == shard))), shard)
        for shard in np.unique(shard_N).tolist()
    ]
    return np.uint64(dimensions).tobytes() + _side_by_side(blocks).tobytes()


def write_catalogue(store: Store, index: str, name: str, *, dimensions: int) -> bool:
    """Write the catalogue of all embeddings files of the index with these dimensions; False if it would be empty."""
    return write_entries(store, index, name, lambda unit: _documents_in(store, index, unit, dimensions))


def write_entries(store: Store, index: str, name: str, entries_of: Callable[[str], np.ndarray]) -> bool:
    """Write a catalogue of all units with an embeddings file; False if it would be empty.

    Args:
        store: where the files are.
        index: name of the index.
        name: of the catalogue.
        entries_of: returns the hash prefixes of a unit, and their places there, uint64 (2, N).

    """
    # A name begins with the unit's key. Of several files of a unit its record names one.
    units = sorted(
        {PurePosixPath(item.key).name.partition(".")[0] for item in store.list(f"{index}/embeddings")}
    )
    entries: list[np.ndarray] = []
    with ThreadPoolExecutor(_READERS) as pool:
        blocks = pool.map(entries_of, units)
        for number, found_2N in enumerate(blocks):
            places_N = np.uint64(number) << _UNIT_SHIFT | found_2N[1]
            entries.append(np.stack([found_2N[0], places_N], axis=1))
    table_N2 = np.concatenate([np.empty((0, 2), np.uint64), *entries])
    if not len(table_N2):
        return False
    table_N2 = np.ascontiguousarray(table_N2[np.argsort(table_N2[:, 0], kind="stable")])
    store.write(_part(index, name, "entries"), table_N2.tobytes())
    store.write(_part(index, name, "fences"), np.ascontiguousarray(table_N2[::_BLOCK, 0]).tobytes())
    content = {"units": units, "documents": len(table_N2)}
    store.write(_part(index, name, "json"), json.dumps(content).encode())
    return True


def remove_catalogue(store: Store, index: str, name: str) -> None:
    """Remove the catalogue of a build that has ended."""
    for part in _PARTS:
        store.delete(_part(index, name, part))


def _part(index: str, name: str, part: str) -> str:
    return stage_key(index, "reuse", f"{name}.{part}")


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
        units: their keys, by the numbers in the entries.
        entries: hash prefixes in ascending order, and unit, shard and row of each.

    """

    def __init__(self, store: Store, index: str, units: Sequence[str], entries: _Entries) -> None:
        self._store = store
        self._index = index
        self._units = units
        self._entries = entries

    @classmethod
    @contextlib.contextmanager
    def open(cls, store: Store, index: str, name: str) -> Iterator[Catalogue]:
        """Yield the catalogue that `write_catalogue` wrote."""
        content = json.loads(store.read(_part(index, name, "json")))
        fences = np.frombuffer(store.read(_part(index, name, "fences")), np.uint64)
        entries = _Entries(store, _part(index, name, "entries"), fences, content["documents"])
        with contextlib.closing(entries):
            yield cls(store, index, content["units"], entries)

    def find(self, hashes: Sequence[bytes]) -> dict[bytes, CachedPassages]:
        """Return the stored passages by content hash; unknown documents are left out."""
        rows_of_unit: dict[str, dict[tuple[int, int], bytes]] = defaultdict(dict)
        for value, unit, shard, row in self.locations(sorted(set(hashes))):
            rows_of_unit[unit][shard, row] = value
        cached: dict[bytes, CachedPassages] = {}
        for unit, rows in sorted(rows_of_unit.items()):  # the order of their numbers
            missing = {row: value for row, value in rows.items() if value not in cached}
            if missing:
                cached.update(self._read(unit, missing))
        return cached

    def locations(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, str, int, int]]:
        """Yield each hash, of some in order, with the unit, shard and row of every entry with its prefix."""
        prefixes = np.frombuffer(b"".join(value[:8] for value in hashes), np.uint64)
        entries_N2 = self._entries.with_prefixes(prefixes)
        known_N, places_N = entries_N2[:, 0].copy(), entries_N2[:, 1]
        firsts, lasts = (np.searchsorted(known_N, prefixes, side).tolist() for side in ("left", "right"))
        for value, first, last in zip(hashes, firsts, lasts, strict=True):
            for packed in places_N[first:last].tolist():
                unit = self._units[packed >> int(_UNIT_SHIFT)]
                yield value, unit, packed >> _SHARD_SHIFT & _SHARD_MASK, packed & _ROW_MASK

    def _read(
        self, unit: str, values: dict[tuple[int, int], bytes]
    ) -> Iterator[tuple[bytes, CachedPassages]]:
        """Yield the documents that begin at these rows of shards; other shards are not read."""
        columns = [*PIECE_COLUMNS, CUT_TOKENS_COLUMN, "embedding", "_content_hash", "_record"]
        shards = {shard for shard, _ in values}
        with contextlib.suppress(StageDamagedError, NotFoundError, pa.ArrowException, OSError):
            for shard, table in rows_of_shards(self._store, self._index, unit, shards, columns):
                rows = {row: value for (value_shard, row), value in values.items() if value_shard == shard}
                yield from _known_in(_with_later_columns(table), rows)
        # Documents that cannot be read are embedded again.


def _known_in(table: pa.Table, rows: dict[int, bytes]) -> Iterator[tuple[bytes, CachedPassages]]:
    hashes, starts, ends = _runs(table)
    end_of = dict(zip(starts.tolist(), ends.tolist(), strict=True))
    vectors_ND = vectors_of(table)
    cut_N = table.column(CUT_TOKENS_COLUMN).fill_null(0).to_numpy()
    for row, value in rows.items():
        end = end_of.get(row)
        if end is not None and hashes[row].as_py() == value:
            # A copy: a view would keep the vectors of the whole shard.
            pieces = table.select(PIECE_COLUMNS).slice(row, end - row).to_pylist()
            rows_of_passages = [_piece(piece) for piece in pieces]
            yield value, CachedPassages(rows_of_passages, vectors_ND[row:end].copy(), cut_N[row:end].copy())


def _piece(row: dict[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in PIECE_COLUMNS[:-1]), tuple(row["_speakers"] or ()))


def _with_later_columns(table: pa.Table) -> pa.Table:
    # Files of earlier releases: their rows are no transcripts, or have an outdated content hash; how much of their
    # texts was cut off is not known.
    for name, kind in ((SPOKEN_COLUMN, pa.string()), (CUT_TOKENS_COLUMN, pa.int64())):
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
    return table


def _documents_in(store: Store, index: str, unit: str, dimensions: int) -> np.ndarray:
    """Return the hash prefix of each document of a unit, and its place there, uint64 (2, N)."""
    data = read_beside(store, index, unit, "documents")
    if data is not None:
        numbers = np.frombuffer(data, np.uint64)
        return numbers[1:].reshape(2, -1) if numbers[0] == dimensions else _side_by_side([])
    blocks = []
    # An unreadable file must not prevent the build.
    with contextlib.suppress(StageDamagedError, NotFoundError, pa.ArrowException, OSError):
        for shard, table in rows_of_shards(
            store, index, unit, None, ["_content_hash", "_record"], dimensions
        ):
            blocks.append(_documents_of(table, shard))
    return _side_by_side(blocks)


def _documents_of(table: pa.Table, shard: int) -> np.ndarray:
    hashes, starts_N, _ = _runs(table)
    valid = [row for row in starts_N.tolist() if hashes[row].is_valid]
    prefixes = b"".join(hashes[row].as_py()[:8] for row in valid)
    places_N = np.array(valid, np.uint64) | np.uint64(shard << _SHARD_SHIFT)
    return np.stack([np.frombuffer(prefixes, np.uint64), places_N])


def _side_by_side(blocks: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty((2, 0), np.uint64), *blocks], axis=1)


def _runs(table: pa.Table) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Return the content hashes, and the first and the last row (exclusive) of each record."""
    records_N = table.column("_record").to_numpy()
    changes = np.flatnonzero(np.diff(records_N)) + 1
    starts = np.concatenate([[0], changes]).astype(np.int64)[: len(records_N)]
    hashes = table.column("_content_hash").combine_chunks()
    return hashes, starts, np.append(starts[1:], len(records_N))


BESIDE = "named"
_SHARD_SHIFT_U64 = np.uint64(24)


@dataclasses.dataclass(frozen=True)
class EncodedTexts:
    """Texts that an encoder made the vectors of a name of."""

    name: str
    digest: str
    """Digest of the encoder."""
    field: str
    """Name of the datapoint that has the texts."""
    rows: Mapping[str, int]
    """Row of the unit with the vector, by text."""


def text_hash(name: str, digest: str, field: str, text: str) -> bytes:
    """Return the 16 bytes that two texts share if they have the same vector."""
    hashed = blake2b("\0".join((name, digest, field, "")).encode(), digest_size=16)
    hashed.update(text.encode())
    return hashed.digest()


def named_list(texts: Sequence[EncodedTexts], shard_N: np.ndarray) -> bytes:
    """Return which texts a unit has vectors of: their hash prefixes, shards, and rows there.

    Args:
        texts: by name.
        shard_N: shard of each row, int64.

    """
    place_N = np.zeros(len(shard_N), np.uint64)
    for shard in np.unique(shard_N):
        own_N = shard_N == shard
        place_N[own_N] = (np.uint64(shard) << _SHARD_SHIFT_U64) | np.arange(own_N.sum(), dtype=np.uint64)
    prefixes = b"".join(
        text_hash(encoded.name, encoded.digest, encoded.field, text)[:8]
        for encoded in texts
        for text in encoded.rows
    )
    rows = np.array([row for encoded in texts for row in encoded.rows.values()], np.int64)
    return np.stack([np.frombuffer(prefixes, np.uint64), place_N[rows]]).tobytes()


def write_named_catalogue(store: Store, index: str, name: str) -> bool:
    """Write the catalogue of the named vectors in all embeddings files of the index; False if it would be empty."""

    def texts_in(unit: str) -> np.ndarray:
        return np.frombuffer(read_beside(store, index, unit, BESIDE) or b"", np.uint64).reshape(2, -1)

    return write_entries(store, index, _name(name), texts_in)


def remove_named_catalogue(store: Store, index: str, name: str) -> None:
    """Remove the catalogue of a build that has ended."""
    remove_catalogue(store, index, _name(name))


def _name(catalogue: str) -> str:
    return f"{catalogue}.{BESIDE}"


class NamedCatalogue:
    """An open catalogue.

    Args:
        store: where the embeddings files are.
        spec: of the index.
        catalogue: the entries.

    """

    def __init__(self, store: Store, spec: IndexSpec, catalogue: Catalogue) -> None:
        self._store, self._spec, self._catalogue = store, spec, catalogue

    @classmethod
    @contextlib.contextmanager
    def open(cls, store: Store, spec: IndexSpec, name: str) -> Iterator[NamedCatalogue]:
        """Yield the catalogue that `write_named_catalogue` wrote; NotFoundError if it wrote none."""
        with Catalogue.open(store, spec.index, _name(name)) as catalogue:
            yield cls(store, spec, catalogue)

    def find(self, name: str, digest: str, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the stored vectors of a name by text, float32 (D,); unknown texts are left out."""
        field = self._spec.text_field(name)
        texts_by_hash = {text_hash(name, digest, field, text): text for text in texts}
        rows_of_unit: dict[str, dict[int, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
        for value, unit, shard, row in self._catalogue.locations(sorted(texts_by_hash)):
            rows_of_unit[unit][shard][row] = texts_by_hash[value]
        vectors: dict[str, np.ndarray] = {}
        for unit, shards in sorted(rows_of_unit.items()):
            missing = {
                shard: {row: text for row, text in rows.items() if text not in vectors}
                for shard, rows in shards.items()
            }
            missing = {shard: rows for shard, rows in missing.items() if rows}
            if missing:
                vectors.update(self._read(unit, name, field, missing))
        return vectors

    def _read(
        self, unit: str, name: str, field: str, texts_by_shard: Mapping[int, Mapping[int, str]]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the vectors of texts at these rows of shards."""
        columns = [vector_column(name), *dict.fromkeys([*SEARCHED_COLUMNS, field])]
        with contextlib.suppress(StageDamagedError, NotFoundError, KeyError, pa.ArrowException, OSError):
            for shard, table in rows_of_shards(
                self._store, self._spec.index, unit, {*texts_by_shard}, columns
            ):
                yield from _vectors_at(table, name, field, texts_by_shard[shard])
        # Texts that cannot be read are embedded again.


def _vectors_at(
    table: pa.Table, name: str, field: str, texts_by_row: Mapping[int, str]
) -> Iterator[tuple[str, np.ndarray]]:
    rows = [row for row in texts_by_row if row < table.num_rows]
    rows_table = table.take(pa.array(rows, pa.int64()))
    texts, vectors = texts_of_field(rows_table, field), rows_table.column(vector_column(name))
    for row, text, vector in zip(rows, texts, vectors, strict=True):
        if text == texts_by_row[row] and vector.is_valid:
            yield text, vector.values.to_numpy(zero_copy_only=False).astype(np.float32)
