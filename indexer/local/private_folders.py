"""Folders of one user: what is read from them is handed to native code, so no other user may write there."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from scannery.indexer.errors import StoreError

__all__ = ["is_private", "keeps_code", "make_private"]

_LOG = logging.getLogger(__name__)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path, name: str) -> None:
    """Create a folder, and its parents that are missing, for the user of this process alone (0700).

    One that is there and that others can read or write is closed to them. `name` stands for it in errors.

    Raises:
        StoreError: it belongs to another user, or is a link.
        OSError: it cannot be made.

    """
    for item in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        item.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{name} is a link or a file; it must be a folder of the user who runs this")
    if status.st_uid != os.geteuid():
        raise StoreError(
            f"{name} belongs to user {status.st_uid}, and this process runs as {os.geteuid()}; who can write there "
            "could have it run anything, so it needs a folder of its own"
        )
    if status.st_mode & _OTHERS:
        if status.st_mode & _OTHERS_WRITE:
            _LOG.warning("%s could be written by other users (%s); it is closed to them now", name, folder)
        folder.chmod(0o700)


def keeps_code(folder: Path, source: Path) -> bool:
    """Return whether compiled code in a cache folder can be trusted as much as its source, and tell if it cannot.

    Numba's cache is pickle: loading it runs whatever it says. Beside the source nothing is gained by a check, since who
    can write there can change the source. One of ours that others could write is emptied and closed to them.
    """
    if folder.name == "__pycache__" and folder.parent.samefile(source.parent):
        return True
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        _LOG.warning("compiled code in %s is not used: it belongs to user %d", folder, status.st_uid)
        return False
    if status.st_mode & _OTHERS_WRITE:
        _LOG.warning("compiled code in %s could be written by other users; it is compiled anew", folder)
        folder.chmod(0o700)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
    return True


def is_private(folder: Path) -> bool:
    """Return whether a folder belongs to the user of this process, and no other user can write there."""
    status = folder.lstat()
    owned = status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode)
    return owned and not status.st_mode & _OTHERS_WRITE
