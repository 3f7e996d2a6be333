"""Who keeps the indexes of a process up to date: threads beside the requests, or the requests themselves."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

__all__ = ["ON_ACCESS", "WATCHED", "Upkeep"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Upkeep:
    """When a catalog looks for new versions, and what a request may wait for."""

    watched: bool
    """Whether threads look for versions, follow the logs, start maintenance and load encoders, so that no request waits
    for files. Otherwise a request does so for its index, and closing an index finishes maintenance that is due."""
    every_s: float
    """An index is looked at when it is asked for, if its last look was so long ago."""
    wait_s: float
    """Most seconds that a request waits for its turn to look into the store for an index that is not known here."""
    small_bytes: float
    """Size of the segments, besides those that are open, of a version that a request may open: in milliseconds."""


ON_ACCESS = Upkeep(watched=False, every_s=1.0, wait_s=threading.TIMEOUT_MAX, small_bytes=math.inf)
"""In the embedded client."""

WATCHED = Upkeep(watched=True, every_s=math.inf, wait_s=0.25, small_bytes=1 << 20)
"""In servers, by a `Watcher`."""
