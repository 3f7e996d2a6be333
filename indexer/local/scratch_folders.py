"""Temporary folders; those of killed processes are removed when another process makes one.

A folder in use is locked through an open descriptor, which the kernel closes when the process ends. So a folder of this
user without a lock is not in use.
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
    """Give an empty folder in the temporary folder (`TMPDIR`), with `purpose` in its name; remove it at the end.

    Raises:
        StoreError: it cannot be created, as when the disk is full.

    """
    try:
        if (place := tempfile.gettempdir()) not in _swept:
            _swept.add(place)
            _sweep(Path(place))
        folder, lock = _locked_folder(purpose)
    except OSError as error:
        raise StoreError(f"cannot create a temporary folder: {error}") from error
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
        # Before it was locked, another process took it for an unused one and removes it.
        shutil.rmtree(folder, ignore_errors=True)
    # The file system has no locks, so `_sweep` removes no folders.
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-")), None


def _lock(folder: Path) -> int | None:
    """Return a descriptor of the folder, locked; None if another process holds the lock, or the folder is gone."""
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
    """Remove the scratch folders of killed processes of this user."""
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
