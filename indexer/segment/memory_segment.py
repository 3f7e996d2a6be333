"""A segment in memory for the newest datapoints of an index, with the search interface of stored segments.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.named_vectors import (
    ROW_COLUMN,
    is_vectorless,
    names_in,
    vector_column,
    vectors_table,
    without_named,
    without_vectors,
)
from scannery.indexer.datapoints.row_records import Records
from scannery.indexer.datapoints.schema import vectors_of
from scannery.indexer.datapoints.sparse import INDICES_COLUMN, SparsePostings, invert_sparse
from scannery.indexer.hashes import in_order, sorted_hashes
from scannery.indexer.lexical.bm25 import WORD_COLUMNS, Postings, invert, with_terms
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.segment.named_vectors import NamedVectors
from scannery.indexer.segment.segment import Segment
from scannery.indexer.spec.spec import Distance, IndexSpec
from scannery.indexer.vectors.exact_search import BY_ROW, Ties, id_ranks
from scannery.indexer.vectors.vector_files import no_vectors, search_vectors

__all__ = ["MemorySegment"]

MAX_CHUNKS = 16
"""Most chunks of a column: each chunk adds time to every later merge."""


class MemorySegment(Segment):
    """Datapoints in memory, searched exactly. Immutable, like every segment.

    Parts that only queries need (contiguous columns, the inverted index of words) are made by the first query.
    """

    def __init__(
        self,
        parts: pa.Table,
        spec: IndexSpec,
        *,
        scaled: Sequence[np.ndarray] | None,
        ids: np.ndarray,
        documents: np.ndarray,
        size_bytes: int | None = None,
        named: Mapping[str, NamedVectors] | None = None,
    ) -> None:
        """Keep the parts; use `MemorySegment.of` or `MemorySegment.merged`.

        Args:
            parts: columns in any number of chunks, with words if the index has them; without `embedding` if no row
                has a vector.
            spec: of the index.
            scaled: vectors scaled to length 1, in row order, if they differ from those in `parts`; else None.
            ids: of `sorted_hashes`, for the ids.
            documents: of `sorted_hashes`, for the document ids.
            size_bytes: of `parts`; None: computed.
            named: the named vectors of the rows; None: made from `parts` when they are first searched.

        """
        name = secrets.token_hex(32)
        self.spec = spec
        self.distance = spec.distance
        self._parts = parts
        self._scaled = scaled
        self._searcher = None
        self._document_postings = None
        self._planner = None
        self._all_leaves = 0
        self.leaves = None
        self._hashes_2N = ids
        self._documents_2N = documents
        self._known_named = named
        # Not validated: every write makes one, and it stays in the process.
        self.entry = SegmentEntry.model_construct(
            key=f"segments/{name}.parquet",
            shard=0,
            rows=parts.num_rows,
            size_bytes=parts.nbytes if size_bytes is None else size_bytes,
            sha256=name,
            kind="exact",
            vectors="embedding" in parts.column_names,
        )

    @property
    def shard(self) -> None:
        """None: its rows are of any shard."""

    @cached_property
    def whole(self) -> pa.Table:
        """All columns, vectors and words included, in one chunk each."""
        return self._parts.combine_chunks()

    @cached_property
    def given_ND(self) -> np.ndarray:  # type: ignore[override]  # noqa: N802  an attribute elsewhere
        """The vectors as they were given, float32 (N, D); (N, 0) without any."""
        return vectors_of(self.whole) if self.has_vectors else no_vectors(self.rows)

    @cached_property
    def searched_ND(self) -> np.ndarray:  # type: ignore[override]  # noqa: N802  an attribute elsewhere
        """The vectors as they are searched (length 1 for cosine), float32 (N, D)."""
        return self.given_ND if self._scaled is None else _joined(self._scaled)

    @cached_property
    def table(self) -> pa.Table:  # a property of other segments
        """All columns but the vectors, in row order."""
        native = [name for name in ("embedding", *WORD_COLUMNS) if name in self.whole.column_names]
        return without_named(self.whole.drop_columns(native))

    @cached_property
    def ties(self) -> Ties:  # type: ignore[override]  # an attribute of other segments
        """The order of rows with equal scores."""
        return Ties(id_ranks(self.ids), BY_ROW.twins_2N)

    @cached_property
    def named(self) -> Mapping[str, NamedVectors]:  # type: ignore[override]  # an attribute of other segments
        """The named vectors of the rows; a name that no row has is left out."""
        if self._known_named is not None:
            return self._known_named
        hashes_N = _in_row_order(self._hashes_2N)
        return {
            name: _named(self.whole, name, self.spec.of_vectors(name), hashes_N)
            for name in names_in(self._parts)
        }

    @property
    def has_named(self) -> bool:
        """Whether the named vectors are ready to be searched."""
        return self._known_named is not None or "named" in self.__dict__

    @cached_property
    def ids(self) -> pa.ChunkedArray:
        """The ids, in row order."""
        return self._parts.column("id")

    @cached_property
    def postings(self) -> Postings | None:  # type: ignore[override]  # an attribute of other segments
        """The inverted index of words; None if the index has none."""
        return Postings(invert(self.whole)) if self.spec.lexical else None

    @cached_property
    def sparse(self) -> SparsePostings | None:  # type: ignore[override]  # an attribute of other segments
        """The inverted index of sparse vectors; None if the index has none."""
        has_sparse = INDICES_COLUMN in self._parts.column_names
        return SparsePostings(invert_sparse(self.whole)) if has_sparse else None

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the vectors and columns, and of the copies of named vectors that are made when one is searched."""
        scaled = 0 if self._scaled is None else sum(part.nbytes for part in self._scaled)
        named = sum(
            self._parts.column(vector_column(name)).nbytes
            * (2 if self.spec.named_vectors[name].distance == "cosine" else 1)
            for name in names_in(self._parts)
        )
        return int(self.entry.size_bytes + scaled + named)

    @property
    def heap_bytes(self) -> int:
        """Bytes of this process that it takes now, with what searches have made of its rows."""
        made = self.__dict__
        size_bytes = self.size_bytes + self._hashes_2N.nbytes
        size_bytes += 0 if self.has_only_documents else self._documents_2N.nbytes
        if "whole" in made and self._parts.column("id").num_chunks > 1:
            size_bytes += self.entry.size_bytes
        if "searched_ND" in made and len(self._scaled or ()) > 1:
            size_bytes += self.searched_ND.nbytes
        for name in ("postings", "sparse", "ties", "records"):
            if made.get(name) is not None:
                size_bytes += made[name].size_bytes
        if (documents := made.get("document_words")) is not None and documents.postings is not self.postings:
            size_bytes += documents.postings.size_bytes
        return int(size_bytes)

    @cached_property
    def records(self) -> Records:  # type: ignore[override]  # made when a hit is first read
        """The columns of `table`, each in one buffer."""
        return Records.of(self.table)

    def rows_of_document(self, document_id: str) -> np.ndarray:
        """Return the rows of a document, int64, ascending, deleted ones included."""
        rows = self._rows_with(self._documents_2N, self._parts.column("document_id"), document_id)
        return np.fromiter(rows, np.int64)

    def warm(self) -> None:
        """Make the parts that queries need, so that no query waits for them."""
        _ = self.searched_ND, self.ties, self.postings, self.sparse, self.records
        if self.spec.lexical is not None and self.spec.lexical.counts_documents:
            _ = self.document_words
        for named in self.named.values():
            _ = named.segment.searched_ND, named.segment.ties

    @classmethod
    def of(cls, table: pa.Table, spec: IndexSpec, *, hashes_N: np.ndarray | None = None) -> MemorySegment:
        """Return a segment of the rows of a table, all of which have a vector, or none.

        Args:
            table: the columns of `datapoint_schema`, and others whose names begin with `_`; `embedding` may be null or
                missing.
            spec: of the index.
            hashes_N: `id_hashes` of the rows, uint64; None: computed.

        """
        whole = with_terms(table, spec.lexical).replace_schema_metadata(None).combine_chunks()
        scaled = None
        if is_vectorless(whole):
            whole = without_vectors(whole)
        else:
            scaled = _scaled(vectors_of(whole), spec.distance)
        ids, documents = whole.column("id"), whole.column("document_id")
        hashes = sorted_hashes(ids) if hashes_N is None else in_order(hashes_N)
        return cls(
            whole,
            spec,
            scaled=scaled,
            ids=hashes,
            documents=hashes if ids.equals(documents) else sorted_hashes(documents),
        )

    @classmethod
    def merged(cls, parts: Sequence[MemorySegment], alive: Sequence[np.ndarray | None]) -> MemorySegment:
        """Return one segment with the rows of several, in order. Hashes, scaled vectors and words are reused.

        Args:
            parts: the segments.
            alive: for each segment a mask of the rows to keep, bool (N,); None: all.

        """
        whole = pa.concat_tables(
            [
                part._parts if mask_N is None else part._parts.filter(pa.array(mask_N))
                for part, mask_N in zip(parts, alive, strict=True)
            ]
        )
        scaled = None
        if any(part._scaled is not None for part in parts):
            scaled = [
                block_ND
                for part, mask_N in zip(parts, alive, strict=True)
                for block_ND in (
                    (part._scaled or [part.given_ND]) if mask_N is None else [part.searched_ND[mask_N]]
                )
            ]
        if max(whole.column("id").num_chunks, len(scaled or ())) > MAX_CHUNKS:
            whole, scaled = whole.combine_chunks(), None if scaled is None else [_joined(scaled)]
        ids = _merged_hashes([part._hashes_2N for part in parts], alive)
        shared = all(part.has_only_documents for part in parts)
        documents = ids if shared else _merged_hashes([part._documents_2N for part in parts], alive)
        # Summed here, since computing it from the columns takes as long as the rest of this function.
        size_bytes = (
            sum(part.entry.size_bytes for part in parts) if all(mask is None for mask in alive) else None
        )
        named = _merged_named(parts, alive) if any(part.has_named for part in parts) else None
        return cls(
            whole,
            parts[0].spec,
            scaled=scaled,
            ids=ids,
            documents=documents,
            size_bytes=size_bytes,
            named=named,
        )


def _merged_named(
    parts: Sequence[MemorySegment], alive: Sequence[np.ndarray | None]
) -> dict[str, NamedVectors]:
    """Return the named vectors of merged segments; arguments as of `MemorySegment.merged`."""
    pieces: dict[str, list[tuple[MemorySegment, np.ndarray | None, np.ndarray]]] = {}
    first = 0
    for part, mask_N in zip(parts, alive, strict=True):
        rows_N = np.arange(part.rows) if mask_N is None else np.cumsum(mask_N) - 1
        for name, vectors in part.named.items():
            assert isinstance(vectors.segment, MemorySegment)
            kept_V = None if mask_N is None else mask_N[vectors.rows_V]
            rows_V = first + rows_N[vectors.rows_V if kept_V is None else vectors.rows_V[kept_V]]
            pieces.setdefault(name, []).append((vectors.segment, kept_V, rows_V))
        first += part.rows if mask_N is None else int(np.count_nonzero(mask_N))
    merged = {}
    for name, several in pieces.items():
        segments, masks, rows = zip(*several, strict=True)
        rows_V = np.concatenate(rows)
        if len(rows_V):
            merged[name] = NamedVectors(MemorySegment.merged(segments, masks), rows_V)
    return merged


def _named(table: pa.Table, name: str, spec: IndexSpec, hashes_N: np.ndarray) -> NamedVectors:
    """Return the vectors of a name as a segment in memory; `hashes_N` are those of the ids of all rows."""
    vectors = vectors_table(table, name)
    rows_V = vectors.column(ROW_COLUMN).to_numpy()
    vectors = vectors.drop_columns([ROW_COLUMN]).append_column("document_id", vectors.column("id"))
    return NamedVectors(MemorySegment.of(vectors, spec, hashes_N=hashes_N[rows_V]), rows_V)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the concatenated rows, read-only: kernels are compiled for read-only arrays."""
    if len(parts) == 1:
        return parts[0]
    joined_ND = np.concatenate(parts)
    joined_ND.setflags(write=False)
    return joined_ND


def _scaled(given_ND: np.ndarray, distance: Distance) -> list[np.ndarray] | None:
    """Return the vectors as they are searched, read-only; None if these are the same array."""
    searched_ND = search_vectors(given_ND, distance)
    searched_ND.setflags(write=False)
    return None if given_ND.ctypes.data == searched_ND.ctypes.data else [searched_ND]


def _kept(arrays: Sequence[np.ndarray], alive: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    return [array if mask_N is None else array[mask_N] for array, mask_N in zip(arrays, alive, strict=True)]


def _merged_hashes(hashes: Sequence[np.ndarray], alive: Sequence[np.ndarray | None]) -> np.ndarray:
    return in_order(np.concatenate(_kept([_in_row_order(part) for part in hashes], alive)))


def _in_row_order(hashes_2N: np.ndarray) -> np.ndarray:
    """Return the hashes of `sorted_hashes` in the order of their rows, uint64 (N,)."""
    hashes_N, rows_N = hashes_2N
    ordered_N: np.ndarray = np.empty_like(hashes_N)
    ordered_N[rows_N.astype(np.int64)] = hashes_N
    return ordered_N
