"""Whether an index is being filled: rows are added so quickly that what a merge builds would soon be merged again."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["QUIET_S", "SEALED_S", "FillDetector"]

QUIET_S = 3.0
"""Seconds without a mutation after which an index is not being filled."""
SEALED_S = 15.0
"""Seconds for `seal_rows` rows, or since the last seal, up to which an index is being filled: with the default of
`seal_rows`, 1,333 rows/s and more."""


class FillDetector:
    """Observes the writes to one index. Not safe to use from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without an observation.

        Args:
            clock: seconds.

        """
        self._clock = clock
        self._written: int | None = None
        self._sealed: int | None = None
        self._written_at_s = self._sealed_at_s = float("-inf")

    def filling(self, *, written: int, sealed: int, full: bool, behind: bool, age_s: float) -> bool:
        """Return whether the index is being filled.

        Args:
            written: sequence of the last mutation.
            sealed: sequence of the last mutation that is in the current version.
            full: whether the rows in memory suffice for a seal.
            behind: whether they suffice for a larger one; then writes may only have paused because they were refused.
            age_s: age of the oldest mutation in memory, in seconds.

        """
        now_s = self._clock()
        if written != self._written:
            self._written, self._written_at_s = written, now_s
        if sealed != self._sealed:
            if self._sealed is not None:  # a server that has just started does not know when that was
                self._sealed_at_s = now_s
            self._sealed = sealed
        if behind:
            return True
        if now_s - self._written_at_s >= QUIET_S:
            return False
        return (full and age_s < SEALED_S) or now_s - self._sealed_at_s < SEALED_S
