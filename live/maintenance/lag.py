"""Lag: how far the log of an index is ahead of its version."""

from __future__ import annotations

from dataclasses import dataclass

from scannery.indexer import Manifest, Store
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LogRoot
from scannery.live.maintenance.merge_policy import due

__all__ = ["LogStatus", "log_status"]


@dataclass(frozen=True, kw_only=True)
class LogStatus:
    """Unsealed mutations, size and identity of a log."""

    mutations: int
    """Batches that are not in the version."""
    sequence: int
    """The last sequence."""
    size_bytes: int
    """Size of the log's files, or of its records in a database."""
    merges: int
    """Groups of segments that are due to be merged."""
    log_id: str | None
    """Id of the log; None if only releases without ids wrote to it."""
    written_by: str | None
    """Software that wrote last, as "SQLite 3.54.1"; None if it is not known."""


def log_status(store: Store, manifest: Manifest, *, log_root: LogRoot | None = None) -> LogStatus | None:
    """Return the status of an index's log; None if it has no log here.

    Args:
        store: of the index.
        manifest: of the version to compare with.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        CorruptError, FormatError, StoreError: the log cannot be opened.
        WrongLogError: the log found is not the one that the index uses.

    """
    log = checked_log(log_home(store, manifest.index, log_root), manifest)
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
            written_by=identity.written_by,
        )
    finally:
        log.close()
