"""Location of the log of an index."""

from __future__ import annotations

from pathlib import Path

__all__ = ["LOG_FOLDER", "log_folder"]

LOG_FOLDER = "log"


def log_folder(root: Path | None, index: str) -> Path | None:
    """Return the folder of an index's log below `root`: the store's folder, or one given for logs; None without one."""
    return None if root is None else root / index / LOG_FOLDER
