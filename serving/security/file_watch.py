"""Files that may change while a server runs: certificates, keys."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

__all__ = ["Watched"]

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class Watched(Generic[T]):
    """What is made of some files, made again when their content changes. Safe to use from several threads.

    What cannot be made leaves the last good one in force, and is tried again with the next look.
    """

    def __init__(
        self,
        what: str,
        paths: Sequence[str],
        make: Callable[[], T],
        *,
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make it for the first time; raises what `make` does.

        Args:
            what: what it is, for the log.
            paths: the files; empty ones are none.
            make: reads the files, and makes it of them.
            every_s: seconds between two looks.
            clock: in seconds, never set back: with the clock on the wall, looks could cease for hours.

        """
        self._what, self._paths, self._make = what, [path for path in paths if path], make
        self._every_s, self._clock = every_s, clock
        self._lock = threading.Lock()
        # Before it is made: a change between the two is seen with the next look.
        self._stamp = self._content()
        self.value = make()
        """The last good one."""
        self._trouble = ""
        self._looked_at_s = self._good_at_s = clock()

    @property
    def stale_s(self) -> float:
        """Seconds since the files could be used for the last time; 0, if that was at the last look."""
        return self._clock() - self._good_at_s if self._trouble else 0.0

    def look(self) -> bool:
        """Make it again, if it is time to look and the files changed; return whether that happened."""
        now_s = self._clock()
        if now_s - self._looked_at_s < self._every_s or not self._lock.acquire(blocking=False):
            return False
        try:
            self._looked_at_s = now_s
            return self._looked()
        finally:
            self._lock.release()

    def _looked(self) -> bool:
        try:
            stamp = self._content()
            changed = None in stamp or stamp != self._stamp
            if changed:
                self.value = self._make()
                self._stamp = stamp
                _LOG.info("%s: read again", self._what)
        except Exception as error:  # noqa: BLE001  whatever is wrong with them now, the server goes on
            self._note(str(error))
            return False
        self._note("")
        return changed

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _LOG.error("%s: stays as it was: %s", self._what, trouble)
        self._trouble = trouble
        if not trouble:
            self._good_at_s = self._looked_at_s

    def _content(self) -> list[bytes | None]:
        return [_digest(path) for path in self._paths]


def _digest(path: str) -> bytes | None:
    """Return a hash of a file's content, None if it cannot be read: times and sizes may be the same after a change."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        return None
