"""The index while the writes of a group are appended, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.indexer import Manifest
from scannery.live.log.mutation_log import LogEntry
from scannery.live.log.records import Mutation
from scannery.live.memtable import LiveState, apply
from scannery.live.replay import mutations_of

__all__ = ["GroupState"]


class GroupState:
    """The state of this process after all earlier writes, and the mutations that led to it. For one thread."""

    def __init__(self, own: LiveState, entries: Sequence[LogEntry]) -> None:
        """Begin after the entries of the log.

        Args:
            own: the state that readers see.
            entries: all entries after it; further ones before these, if a write needs their mutations.

        Raises:
            CorruptError, FormatError: as `state_after`.

        """
        self.later = mutations_of(entries, own.manifest)
        """Mutations with their sequences, in order, up to the write that is next."""
        self.sequence = max(own.sequence, entries[-1].sequence if entries else 0)
        """Sequence of the last one."""
        self._pending = [(sequence, mutation) for sequence, mutation in self.later if sequence > own.sequence]
        self._own = own.logged(sum(len(entry.data) for entry in entries if entry.sequence > own.sequence))

    @property
    def own(self) -> LiveState:
        """The state of this process before the next write."""
        if self._pending:
            self._own, self._pending = apply(self._own, self._pending), []
        return self._own

    @property
    def manifest(self) -> Manifest:
        """The manifest of the version."""
        return self._own.manifest

    def add(self, sequence: int, mutation: Mutation, size_bytes: int) -> None:
        """Add a write; `size_bytes` are those of its record."""
        self.sequence = sequence
        self.later.append((sequence, mutation))
        self._pending.append((sequence, mutation))
        self._own = self._own.logged(size_bytes)
