"""Cache folders that only the user of this process can write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["cache_folder", "is_ours", "make_cache_folder"]


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return `$SCANNERY_CACHE_DIR`, or `scannery` in the user's cache folder."""
    # The same rule as in indexer/segment/cache.py, which `embed` may not import.
    named = os.environ.get("SCANNERY_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path(base or Path.home() / ".cache") / "scannery").absolute()


def make_cache_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700; OSError if that fails.

    An existing folder of this user that others can write is emptied and gets mode 0700.
    """
    for item in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        item.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode) and status.st_mode & _OTHERS_WRITE:
        folder.chmod(0o700)
        for path in folder.iterdir():
            path.unlink()


def is_ours(folder: Path) -> bool:
    """Return whether a folder belongs to the user of this process, and no other user can write there."""
    status = folder.lstat()
    owned = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return owned and not status.st_mode & _OTHERS_WRITE
