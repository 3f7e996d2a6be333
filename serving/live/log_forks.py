"""Forks: what a child of this process must not inherit from SQLite.

SQLite remembers, in memory that a fork copies, which locks its process holds on a file; the locks themselves stay with
the parent. A child that opens the file finds that memory and takes no lock. Other processes then remove the write-ahead
log under it, and what it commits is lost. So all connections are closed before a fork and opened again after it. Where
that is not possible, because a commit takes long, the child is refused the file.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from scannery.indexer import StoreError

__all__ = ["Forkable", "check_not_inherited", "watch_forks"]

FORK_S = 2.0
"""For all logs together. A fork waits no longer for commits that run."""


class Forkable(Protocol):
    """What has connections."""

    path: Path

    def before_fork(self, timeout_s: float) -> bool:
        """Close the connections and keep others from opening them; return whether that was possible in time."""

    def after_fork(self) -> None:
        """Let others open them again."""


_WATCHED: weakref.WeakSet[Forkable] = weakref.WeakSet()
_PAUSED: list[Forkable] = []
_IN_USE: list[Forkable] = []
_INHERITED: set[tuple[int, int]] = set()


def watch_forks(log: Forkable) -> None:
    """Take care of the connections of a log whenever this process forks."""
    _WATCHED.add(log)


def check_not_inherited(path: Path) -> None:
    """Raise StoreError if SQLite's memory of a file was inherited by this process."""
    if not _INHERITED:
        return
    with suppress(FileNotFoundError):
        status = path.stat()
        if (status.st_dev, status.st_ino) in _INHERITED:
            raise StoreError(
                f"the mutation log {path} was being written when this process was forked, and cannot be opened here: "
                "start processes with `spawn`, or fork before writing"
            )


def _before() -> None:
    _PAUSED.clear()
    _IN_USE.clear()
    share_s = FORK_S / max(1, len(_WATCHED))
    for log in list(_WATCHED):
        (_PAUSED if log.before_fork(share_s) else _IN_USE).append(log)


def _after_in_parent() -> None:
    for log in _PAUSED:
        log.after_fork()
    _PAUSED.clear()
    _IN_USE.clear()


def _after_in_child() -> None:
    for log in _IN_USE:
        with suppress(OSError):
            status = log.path.stat()
            _INHERITED.add((status.st_dev, status.st_ino))
    _after_in_parent()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
