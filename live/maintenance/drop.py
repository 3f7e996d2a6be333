"""Drop an index with its log, wherever that is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from scannery.indexer import Store
from scannery.indexer.errors import CorruptError
from scannery.indexer.versions.dropping import DropReport, drop_index
from scannery.live.log.files import DRAFT_FILE, files_of_log
from scannery.live.log.location import log_folder
from scannery.live.log.registry import registered

__all__ = ["drop"]


def drop(
    store: Store,
    index: str,
    *,
    log_root: Path | None = None,
    force: bool = False,
    hidden: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[DropReport, str | None]:
    """Remove an index and its log; return the report, and where a log is that this machine cannot remove.

    Args:
        store: of the index.
        index: its name.
        log_root: parent folder of all logs; None: the registered folder of its log, if it is on this machine.
        force: although it is in use.
        hidden: called when the index is invisible, before its log and files are removed.
        progress: as `drop_index`.

    Raises:
        NotFoundError, InUseError: as `drop_index`.

    """
    try:
        known = registered(store, index)
    except CorruptError:
        known = None
    folders = {log_folder(log_root, index), known.folder(store, index) if known is not None else None}
    outside = [folder for folder in folders if folder is not None and not _is_in(folder, store)]

    def remove_logs() -> None:
        hidden()
        for folder in outside:
            _remove_log(folder)

    report = drop_index(store, index, force=force, also=remove_logs, progress=progress)
    is_elsewhere = known is not None and known.path is not None and not outside
    return report, known.where if known is not None and is_elsewhere else None


def _remove_log(folder: Path) -> None:
    """Remove the files of a log, and its folder if nothing else is in it: it comes from a file of the store."""
    with contextlib.suppress(OSError):
        for name in files_of_log(folder):
            (folder / name).unlink()
        (folder / DRAFT_FILE).unlink(missing_ok=True)
        folder.rmdir()


def _is_in(folder: Path, store: Store) -> bool:
    return store.local_root is not None and folder.absolute().is_relative_to(store.local_root)
