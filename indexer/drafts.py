"""Files that are being written: locked by who writes them, so that nobody takes them for what a killed writer left."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["is_being_written", "new_draft"]


@contextmanager
def new_draft(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Give a new file that is locked until the context ends; it may get another name before."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        with suppress(OSError):  # a file system without locks: then its age has to tell
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def is_being_written(path: Path) -> bool:
    """Return whether somebody has a draft locked; the kernel frees the lock of who is killed."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
