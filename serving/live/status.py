"""How far the log of an index is ahead of its version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scannery.indexer import Manifest, Store
from scannery.serving.live.location import log_folder
from scannery.serving.live.merging import due
from scannery.serving.live.sqlite_log import SqliteLog

__all__ = ["LogStatus", "log_status"]


@dataclass(frozen=True, kw_only=True)
class LogStatus:
    """What is not in a version yet."""

    mutations: int
    sequence: int
    """The last one."""
    size_bytes: int
    """Of the log's files."""
    merges: int
    """Groups of segments that are to be merged."""


def log_status(store: Store, manifest: Manifest, *, log_root: Path | None = None) -> LogStatus | None:
    """Return the status of an index's log; None if there is none here.

    Raises:
        CorruptError, FormatError, StoreError: it cannot be opened.

    """
    folder = log_folder(log_root or store.local_root, manifest.index)
    if folder is None:
        return None
    try:
        log = SqliteLog(folder)
    except FileNotFoundError:
        return None
    try:
        sequence = max(log.position(), manifest.log_sequence)
        return LogStatus(
            mutations=sequence - manifest.log_sequence,
            sequence=sequence,
            size_bytes=log.size_bytes(),
            merges=len(due(manifest)),
        )
    finally:
        log.close()
