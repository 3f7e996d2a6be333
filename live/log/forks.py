"""Forks: what a child of this process must not inherit from SQLite.

SQLite remembers, in memory that a fork copies, which locks its process holds on a file; the locks themselves stay with
the parent. A child that opens the file finds that memory and takes no lock. Other processes then remove the write-ahead
log under it, and what it commits is lost. So all connections are closed before a fork and opened again after it. Where
that is not possible, because a commit takes long, the child is refused the file. Threads that fork at once do so one
after the other, or one of them would let go of what another one holds.
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
"""For all logs together. A fork waits no longer for commits that run."""


class Forkable(Protocol):
    """What has connections."""

    path: Path

    def before_fork(self, timeout_s: float) -> bool:
        """Close the connections and keep others from opening them; return whether that was possible in time."""

    def after_fork(self, *, in_child: bool) -> None:
        """Let others open them again."""


class _Fork(NamedTuple):
    paused: list[Forkable]
    in_use: list[Forkable]


_WATCHED: weakref.WeakSet[Forkable] = weakref.WeakSet()
_INHERITED: set[tuple[int, int]] = set()
_HELD: set[int] = set()
_FORKS: list[_Fork] = []
"""Several only where a signal's handler forks while its thread is about to."""
_FORKING = threading.RLock()


@contextmanager
def no_forks() -> Iterator[None]:
    """Let no thread fork: for connections that no `Forkable` has."""
    with _FORKING:
        yield


def watch_forks(log: Forkable) -> None:
    """Take care of the connections of a log whenever this process forks; call it before it has any."""
    with _FORKING:
        _WATCHED.add(log)


@contextmanager
def held_by_this_process(descriptor: int) -> Iterator[int]:
    """Keep a file that is locked from children: they would keep the lock after the death of this process."""
    _HELD.add(descriptor)
    try:
        yield descriptor
    finally:
        _HELD.discard(descriptor)


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
