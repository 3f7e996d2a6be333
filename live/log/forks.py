"""Close SQLite connections before this process forks, and reopen them after.

SQLite keeps a table of its process's file locks in memory. A fork copies the table, while the locks stay with the
parent. A child that opens the file finds the table and takes no lock; other processes then remove the write-ahead log
under it, and its commits are lost. So all connections are closed before a fork and reopened after it. If that is not
possible because a commit takes long, the child may not open the file. Threads that fork at the same time do so one
after the other, or one would release the locks of another.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from scannery.indexer import StoreError

__all__ = ["Forkable", "check_not_inherited", "held_by_this_process", "no_forks", "watch_forks"]

FORK_S = 2.0
"""Seconds that a fork waits for running commits, for all logs together."""


class Forkable(Protocol):
    """A log with connections to SQLite."""

    path: Path

    def before_fork(self, timeout_s: float) -> bool:
        """Close the connections and prevent new ones; return whether that succeeded in time."""

    def after_fork(self, *, in_child: bool) -> None:
        """Allow connections again."""


class _Fork(NamedTuple):
    paused: list[Forkable]
    in_use: list[Forkable]


_WATCHED: weakref.WeakSet[Forkable] = weakref.WeakSet()
_INHERITED: set[tuple[int, int]] = set()
"""Device and inode of files that a parent had open during the fork: this process may not open them."""
_HELD: set[int] = set()
"""Descriptors that a child closes."""
_FORKS: list[_Fork] = []
"""Running forks; more than one only if a signal handler forks while its thread is forking."""
_FORKING = threading.RLock()


@contextmanager
def no_forks() -> Iterator[None]:
    """Prevent forks, for connections that do not belong to a `Forkable`."""
    with _FORKING:
        yield


def watch_forks(log: Forkable) -> None:
    """Close the connections of a log whenever this process forks; call this before it has any."""
    with _FORKING:
        _WATCHED.add(log)


@contextmanager
def held_by_this_process(descriptor: int) -> Iterator[int]:
    """Close a locked file in forked children: they would hold the lock after the death of this process."""
    _HELD.add(descriptor)
    try:
        yield descriptor
    finally:
        _HELD.discard(descriptor)


def check_not_inherited(path: Path) -> None:
    """Raise StoreError if this process inherited SQLite's lock table for a file."""
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
    _FORKING.acquire()
    fork = _Fork([], [])
    _FORKS.append(fork)
    share_s = FORK_S / max(1, len(_WATCHED))
    for log in list(_WATCHED):
        (fork.paused if log.before_fork(share_s) else fork.in_use).append(log)


def _after_in_parent() -> None:
    for log in _FORKS.pop().paused:
        log.after_fork(in_child=False)
    _FORKING.release()


def _after_in_child() -> None:
    for descriptor in _HELD:
        with suppress(OSError):
            os.close(descriptor)
    _HELD.clear()
    fork = _FORKS.pop()
    for log in fork.in_use:
        with suppress(OSError):
            status = log.path.stat()
            _INHERITED.add((status.st_dev, status.st_ino))
    for log in fork.paused:
        log.after_fork(in_child=True)
    _FORKING.release()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
