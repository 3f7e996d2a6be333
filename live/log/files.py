"""The files of a mutation log beside its database: made, marked, locked.

Only one process appends at a time. Which one is decided by `flock` on a file beside the database: it wakes up
the next one at once, while SQLite's own lock is polled. The kernel frees it when its holder dies.

All files are their owner's alone. A lock file that others can read is one that they can lock, and hold for ever.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from scannery.indexer import StoreError
from scannery.live.log.forks import held_by_this_process
from scannery.runtime.errors import ReadOnlyError

__all__ = [
    "DRAFT_FILE",
    "LOG_FILE",
    "TURN_FILE",
    "Mark",
    "Mode",
    "exclusive",
    "files_of_log",
    "make_folders",
    "mark",
    "marked",
    "mode_of",
    "open_private",
    "refusal",
    "sync_folder",
    "tighten",
    "wal_of",
]

LOG_FILE = "log.sqlite"
TURN_FILE = "turn.lock"
DRAFT_FILE = f".new-{LOG_FILE}"
"""A log that does not have its name yet. Not a draft of the store's: gc would take it away."""
FILE_MODE = 0o600
FOLDER_MODE = 0o700


def wal_of(path: Path) -> Path:
    """Return where the write-ahead log of a database is."""
    return path.with_name(f"{LOG_FILE}-wal")


def files_of_log(folder: Path) -> list[str]:
    """Return the names of what there is of a log in a folder, also where the database itself is missing."""
    names = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []
    return [name for name in names if name == TURN_FILE or name.startswith(LOG_FILE)]


class Mode(enum.Enum):
    """How a log can be opened."""

    OPEN = "rw"
    READ = "ro"
    """Its folder cannot be written."""
    STILL = "ro&immutable=1"
    """Besides, the last writer has closed it: to read it, SQLite would create files, unless it is told of that."""


def mode_of(path: Path) -> Mode:
    """Return how a log can be opened now."""
    if os.access(path.parent, os.W_OK):
        return Mode.OPEN
    return Mode.READ if wal_of(path).exists() else Mode.STILL


def make_folders(folder: Path) -> None:
    """Create a folder of logs and its parents, durably, for their owner alone; those that exist stay as they are.

    Raises:
        ReadOnlyError, StoreError: it cannot be created.

    """
    try:
        missing = [item for item in (folder, *folder.parents) if not item.exists()]
        for item in reversed(missing):
            item.mkdir(mode=FOLDER_MODE, exist_ok=True)
            sync_folder(item.parent, files=False)
    except OSError as error:
        raise refusal(folder, error) from error


def open_private(path: Path) -> int:
    """Return the descriptor of a file for its owner alone, created where it is missing.

    A superuser creates it for the owner of the folder, whose server could not open it otherwise.
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


def tighten(folder: Path) -> None:
    """Take the rights of others from the folder of a log and its files, where they are ours."""
    with suppress(OSError):  # a read-only file system
        for path in (folder, *folder.iterdir()):
            with suppress(FileNotFoundError):
                status = path.stat()
                if status.st_uid == os.geteuid() and status.st_mode & 0o077:
                    path.chmod(status.st_mode & 0o700)


def sync_folder(folder: Path, *, files: bool = True) -> None:
    """Make the names in a folder durable, by default also the content of the files in it."""
    own = [item for item in folder.iterdir() if item.is_file()] if files else []
    for path in (*own, folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def exclusive(path: Path) -> Iterator[int]:
    """Hold the exclusive lock among the processes of this machine; gives the lock's file, for `mark`."""
    try:
        descriptor = open_private(path.with_name(TURN_FILE))
    except OSError as error:
        raise refusal(path.parent, error) from error
    try:
        with held_by_this_process(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
    finally:
        # To close it is not enough: a process that was forked meanwhile has it, too, and would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


class Mark(NamedTuple):
    """What the lock's file notes."""

    sequence: int
    """The last one that was acknowledged; 0 where nothing is noted."""
    log_id: str | None
    """In which log; None in files of early days."""


def mark(descriptor: int, sequence: int, log_id: str) -> None:
    """Note in the lock's file what is about to be acknowledged; not synced, since that would cost as much again.

    A write-ahead log that is damaged ends for SQLite before the damage, as if nothing had come after it.
    """
    with suppress(OSError):  # it helps to find out, and nothing depends on it
        os.pwrite(descriptor, f"{sequence:020d} {log_id}\n".encode(), 0)


def marked(path: Path) -> Mark:
    """Return the last sequence that was acknowledged, as far as that is noted."""
    try:
        sequence, *log_id = path.with_name(TURN_FILE).read_text().split()
        return Mark(int(sequence), log_id[0] if log_id else None)
    except (OSError, ValueError):
        return Mark(0, None)


def refusal(folder: Path, error: OSError) -> Exception:
    """Return what a write is refused with, where its folder cannot be written."""
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return ReadOnlyError(f"no writes are taken: {folder} cannot be written ({error.strerror})")
    return StoreError(f"{folder}: {error.strerror or error}")
