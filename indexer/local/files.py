"""Local files and folders: private, temporary, drafts that are locked while they are written, and hashes.

A folder in use is locked through an open descriptor, which the kernel closes when the process ends. So a folder of this
user without a lock is not in use.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from scannery.indexer.errors import StoreError

__all__ = [
    "file_sha256",
    "is_private",
    "keeps_code",
    "make_private",
    "new_draft",
    "remove_draft",
    "scratch_folder",
]


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
        if os.fstat(descriptor).st_mtime < before_s and _locked_draft(descriptor, fcntl.LOCK_NB):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _created(path: Path, mode: int) -> int:
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        _locked_draft(descriptor)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another process removed it as a leftover before it was locked


def _locked_draft(descriptor: int, flags: int = 0) -> bool:
    """Lock a draft, and return whether it is locked; without LOCK_NB, wait for that."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: drafts are removed by age alone
        return True
    return True


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


_LOG = logging.getLogger(__name__)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NOT_OWNER = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path, name: str) -> None:
    """Create a folder and its missing parents with mode 0700. An existing folder of this user gets this mode.

    Args:
        folder: the folder.
        name: what errors and warnings call it.

    Raises:
        StoreError: it belongs to another user, or is a link.
        OSError: it cannot be created.

    """
    for item in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        item.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{name} is a link or a file; it must be a folder of the user who runs this")
    if status.st_uid != os.geteuid():
        raise StoreError(
            f"{name} belongs to user {status.st_uid}, and this process runs as {os.geteuid()}; a user who can write "
            "there could make it run any code, so it needs its own folder"
        )
    if status.st_mode & _NOT_OWNER:
        if status.st_mode & _OTHERS_WRITE:
            _LOG.warning("other users could write to %s (%s); its mode is 0700 now", name, folder)
        folder.chmod(0o700)


def keeps_code(folder: Path, source: Path) -> bool:
    """Return whether compiled code in a cache folder may be loaded; log a warning if not.

    Numba's cache is pickle, so loading it can run any code. A cache beside the source needs no check: users who can
    write there can change the source. A folder of this user that others could write is emptied and gets mode 0700.
    """
    if folder.name == "__pycache__" and folder.parent.samefile(source.parent):
        return True
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        _LOG.warning("compiled code in %s is not used: it belongs to user %d", folder, status.st_uid)
        return False
    if status.st_mode & _OTHERS_WRITE:
        _LOG.warning("other users could write compiled code in %s; it is compiled again", folder)
        folder.chmod(0o700)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
    return True


def is_private(folder: Path) -> bool:
    """Return whether a folder belongs to the user of this process, and no other user can write there."""
    status = folder.lstat()
    owned = status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode)
    return owned and not status.st_mode & _OTHERS_WRITE


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
        if (base := tempfile.gettempdir()) not in _swept:
            _swept.add(base)
            _sweep(Path(base))
        folder, lock = _locked_folder(purpose)
    except OSError as error:
        raise StoreError(f"cannot create a temporary folder: {error}") from error
    try:
        # A store in it locks its root: with the folder itself it would wait for the lock of this process for ever.
        content = folder / "content"
        try:
            content.mkdir(mode=0o700)
        except OSError as error:
            raise StoreError(f"cannot create a temporary folder: {error}") from error
        yield content
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


def _sweep(parent: Path) -> None:
    """Remove the scratch folders of killed processes of this user."""
    for folder in parent.glob(f"{_PREFIX}*"):
        lock = _lock(folder) if _is_ours(folder) else None
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _is_ours(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False
