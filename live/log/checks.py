"""Checks of an index and its log, whatever kind of log it is."""

from __future__ import annotations

from scannery.indexer import CorruptError, FormatError, Manifest, NotFoundError, Store, read_manifest
from scannery.live.log.mutation_log import LogReplacedError, MutationLog, WrongLogError
from scannery.live.log.registry import forget, registered

__all__ = ["ADVICE", "FORGET", "check_begun", "check_current", "check_index", "check_registered"]

FORGET = "begin a new log with `scannery index log --forget`, which loses the mutations that were not sealed"
ADVICE = f"pass the place of that log with --log, or, if it is lost, {FORGET}"


def check_current(store: Store, index: str, manifest: Manifest) -> None:
    """Check that an index was neither dropped nor created again since a version of it was opened.

    Raises:
        LogReplacedError: it was.

    """
    try:
        known = read_manifest(store, index).index_id
    except NotFoundError as error:
        raise LogReplacedError(f"index {index!r} was dropped") from error
    except (CorruptError, FormatError):
        return  # an earlier version is open, and takes writes
    if manifest.index_id is not None and known != manifest.index_id:
        raise LogReplacedError(f"index {index!r} was dropped and created again")


def check_begun(store: Store, index: str, manifest: Manifest, log_id: str) -> None:
    """Check again after a log was begun; if its index was dropped meanwhile, the log's registration is removed.

    A drop that begins later finds the log, and removes it.

    Raises:
        LogReplacedError: it was; the log is to be removed.

    """
    try:
        check_current(store, index, manifest)
    except LogReplacedError:
        known = registered(store, index)
        if known is not None and known.log_id == log_id:
            forget(store, index)
        raise


def check_index(log: MutationLog, manifest: Manifest, *, where: str) -> None:
    """Check that a log belongs to the index of a version.

    Raises:
        WrongLogError: it does not.

    """
    found = log.identity().index_id
    if found is None:
        # Releases without ids wrote this log: it can only belong to an index that they created.
        wrong = manifest.index_id is not None and manifest.parent is None and log.position() > 0
    else:
        wrong = manifest.index_id is not None and manifest.index_id != found
    if wrong:
        raise WrongLogError(
            f"the log {where} does not belong to the present index {manifest.index!r}, which was created again or "
            "restored: move that log away"
        )


def check_registered(log: MutationLog, index: str, known: str, *, where: str, registered: str) -> None:
    """Check that a log is the registered one of an index.

    Args:
        log: the log.
        index: name of the index.
        known: id of the registered log.
        where: place of the log.
        registered: place of the registered log.

    Raises:
        WrongLogError: it is not.

    """
    if log.identity().log_id != known:
        raise WrongLogError(
            f"the log {where} is not the one that index {index!r} uses, which is {registered}: {ADVICE}"
        )
