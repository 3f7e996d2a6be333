"""Files that are being written: locked by their writer, so that they are told from what a killed writer left."""

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
    """Give a new file that is locked until the context ends; it may get another name before."""
    with os.fdopen(_created(path, mode), "wb") as file:
        yield file


def remove_draft(path: Path, *, before_s: float) -> None:
    """Remove a draft that was last written before a time (seconds since the epoch), unless somebody is writing it.

    The kernel frees the lock of who was killed.
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
        os.close(descriptor)  # taken for a leftover before it was locked


def _lock(descriptor: int, flags: int = 0) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: there, the age has to tell
        return True
    return True
