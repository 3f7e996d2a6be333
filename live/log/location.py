"""Where the log of an index lies."""

from __future__ import annotations

from pathlib import Path

__all__ = ["LOG_FOLDER", "log_folder"]

LOG_FOLDER = "log"


def log_folder(root: Path | None, index: str) -> Path | None:
    """Return the folder of an index's log below a store or the folder that stands in for one; None without either."""
    return None if root is None else root / index / LOG_FOLDER
