"""Follow the log of a mirrored index: for each of its mutations, the mirror's log gets one with the same sequence."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from scannery.indexer import Manifest, Store, read_manifest
from scannery.indexer.reader import open_manifest
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogEntry, LogGapError, MutationLog
from scannery.live.log.records import Mutation, decode, encode, rows_fit
from scannery.live.maintenance.mirror_leases import keep_source
from scannery.live.memtable import LiveState, begin, entries_for, state_after
from scannery.live.migration.conversion import Conversion
from scannery.live.migration.errors import MirrorBrokenError
from scannery.live.migration.mirrors import VectorsOfSpec, check_filled, check_followed, follow_spec
from scannery.live.prepare import Encoders
from scannery.live.row_tables import rows_of_documents, stored_schema

__all__ = ["Follower", "Position"]

NEAR_S = 0.3
"""Time of the mutations that a mirror lacks, for which writes may wait."""
READ_BYTES = 8 << 20
"""Records that are converted at once: their rows are in memory, and a process that is killed converts them again."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a mirror follows."""

    sequence: int
    """Last mutation of the index that the mirror has."""
    behind: int
    """Mutations of the index that it lacks."""


class Follower:
    """Follows the log of one index for its mirror. Used in one thread at a time, and by one process.

    A second process does no harm: both check under the lock of the mirror's log that they continue it.
    """

    def __init__(
        self,
        store: Store,
        mirror: str,
        encoders: Encoders,
        vectors_of: VectorsOfSpec,
        *,
        log_root: LogRoot | None = None,
    ) -> None:
        """Follow for a mirror that is filled.

        Args:
            store: of both indexes.
            mirror: name of the mirror.
            encoders: finds the encoders of the mirror.
            vectors_of: finds the encoders of its spec, if the spec of the index is altered.
            log_root: parent folder of all logs, or their database; None: the folder of the store.

        """
        self._store, self._mirror, self._log_root = store, mirror, log_root
        self._encoders, self._vectors_of = encoders, vectors_of
        self._state: LiveState | None = None
        """State of the index, where whole documents are read from it."""

    def follow(self) -> Position:
        """Take over mutations until there are no more, and return how far that is.

        Raises:
            MirrorBrokenError: the index was built, replaced, rolled back or exchanged, or its log was cut.
            MirrorRenewedError: another process has had the mirror begin again.
            UnencodableError: a mutation has a datapoint that cannot be converted.
            WrongLogError, CorruptError, FormatError, StoreError: a log cannot be read or written.

        """
        while (position := self._step()).behind:
            pass
        return position

    def catch_up(self) -> Position:
        """Take over mutations until the others take NEAR_S, or grow as fast: writes go on; raises as `follow`."""
        before: Position | None = None
        while True:
            began_s = time.monotonic()
            position = self._step()
            step_s = time.monotonic() - began_s
            if before is not None:
                taken = position.sequence - before.sequence
                if position.behind >= before.behind or step_s * position.behind < NEAR_S * taken:
                    return position
            elif not position.behind:
                return position
            before = position

    def _step(self) -> Position:
        """Take over some mutations."""
        mirror = read_manifest(self._store, self._mirror)
        assert mirror.mirror is not None
        source = read_manifest(self._store, mirror.mirror.index)
        check_followed(source, mirror)
        check_filled(mirror)
        mirror = follow_spec(self._store, source, mirror, self._vectors_of)
        log = checked_log(log_home(self._store, source.index, self._log_root), source)
        if log is None:
            return Position(mirror.log_sequence, 0)
        home = log_home(self._store, mirror.index, self._log_root)
        with closing(log), closing(home.claim(checked_log(home, mirror), mirror)) as copy:
            entries = self._read(log, max(copy.position(), mirror.log_sequence))
            if entries:
                # Records for columns that the index has just got are read with its next version.
                with suppress(LogGapError):
                    self._append(copy, source, mirror, entries)
            after = max(copy.position(), mirror.log_sequence)
            keep_source(self._store, mirror.index, source, after=after)
            return Position(after, max(0, log.position() - after))

    @staticmethod
    def _read(log: MutationLog, after: int) -> Sequence[LogEntry]:
        try:
            return log.read(after, max_bytes=READ_BYTES)
        except LogGapError as error:
            raise MirrorBrokenError(
                f"the log was cut beyond mutation {after}, which the mirror has last: it was not followed for too "
                "long; the migration begins again from the newest version, and encodes texts that have changed"
            ) from error

    def _append(
        self, copy: MutationLog, source: Manifest, mirror: Manifest, entries: Sequence[LogEntry]
    ) -> None:
        mutations = [_decoded(entry, source) for entry in entries]
        conversion = Conversion(source, mirror, self._encoders)
        if conversion.cuts:
            documents = [_touched(each) for each in mutations]
            rows = self._rows_of(source, sorted({*chain(*documents)}))
            converted = conversion.of_documents(documents, rows)
        else:
            converted = conversion.mutations(mutations)
        records = [encode(mutation) for mutation in converted]
        with copy.transaction(after=mirror.log_sequence, index_id=mirror.index_id) as transaction:
            # Under the lock: another process may have followed, or exchanged the contents.
            if transaction.position != entries[0].sequence - 1:
                return
            check_followed(read_manifest(self._store, source.index), mirror)
            for entry, record in zip(entries, records, strict=True):
                sequence = transaction.append(record)
                assert sequence == entry.sequence

    def _rows_of(self, source: Manifest, documents: Sequence[str]) -> pa.Table:
        """Return all rows of some documents of an index in its newest state."""
        state = self._state
        if state is None or state.manifest.version != source.version:
            reuse = None if state is None else state.index
            state = begin(open_manifest(self._store, source, reuse=reuse))
        log = checked_log(log_home(self._store, source.index, self._log_root), source)
        if log is not None:
            with closing(log):
                while entries := entries_for(log.read(state.sequence), source.version):
                    state = state_after(state, entries)
        self._state = state
        opened = state.opened()
        segments = zip(opened.segments, opened.alive, strict=True)
        return rows_of_documents(segments, documents, stored_schema(source))


_PASSAGE = re.compile(r"#[0-9]+\Z")
"""What the id of a passage has after that of its document."""


def _touched(mutation: Mutation) -> list[str]:
    """Return the documents that a mutation may change."""
    removed = [name for each in mutation.removed_ids for name in (each, _PASSAGE.sub("", each))]
    documents = mutation.rows.column("document_id").to_pylist() if mutation.rows.num_rows else []
    return [*dict.fromkeys([*mutation.removed_documents, *removed, *documents])]


def _decoded(entry: LogEntry, source: Manifest) -> Mutation:
    mutation = decode(entry.data, sequence=entry.sequence)
    if not mutation.rows.num_rows:  # a mark of columns to come, among others, which fits no version
        return mutation
    return rows_fit(mutation, source, sequence=entry.sequence)
