"""Going back to an earlier version of an index that takes live updates."""

from __future__ import annotations

from pathlib import Path

from scannery.indexer import Manifest, Store
from scannery.indexer import rollback as rollback_stored
from scannery.serving.live.location import log_folder
from scannery.serving.live.sqlite_log import SqliteLog

__all__ = ["rollback"]


def rollback(store: Store, index: str, version: int, *, log_root: Path | None = None) -> Manifest:
    """Publish the content of an earlier version as a new one.

    What was sealed since is undone; unless the current version is damaged and the log still has all of it: then it is
    applied again. Raises as `scannery.indexer.rollback`, and what opening the log raises.
    """
    folder = log_folder(log_root or store.local_root, index)
    return rollback_stored(store, index, version, log_after=None if folder is None else _begins_after(folder))


def _begins_after(folder: Path) -> int | None:
    """Return the sequence after which a log has all mutations; None if there is no log."""
    try:
        log = SqliteLog(folder)
    except FileNotFoundError:
        return None
    try:
        return log.truncated()
    finally:
        log.close()
