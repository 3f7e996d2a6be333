"""Roll an index with live updates back to an earlier version."""

from __future__ import annotations

from scannery.indexer import Manifest, Store, read_manifest
from scannery.indexer import rollback as rollback_stored
from scannery.indexer.maintenance import lost_since
from scannery.live.log.homes import log_home
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogHome, WrongLogError
from scannery.live.log.registry import Registration, registered

__all__ = ["rollback"]


def rollback(
    store: Store, index: str, version: int, *, if_version: int = 0, log_root: LogRoot | None = None
) -> Manifest:
    """Publish the content of an earlier version as a new one, and return its manifest.

    Mutations sealed since then are undone, unless the current version is damaged and the log still has all of them:
    then they are applied again. `vectors: optional` stays, since the log may have rows without a vector. Raises as
    `scannery.indexer.rollback`, and as opening the log.

    Args:
        store: of the index.
        index: its name.
        version: the earlier version.
        if_version: refuse if the current version is another one; 0: any.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        WrongLogError: the current version is damaged, and the log of the index is not in that place.

    """
    old, registration = read_manifest(store, index, version), registered(store, index)
    begins_after = _begins_after(log_home(store, index, log_root), registration)
    if begins_after is None and registration is not None and lost_since(store, old):
        raise WrongLogError(
            f"the current version of index {index!r} is damaged, and mutations sealed since version {version} may be "
            f"in its log, which is {registration.where}: pass its place with --log, or, if it is lost, first run "
            "`scannery index log --forget`"
        )
    has_log = registration is not None or begins_after is not None
    return rollback_stored(
        store, index, version, if_version=if_version, log_after=begins_after, has_log=has_log
    )


def _begins_after(home: LogHome, registration: Registration | None) -> int | None:
    """Return the sequence after which the log has all mutations; None if there is no log, or not the registered one."""
    log = home.open()
    if log is None:
        return None
    try:
        return (
            log.truncated() if registration is None or log.identity().log_id == registration.log_id else None
        )
    finally:
        log.close()
