"""A segment in memory: the newest datapoints of an index, searchable by the code that searches what was built.

Shapes: N rows, I ids that are looked for.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints import vectors_of
from scannery.indexer.hashes import in_order, sorted_hashes
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.postings import WORD_COLUMNS, Postings, invert, term_columns
from scannery.indexer.records import Records
from scannery.indexer.segment import Segment
from scannery.indexer.segment_writer import search_vectors
from scannery.indexer.sparse import INDICES_COLUMN, SparsePostings, invert_sparse
from scannery.indexer.spec import IndexSpec

__all__ = ["MemorySegment"]


class MemorySegment(Segment):
    """Datapoints in memory, searched exactly. Immutable, like every segment."""

    def __init__(
        self,
        whole: pa.Table,
        spec: IndexSpec,
        *,
        searched: np.ndarray,
        ids: np.ndarray,
        documents: np.ndarray,
    ) -> None:
        """Take what `of` and `merged` make."""
        name = secrets.token_hex(32)
        self.whole = whole
        """All columns, in one chunk each: vectors and words too."""
        self.spec = spec
        self._searcher = None
        self._planner = None
        self._most_leaves = 0
        self.leaves = None
        entry = SegmentEntry(
            key=f"segments/{name}.parquet",
            shard=0,
            rows=whole.num_rows,
            size_bytes=whole.nbytes,
            sha256=name,
            kind="exact",
        )
        self.entry = entry
        self.distance = spec.distance
        self.searched_ND = searched
        given_ND = vectors_of(whole)
        self.given_ND = searched if _is_same(given_ND, searched) else given_ND
        native = [column for column in ("embedding", *WORD_COLUMNS) if column in whole.column_names]
        self._columns = whole.drop_columns(native)
        self._hashes_2N = ids
        self._documents_2N = documents
        self.postings = Postings(invert(whole)) if spec.lexical else None
        has_sparse = INDICES_COLUMN in whole.column_names
        self.sparse = SparsePostings(invert_sparse(whole)) if has_sparse else None

    @property
    def table(self) -> pa.Table:
        """All columns but the vectors, in row order."""
        return self._columns

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the vectors and columns."""
        scaled = 0 if self.given_ND is self.searched_ND else self.searched_ND.nbytes
        return int(self.whole.nbytes + scaled)

    @cached_property
    def records(self) -> Records:  # type: ignore[override]  # made when a hit is first read
        """The same columns as places in one buffer."""
        return Records.of(self._columns)

    @classmethod
    def of(cls, table: pa.Table, spec: IndexSpec, *, hashes_N: np.ndarray | None = None) -> MemorySegment:
        """Return a segment of some rows: the columns of `datapoint_schema`, and others that begin with `_`.

        `hashes_N` are the `id_hashes` of the rows, for whoever has them already.
        """
        for column, values in (term_columns(table, spec.lexical) if spec.lexical else {}).items():
            table = table.append_column(column, values)
        whole = table.replace_schema_metadata(None).combine_chunks()
        searched_ND = search_vectors(vectors_of(whole), spec.distance)
        searched_ND.setflags(write=False)
        ids, documents = whole.column("id"), whole.column("document_id")
        hashes = sorted_hashes(ids) if hashes_N is None else in_order(hashes_N)
        return cls(
            whole,
            spec,
            searched=searched_ND,
            ids=hashes,
            documents=hashes if ids.equals(documents) else sorted_hashes(documents),
        )

    @classmethod
    def merged(cls, parts: Sequence[MemorySegment], alive: Sequence[np.ndarray | None]) -> MemorySegment:
        """Return one segment with the rows of several, in order; `alive` says which rows of each, None all.

        Costs copies of what the parts know already: nothing is hashed, scaled or analysed again.
        """
        tables = [
            part.whole if mask_N is None else part.whole.filter(pa.array(mask_N))
            for part, mask_N in zip(parts, alive, strict=True)
        ]
        whole = pa.concat_tables(tables).combine_chunks()
        if all(part.searched_ND is part.given_ND for part in parts):
            searched_ND = vectors_of(whole)
        else:
            searched_ND = np.concatenate(_kept([part.searched_ND for part in parts], alive))
            searched_ND.setflags(write=False)
        return cls(
            whole,
            parts[0].spec,
            searched=searched_ND,
            ids=_merged_hashes([part._hashes_2N for part in parts], alive),
            documents=_merged_hashes([part._documents_2N for part in parts], alive),
        )


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.ctypes.data == other.ctypes.data


def _kept(arrays: Sequence[np.ndarray], alive: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    return [array if mask_N is None else array[mask_N] for array, mask_N in zip(arrays, alive, strict=True)]


def _merged_hashes(hashes: Sequence[np.ndarray], alive: Sequence[np.ndarray | None]) -> np.ndarray:
    in_row_order = []
    for hashes_N, rows_N in hashes:
        ordered_N = np.empty_like(hashes_N)
        ordered_N[rows_N.astype(np.int64)] = hashes_N
        in_row_order.append(ordered_N)
    return in_order(np.concatenate(_kept(in_row_order, alive)))
