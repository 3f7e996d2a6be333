"""Whether an index is being filled: rows are added so quickly that what a merge builds would soon be merged again."""

from __future__ import annotations

from collections.abc import Callable

from scannery.live.memtable import LiveState

__all__ = ["FillDetector"]

QUIET_S = 3.0
"""Seconds without a mutation after which an index is not being filled."""
SEALED_S = 15.0
"""Seconds between two seals up to which an index is being filled; with the default of `seal_rows` 1,333 rows/s."""


class FillDetector:
    """Follows the states of one index. Not safe to use from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without a state.

        Args:
            clock: seconds.

        """
        self._clock = clock
        self._sequence = self._sealed = -1
        self._wrote_at_s = self._sealed_at_s = float("-inf")

    def filling(self, state: LiveState, age_s: float) -> bool:
        """Return whether the index is being filled.

        Args:
            state: the newest one.
            age_s: age of the oldest mutation in memory, in seconds.

        """
        now_s, live = self._clock(), state.manifest.spec.live
        if state.sequence != self._sequence:
            self._sequence, self._wrote_at_s = state.sequence, now_s
        if state.manifest.log_sequence != self._sealed:
            first, self._sealed = self._sealed < 0, state.manifest.log_sequence
            if not first:  # a server that has just started has not seen the seal
                self._sealed_at_s = now_s
        if now_s - self._wrote_at_s >= QUIET_S:
            return False
        quickly = state.memory_rows >= live.seal_rows and age_s < SEALED_S
        behind = state.memory_rows >= 2 * live.seal_rows
        return quickly or behind or now_s - self._sealed_at_s < SEALED_S
