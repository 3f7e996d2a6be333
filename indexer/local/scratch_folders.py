"""Temporary folders that do not pile up: what a killed process left is removed by the next one that needs one.

A folder is locked as long as it is used, by an open descriptor, which the kernel lets go of however the process ends.
A folder of ours without a lock is therefore nobody's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scannery.indexer.errors import StoreError

__all__ = ["scratch_folder"]

_PREFIX = "scannery-tmp-"
_TRIES = 5
_swept: set[str] = set()


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Give an empty folder below the temporary one (`TMPDIR`), called after its purpose, and remove it at the end.

    Raises:
        StoreError: it cannot be made: the disk is full, say.

    """
    try:
        if (place := tempfile.gettempdir()) not in _swept:
            _swept.add(place)
            _sweep(Path(place))
        folder, lock = _locked_folder(purpose)
    except OSError as error:
        raise StoreError(f"no temporary folder can be made: {error}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked_folder(purpose: str) -> tuple[Path, int | None]:
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        if (lock := _lock(folder)) is not None:
            return folder, lock
        # Between the two calls another process took it for a stale one, and removes it.
        shutil.rmtree(folder, ignore_errors=True)
    # There are no locks on this file system, so nobody removes what others made.
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-")), None


def _lock(folder: Path) -> int | None:
    """Return the folder, open and locked; None if somebody has it, or it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _sweep(place: Path) -> None:
    """Remove what processes of this user left there that were killed."""
    for folder in place.glob(f"{_PREFIX}*"):
        lock = _lock(folder) if _is_ours(folder) else None
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _is_ours(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False
