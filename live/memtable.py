"""What an index is after some mutations: a version, its rows that are still alive, and the newest rows in memory.

Everything here is immutable: `apply` returns a new state, and shares with the old one what did not change. Whoever
searches holds one state and sees neither half a batch nor anything later.

The newest rows lie in a few segments in memory. Each batch makes a small one; small ones are merged with the one before
as long as that is not much larger (a log-structured merge), so there are few of them, and a row is copied few times.

Shapes: N rows of a segment, R rows that die.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    REVISION_COLUMN,
    AllowedRows,
    Manifest,
    MemorySegment,
    OpenIndex,
    Segment,
    id_hashes,
)
from scannery.live.log.records import Mutation

__all__ = ["LiveState", "Run", "apply", "begin"]

SMALL_ROWS = 1024
"""Up to so many rows, a piece is merged with every new one: one more piece in every search would cost more."""
GROWTH = 2
"""A larger piece is merged when what comes after it is more than half of it: a row is copied some seven times."""
LARGE_ROWS = 1 << 14
"""Of so many rows, a piece is not merged any more: the copy would take tens of milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Some of the newest rows."""

    segment: MemorySegment
    alive: AllowedRows | None = None
    """None: all of them."""

    @property
    def rows(self) -> int:
        """Rows that are alive."""
        return self.segment.rows if self.alive is None else self.alive.count


@dataclass(frozen=True, slots=True, eq=False)
class LiveState:
    """An index after the mutations up to a sequence."""

    index: OpenIndex
    """The version that they came upon."""
    alive: tuple[AllowedRows | None, ...]
    """For each of its segments the rows that are still part of the index; None: all."""
    pieces: tuple[Run, ...]
    """The newest rows, oldest piece first."""
    sequence: int
    mutations: int = 0
    """Batches that are not in the version."""
    log_bytes: int = 0
    """Bytes of their records: what a restart reads again. Rows that were replaced and deletions count here only."""

    @property
    def manifest(self) -> Manifest:
        """That of the version."""
        return self.index.manifest

    @property
    def memory_rows(self) -> int:
        """Rows in memory, dead ones too: what bounds apply to."""
        return sum(piece.segment.rows for piece in self.pieces)

    @property
    def memory_bytes(self) -> int:
        """Memory that they take."""
        return sum(piece.segment.size_bytes for piece in self.pieces)

    def logged(self, size_bytes: int) -> LiveState:
        """Return the state with the bytes of further records counted."""
        return replace(self, log_bytes=self.log_bytes + size_bytes) if size_bytes else self

    def opened(self) -> OpenIndex:
        """Return version and pieces as one index, for search."""
        segments = (*self.index.segments, *(piece.segment for piece in self.pieces))
        return OpenIndex(self.manifest, segments, (*self.alive, *(piece.alive for piece in self.pieces)))


def begin(index: OpenIndex) -> LiveState:
    """Return the state of a version without mutations."""
    return LiveState(index, index.alive, (), index.manifest.log_sequence)


def apply(state: LiveState, mutations: Sequence[tuple[int, Mutation]]) -> LiveState:
    """Return the state after some mutations, each with its sequence, in order.

    They are applied at once, so many small ones cost little more than one large one.
    """
    if not mutations:
        return state
    net = _net_effect(mutations)
    alive = tuple(
        _without(segment, mask, net) for segment, mask in zip(state.index.segments, state.alive, strict=True)
    )
    pieces = [Run(piece.segment, _without(piece.segment, piece.alive, net)) for piece in state.pieces]
    if net.rows.num_rows:
        hashes_N = net.hashes if net.plain else None
        pieces.append(Run(MemorySegment.of(net.rows, state.manifest.spec, hashes_N=hashes_N)))
    return replace(
        state,
        alive=alive,
        pieces=_merged(pieces),
        sequence=mutations[-1][0],
        mutations=state.mutations + len(mutations),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Net:
    """What some mutations come to."""

    rows: pa.Table
    """New rows that none of the later ones replaces or removes, with their revisions."""
    ids: list[str]
    """Ids whose older rows die."""
    hashes: np.ndarray
    """Of the ids."""
    documents: list[str]
    """Documents whose older rows die."""
    plain: bool = False
    """Whether the rows have just these ids, in this order."""


def _net_effect(mutations: Sequence[tuple[int, Mutation]]) -> _Net:
    if not any(mutation.removed_ids or mutation.removed_documents for _, mutation in mutations):
        ids = [identifier for _, mutation in mutations for identifier in mutation.ids]
        if len(mutations) == 1 or len(set(ids)) == len(ids):
            rows = pa.concat_tables(
                [_with_revision(mutation.rows, sequence) for sequence, mutation in mutations]
            )
            hashes_N = np.concatenate([mutation.hashes for _, mutation in mutations])
            return _Net(rows, ids, hashes_N, [], plain=True)
    return _mixed_effect(mutations)


def _with_revision(rows: pa.Table, sequence: int) -> pa.Table:
    return rows.append_column(REVISION_COLUMN, pa.array(np.full(rows.num_rows, sequence)))


def _mixed_effect(mutations: Sequence[tuple[int, Mutation]]) -> _Net:
    """Return what mutations come to that remove something, or write a row twice."""
    places: dict[str, int] = {}
    document_of: dict[int, str] = {}
    gone: dict[str, None] = {}
    documents: dict[str, None] = {}
    tables, first = [], 0
    for sequence, mutation in mutations:
        for identifier in mutation.removed_ids:
            places.pop(identifier, None)
            gone[identifier] = None
        if mutation.removed_documents:
            _remove_documents(places, document_of, mutation.removed_documents)
            documents.update(dict.fromkeys(mutation.removed_documents))
        rows = mutation.rows
        if rows.num_rows:
            for row, identifier in enumerate(mutation.ids, first):
                places[identifier] = row
            names = rows.column("document_id").to_pylist()
            document_of.update(enumerate(names, first))
            tables.append(_with_revision(rows, sequence))
            first += rows.num_rows
            gone.update(dict.fromkeys(mutation.ids))
    ids = list(gone)
    return _Net(_kept_rows(tables, places, mutations), ids, id_hashes(ids), list(documents))


def _remove_documents(places: dict[str, int], document_of: dict[int, str], removed: Iterable[str]) -> None:
    wanted = set(removed)
    for identifier in [name for name, row in places.items() if document_of[row] in wanted]:
        del places[identifier]


def _kept_rows(
    tables: list[pa.Table], places: dict[str, int], mutations: Sequence[tuple[int, Mutation]]
) -> pa.Table:
    if not tables:
        return mutations[0][1].rows.slice(0, 0)
    table = pa.concat_tables(tables)
    if len(places) == table.num_rows:
        return table
    return table.take(pa.array(sorted(places.values()), pa.int64()))


def _without(segment: Segment, alive: AllowedRows | None, net: _Net) -> AllowedRows | None:
    """Return the rows of a segment that outlive some mutations; the very same object if all do."""
    rows_R = segment.rows_of(net.ids, net.hashes)
    dead_R = rows_R[rows_R >= 0]
    if net.documents:
        dead_R = np.concatenate([dead_R, *map(segment.rows_of_document, net.documents)])
    if alive is not None:
        dead_R = dead_R[alive.mask_N[dead_R]]
    if not len(dead_R):
        return alive
    mask_N = np.ones(segment.rows, bool) if alive is None else alive.mask_N.copy()
    mask_N[dead_R] = False
    mask_N.setflags(write=False)
    return segment.allow(mask_N)


def _merged(pieces: list[Run]) -> tuple[Run, ...]:
    kept = [piece for piece in pieces if piece.rows]
    while len(kept) > 1:
        before, last = kept[-2].rows, kept[-1].rows
        if kept[-2].segment.rows >= LARGE_ROWS or before > max(SMALL_ROWS, GROWTH * last):
            break
        parts = kept[-2:]
        masks = [None if piece.alive is None else piece.alive.mask_N for piece in parts]
        kept[-2:] = [Run(MemorySegment.merged([piece.segment for piece in parts], masks))]
    if kept and kept[-1].segment.rows > SMALL_ROWS:
        kept[-1].segment.warm()
    return tuple(kept)
