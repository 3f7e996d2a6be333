"""One index of a leaf: a version and the mutations after it, read at the sequences that roots ask for.

A root reads one state from all leaves: that of the last mutation it knows of. So a leaf can return the state at each
sequence of the last seconds, and what it has read of the log it applies when a root asks for it.
"""

from __future__ import annotations

import logging
import time
from threading import TIMEOUT_MAX, RLock
from typing import Any

from scannery.live.live_index import LOCK_S, LiveIndex, SnapshotT
from scannery.live.log.mutation_log import LogGapError
from scannery.live.memtable import LiveState, entries_for
from scannery.live.recent_states import RecentStates
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline

__all__ = ["LeafIndex"]

_LOG = logging.getLogger(__name__)

LOG_WAIT_S = 1.0
"""Most seconds that a request waits while another thread reads the log, whose database may not answer: the root then
reads an older state."""


class LeafIndex(LiveIndex[SnapshotT]):
    """A version and the states after it. Safe to use from several threads."""

    moves = False
    """It stays at its version: roots move to the next one at different moments."""

    _recent: RecentStates[SnapshotT] | None = None
    _missing = ""
    """What to do about a mutation that a root asked for while there was no log; empty: none was."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Replay the log; arguments and errors are those of `LiveIndex`."""
        # Not the lock of the base class, which is held while the log is read: states of records that were read before
        # can be made meanwhile.
        self._making = RLock()
        super().__init__(*arguments, **options)
        self._recent = RecentStates(self._state, self.snapshot, self._snapshot_of, time.monotonic())

    @property
    def position(self) -> int:
        """The last mutation that was read: the states up to it can be returned at once."""
        recent = self._recent
        return self._state.sequence if recent is None else recent.end

    @property
    def problem(self) -> str:
        """Why the log cannot be followed; empty: it can."""
        return self._problem or (self._missing if self._log is None else "")

    def at(self, sequence: int, deadline: Deadline) -> SnapshotT | None:
        """Return the state at a sequence; None if it is too old, or the log does not have it yet.

        Raises:
            CorruptError, FormatError: the log cannot be read.
            DeadlineError: the deadline passed.

        """
        recent = self._recent
        assert recent is not None
        snapshot = recent.snapshot(sequence, time.monotonic())
        if snapshot is not None:
            return snapshot
        if sequence > recent.end:
            wait_s = min(deadline.remaining_s, LOG_WAIT_S)
            if self._log is None:  # a root has just written the first mutation
                self._look_again(wait_s)
            # Another call may be reading it now.
            self.catch_up(wait_s=wait_s, now=True)
            if self._log is None:
                self._note_missing(sequence)
        if not self._making.acquire(timeout=min(deadline.remaining_s, TIMEOUT_MAX)):
            raise DeadlineError("the deadline passed while other mutations were applied")
        try:
            snapshot = recent.made(sequence, time.monotonic())
            if snapshot is not None and recent.newest is not self._state:
                self._publish(recent.newest)
            return snapshot
        finally:
            self._making.release()

    def catch_up(self, *, wait_s: float = LOCK_S, now: bool = False) -> bool:
        """Read new entries of the log, and apply those that have waited; return whether there were new ones."""
        recent, end = self._recent, self.position
        super().catch_up(wait_s=wait_s, now=now)
        if recent is not None and self._making.acquire(timeout=wait_s):
            try:
                if recent.due(time.monotonic()):
                    recent.made(recent.end, time.monotonic())
                    self._publish(recent.newest)
            finally:
                self._making.release()
        return self.position != end

    def _note_missing(self, sequence: int) -> None:
        """Log once that roots use another log than this process, which has none."""
        if not self._missing:
            where = self._home.where if self._home.writable else "here"
            self._missing = (
                f"a root asked for mutation {sequence}, and there is no log {where}: start this leaf with the --log "
                "of the roots"
            )
            _LOG.error("index %s: %s", self._state.manifest.index, self._missing)

    def _apply_log(self, state: LiveState) -> LiveState:
        recent, log = self._recent, self._log
        if recent is None or log is None:  # the first replay
            return super()._apply_log(state)
        now_s = time.monotonic()
        version = self._state.manifest.version
        while entries := log.read(recent.end):
            if not (ours := entries_for(entries, version)):
                raise LogGapError(f"record {entries[0].sequence} of the log was made for a later version")
            with self._making:
                recent.add(ours, now_s)
        return recent.newest

    def _publish(self, state: LiveState) -> None:
        with self._making:
            # A newer one may have been made since.
            super()._publish(state if self._recent is None else self._recent.newest)

    def _snapshot(self) -> SnapshotT:
        recent = self._recent
        if recent is not None:
            made = recent.snapshot(self._state.sequence, time.monotonic())
            assert made is not None
            return made
        return super()._snapshot()
