"""Private folders: their files are read by native code, so no other user may write there."""

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
    if status.st_mode & _OTHERS:
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
