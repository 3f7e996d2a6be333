"""Going back to an earlier version of an index that takes live updates."""

from __future__ import annotations

from pathlib import Path

from scannery.indexer import Manifest, Store, read_manifest
from scannery.indexer import rollback as rollback_stored
from scannery.serving.live.log_place import LogPlace

__all__ = ["rollback"]


def rollback(store: Store, index: str, version: int, *, log_root: Path | None = None) -> Manifest:
    """Publish the content of an earlier version as a new one.

    What was sealed since is undone; unless the current version is damaged and the log still has all of it: then it is
    applied again.

    Raises:
        WrongLogError: the log is not the one of the index, or is elsewhere.
        IndexerError: as `scannery.indexer.rollback`, and as opening the log.

    """
    return rollback_stored(store, index, version, log_after=_begins_after(store, index, version, log_root))


def _begins_after(store: Store, index: str, version: int, log_root: Path | None) -> int | None:
    """Return the sequence after which the log has all mutations; None if there is no log."""
    log = LogPlace(store, index, log_root).checked(read_manifest(store, index, version))
    if log is None:
        return None
    try:
        return log.truncated()
    finally:
        log.close()
