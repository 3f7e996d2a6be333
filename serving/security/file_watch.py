"""Reload files that change while a server runs: certificates, keys."""

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
    """A value loaded from files, loaded again when their content changes. Safe to use from several threads.

    If loading fails, the last good value stays in force, and the next check tries again.
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
        """Load the value; raises what `make` raises.

        Args:
            what: name of the value, for the log.
            paths: the files; empty paths are skipped.
            make: loads the value from the files.
            every_s: seconds between two checks.
            clock: monotonic, in seconds: a wall clock that is set back could stop the checks for hours.

        """
        self._what, self._paths, self._make = what, [path for path in paths if path], make
        self._every_s, self._clock = every_s, clock
        self._lock = threading.Lock()
        # Before the value is loaded: the next check sees a change between the two.
        self._digests = self._hash_files()
        self.value = make()
        """The last good value."""
        self._problem = ""
        self._checked_at_s = self._good_at_s = clock()

    @property
    def stale_s(self) -> float:
        """Seconds since the files could last be used; 0 if the last check succeeded."""
        return self._clock() - self._good_at_s if self._problem else 0.0

    def look(self) -> bool:
        """Check the files if a check is due; return whether the value was loaded again."""
        now_s = self._clock()
        if now_s - self._checked_at_s < self._every_s or not self._lock.acquire(blocking=False):
            return False
        try:
            self._checked_at_s = now_s
            return self._reload()
        finally:
            self._lock.release()

    def _reload(self) -> bool:
        try:
            digests = self._hash_files()
            changed = None in digests or digests != self._digests
            if changed:
                self.value = self._make()
                self._digests = digests
                _LOG.info("%s: reloaded", self._what)
        except Exception as error:  # noqa: BLE001  the server keeps running with the last good value
            problem = str(error)
            if problem != self._problem:
                _LOG.error(
                    "%s: cannot be reloaded, the last good one stays in force: %s", self._what, problem
                )
            self._problem = problem
            return False
        self._problem, self._good_at_s = "", self._checked_at_s
        return changed

    def _hash_files(self) -> list[bytes | None]:
        return [_digest(path) for path in self._paths]


def _digest(path: str) -> bytes | None:
    """Return the SHA-256 of a file, None if it cannot be read. A change may keep modification time and size."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        return None
