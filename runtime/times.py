"""Times as users write and read them: lengths of time, and seconds by the clock of the machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

__all__ = ["WALL_SECONDS", "WallSeconds", "length_s"]

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0, "y": 365.25 * 86400.0}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([smhdwy])")


def length_s(text: str) -> float | None:
    """Return the seconds of a length of time like `90d` (units: s, m, h, d, w, y); None: it is none."""
    match = _LENGTH.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS_S[match[2]]


class WallSeconds:
    """Whole seconds since 1970, which never go back while the process runs: what has expired does not come back."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Read a clock, which returns seconds since 1970 and may be set back."""
        self._clock, self._latest = clock, 0

    def __call__(self) -> int:
        """Return the second that has begun."""
        latest = self._latest = max(self._latest, int(self._clock()))
        return latest


WALL_SECONDS = WallSeconds()
"""The seconds of this process."""
