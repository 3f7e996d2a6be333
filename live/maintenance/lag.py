"""How far the log of an index is ahead of its version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scannery.indexer import Manifest, Store
from scannery.live.log.home import LogPlace
from scannery.live.maintenance.merge import due

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
    log_id: str | None
    """Of the log; None in one of early days."""
    sqlite_version: str | None
    """Of the SQLite that wrote to it last, as "3.54.1"."""


def log_status(store: Store, manifest: Manifest, *, log_root: Path | None = None) -> LogStatus | None:
    """Return the status of an index's log; None if there is none here.

    Raises:
        CorruptError, FormatError, StoreError: it cannot be opened.
        WrongLogError: the index uses another log than the one that is found.

    """
    log = LogPlace(store, manifest.index, log_root).checked(manifest)
    if log is None:
        return None
    try:
        identity = log.identity()
        sequence = max(log.position(), manifest.log_sequence)
        return LogStatus(
            mutations=sequence - manifest.log_sequence,
            sequence=sequence,
            size_bytes=log.size_bytes(),
            merges=len(due(manifest)),
            log_id=identity.log_id,
            sqlite_version=identity.sqlite_version,
        )
    finally:
        log.close()
