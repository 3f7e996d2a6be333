"""Files that may change while a server runs: certificates, keys."""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["Watched"]

_Stamp = tuple[int, int, int] | None


class Watched:
    """Tells whether any of some files changed since it was last asked."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [path for path in paths if path]
        self._stamps = self._now()

    def changed(self) -> bool:
        """Return whether a file was written or replaced since the last call."""
        stamps = self._now()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        return True

    def _now(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> _Stamp:
    try:
        # Follows links: that is how Kubernetes replaces mounted secrets.
        status = os.stat(path)  # noqa: PTH116  Path.stat() costs five times as much
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
