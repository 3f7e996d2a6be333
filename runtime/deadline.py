"""How long a request may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from scannery.runtime.errors import DeadlineError

__all__ = ["Deadline"]


@dataclass(frozen=True)
class Deadline:
    """The moment until which the caller waits for the answer."""

    at_s: float
    """In the clock's seconds; infinite for none."""
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline in `seconds` from now; None: never."""
        return cls(math.inf if seconds is None else clock() + seconds, clock)

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 if none."""
        return max(0.0, self.at_s - self.clock())

    def check(self) -> None:
        """Raise DeadlineError if it has passed. Called between the steps of long work, none of which is interrupted."""
        if self.clock() >= self.at_s:
            raise DeadlineError("the deadline passed before the answer was ready")
