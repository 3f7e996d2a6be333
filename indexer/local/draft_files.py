"""Draft files, locked while they are written, so that drafts of killed writers can be removed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["new_draft", "remove_draft"]


@contextmanager
def new_draft(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Give a new file, open for writing and locked until the context ends; the caller may rename it meanwhile."""
    with os.fdopen(_created(path, mode), "wb") as file:
        yield file


def remove_draft(path: Path, *, before_s: float) -> None:
    """Remove a draft that was last written before a time (seconds since the epoch), unless its writer still runs.

    The kernel frees the lock of a killed writer.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        if os.fstat(descriptor).st_mtime < before_s and _lock(descriptor, fcntl.LOCK_NB):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _created(path: Path, mode: int) -> int:
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another process removed it as a leftover before it was locked


def _lock(descriptor: int, flags: int = 0) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: drafts are removed by age alone
        return True
    return True
