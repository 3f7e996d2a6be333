"""The registration of an index's log: one object in the store, created before the first write is accepted.

A log may lie outside the store, so two processes with different folders would each begin a log, and acknowledge writes
that the other never sees. The first log is registered by a conditional put; a second one is refused.

Checks of an index and its log, whatever kind of log it is.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from scannery.indexer import (
    AlreadyExistsError,
    CorruptError,
    FormatError,
    Manifest,
    NotFoundError,
    Store,
    read_manifest,
)
from scannery.indexer.versions.versions import log_registration_key
from scannery.live.log.location import is_database, log_folder
from scannery.live.log.mutation_log import LogReplacedError, MutationLog, WrongLogError

__all__ = [
    "ADVICE",
    "FORGET",
    "Registration",
    "check_begun",
    "check_current",
    "check_index",
    "check_registered",
    "forget",
    "register",
    "registered",
    "registration_key",
]


REGISTRATION_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The log that an index uses."""

    log_id: str
    """32 hexadecimal digits."""
    path: str | None
    """Absolute folder of the log when it was registered, or the URL of its database without credentials; None: inside
    the store."""
    host: str
    """Host name of the machine that registered it; empty for a database."""
    created_at: str
    """ISO 8601, UTC."""

    @property
    def where(self) -> str:
        """Location of the log, for messages."""
        if self.path is None:
            return "in the store"
        return f"in {self.path} on host {self.host}" if self.host else f"in {self.path}"

    @property
    def in_database(self) -> bool:
        """Whether the log is in a database."""
        return self.path is not None and is_database(self.path)

    def folder(self, store: Store, index: str) -> Path | None:
        """Return the registered folder on this machine; None: it is elsewhere, or the store is a bucket."""
        if self.path is None:
            return log_folder(store.local_root, index)
        return Path(self.path) if self.host == socket.gethostname() else None

    def is_in(self, store: Store, folder: Path) -> bool:
        """Return whether the log was registered for this folder of this machine."""
        return self.path == _path_of(store, folder) and (
            self.path is None or self.host == socket.gethostname()
        )


def registration_key(index: str) -> str:
    """Return the store key of the registration."""
    return log_registration_key(index)


def registered(store: Store, index: str) -> Registration | None:
    """Return the registration of an index's log.

    None: the index was never written to, or only by releases that registered no logs.

    Raises:
        CorruptError: the object is damaged.

    """
    key = registration_key(index)
    try:
        data = store.read(key)
    except NotFoundError:
        return None
    try:
        fields = json.loads(data)
        return Registration(**{name: fields[name] for name in ("log_id", "path", "host", "created_at")})
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{key} is damaged: {error!r}") from error


def register(store: Store, index: str, log_id: str, folder: Path | str | None) -> None:
    """Register the log of an index. Repeating it changes nothing, or updates the place of a log that was moved.

    Args:
        store: store of the index.
        index: name of the index.
        log_id: id of the log, which must exist.
        folder: folder of the log, or the URL of its database without credentials; None: inside the store.

    Raises:
        WrongLogError: the index uses another log.

    """
    registration = Registration(
        log_id=log_id,
        path=folder if isinstance(folder, str) else _path_of(store, folder),
        host="" if isinstance(folder, str) else socket.gethostname(),
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    current = registered(store, index)
    if current is None:
        try:
            store.create(registration_key(index), _to_json(registration))
            return
        except AlreadyExistsError:
            current = registered(store, index)
    if current is None or current.log_id != log_id:
        where = current.where if current else "elsewhere"
        raise WrongLogError(
            f"index {index!r} uses another log, {where}: the log in {folder or 'the store'} takes no writes"
        )
    if (current.path, current.host) != (registration.path, registration.host):  # the log was moved
        store.write(registration_key(index), _to_json(registration))


def forget(store: Store, index: str) -> None:
    """Remove the registration, so that the index begins a new log; mutations that were not sealed are lost."""
    store.delete(registration_key(index))


def _path_of(store: Store, folder: Path | None) -> str | None:
    inside = folder is None or (store.local_root is not None and folder.is_relative_to(store.local_root))
    return None if inside else str(folder)


def _to_json(registration: Registration) -> bytes:
    return json.dumps({"format": REGISTRATION_FORMAT, **asdict(registration)}, indent=2).encode() + b"\n"


FORGET = "begin a new log with `scannery index log --forget`, which loses the mutations that were not sealed"
ADVICE = f"pass the place of that log with --log, or, if it is lost, {FORGET}"


def check_current(store: Store, index: str, manifest: Manifest) -> None:
    """Check that an index was neither dropped nor created again since a version of it was opened.

    Raises:
        LogReplacedError: it was.

    """
    try:
        index_id = read_manifest(store, index).index_id
    except NotFoundError as error:
        raise LogReplacedError(f"index {index!r} was dropped") from error
    except (CorruptError, FormatError):
        return  # an earlier version is open, and takes writes
    if manifest.index_id is not None and index_id != manifest.index_id:
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
        registration = registered(store, index)
        if registration is not None and registration.log_id == log_id:
            forget(store, index)
        raise


def check_index(log: MutationLog, manifest: Manifest, *, where: str) -> None:
    """Check that a log belongs to the index of a version.

    Raises:
        WrongLogError: it does not.

    """
    index_id = log.identity().index_id
    if index_id is None:
        # Releases without ids wrote this log: it can only belong to an index that they created.
        wrong = manifest.index_id is not None and manifest.parent is None and log.position() > 0
    else:
        wrong = manifest.index_id is not None and manifest.index_id != index_id
    if wrong:
        raise WrongLogError(
            f"the log {where} does not belong to the present index {manifest.index!r}, which was created again or "
            "restored: move that log away"
        )


def check_registered(log: MutationLog, index: str, log_id: str, *, where: str, registered: str) -> None:
    """Check that a log is the registered one of an index.

    Args:
        log: the log.
        index: name of the index.
        log_id: id of the registered log.
        where: place of the log.
        registered: place of the registered log.

    Raises:
        WrongLogError: it is not.

    """
    if log.identity().log_id != log_id:
        raise WrongLogError(
            f"the log {where} is not the one that index {index!r} uses, which is {registered}: {ADVICE}"
        )
