"""Give up a log that is lost, so that an index takes writes again."""

from __future__ import annotations

import socket
from pathlib import Path

from scannery.indexer import AlreadyExistsError, Store, commit, read_manifest
from scannery.live.log.files import files_of_log
from scannery.live.log.home import LogPlace
from scannery.live.log.registry import Registration, forget, registered

__all__ = ["forget_log"]


def forget_log(store: Store, index: str, *, log_root: Path | None = None) -> Registration | None:
    """Let an index begin a new log, and return which one it used; None if it used none.

    What the former log has and no version does is lost. So it must have been moved away first: a process that has it
    open then notices, and takes no more writes to it.

    Raises:
        NotFoundError: no such index.
        AlreadyExistsError: there is a log, or what is left of one.

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
        # A build wanted records of that log applied upon it. No others may be taken for these.
        reached = {"log_sequence": manifest.log_reached, "log_floor": manifest.log_reached}
        commit(store, manifest.model_copy(update={"parent": manifest.version, **reached}))
    if known is not None:
        forget(store, index)
    return known
