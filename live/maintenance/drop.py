"""Drop an index with its log, wherever that is, and, of a mirror, what it keeps of the index that it follows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from scannery.indexer import IndexerError, Store, read_manifest
from scannery.indexer.errors import CorruptError, StoreError
from scannery.indexer.versions.dropping import DropReport, drop_index
from scannery.live.log.homes import log_home, remove_files
from scannery.live.log.location import DatabaseUrl, LogRoot, log_folder
from scannery.live.log.mutation_log import LogHome
from scannery.live.log.registry import registered
from scannery.live.maintenance.mirror_leases import release_source
from scannery.runtime.mirror_names import mirrored_name

__all__ = ["drop"]

_LOG = logging.getLogger(__name__)


def drop(
    store: Store,
    index: str,
    *,
    log_root: LogRoot | None = None,
    force: bool = False,
    hidden: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[DropReport, str | None]:
    """Remove an index and its log; return the report, and where a log is that this machine cannot remove.

    Args:
        store: of the index.
        index: its name.
        log_root: parent folder of all logs, or their database; None: the registered folder of its log, if it is on this
            machine.
        force: although it is in use.
        hidden: called when the index is invisible, before its log and files are removed.
        progress: as `drop_index`.

    Raises:
        NotFoundError, InUseError: as `drop_index`.

    """
    try:
        registration = registered(store, index)
    except CorruptError:
        registration = None
    database = log_home(store, index, log_root) if isinstance(log_root, DatabaseUrl) else None
    expected_folder = None if isinstance(log_root, DatabaseUrl) else log_folder(log_root, index)
    folders = {expected_folder, registration.folder(store, index) if registration is not None else None}
    outside = [folder for folder in folders if folder is not None and not _is_in(folder, store)]
    removed, source = [], _mirrored(store, index)

    def release() -> None:
        if source:
            release_source(store, source, index)

    def remove_logs() -> None:
        hidden()
        release()
        for folder in outside:
            remove_files(folder)
        if database is not None and registration is not None and registration.in_database:
            removed.append(_removed(database, registration.log_id))

    report = drop_index(store, index, force=force, also=remove_logs, progress=progress)
    release()  # again, since what converts may just have renewed it
    is_elsewhere = (
        registration is not None and registration.path is not None and not outside and not any(removed)
    )
    return report, registration.where if registration is not None and is_elsewhere else None


def _mirrored(store: Store, index: str) -> str:
    """Return the name of the index that a mirror follows; empty: it follows none."""
    try:
        mirror = read_manifest(store, index).mirror
    except IndexerError:  # it was dropped before, by a process that was killed
        return mirrored_name(index)
    return mirror.index if mirror is not None else ""


def _removed(home: LogHome, log_id: str) -> bool:
    """Remove a log from its database; return whether that succeeded: the index is invisible already."""
    try:
        return home.remove(log_id)
    except StoreError as error:
        _LOG.warning("the log %s cannot be removed now: %s", log_id, error)
        return False


def _is_in(folder: Path, store: Store) -> bool:
    return store.local_root is not None and folder.absolute().is_relative_to(store.local_root)
