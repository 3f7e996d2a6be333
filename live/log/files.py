"""The files of a mutation log beside its database: creation, permissions, lock.

One process appends at a time. It holds `flock` on a file beside the database, which wakes the next waiter at once,
whereas waiters poll SQLite's own lock. The kernel releases it when its holder dies.

Only the owner can access the files: a user who can read a lock file can lock it, and hold the lock indefinitely.

Connections are closed before this process forks, and reopened after. SQLite keeps a table of its process's file locks
in memory. A fork copies the table, while the locks stay with the parent. A child that opens the file finds the table
and takes no lock; other processes then remove the write-ahead log under it, and its commits are lost. If closing is not
possible because a commit takes long, the child may not open the file. Threads that fork at the same time do so one
after the other, or one would release the locks of another.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from scannery.indexer import StoreError
from scannery.indexer.store.folder_backend import sync_folder
from scannery.runtime.errors import ReadOnlyError

__all__ = [
    "DRAFT_FILE",
    "LOG_FILE",
    "TURN_FILE",
    "Forkable",
    "Mark",
    "Mode",
    "check_not_inherited",
    "exclusive",
    "files_of_log",
    "held_by_this_process",
    "make_folders",
    "mode_of",
    "no_forks",
    "open_private",
    "read_mark",
    "restrict_permissions",
    "sync_files",
    "wal_of",
    "watch_forks",
    "write_mark",
]


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
    end_s = time.monotonic() + FORK_S
    for log in list(_WATCHED):
        # One that is busy may take all of the time: others need none.
        is_paused = log.before_fork(max(0.0, end_s - time.monotonic()))
        (fork.paused if is_paused else fork.in_use).append(log)


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


LOG_FILE = "log.sqlite"
TURN_FILE = "turn.lock"
DRAFT_FILE = f".new-{LOG_FILE}"
"""Name of a log while it is created. The store's names for drafts differ: gc removes those."""
FILE_MODE = 0o600
FOLDER_MODE = 0o700


def wal_of(path: Path) -> Path:
    """Return the path of the write-ahead log of a database."""
    return path.with_name(f"{LOG_FILE}-wal")


def files_of_log(folder: Path) -> list[str]:
    """Return the names of a log's files in a folder, also if the database itself is missing."""
    names = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []
    return [name for name in names if name == TURN_FILE or name.startswith(LOG_FILE)]


class Mode(enum.Enum):
    """How a log can be opened; the value is for SQLite's URI."""

    OPEN = "rw"
    READ = "ro"
    """The folder cannot be written."""
    IMMUTABLE = "ro&immutable=1"
    """The folder cannot be written, and the last writer closed the log: without `immutable`, SQLite would create
    files to read it."""


def mode_of(path: Path) -> Mode:
    """Return how a log can be opened now."""
    if os.access(path.parent, os.W_OK):
        return Mode.OPEN
    return Mode.READ if wal_of(path).exists() else Mode.IMMUTABLE


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, durably and with mode 0700; existing folders keep their mode.

    Raises:
        ReadOnlyError, StoreError: it cannot be created.

    """
    try:
        missing = [item for item in (folder, *folder.parents) if not item.exists()]
        for item in reversed(missing):
            item.mkdir(mode=FOLDER_MODE, exist_ok=True)
            sync_folder(item.parent)
    except OSError as error:
        raise write_error(folder, error) from error


def open_private(path: Path) -> int:
    """Return the descriptor of a file with mode 0600, created if it is missing.

    Root gives it to the owner of the folder, whose server could not open it otherwise.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and status.st_mode & 0o077:
            os.fchmod(descriptor, FILE_MODE)
        folder = path.parent.stat()
        if status.st_uid == os.geteuid() == 0 != folder.st_uid:
            os.fchown(descriptor, folder.st_uid, folder.st_gid)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def restrict_permissions(folder: Path) -> None:
    """Remove group and other permissions from a log's folder and files that this user owns."""
    with suppress(OSError):  # a read-only file system
        for path in (folder, *folder.iterdir()):
            with suppress(FileNotFoundError):
                status = path.stat()
                if status.st_uid == os.geteuid() and status.st_mode & 0o077:
                    path.chmod(status.st_mode & 0o700)


def sync_files(folder: Path) -> None:
    """Make the content of the files in a folder durable, and their names."""
    for path in [item for item in folder.iterdir() if item.is_file()]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_folder(folder)


@contextmanager
def exclusive(path: Path) -> Iterator[int]:
    """Hold the lock to append among the processes of this machine; gives its descriptor for `write_mark`."""
    try:
        descriptor = open_private(path.with_name(TURN_FILE))
    except OSError as error:
        raise write_error(path.parent, error) from error
    try:
        with held_by_this_process(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
    finally:
        # Closing is not enough: a process forked meanwhile also has the descriptor, and would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


class Mark(NamedTuple):
    """Content of the lock file."""

    sequence: int
    """The last acknowledged sequence; 0 if the file has none."""
    log_id: str | None
    """Id of the log; None in files that releases without ids wrote."""


def write_mark(descriptor: int, sequence: int, log_id: str) -> None:
    """Write to the lock file the sequence that is about to be acknowledged.

    It reveals lost commits: SQLite reads a damaged write-ahead log up to the damage, as if nothing had followed.
    It is not synced, which would double the cost of a commit.
    """
    with suppress(OSError):  # a diagnostic; correctness does not depend on it
        os.pwrite(descriptor, f"{sequence:020d} {log_id}\n".encode(), 0)


def read_mark(path: Path) -> Mark:
    """Return the content of the lock file beside a log; Mark(0, None) if it cannot be read."""
    try:
        sequence, *log_id = path.with_name(TURN_FILE).read_text().split()
        return Mark(int(sequence), log_id[0] if log_id else None)
    except (OSError, ValueError):
        return Mark(0, None)


def write_error(folder: Path, error: OSError) -> Exception:
    """Return the error for a write whose folder cannot be written."""
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return ReadOnlyError(f"the index takes no writes: {folder} cannot be written ({error.strerror})")
    return StoreError(f"{folder}: {error.strerror or error}")
