"""Locks of the tasks of maintenance, so that processes do not do the same work at once.

On one machine a task has a file lock, which its process inherits: the kernel releases it however that process ends.
Machines that share logs in a database also take a lock there, for economy only: if the connection is lost, the task
goes on, and the conditional put of the manifest decides whose version counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from scannery.indexer import Store, default_cache_folder
from scannery.live.log.files import held_by_this_process, make_folders, open_private
from scannery.live.log.location import DatabaseUrl, LogRoot, log_folder
from scannery.live.log.registry import registered
from scannery.runtime.errors import OverloadedError

__all__ = ["SharedLock", "Task", "TaskLock", "TaskLocks", "lock_root_of", "locked"]

LOOK_S = 0.1
Task = Literal["seal", "merge", "gc", "migrate"]


class SharedLock(Protocol):
    """A lock that other machines see."""

    def release(self) -> None:
        """Release it; no error if it is lost."""


class _NoLock:
    def release(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class TaskLock:
    """The locks of one task of an index."""

    file: int
    """Descriptor of the locked file. The lock lasts until all processes that have it open have closed it."""
    shared: SharedLock
    """The lock that other machines see."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Give a context at whose end the locks are released, for a task in this process."""
        try:
            with _held(self.file):
                yield
        finally:
            self.shared.release()


class TaskLocks:
    """Takes the locks of the tasks of one index. Safe to use from several threads."""

    def __init__(self, store: Store, index: str, log_root: LogRoot) -> None:
        """Take none yet.

        Args:
            store: with the index.
            index: its name.
            log_root: folder with the logs of the indexes, or their database.

        """
        self._store, self._index, self._log_root = store, index, log_root
        self._root = lock_root_of(store, log_root)

    def path(self, task: Task) -> Path:
        """Return the file that is locked on this machine."""
        return _lock_path(self._root, self._index, task)

    def try_lock(self, task: Task) -> TaskLock | None:
        """Return the locks of a task; None if another process holds one.

        Raises:
            OSError, IndexerError: the file or the database cannot be used.

        """
        file = _try_lock(self.path(task))
        if file is None:
            return None
        try:
            shared = self._try_shared(task)
        except BaseException:
            os.close(file)
            raise
        if shared is None:
            os.close(file)
            return None
        return TaskLock(file, shared)

    def _try_shared(self, task: Task) -> SharedLock | None:
        if not isinstance(self._log_root, DatabaseUrl):
            return _NoLock()
        registration = registered(self._store, self._index)
        if registration is None:
            return _NoLock()
        from scannery.live.log.postgres.task_lock import try_task_lock

        return try_task_lock(self._log_root, registration.log_id, task)


@contextmanager
def locked(lock_root: Path, index: str, task: Task, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the file lock of a task, for a command of the user.

    Args:
        lock_root: parent folder of all locks (`lock_root_of`).
        index: name of the index.
        task: the task.
        wait_s: how long another process is waited for.

    Raises:
        OverloadedError: another process runs the task.

    """
    path, end_s = _lock_path(lock_root, index, task), time.monotonic() + wait_s
    while (lock := _try_lock(path)) is None and time.monotonic() < end_s:
        time.sleep(LOOK_S)
    if lock is None:
        raise OverloadedError(f"index {index!r}: another process runs this task ({task})", retry_after_s=5.0)
    with _held(lock):
        yield


@contextmanager
def _held(file: int) -> Iterator[None]:
    try:
        with held_by_this_process(file):
            yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # a process forked meanwhile also has it open
        os.close(file)


def lock_root_of(store: Store, log_root: LogRoot) -> Path:
    """Return the parent folder of the file locks of all tasks: that of the logs, if they are in folders."""
    if isinstance(log_root, Path):
        return log_root.absolute()
    name = hashlib.sha256(store.uri.encode()).hexdigest()[:16]
    return store.local_root or default_cache_folder().absolute() / "locks" / name


def _lock_path(lock_root: Path, index: str, task: Task) -> Path:
    folder = log_folder(lock_root, index)
    assert folder is not None
    return folder / f"{task}.lock"


def _try_lock(path: Path) -> int | None:
    """Return the lock file's descriptor, locked; None if another process holds the lock."""
    make_folders(path.parent)
    descriptor = open_private(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
