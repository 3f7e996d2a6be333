"""The state of an index after mutations: a version, the rows of it that are alive, and the newest rows in memory.

States are immutable: `apply` returns a new state, which shares unchanged parts with the old one. A search holds one
state and sees only whole batches, and none that is applied later.

The newest rows are in segments in memory, called runs. Each batch makes a small run, or two if only some of its rows
have vectors; a run is merged with the one before it of its kind while that is not much larger (a log-structured merge),
so there are few runs, and each row is copied seldom.

A state is made again from the records of the log (`state_after`), and the updates that the current version lacks are
one change to its rows (`unsealed_change`).

Shapes: N rows of a segment, R rows that die.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    REVISION_COLUMN,
    AllowedRows,
    IndexSpec,
    Manifest,
    MemorySegment,
    OpenIndex,
    Segment,
    Shards,
    Store,
    has_vector,
    id_hashes,
    shards_of_ids,
)
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogEntry, MutationLog, WrongLogError
from scannery.live.log.records import Mutation, columns_version_of, decode, rows_fit
from scannery.live.log.registry import registered

__all__ = [
    "LiveState",
    "NetEffect",
    "Run",
    "UnsealedChange",
    "apply",
    "begin",
    "change_of",
    "entries_for",
    "mutations_of",
    "net_effect",
    "state_after",
    "unsealed_change",
]


SMALL_ROWS = 1024
"""A run of up to this many rows is merged with every new one: one more run in every search would cost more."""
SMALL_BYTES = 4 << 20
"""And of up to this size: a few rows of a MiB each would be copied with every new one."""
GROWTH = 2
"""A larger run is merged when the run after it has at least half its size: a row is copied about seven times."""
LARGE_ROWS = 1 << 14
"""A run of this many rows is no longer merged: the copy would take tens of milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One segment of the newest rows."""

    segment: MemorySegment
    alive: AllowedRows | None = None
    """Live rows; None: all."""

    @property
    def rows(self) -> int:
        """Number of live rows."""
        return self.segment.rows if self.alive is None else self.alive.count


@dataclass(frozen=True, slots=True, eq=False)
class LiveState:
    """An index after the mutations up to a sequence."""

    index: OpenIndex
    """The version to which the mutations apply."""
    alive: tuple[AllowedRows | None, ...]
    """Live rows of each segment of the version; None: all rows."""
    runs: tuple[Run, ...]
    """The newest rows: runs with vectors, oldest first, then those without."""
    sequence: int
    """Sequence of the last mutation."""
    shards: Shards | None = None
    """Shards whose new rows are kept; None: all."""
    mutations: int = 0
    """Batches that are not in the version."""
    written_rows: int = 0
    """Rows in these batches, of all shards, including those that were replaced later."""
    log_bytes: int = 0
    """Size of their records, which a restart reads again. Only this counts deletions and rows that were replaced."""
    second: int = 0
    """Second since 1970 at which the index is seen. Only `opened` depends on it: the parts of a state follow from the
    log alone, so that they are the same in all processes."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of the version."""
        return self.index.manifest

    @property
    def memory_rows(self) -> int:
        """Rows in memory, including dead ones; limits apply to this number."""
        return sum(run.segment.rows for run in self.runs)

    @property
    def memory_bytes(self) -> int:
        """Size of the rows in memory."""
        return sum(run.segment.size_bytes for run in self.runs)

    @property
    def part_bytes(self) -> dict[int, int]:
        """Size of each part that states may share, by its identity: rows in memory, and live rows of segments."""
        alive = (*self.alive, *(run.alive for run in self.runs))
        parts = {id(each): each.size_bytes for each in alive if each is not None}
        return parts | {id(run.segment): run.segment.size_bytes for run in self.runs}

    @property
    def unsealed_rows(self) -> int:
        """Rows of all shards that wait to be sealed: those in memory, or where these are a part, those written."""
        return self.memory_rows if self.shards is None else self.written_rows

    @property
    def unsealed_bytes(self) -> int:
        """Size of the rows in memory, or of the records, whichever is larger; both have limits."""
        return max(self.memory_bytes, self.log_bytes)

    def logged(self, size_bytes: int) -> LiveState:
        """Return the state with `size_bytes` added to `log_bytes`."""
        return replace(self, log_bytes=self.log_bytes + size_bytes) if size_bytes else self

    def opened(self) -> OpenIndex:
        """Return version and runs as one index, for search, without what has expired at `second`."""
        segments = (*self.index.segments, *(run.segment for run in self.runs))
        alive = (*self.alive, *(run.alive for run in self.runs))
        index = OpenIndex(self.manifest, segments, alive, self.index.whole, self.index.maps)
        return index.at(self.second)

    def at(self, second: int) -> LiveState:
        """Return the state as it is seen at a second since 1970."""
        return replace(self, second=second) if self.manifest.spec.live.expire is not None else self


def begin(index: OpenIndex, shards: Shards | None = None) -> LiveState:
    """Return the state of a version without mutations.

    Args:
        index: the version, of which these shards at least are open.
        shards: whose new rows will be kept; None: all.

    """
    return LiveState(index, index.alive, (), index.manifest.log_sequence, shards)


def apply(state: LiveState, mutations: Sequence[tuple[int, Mutation]]) -> LiveState:
    """Return the state after further mutations.

    They are applied together: many small ones cost little more than one large one.

    Args:
        state: the state before them.
        mutations: pairs of sequence and mutation, in order of sequence.

    """
    if not mutations:
        return state
    net = net_effect(mutations)
    alive = tuple(
        _without(segment, mask, net) for segment, mask in zip(state.index.segments, state.alive, strict=True)
    )
    runs = [Run(run.segment, _without(run.segment, run.alive, net)) for run in state.runs]
    # The ids of all new rows die first: a row may have moved here from another shard, or to another one.
    local = net if state.shards is None else _of_shards(net, state.shards, state.manifest.shards)
    runs += _new_runs(local, state.manifest.spec)
    return replace(
        state,
        alive=alive,
        runs=_merged(runs),
        sequence=mutations[-1][0],
        mutations=state.mutations + len(mutations),
        written_rows=state.written_rows + sum(mutation.rows.num_rows for _, mutation in mutations),
    )


@dataclass(frozen=True, slots=True, eq=False)
class NetEffect:
    """Net effect of several mutations."""

    rows: pa.Table
    """New rows that no later mutation replaces or removes, with their revisions."""
    ids: list[str]
    """Ids whose older rows die."""
    hashes: np.ndarray
    """`id_hashes` of the ids, uint64."""
    documents: list[str]
    """Documents whose older rows die."""
    row_hashes: np.ndarray | None = None
    """`id_hashes` of `rows`, uint64; None: not computed."""


def net_effect(mutations: Sequence[tuple[int, Mutation]]) -> NetEffect:
    """Return the net effect of mutations on the rows before them.

    Args:
        mutations: at least one pair of sequence and mutation, in order of sequence.

    """
    if not any(mutation.removed_ids or mutation.removed_documents for _, mutation in mutations):
        ids = [identifier for _, mutation in mutations for identifier in mutation.ids]
        if len(mutations) == 1 or len(set(ids)) == len(ids):
            rows = pa.concat_tables(
                [_with_revision(mutation.rows, sequence) for sequence, mutation in mutations]
            )
            hashes_N = np.concatenate([mutation.hashes for _, mutation in mutations])
            return NetEffect(rows, ids, hashes_N, [], hashes_N)
    return _mixed_effect(mutations)


def _with_revision(rows: pa.Table, sequence: int) -> pa.Table:
    return rows.append_column(REVISION_COLUMN, pa.array(np.full(rows.num_rows, sequence)))


def _mixed_effect(mutations: Sequence[tuple[int, Mutation]]) -> NetEffect:
    """Return the net effect of mutations that remove rows, or write a row twice."""
    row_of: dict[str, int] = {}
    document_of: list[str] = []
    ids_of: defaultdict[str, list[str]] = defaultdict(list)
    gone: dict[str, None] = {}
    documents: dict[str, None] = {}
    tables, first = [], 0
    for sequence, mutation in mutations:
        for identifier in mutation.removed_ids:
            row_of.pop(identifier, None)
            gone[identifier] = None
        for document in mutation.removed_documents:
            for identifier in ids_of.pop(document, ()):
                # A later mutation may have removed the row, or given its id to another document.
                if identifier in row_of and document_of[row_of[identifier]] == document:
                    del row_of[identifier]
            documents[document] = None
        rows = mutation.rows
        if rows.num_rows:
            names = rows.column("document_id").to_pylist()
            for row, (identifier, document) in enumerate(zip(mutation.ids, names, strict=True), first):
                row_of[identifier] = row
                ids_of[document].append(identifier)
            document_of += names
            tables.append(_with_revision(rows, sequence))
            first += rows.num_rows
            gone.update(dict.fromkeys(mutation.ids))
    ids = list(gone)
    return NetEffect(_kept_rows(tables, row_of, mutations), ids, id_hashes(ids), list(documents))


def _kept_rows(
    tables: list[pa.Table], row_of: dict[str, int], mutations: Sequence[tuple[int, Mutation]]
) -> pa.Table:
    if not tables:
        return _with_revision(mutations[0][1].rows.slice(0, 0), 0)
    table = pa.concat_tables(tables)
    if len(row_of) == table.num_rows:
        return table
    return table.take(pa.array(sorted(row_of.values()), pa.int64()))


def _without(segment: Segment, alive: AllowedRows | None, net: NetEffect) -> AllowedRows | None:
    """Return the live rows of a segment after mutations; the same object if no row dies."""
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


def _of_shards(net: NetEffect, shards: Shards, total: int) -> NetEffect:
    """Return the net effect with the new rows of some shards only."""
    shards_N = shards_of_ids(net.rows.column("document_id"), total)
    own_N = np.isin(shards_N, [shard for shard in np.unique(shards_N).tolist() if shards.has(shard)])
    hashes_N = net.row_hashes
    return replace(
        net,
        rows=net.rows.filter(pa.array(own_N)),
        row_hashes=None if hashes_N is None else hashes_N[own_N],
    )


def _new_runs(net: NetEffect, spec: IndexSpec) -> list[Run]:
    """Return the new rows as a run, or as two: rows with and without vectors are in different segments."""
    runs, present_N = [], has_vector(net.rows)
    for wanted_N in (present_N, ~present_N):
        if wanted_N.any():
            rows, hashes_N = net.rows, net.row_hashes
            if not wanted_N.all():
                rows = rows.filter(pa.array(wanted_N))
                hashes_N = None if hashes_N is None else hashes_N[wanted_N]
            runs.append(Run(MemorySegment.of(rows, spec, hashes_N=hashes_N)))
    return runs


def _merged(runs: list[Run]) -> tuple[Run, ...]:
    """Return the runs with rows, those with and without vectors merged apart."""
    kinds = [[run for run in runs if run.segment.has_vectors == kind] for kind in (True, False)]
    return tuple(run for kind in kinds for run in _merged_kind(kind))


def _merged_kind(runs: list[Run]) -> list[Run]:
    kept = [run for run in runs if run.rows]
    while len(kept) > 1:
        if not _worth_merging(*kept[-2:]):
            break
        parts = kept[-2:]
        masks = [None if run.alive is None else run.alive.mask_N for run in parts]
        kept[-2:] = [Run(MemorySegment.merged([run.segment for run in parts], masks))]
    if kept and kept[-1].segment.rows > SMALL_ROWS:
        kept[-1].segment.warm()
    return kept


def _worth_merging(before: Run, last: Run) -> bool:
    """Return whether a run is small enough to be copied together with the one after it."""
    sizes = before.segment.size_bytes, last.segment.size_bytes
    return (
        before.segment.rows < LARGE_ROWS
        and before.rows <= max(SMALL_ROWS, GROWTH * last.rows)
        and sizes[0] <= max(SMALL_BYTES, GROWTH * sizes[1])
    )


def state_after(state: LiveState, entries: Sequence[LogEntry]) -> LiveState:
    """Return the state after further entries of the log.

    Raises:
        CorruptError, FormatError: an entry cannot be read, or does not fit the version.

    """
    size_bytes = sum(len(entry.data) for entry in entries)
    return apply(state, mutations_of(entries, state.manifest)).logged(size_bytes)


def entries_for(entries: Sequence[LogEntry], version: int) -> list[LogEntry]:
    """Return the entries before the first one that was made for a later version."""
    return [*takewhile(lambda entry: columns_version_of(entry.data) <= version, entries)]


def mutations_of(entries: Sequence[LogEntry], manifest: Manifest) -> list[tuple[int, Mutation]]:
    """Return the mutations of entries with their sequences, as rows of a version; raises as `state_after`."""
    return [
        (
            entry.sequence,
            rows_fit(decode(entry.data, sequence=entry.sequence), manifest, sequence=entry.sequence),
        )
        for entry in entries
    ]


@dataclass(frozen=True, kw_only=True)
class UnsealedChange:
    """What the mutations after a version change in it: rows of the version die, then new rows are added."""

    ids: list[str]
    """Rows of the version with these ids die."""
    documents: list[str]
    """Rows of the version of these documents die."""
    rows: pa.Table
    """New rows, with at least the columns of `written_schema`."""
    mutations: int
    """Batches of the log."""
    sequence: int
    """Sequence of the last one."""


def unsealed_change(
    store: Store, manifest: Manifest, *, log_root: LogRoot | None = None
) -> UnsealedChange | None:
    """Return what the log of an index changes in its current version; None if it changes nothing.

    Reads the log only, not the segments. Holds all unsealed rows in memory, as every server does.

    Args:
        store: of the index.
        manifest: of its current version.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        WrongLogError: the log of the index is not in that place, so that its live updates would be missing.
        CorruptError, FormatError: the log cannot be read, or does not fit the version.
        LogGapError: there is a later version.

    """
    home = log_home(store, manifest.index, log_root)
    if not home.writable and (registration := registered(store, manifest.index)) is not None:
        raise WrongLogError(
            f"the log of index {manifest.index!r} is {registration.where}; pass its place with --log, or the live "
            "updates that are not sealed would be missing"
        )
    log = checked_log(home, manifest)
    if log is None:
        return None
    try:
        return change_of(log, manifest)
    finally:
        log.close()


def change_of(log: MutationLog, manifest: Manifest) -> UnsealedChange | None:
    """Return what an open log changes in a version; None if it changes nothing. Raises as `MutationLog.read`.

    Mutations that were made for a later version do not count, nor those after them.
    """
    mutations: list[tuple[int, Mutation]] = []
    while entries := log.read(mutations[-1][0] if mutations else manifest.log_sequence):
        ours = entries_for(entries, manifest.version)
        mutations += mutations_of(ours, manifest)
        if len(ours) < len(entries):
            break
    if not mutations:
        return None
    net = net_effect(mutations)
    return UnsealedChange(
        ids=net.ids,
        documents=net.documents,
        rows=net.rows,
        mutations=len(mutations),
        sequence=mutations[-1][0],
    )
