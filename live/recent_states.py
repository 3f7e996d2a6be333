"""The states that an index had in the last seconds: a cluster reads one state, at one sequence, on all of its leaves.

Roots ask for the last mutation that they know of, and know of different ones at a moment. So the records of the last
seconds are kept with some states between them; a state that is asked for is made from the one before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from scannery.live.log.mutation_log import LogEntry
from scannery.live.memtable import LiveState, state_after

__all__ = ["RecentStates"]

KEPT_S = 10.0
"""Seconds that a state is kept after it was last asked for, and a record after it was read."""
MAX_STATES = 64
"""Beyond this number every second one is dropped. The records between them stay, so that these can be made again."""
MAX_STATE_BYTES = 256 << 20
"""Likewise beyond this memory of the states besides that of the newest: each has own live rows, and the latest rows."""
MAX_RECORD_BYTES = 64 << 20
"""Most bytes of the records that are kept, besides those that are not applied yet."""
APPLY_AFTER_S = 0.1
"""Records that no query asked for are applied after this time: a query that asks for them does not wait longer."""
APPLY_AFTER_BYTES = 4 << 20

SnapshotT = TypeVar("SnapshotT")


@dataclass(slots=True, eq=False)
class _KeptState(Generic[SnapshotT]):
    state: LiveState
    snapshot: SnapshotT
    used_at_s: float
    added_bytes: int
    """Memory of what the state before it does not have."""


class RecentStates(Generic[SnapshotT]):
    """States of one version and the records between them. `snapshot` needs no lock, all others one of the caller."""

    def __init__(
        self, state: LiveState, snapshot: SnapshotT, make: Callable[[LiveState], SnapshotT], now_s: float
    ) -> None:
        """Begin with a state.

        Args:
            state: the newest.
            snapshot: of this state.
            make: returns the snapshot of a state.
            now_s: the time in seconds.

        """
        self._make = make
        self._kept = {state.sequence: _KeptState(state, snapshot, now_s, 0)}
        """States by sequence, ascending."""
        self._entries: list[LogEntry] = []
        """The records after the oldest state, without gaps."""
        self._read_at_s: list[float] = []
        """When each was read."""
        self._bytes = 0
        self.end = state.sequence
        """The last record that was read."""
        self.newest = state
        """The newest state that was made."""

    def add(self, entries: Sequence[LogEntry], now_s: float) -> None:
        """Add the records after `end`."""
        self._entries += entries
        self._read_at_s += [now_s] * len(entries)
        self._bytes += sum(len(entry.data) for entry in entries)
        self.end = entries[-1].sequence

    def due(self, now_s: float) -> bool:
        """Return whether there are records that have waited long enough to be applied, or are too large to wait."""
        waiting = self._after(self.newest.sequence, self.end)
        if not waiting:
            return False
        first_at_s = self._read_at_s[len(self._entries) - len(waiting)]
        return (
            now_s - first_at_s >= APPLY_AFTER_S
            or sum(len(each.data) for each in waiting) >= APPLY_AFTER_BYTES
        )

    def snapshot(self, sequence: int, now_s: float) -> SnapshotT | None:
        """Return the snapshot at a sequence; None: it was not made."""
        kept = self._kept.get(sequence)
        if kept is None:
            return None
        kept.used_at_s = now_s
        return kept.snapshot

    def made(self, sequence: int, now_s: float) -> SnapshotT | None:
        """Return the snapshot at a sequence, made from the state before it; None: it is too old, or not read yet.

        Raises:
            CorruptError, FormatError: a record cannot be read, or does not fit the version.

        """
        snapshot = self.snapshot(sequence, now_s)
        if snapshot is not None or sequence > self.end:
            return snapshot
        sequences = list(self._kept)
        position = bisect_right(sequences, sequence)
        if not position:
            return None
        before = self._kept[sequences[position - 1]].state
        state = state_after(before, self._after(before.sequence, sequence))
        made = self._make(state)
        self._keep(_KeptState(state, made, now_s, _added_bytes(before, state)))
        return made

    def _keep(self, made: _KeptState[SnapshotT]) -> None:
        state, now_s = made.state, made.used_at_s
        kept = {**self._kept, state.sequence: made}
        self._kept = dict(sorted(kept.items()))
        if state.sequence > self.newest.sequence:
            self.newest = state
        self._expire(now_s)

    def _after(self, after: int, last: int) -> Sequence[LogEntry]:
        """Return the records after a sequence, up to the last one."""
        first = self.end - len(self._entries)
        return self._entries[after - first : last - first]

    def _expire(self, now_s: float) -> None:
        """Drop old states and records, and keep what the newest state and those in use are made from."""
        sequences = list(self._kept)
        old = [
            sequence
            for sequence in sequences
            if sequence != self.newest.sequence and now_s - self._kept[sequence].used_at_s >= KEPT_S
        ]
        # The last old state is what states between it and the next one are made from.
        dropped = set(old[:-1])
        remaining = [sequence for sequence in sequences if sequence not in dropped]
        while len(remaining) > MAX_STATES or (
            len(remaining) > 2 and self._bytes_besides_newest(remaining) > MAX_STATE_BYTES
        ):
            # Every second one, which can be made again from the one before it: the first and the newest stay.
            del remaining[1:-1:2]
            self._measure(remaining)
        self._forget_before(remaining[0])
        while self._bytes > MAX_RECORD_BYTES and len(remaining) > 1:
            del remaining[0]
            self._forget_before(remaining[0])
        self._kept = {sequence: self._kept[sequence] for sequence in remaining}

    def _bytes_besides_newest(self, sequences: Sequence[int]) -> int:
        """Return the memory of some states that the newest, the last of them, does not share."""
        oldest = self._kept[sequences[0]].state
        added_bytes = sum(self._kept[sequence].added_bytes for sequence in sequences[1:])
        return sum(oldest.part_bytes.values()) + added_bytes - sum(self.newest.part_bytes.values())

    def _measure(self, sequences: Sequence[int]) -> None:
        """Measure again what each of some states adds to the one before it."""
        for before, sequence in pairwise(sequences):
            kept = self._kept[sequence]
            kept.added_bytes = _added_bytes(self._kept[before].state, kept.state)

    def _forget_before(self, sequence: int) -> None:
        """Drop the records up to a sequence."""
        count = sequence - (self.end - len(self._entries))
        self._bytes -= sum(len(entry.data) for entry in self._entries[:count])
        del self._entries[:count], self._read_at_s[:count]


def _added_bytes(before: LiveState, state: LiveState) -> int:
    """Return the memory of what a state has and the one before it does not: a part lives in successive states."""
    old_parts = before.part_bytes
    return sum(size for part, size in state.part_bytes.items() if part not in old_parts)
