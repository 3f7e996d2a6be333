"""Give up a lost log, so that an index takes writes again."""

from __future__ import annotations

import socket
from pathlib import Path

from scannery.indexer import AlreadyExistsError, Store, commit, read_manifest
from scannery.live.log.files import files_of_log
from scannery.live.log.home import LogPlace
from scannery.live.log.registry import Registration, forget, registered

__all__ = ["forget_log"]


def forget_log(store: Store, index: str, *, log_root: Path | None = None) -> Registration | None:
    """Let an index begin a new log, and return the registration of its former log; None if it had none.

    Mutations of the former log that were not sealed are lost. It must be moved away first: processes that have it open
    notice that, and stop writing to it.

    Raises:
        NotFoundError: there is no such index.
        AlreadyExistsError: files of a log still exist.

    """
    manifest = read_manifest(store, index)
    known = registered(store, index)
    folders = [LogPlace(store, index, log_root).folder]
    if known is not None and known.path is not None and known.host == socket.gethostname():
        folders.append(Path(known.path))
    for folder in folders:
        if folder is not None and (found := files_of_log(folder)):
            raise AlreadyExistsError(
                f"{folder} has a log already ({', '.join(found)}): seal it, or move that folder away first"
            )
    if manifest.log_sequence < manifest.log_reached:
        # A build expects records of the former log to be applied to it; records of a new log must not replace them.
        reached = {"log_sequence": manifest.log_reached, "log_floor": manifest.log_reached}
        commit(store, manifest.model_copy(update={"parent": manifest.version, **reached}))
    if known is not None:
        forget(store, index)
    return known
