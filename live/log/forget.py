"""Give up a lost log, so that an index takes writes again."""

from __future__ import annotations

from scannery.indexer import Store, commit, read_manifest
from scannery.live.log.home import check_no_files
from scannery.live.log.homes import log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.registry import Registration, forget, registered

__all__ = ["forget_log"]


def forget_log(store: Store, index: str, *, log_root: LogRoot | None = None) -> Registration | None:
    """Let an index begin a new log, and return the registration of its former log; None if it had none.

    Mutations of the former log that were not sealed are lost. It must be set aside first: processes that have it open
    notice that, and stop writing to it.

    Raises:
        NotFoundError: there is no such index.
        AlreadyExistsError: the former log is still there.

    """
    manifest = read_manifest(store, index)
    known = registered(store, index)
    log_home(store, index, log_root).check_absent()
    folder = known.folder(store, index) if known is not None else None
    if folder is not None:
        check_no_files(folder)
    if manifest.log_sequence < manifest.log_reached:
        # A build expects records of the former log to be applied to it; records of a new log must not replace them.
        reached = {"log_sequence": manifest.log_reached, "log_floor": manifest.log_reached}
        commit(store, manifest.model_copy(update={"parent": manifest.version, **reached}))
    if known is not None:
        forget(store, index)
    return known
